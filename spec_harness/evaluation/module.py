"""The LightningModule: its ``test_step`` runs speculative decoding, and the same prompts without it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lightning import LightningModule

from spec_harness.engine.engine import EngineStats
from spec_harness.engine.scheduler import Scheduler
from spec_harness.evaluation.progress import EvalProgress, PassProgress
from spec_harness.metrics.aggregate import ProposalMetric
from spec_harness.models.load import LoadedModel
from spec_harness.requests import Request, RequestRecord


@dataclass(kw_only=True)
class Pass:
    """One pass over all requests. Built by ``build``, filled by the module."""

    name: str  # "speculative" or "baseline"
    scheduler: Callable[[], Scheduler]  # allocates the KV caches: called once the models are on their device
    records: list[RequestRecord] = field(default_factory=list)  # finished requests, in the order of their finishing
    wall_s: float = 0.0  # seconds in the engine
    stage_s: dict[str, float] = field(default_factory=dict)  # seconds by stage
    stats: EngineStats = field(default_factory=EngineStats)
    blocks_peak: int = 0  # most KV blocks owned at one time
    blocks_total: int = 0  # KV blocks handed out
    draft_mass_outside: float | None = None  # mean draft probability on ids that the target lacks

    @property
    def acceptance_rate(self) -> float | None:
        """So far, of finished and running sequences: for the eye; the results' counts come from the metric."""
        return self.stats.num_accepted_tokens / self.stats.num_draft_tokens if self.stats.num_draft_tokens else None

    @property
    def num_output_tokens(self) -> int:
        return sum(len(record.token_ids) for record in self.records)

    @property
    def tokens_per_second(self) -> float | None:
        return self.num_output_tokens / self.wall_s if self.wall_s > 0 else None


class SpecDecodeEvalModule(LightningModule):
    """Data loader i feeds pass i. A batch only enqueues its requests: the engine then runs rounds until a sequence slot
    is free, so the next batch comes in time and ``max_num_seqs`` sequences keep running; a pass is drained at its
    end."""

    def __init__(
        self,
        target: LoadedModel,
        draft: LoadedModel | None,
        passes: list[Pass],
        *,
        num_requests: int,
        warm_up: Sequence[Request] = (),
        max_proposal_len: int,
        next_turn: Callable[[Pass, RequestRecord], Request | None],
        on_finished: Callable[[Pass, RequestRecord], None],
        on_step: Callable[["SpecDecodeEvalModule"], None] = lambda module: None,
    ) -> None:
        """``warm_up`` are run through each engine before anything is timed. ``next_turn`` gives the request that
        follows a finished one in its conversation; ``on_finished`` and ``on_step`` (after each engine step) are told of
        progress.
        """
        super().__init__()
        self.target_model = target.model  # registered, so that Lightning moves it
        self.draft_model = None if draft is None else draft.model
        self.proposals = ProposalMetric(max_proposal_len)  # of the first pass
        self.passes = passes
        self.num_engine_steps = 0
        self.follow_ups: list[str] = []  # request ids of later turns, in the first pass
        self._num_requests = num_requests
        self._warm_up = warm_up
        self._next_turn = next_turn
        self._on_finished = on_finished
        self._on_step = on_step
        self._scheduler: Scheduler | None = None
        self._current = 0

    @property
    def current_pass(self) -> Pass:
        return self.passes[self._current]

    def on_test_start(self) -> None:
        self.proposals.reset()
        self._current = 0
        for one in self.passes:  # the first pass must not be the one that finds everything cold
            _run_untimed(one.scheduler(), self._warm_up)
        self._scheduler = self.passes[0].scheduler()

    def test_step(self, batch: list[Request], batch_idx: int, dataloader_idx: int = 0) -> None:
        if dataloader_idx != self._current:
            self._drain()
            self._current = dataloader_idx
            self._scheduler = self.passes[dataloader_idx].scheduler()
        assert self._scheduler is not None
        for request in batch:
            self._scheduler.add(request)
        while not self._scheduler.has_free_slot:
            self._step(self._scheduler)

    def on_test_epoch_end(self) -> None:
        self._drain()

    def _drain(self) -> None:
        """Runs the current pass to its end, and lets go of its KV caches."""
        scheduler, current = self._scheduler, self.passes[self._current]
        assert scheduler is not None
        while scheduler.num_unfinished:
            self._step(scheduler)
        self._num_requests = len(current.records)  # a conversation may have ended before its last turn
        self._report(current)
        scheduler.blocks.check_integrity()
        current.stage_s = scheduler.worker.timer.seconds()
        current.blocks_peak = scheduler.blocks.peak_allocated
        current.blocks_total = scheduler.blocks.total_allocated
        current.draft_mass_outside = scheduler.worker.proposer.mass_outside_vocab
        self._scheduler = None

    def _step(self, scheduler: Scheduler) -> None:
        current = self.passes[self._current]
        current.stats = scheduler.stats  # the same object: it counts on
        began = time.perf_counter()  # a step ends with a copy to the host, so the device's work is in it
        finished = scheduler.step()
        current.wall_s += time.perf_counter() - began
        self.num_engine_steps += 1
        for record in finished:
            current.records.append(record)
            if self._current == 0:
                self.proposals.update(record.rounds, num_prefill_tokens=1)
            self._on_finished(current, record)
            following = self._next_turn(current, record)
            if following is not None:
                scheduler.add(following)
                if self._current == 0:
                    self.follow_ups.append(following.request_id)
        self._report(current)
        self._on_step(self)

    def _report(self, current: Pass) -> None:
        bar = self.trainer.progress_bar_callback
        if isinstance(bar, EvalProgress):
            bar.report(
                PassProgress(
                    name=current.name,
                    done=len(current.records),
                    total=max(self._num_requests, len(current.records)),
                    tokens_per_second=current.stats.num_emitted_tokens / current.wall_s if current.wall_s else 0.0,
                    acceptance_rate=current.acceptance_rate,
                )
            )


def _run_untimed(scheduler: Scheduler, requests: Sequence[Request]) -> None:
    for request in requests:
        scheduler.add(request)
    while scheduler.num_unfinished:
        scheduler.step()
