"""What a terminal sees meanwhile: the phase of the run, and requests done, tokens per second, running acceptance."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.status import Status

from spec_harness.evaluation.callbacks import EvalCallback, Phase
from spec_harness.evaluation.engine_run import EngineRun
from spec_harness.evaluation.module import SpecDecodeEvalModule
from spec_harness.report.terminal import WIDTH

_WORDS: dict[Phase, str] = {
    "checks": "integrity checks",
    "warm_up": "warming up",
    "results": "step times and intervals",
}


@contextmanager
def phase(text: str, *, shown: bool) -> Iterator[None]:
    """Says what is under way while the block runs, and clears it away. Silent where stderr is no terminal."""
    console = Console(stderr=True)
    if not shown or not console.is_terminal:
        yield
        return
    with console.status(text):
        yield


class EvalProgress(EvalCallback, ProgressBar):
    """One bar for each engine run, since a batch of the data loader is no measure of progress where sequences come and
    go. Silent where stderr is no terminal."""

    def __init__(self) -> None:
        super().__init__()
        console = Console(stderr=True)
        console.width = min(console.width, WIDTH)
        self._progress = Progress(
            TextColumn("{task.description:<11}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("requests {task.fields[speed]:>5.0f} tokens/s {task.fields[acceptance]:<13}"),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
            console=console,
            transient=True,
            expand=True,
        )
        self._tasks: dict[str, TaskID] = {}
        self._status: Status | None = None
        self._enabled = console.is_terminal

    def disable(self) -> None:
        self._enabled = False

    def on_phase(self, trainer: Trainer, pl_module: SpecDecodeEvalModule, phase: Phase) -> None:
        if not self._enabled:
            return
        self._stop()
        if phase == "engine":
            self._progress.start()
            self._show(pl_module, pl_module.current_run)
        else:
            self._status = self._progress.console.status(_WORDS[phase])
            self._status.start()

    def on_engine_step(self, trainer: Trainer, pl_module: SpecDecodeEvalModule, run: EngineRun) -> None:
        if self._enabled:
            self._show(pl_module, run)

    def _show(self, module: SpecDecodeEvalModule, run: EngineRun) -> None:
        rate, done = run.acceptance_rate, len(run.records)
        fields: dict[str, Any] = {
            "total": max(module.num_sequences, done),
            "speed": run.stats.num_emitted_tokens / run.wall_s if run.wall_s else 0.0,
            "acceptance": "" if rate is None else f"accepted {rate:.0%}",
        }
        if run.name not in self._tasks:
            self._tasks[run.name] = self._progress.add_task(run.name, **fields)
        self._progress.update(self._tasks[run.name], completed=done, **fields)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._stop()

    def _stop(self) -> None:
        if not self._enabled:  # where there is no terminal rich would print an empty line
            return
        self._progress.stop()
        if self._status is not None:
            self._status.stop()
            self._status = None
