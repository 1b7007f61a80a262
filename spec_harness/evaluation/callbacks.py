"""Lightning callbacks that are told of the engine too, and those that keep a run's files."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lightning import Callback, LightningModule, Trainer

from spec_harness.metrics.identities import require
from spec_harness.report.markdown import write_report
from spec_harness.requests import RequestRecord
from spec_harness.results.run_directory import RESULTS_FILE
from spec_harness.results.run_files import RunFiles, token_texts
from spec_harness.results.schema import replace_text, write_results
from spec_harness.results.status import StatusFile

if TYPE_CHECKING:
    from spec_harness.evaluation.engine_run import EngineRun
    from spec_harness.evaluation.module import SpecDecodeEvalModule

Phase = Literal["checks", "warm_up", "engine", "results"]


class EvalCallback(Callback):
    """What ``SpecDecodeEvalModule`` calls on the trainer's callbacks, beside Lightning's own hooks. None of it is in
    the time that is measured."""

    def on_phase(self, trainer: Trainer, pl_module: "SpecDecodeEvalModule", phase: Phase) -> None:
        """What the test does from now on; ``engine`` once for each engine run."""

    def on_engine_step(self, trainer: Trainer, pl_module: "SpecDecodeEvalModule", run: "EngineRun") -> None:
        """After each step of an engine, and the hooks of the sequences that finished in it."""

    def on_sequence_finished(
        self, trainer: Trainer, pl_module: "SpecDecodeEvalModule", run: "EngineRun", record: RequestRecord
    ) -> None:
        """For each finished sequence; ``record`` is in ``run.records`` already."""


class KeepFiles(EvalCallback):
    """The files of a run, into a directory that exists: see ``RunFiles``; results.json, report.md and what the tokens
    say at the end of the test. What has finished is kept whatever ends the test."""

    def __init__(self, directory: Path, token_text: Callable[[int], str]) -> None:
        """``token_text``: what a token id says."""
        self._directory = directory
        self._token_text = token_text
        self._files: RunFiles | None = None

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._files = RunFiles(self._directory, _checked(pl_module).header)

    def on_sequence_finished(
        self, trainer: Trainer, pl_module: "SpecDecodeEvalModule", run: "EngineRun", record: RequestRecord
    ) -> None:
        assert self._files is not None
        self._files.add(run.name, record)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module = _checked(pl_module)
        assert self._files is not None
        assert module.results is not None
        num_tokens = self._files.finalize(module.runs[0].records)
        require("num_output_tokens = tokens in the round log", module.results.proposal.num_output_tokens, num_tokens)
        write_results(self._directory / RESULTS_FILE, module.results)
        write_report(self._directory / "report.md", module.results)
        texts = token_texts(module.runs[0].records, self._token_text)
        replace_text(self._directory / "token_texts.json", json.dumps(texts) + "\n")

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self._files is not None:
            with suppress(OSError):  # what ended the run is the better news
                self._files.finalize(_checked(pl_module).runs[0].records)


class KeepStatus(EvalCallback):
    """How many sequences of the first engine run are done, in status.json."""

    def __init__(self, status: StatusFile) -> None:
        self._status = status

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._status.update(0, requests_total=_checked(pl_module).num_sequences)

    def on_sequence_finished(
        self, trainer: Trainer, pl_module: "SpecDecodeEvalModule", run: "EngineRun", record: RequestRecord
    ) -> None:
        if run is pl_module.runs[0]:
            self._status.update(len(run.records))

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        finished = len(_checked(pl_module).runs[0].records)
        self._status.update(finished, requests_total=finished)  # a conversation may have ended before its last turn


def _checked(pl_module: LightningModule) -> "SpecDecodeEvalModule":
    from spec_harness.evaluation.module import SpecDecodeEvalModule

    assert isinstance(pl_module, SpecDecodeEvalModule)
    return pl_module
