"""Keeps ``max_num_seqs`` sequences running: admits, prefills, plans and runs rounds, preempts, commits, finishes."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from spec_harness.engine.commit import round_record
from spec_harness.engine.engine import EngineStats
from spec_harness.engine.proposal_length import plan_proposal_len
from spec_harness.engine.round import RoundOutcome, SpecDecodeWorker
from spec_harness.engine.running import RunningSequence
from spec_harness.engine.stopping import StopCriteria
from spec_harness.kv_cache.block_manager import BlockManager, OutOfBlocksError, blocks_for
from spec_harness.kv_cache.cache_ops import CacheOps
from spec_harness.requests import Request, RequestRecord, SequenceMetadata, SkipReason, StopReason


@dataclass(frozen=True)
class _PlannedRow:
    sequence: RunningSequence
    proposal_len: int
    skip_reason: SkipReason | None


class Scheduler:
    """Admits while a sequence slot and the blocks of a first round are free. When blocks run out, the newest sequence
    is preempted; it comes back, before any new one, once there is room. A proposal is never shortened for lack of
    blocks: KV settings change time, not statistics."""

    def __init__(
        self,
        worker: SpecDecodeWorker,
        blocks: BlockManager,
        *,
        max_num_seqs: int,
        max_proposal_len: int,
        stop: StopCriteria,
        preemption: Literal["recompute", "swap"] = "recompute",
        disable_above_batch: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.worker = worker
        self.blocks = blocks
        self.stats = EngineStats()
        self._max_num_seqs = max_num_seqs
        self.max_proposal_len = max_proposal_len
        self._stop = stop
        self._swap = preemption == "swap"
        self._disable_above_batch = disable_above_batch
        self._clock = clock
        self._waiting: deque[Request] = deque()
        self._preempted: deque[RunningSequence] = deque()  # oldest first
        self._running: list[RunningSequence] = []  # oldest first
        self._ops = CacheOps()  # block moves since the last round, in the order in which they were decided
        self._put_off = False  # the last step left out its round
        self._next_seq_id = 0

    def blocks_needed(self, request: Request) -> int:
        """Blocks of one sequence of ``request`` at its full length."""
        return blocks_for(self._max_slots(request), self.blocks.block_size)

    def add(self, request: Request) -> None:
        """Queues a request. Raises ``ValueError`` if it could never be run."""
        if not 0 < len(request.prompt_token_ids) < self.worker.target.max_model_len:
            raise ValueError(
                f"request {request.request_id}: a prompt of {len(request.prompt_token_ids)} tokens, where 1 to "
                f"{self.worker.target.max_model_len - 1} are possible (the target's maximum less 1)"
            )
        if self.blocks_needed(request) > self.blocks.num_blocks:
            raise ValueError(
                f"request {request.request_id} needs {self.blocks_needed(request)} KV blocks, the pool has "
                f"{self.blocks.num_blocks}"
            )
        if not 1 <= request.num_samples <= self._max_num_seqs:
            raise ValueError(
                f"request {request.request_id}: {request.num_samples} samples, where 1 to {self._max_num_seqs} can run"
            )
        self._waiting.append(request)

    @property
    def num_unfinished(self) -> int:
        """Sequences running or preempted, and requests not yet admitted."""
        return len(self._waiting) + len(self._preempted) + len(self._running)

    @property
    def running(self) -> Sequence[RunningSequence]:
        """The sequences that hold blocks, oldest first."""
        return tuple(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def has_free_slot(self) -> bool:
        """Nobody waits and one more sequence could be taken on."""
        return not self._waiting and not self._preempted and len(self._running) < self._max_num_seqs

    def step(self) -> list[RequestRecord]:
        """Admits and prefills what fits, then one round of every running sequence. Returns those that finished."""
        began = self._clock()
        with self.worker.timer.stage("scheduler"):
            self._resume()
            groups = [] if self._preempted else self._admit()
        self._prefill(groups)
        took_part = {seq.seq_id: seq for seq in chain(*groups)}
        # What a prefill has finished is handed out before a round that might fail; but no two steps without a round, or
        # a stream of one-token requests would hold up the others.
        finished = any(seq.stop_reason is not None for seq in took_part.values())
        self._put_off = finished and not self._put_off
        if self._running and not self._put_off:
            took_part |= {seq.seq_id: seq for seq in self._round()}
        share = (self._clock() - began) / max(1, len(took_part))
        for seq in took_part.values():
            seq.engine_s += share
        return [
            seq.record(self._stop.decode(seq.data.output_token_ids))
            for seq in took_part.values()
            if seq.stop_reason is not None
        ]

    def _resume(self) -> None:
        """Takes preempted sequences back. A recomputed one catches up in its next ordinary round: no prefill."""
        while self._preempted and len(self._running) < self._max_num_seqs:
            seq = self._preempted[0]
            slots = min(len(seq.data) + self.max_proposal_len, self._max_slots(seq.request))
            if blocks_for(slots, self.blocks.block_size) > self.blocks.num_free:
                return
            self._preempted.popleft()
            if self.blocks.is_swapped_out(seq.seq_id):
                self._ops.swap_in += self.blocks.swap_in(seq.seq_id)
            self.blocks.grow(seq.seq_id, slots)
            self._running.append(seq)
            self._running.sort(key=lambda running: running.seq_id)

    def _admit(self) -> list[list[RunningSequence]]:
        """New requests, each with its samples, for which there are slots and blocks up to their first round."""
        groups: list[list[RunningSequence]] = []
        taken = len(self._running)
        while self._waiting and taken + self._waiting[0].num_samples <= self._max_num_seqs:
            request = self._waiting[0]
            slots = min(len(request.prompt_token_ids) + self.max_proposal_len + 1, self._max_slots(request))
            # Each further sample writes behind the shared prompt, so into a block of its own.
            needed = blocks_for(slots, self.blocks.block_size) + request.num_samples - 1
            if min(needed, self.blocks.num_blocks) > self.blocks.num_free:
                break
            self._waiting.popleft()
            first = self._next_seq_id
            self._next_seq_id += request.num_samples
            now = self._clock()
            group = [
                RunningSequence.start(request, seq_id=first + sample, sample=sample, now=now)
                for sample in range(request.num_samples)
            ]
            prompt_slots = len(request.prompt_token_ids) if request.num_samples > 1 else slots
            self.blocks.grow(first, prompt_slots)
            for seq in group[1:]:
                self.blocks.fork(first, seq.seq_id)
            groups.append(group)
            taken += len(group)
        return groups

    def _prefill(self, groups: list[list[RunningSequence]]) -> None:
        if not groups:
            return
        drawn = self.worker.prefill([[self._with_table(seq) for seq in group] for group in groups])
        with self.worker.timer.stage("commit"):
            now = self._clock()
            for seq, token in zip(chain(*groups), chain(*drawn), strict=True):
                seq.first_token = now
                self._running.append(seq)
                ends = self._stop.first_stop(seq.metadata, [token])
                self._append(seq, [token], None if ends is None else ends[1])

    def _round(self) -> list[RunningSequence]:
        """Returns the sequences that took part."""
        with self.worker.timer.stage("scheduler"):
            rows = self._plan_round()
            metadata = [self._with_table(row.sequence) for row in rows]
            self._count(rows)
        ops, self._ops = self._ops, CacheOps()
        outcomes = self.worker.execute_round(metadata, [row.proposal_len for row in rows], ops)
        with self.worker.timer.stage("commit"):
            for row, outcome in zip(rows, outcomes, strict=True):
                self._commit(row, outcome)
        return [row.sequence for row in rows]

    def _plan_round(self) -> list[_PlannedRow]:
        """Proposal lengths, and KV slots for them: oldest sequences first, at the newest ones' expense."""
        rows: list[_PlannedRow] = []
        disabled = self._disable_above_batch is not None and len(self._running) > self._disable_above_batch
        for seq in list(self._running):
            length, reason = (0, "disabled") if disabled else self._plan(seq)
            while seq in self._running:
                try:
                    self._ops.copy += self.blocks.grow(
                        seq.seq_id,
                        len(seq.data) + length,
                        write_from=self.worker.first_write(seq.seq_id, length),
                    )
                except OutOfBlocksError:
                    self._preempt(self._running[-1])
                else:
                    rows.append(_PlannedRow(seq, length, reason))
                    break
        return rows

    def _plan(self, seq: RunningSequence) -> tuple[int, SkipReason | None]:
        return plan_proposal_len(
            seq.metadata,
            max_proposal_len=self.max_proposal_len,
            target_max=self.worker.target.max_model_len,
            draft_max=self.worker.proposer.max_model_len,
        )

    def _preempt(self, seq: RunningSequence) -> None:
        """Takes the sequence's blocks: to the host if it has room, else they are to be computed anew."""
        self._running.remove(seq)
        self._preempted.appendleft(seq)
        seq.preemptions += 1
        self.stats.preemptions += 1
        swapped = self._swap and self.blocks.can_swap_out(seq.seq_id)
        if swapped:
            self._ops.swap_out += self.blocks.swap_out(seq.seq_id)
            self.stats.swaps += 1
        else:
            self.blocks.free(seq.seq_id)
        self.worker.preempt(seq.seq_id, swapped=swapped)

    def _count(self, rows: list[_PlannedRow]) -> None:
        self.stats.num_steps += 1
        self.stats.rows_run += len(rows)
        held = sum(len(row.sequence.data) for row in rows)
        # Whatever is written next has been copied, so the blocks that are still shared are full ones.
        self.stats.tokens_held += held - self.blocks.num_saved * self.blocks.block_size
        self.stats.slots_held += self.blocks.num_allocated * self.blocks.block_size

    def _commit(self, row: _PlannedRow, outcome: RoundOutcome) -> None:
        seq, reason = row.sequence, row.skip_reason
        if row.proposal_len and not outcome.draft_token_ids:
            reason = self.worker.proposer.empty_reason
        stop = self._stop.first_stop(seq.metadata, outcome.output_token_ids)
        record = round_record(
            seq.metadata,
            outcome,
            turn=seq.request.turn,
            round_index=len(seq.rounds),
            skip_reason=reason,
            stop_index=None if stop is None else stop[0],
        )
        seq.rounds.append(record)
        self.stats.num_draft_tokens += record.proposal_len
        self.stats.num_accepted_tokens += record.num_accepted
        self.stats.num_emitted_tokens += record.num_emitted
        self._append(seq, record.output_token_ids, None if stop is None else stop[1])

    def _append(self, seq: RunningSequence, tokens: list[int], stop: StopReason | None) -> None:
        """Commits ``tokens``, and ends the sequence if they do."""
        seq.data.output_token_ids.extend(tokens)
        self.worker.commit(seq.seq_id, tokens, len(seq.data))
        full = len(seq.data) >= self.worker.target.max_model_len
        spent = len(seq.data.output_token_ids) >= seq.request.sampling.max_new_tokens
        seq.stop_reason = stop or ("length" if full or spent else None)
        if seq.stop_reason is not None:
            seq.finished = self._clock()
            self._running.remove(seq)
            self.blocks.free(seq.seq_id)
            self.worker.finish(seq.seq_id)

    def _max_slots(self, request: Request) -> int:
        """KV slots of a sequence at its full length; the last token's KV is never written."""
        longest = len(request.prompt_token_ids) + request.sampling.max_new_tokens
        return min(longest, self.worker.target.max_model_len) - 1

    def _with_table(self, seq: RunningSequence) -> SequenceMetadata:
        return seq.with_table(self.blocks.block_table(seq.seq_id))
