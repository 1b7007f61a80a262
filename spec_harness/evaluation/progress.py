"""What a terminal sees meanwhile: the phase of the run, and requests done, tokens per second, running acceptance."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from spec_harness.report.terminal import WIDTH


@contextmanager
def phase(text: str, *, shown: bool) -> Iterator[None]:
    """Says what is under way while the block runs, and clears it away. Silent where stderr is no terminal."""
    console = Console(stderr=True)
    if not shown or not console.is_terminal:
        yield
        return
    with console.status(text):
        yield


@dataclass(frozen=True, kw_only=True)
class PassProgress:
    """How far one pass over the requests is."""

    name: str
    done: int  # requests
    total: int
    tokens_per_second: float
    acceptance_rate: float | None


class EvalProgress(ProgressBar):
    """Lightning's place for a progress bar; the module reports to it after every engine step, since one batch of the
    data loader is no measure of progress where sequences come and go. Silent where stderr is no terminal."""

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
        self._tasks: dict[str, Any] = {}
        self._enabled = self._progress.console.is_terminal

    def disable(self) -> None:
        self._enabled = False

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._enabled:
            self._progress.start()

    def report(self, state: PassProgress) -> None:
        if not self._enabled:
            return
        rate = state.acceptance_rate
        fields: dict[str, Any] = {
            "speed": state.tokens_per_second,
            "acceptance": "" if rate is None else f"accepted {rate:.0%}",
        }
        if state.name not in self._tasks:
            self._tasks[state.name] = self._progress.add_task(state.name, total=state.total, **fields)
        self._progress.update(self._tasks[state.name], completed=state.done, total=state.total, **fields)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._enabled:  # where there is no terminal rich would print an empty line
            self._progress.stop()
