"""The LightningModule: its test runs every request through each engine, and logs what came of it."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

from lightning import LightningModule

from spec_harness.data.conversations import Conversations
from spec_harness.evaluation.callbacks import EvalCallback, Phase
from spec_harness.evaluation.checks import Checks
from spec_harness.evaluation.engine_run import EngineRun
from spec_harness.evaluation.sections import kv_results, limitations, predicted_times
from spec_harness.metrics.counts import ProposalCounts, counts_by_request
from spec_harness.metrics.identities import check_identities
from spec_harness.report.notes import notes
from spec_harness.requests import Request
from spec_harness.results.assemble import run_results
from spec_harness.results.figures import plain_numbers
from spec_harness.results.round_log import RunHeader
from spec_harness.results.schema import Check, RunResults, StepTimeResults


class SpecDecodeEvalModule(LightningModule):
    """Data loader i feeds ``runs[i]``. A batch only enqueues its requests: the engine then runs steps until a sequence
    slot is free, so the next batch comes in time and ``max_num_seqs`` sequences keep running; a run is drained at its
    end. The models belong to the engines: they stay on the device where they were loaded.

    ``results`` is there once the test's epoch has ended; its figures are logged under their keys in results.json, with
    slashes (``proposal/acceptance_rate``). Every ``EvalCallback`` of the trainer is told of progress.
    """

    def __init__(
        self,
        runs: Sequence[EngineRun],
        *,
        header: RunHeader,
        requests: Sequence[Request],
        warm_up: Sequence[Request] = (),
        conversations: Conversations | None = None,
        checks: Checks | None = None,
    ) -> None:
        """``requests`` are the whole data set's first turns; ``warm_up`` go through each engine before anything is
        timed."""
        super().__init__()
        self.runs = list(runs)
        self.header = header
        self.num_sequences = header.num_sequences  # of each run; a conversation may end before its last turn
        self.num_engine_steps = 0
        self.results: RunResults | None = None
        self._requests = requests
        self._warm_up = warm_up
        self._conversations = conversations
        self._checks = checks or Checks()
        self._current = 0

    @property
    def current_run(self) -> EngineRun:
        return self.runs[self._current]

    def on_test_start(self) -> None:
        self.results, self.num_engine_steps, self._current = None, 0, 0
        self._enqueued: list[str] = []  # request ids by sequence, of the first run
        self._follow_ups: list[str] = []  # those of later turns
        self._counts = ProposalCounts(max_proposal_len=self.header.max_proposal_len)  # of the first run
        if self._conversations is not None:
            self._conversations.restart()
        self._tell("checks")
        self._gate: list[Check] = self._checks.gate()
        self._tell("warm_up")
        for run in self.runs:  # the first must not be the one that finds everything cold
            run.warm_up(self._warm_up)
        self._start(0)

    def test_step(self, batch: list[Request], batch_idx: int, dataloader_idx: int = 0) -> None:
        if dataloader_idx != self._current:
            self._drain()
            self._start(dataloader_idx)
        for request in batch:
            self._enqueue(request)
        engine = self.current_run.engine
        while engine is not None and not engine.has_free_slot:
            self._step()

    def on_test_epoch_end(self) -> None:
        self._drain()
        self._tell("results")
        self.results = self._results()
        self.log_dict({key: float(value) for key, value in plain_numbers(self.results).items()})

    def _start(self, index: int) -> None:
        self._current = index
        self.current_run.start()
        self._tell("engine")

    def _enqueue(self, request: Request) -> None:
        run = self.current_run
        assert run.engine is not None
        run.engine.add(request)
        if self._current == 0:
            self._enqueued += [request.request_id] * request.num_samples

    def _drain(self) -> None:
        run = self.current_run
        while run.engine is not None and run.engine.num_unfinished:
            self._step()
        self.num_sequences = len(run.records)
        run.finish()

    def _step(self) -> None:
        run = self.current_run
        for record in run.step():
            if self._current == 0:
                self._counts += ProposalCounts.from_rounds(
                    record.rounds, max_proposal_len=self.header.max_proposal_len, num_prefill_tokens=1
                )
            for callback in self._listeners():
                callback.on_sequence_finished(self.trainer, self, run, record)
            following = self._conversations.next_turn(run.name, record) if self._conversations else None
            if following is not None:
                self._enqueue(following)
                self._follow_ups += [following.request_id] * (self._current == 0)
        self.num_engine_steps += 1
        for callback in self._listeners():
            callback.on_engine_step(self.trainer, self, run)

    def _listeners(self) -> list[EvalCallback]:
        return [callback for callback in self.trainer.callbacks if isinstance(callback, EvalCallback)]  # type: ignore[attr-defined]  # untyped there

    def _tell(self, phase: Phase) -> None:
        for callback in self._listeners():
            callback.on_phase(self.trainer, self, phase)

    @property
    def _is_limited(self) -> bool:
        """The trainer was told to take some of the batches only."""
        loaders = self.trainer.test_dataloaders or []
        return any(n < len(loader) for n, loader in zip(self.trainer.num_test_batches, loaders, strict=True))

    def _results(self) -> RunResults:
        first, spent = self.runs[0], datetime.now(UTC) - self.header.provenance.started_at
        equality = self._checks.equality(first.records, self.runs[1].records) if len(self.runs) > 1 else None
        steps = self._step_times()
        self._check_identities()
        status: Literal["done", "partial"] = "partial" if self._is_limited else "done"
        results = run_results(
            self.header,
            self.runs,
            status="failed" if equality is not None and equality.fault else status,
            duration_s=spent.total_seconds(),
            integrity={"checks": self._gate, "baseline_equality": equality},
            timing=None if steps is None else predicted_times(self._counts, steps),
            kv=kv_results(self.header.kv, first),
            notes=[
                *(self._conversations.notes() if self._conversations else []),
                *limitations(first),
                *self._checks.notes,
            ],
        )
        return results.model_copy(update={"notes": [*results.notes, *notes(results, first.records)]})

    def _step_times(self) -> StepTimeResults | None:
        """At the run's mean batch, where there is a speed-up to explain."""
        if len(self.runs) < 2 or self.header.max_proposal_len == 0:
            return None
        stats = self.runs[0].stats
        return self._checks.step_times(batch=max(1, round(stats.rows_run / max(1, stats.num_steps))))

    def _check_identities(self) -> None:
        first = self.runs[0]
        given = [request.request_id for request in self._requests for _ in range(request.num_samples)]
        check_identities(
            self._counts,
            per_request=counts_by_request(first.records, max_proposal_len=self.header.max_proposal_len),
            generated_tokens=first.num_output_tokens,
            seen_ids=[record.request_id for record in first.records],
            expected_ids=self._enqueued if self._is_limited else given + self._follow_ups,
        )
