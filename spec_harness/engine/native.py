"""The native engine: each step admits, prefills, plans, runs a round and commits it."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from spec_harness.engine.commit import round_record
from spec_harness.engine.engine import BlockUsage, Capabilities, EngineReport, EngineStats
from spec_harness.engine.probes import NativeProbe
from spec_harness.engine.proposal_length import ProposalLengths
from spec_harness.engine.round import SpecDecodeWorker
from spec_harness.engine.running import RunningSequence
from spec_harness.engine.scheduler import Demand, RowDemand, Scheduler
from spec_harness.engine.stopping import StopCriteria
from spec_harness.kv_cache.cache_ops import CacheOps
from spec_harness.requests import Request, RequestRecord, RoundOutcome, SequenceMetadata, SkipReason, StopReason


@dataclass(frozen=True)
class _Waiting:
    request: Request
    arrival: float  # seconds, monotonic clock


@dataclass(frozen=True)
class _PlannedRow:
    sequence: RunningSequence
    proposal_len: int
    skip_reason: SkipReason | None


class NativeEngine:
    """Plain PyTorch on paged KV caches; an ``Engine``. Without a proposer it is the autoregressive baseline."""

    def __init__(
        self,
        worker: SpecDecodeWorker,
        scheduler: Scheduler,
        lengths: ProposalLengths,
        stop: StopCriteria,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.worker = worker
        self.scheduler = scheduler
        self.lengths = lengths
        self._stop = stop
        self._clock = clock
        self._stats = EngineStats()
        self._waiting: deque[_Waiting] = deque()
        self._sequences: dict[int, RunningSequence] = {}  # running or preempted, by id
        self._put_off = False  # the last step left out its round
        probe = NativeProbe(worker, scheduler, self._sequences)
        self._capabilities = Capabilities(cache=probe, stages=probe)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def stats(self) -> EngineStats:
        return self._stats

    @property
    def num_unfinished(self) -> int:
        return len(self._waiting) + len(self._sequences)

    @property
    def has_free_slot(self) -> bool:
        return not self._waiting and self.scheduler.has_free_slot

    @property
    def running(self) -> list[RunningSequence]:
        """The sequences that hold KV blocks, oldest first."""
        return [self._sequences[seq_id] for seq_id in self.scheduler.running]

    def add(self, request: Request, *, arrival_s: float | None = None) -> None:
        longest = self.lengths.target_max - 1
        if not 0 < len(request.prompt_token_ids) <= longest:
            raise ValueError(
                f"request {request.request_id}: a prompt of {len(request.prompt_token_ids)} tokens, where 1 to "
                f"{longest} are possible (the target's maximum less 1)"
            )
        asked, sampler = request.sampling, self.worker.target.sampler
        if (asked.temperature, asked.top_k, asked.top_p) != (sampler.temperature, sampler.top_k, sampler.top_p):
            raise ValueError(
                f"request {request.request_id}: temperature {asked.temperature:g}, top_k {asked.top_k} and top_p "
                f"{asked.top_p:g}, where all of this engine's requests have {sampler.temperature:g}, {sampler.top_k} "
                f"and {sampler.top_p:g}"
            )
        try:
            self.scheduler.check(self._demand(request))
        except ValueError as error:
            raise ValueError(f"request {request.request_id} {error}") from error
        self._waiting.append(_Waiting(request, self._clock() if arrival_s is None else arrival_s))

    def step(self) -> list[RequestRecord]:
        began = self._clock()
        took_part = {seq.seq_id: seq for seq in self._prefill()}
        # What a prefill has finished is handed out before a round that might fail; but no two steps without a round, or
        # a stream of one-token requests would hold up the others.
        self._put_off = not self._put_off and any(seq.stop_reason is not None for seq in took_part.values())
        if self.scheduler.running and not self._put_off:
            took_part |= {seq.seq_id: seq for seq in self._round()}
        share = (self._clock() - began) / max(1, len(took_part))
        for seq in took_part.values():
            seq.engine_s += share
        ended = [seq for seq in took_part.values() if seq.stop_reason is not None]
        return [seq.record(self._stop.decode(seq.data.output_token_ids)) for seq in ended]

    def finish(self) -> EngineReport:
        blocks = self.scheduler.blocks
        blocks.check_integrity()
        if self.num_unfinished or blocks.num_allocated:
            raise AssertionError(f"{self.num_unfinished} requests unfinished, {blocks.num_allocated} KV blocks held")
        return EngineReport(
            stats=self._stats,
            stage_s=self.worker.timer.seconds(),
            blocks=BlockUsage(peak=blocks.peak_allocated, total=blocks.total_allocated),
            notes=self.worker.proposer.notes(),
        )

    def _admit(self) -> list[list[RunningSequence]]:
        """New requests, each with its samples."""
        self.scheduler.resume()
        groups: list[list[RunningSequence]] = []
        while self._waiting and (seq_ids := self.scheduler.admit(self._demand(self._waiting[0].request))):
            waiting, now = self._waiting.popleft(), self._clock()
            groups.append(
                [
                    RunningSequence.start(
                        waiting.request, seq_id=seq_id, sample=sample, now=now, queued=now - waiting.arrival
                    )
                    for sample, seq_id in enumerate(seq_ids)
                ]
            )
        return groups

    def _prefill(self) -> list[RunningSequence]:
        """Admits; returns the new sequences, each with its first token."""
        with self.worker.timer.stage("scheduler"):
            groups = self._admit()
        if not groups:
            return []
        started = [seq for group in groups for seq in group]
        self._sequences |= {seq.seq_id: seq for seq in started}
        drawn = self.worker.prefill([[self._with_table(seq) for seq in group] for group in groups])
        with self.worker.timer.stage("commit"):
            now = self._clock()
            for seq, token in zip(started, (token for tokens in drawn for token in tokens), strict=True):
                seq.first_token = now
                ends = self._stop.first_stop(seq.metadata, [token])
                self._append(seq, [token], None if ends is None else ends[1])
        return started

    def _round(self) -> list[RunningSequence]:
        """Returns the sequences that took part."""
        with self.worker.timer.stage("scheduler"):
            rows, ops = self._plan()
            metadata = [self._with_table(row.sequence) for row in rows]
        outcomes = self.worker.execute_round(metadata, [row.proposal_len for row in rows], ops)
        with self.worker.timer.stage("commit"):
            for row, outcome in zip(rows, outcomes, strict=True):
                self._commit(row, outcome)
        return [row.sequence for row in rows]

    def _plan(self) -> tuple[list[_PlannedRow], CacheOps]:
        """Proposal lengths, and KV slots for them."""
        running = self.running
        planned = [_PlannedRow(seq, *self.lengths.plan(seq.metadata, batch=len(running))) for seq in running]
        plan = self.scheduler.plan(
            [
                RowDemand(
                    row.sequence.seq_id,
                    num_slots=len(row.sequence.data) + row.proposal_len,
                    write_from=self.worker.first_write(row.sequence.seq_id, row.proposal_len),
                )
                for row in planned
            ]
        )
        for seq_id, swapped in plan.preempted.items():
            self._sequences[seq_id].preemptions += 1
            self.worker.preempt(seq_id, swapped=swapped)
        stats = self._stats
        stats.num_steps += 1
        stats.rows_run += len(plan.seq_ids)
        stats.tokens_held += plan.tokens_held
        stats.slots_held += plan.slots_held
        stats.preemptions += len(plan.preempted)
        stats.swaps += sum(plan.preempted.values())
        return [row for row in planned if row.sequence.seq_id in plan.seq_ids], plan.cache_ops

    def _commit(self, row: _PlannedRow, outcome: RoundOutcome) -> None:
        seq, reason = row.sequence, row.skip_reason
        if row.proposal_len and not outcome.draft_token_ids:
            reason = self.worker.proposer.skip_reason
        stop = self._stop.first_stop(seq.metadata, outcome.output_token_ids)
        record = round_record(
            seq.metadata,
            outcome,
            turn=seq.request.turn,
            round_index=len(seq.rounds),
            skip_reason=reason,
            stop_index=None if stop is None else stop[0],
            ended_s=self._clock() - seq.admitted,
        )
        seq.rounds.append(record)
        self._stats.num_draft_tokens += record.proposal_len
        self._stats.num_accepted_tokens += record.num_accepted
        self._stats.num_emitted_tokens += record.num_emitted
        self._append(seq, record.output_token_ids, None if stop is None else stop[1])

    def _append(self, seq: RunningSequence, tokens: list[int], stop: StopReason | None) -> None:
        """Commits ``tokens``, and ends the sequence if they do."""
        seq.data.output_token_ids.extend(tokens)
        self.scheduler.extend(seq.seq_id, len(tokens))
        self.worker.commit(seq.seq_id, tokens, len(seq.data))
        full = len(seq.data) >= self.lengths.target_max
        spent = len(seq.data.output_token_ids) >= seq.request.sampling.max_new_tokens
        seq.stop_reason = stop or ("length" if full or spent else None)
        if seq.stop_reason is not None:
            seq.finished = self._clock()
            self.scheduler.finish(seq.seq_id)
            self.worker.finish(seq.seq_id)
            del self._sequences[seq.seq_id]

    def _demand(self, request: Request) -> Demand:
        """The last token's KV is never written."""
        longest = len(request.prompt_token_ids) + request.sampling.max_new_tokens
        max_slots = min(longest, self.lengths.target_max) - 1
        return Demand(len(request.prompt_token_ids), max_slots, request.num_samples)

    def _with_table(self, seq: RunningSequence) -> SequenceMetadata:
        return seq.with_table(self.scheduler.blocks.block_table(seq.seq_id))
