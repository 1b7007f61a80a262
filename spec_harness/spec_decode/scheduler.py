"""Keeps ``max_num_seqs`` sequences running: admits, prefills, runs rounds, commits, finishes."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from spec_harness.kv_cache.block_manager import BlockManager, blocks_for
from spec_harness.sequence import SamplingParams, SequenceData, SequenceMetadata
from spec_harness.spec_decode.commit import round_record
from spec_harness.spec_decode.proposal_length import plan_proposal_len
from spec_harness.spec_decode.records import RequestRecord, RoundRecord, SkipReason, StopReason
from spec_harness.spec_decode.spec_decode_worker import RoundOutcome, SpecDecodeWorker
from spec_harness.spec_decode.stopping import StopCriteria


@dataclass(frozen=True, kw_only=True)
class Request:
    """One prompt to complete."""

    request_id: str
    prompt: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    category: str = "default"
    turn: int = 0


@dataclass(eq=False)  # a sequence is itself, whatever it holds
class _Running:
    """A sequence that holds KV blocks."""

    request: Request
    metadata: SequenceMetadata  # its block table is refreshed by ``_with_slots``
    max_blocks: int  # what it may come to own
    admitted: float  # seconds, monotonic clock
    first_token: float = 0.0
    rounds: list[RoundRecord] = field(default_factory=list)

    @property
    def data(self) -> SequenceData:
        return self.metadata.data


@dataclass
class SchedulerStats:
    """What the scheduler counts; KV figures are sums over steps, so that ratios come once, at the end."""

    num_steps: int = 0
    tokens_held: int = 0
    slots_held: int = 0
    rows_run: int = 0


class Scheduler:
    """Admits a waiting request while a sequence slot is free and the pool can hold it to its full length next to the
    full lengths of those running; so no sequence ever runs out of blocks, and a small pool only runs fewer at a
    time."""

    def __init__(
        self,
        worker: SpecDecodeWorker,
        blocks: BlockManager,
        *,
        max_num_seqs: int,
        max_proposal_len: int,
        stop: StopCriteria,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.worker = worker
        self.blocks = blocks
        self.stats = SchedulerStats()
        self._max_num_seqs = max_num_seqs
        self._max_proposal_len = max_proposal_len
        self._stop = stop
        self._clock = clock
        self._waiting: deque[Request] = deque()
        self._running: list[_Running] = []
        self._next_seq_id = 0

    def blocks_needed(self, request: Request) -> int:
        """Blocks of ``request`` at its full length; the last token's KV is never written."""
        longest = min(len(request.prompt_token_ids) + request.sampling.max_new_tokens, self.worker.target.max_model_len)
        return blocks_for(longest - 1, self.blocks.block_size)

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
        self._waiting.append(request)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def has_free_slot(self) -> bool:
        """No request waits and one more could be taken on."""
        return not self._waiting and len(self._running) < self._max_num_seqs

    def step(self) -> list[RequestRecord]:
        """Admits and prefills what fits, then one round of every running sequence. Returns those that finished."""
        finished = self._prefill(self._admit())
        if self._running:
            finished += self._round()
        return finished

    def _admit(self) -> list[_Running]:
        admitted: list[_Running] = []
        with self.worker.timer.stage("scheduler"):
            reserved = sum(seq.max_blocks for seq in self._running)
            while self._waiting and len(self._running) + len(admitted) < self._max_num_seqs:
                needed = self.blocks_needed(self._waiting[0])
                if reserved + needed > self.blocks.num_blocks:
                    break
                reserved += needed
                request = self._waiting.popleft()
                metadata = SequenceMetadata(
                    request_id=request.request_id,
                    seq_id=self._next_seq_id,
                    data=SequenceData(list(request.prompt_token_ids)),
                    block_table=[],
                    sampling=request.sampling,
                )
                self._next_seq_id += 1
                admitted.append(_Running(request, metadata, needed, self._clock()))
        return admitted

    def _prefill(self, admitted: list[_Running]) -> list[RequestRecord]:
        if not admitted:
            return []
        tokens = self.worker.prefill([self._with_slots(seq, 0) for seq in admitted])
        finished = []
        with self.worker.timer.stage("commit"):
            now = self._clock()
            for seq, token in zip(admitted, tokens, strict=True):
                seq.first_token = now
                self._running.append(seq)
                ends = self._stop.first_stop(seq.metadata, [token])
                stop = self._append(seq, [token], None if ends is None else ends[1])
                if stop is not None:
                    finished.append(self._finish(seq, stop))
        return finished

    def _round(self) -> list[RequestRecord]:
        with self.worker.timer.stage("scheduler"):
            batch = list(self._running)
            plans = [self._plan(seq) for seq in batch]
            metadata = [self._with_slots(seq, plan[0]) for seq, plan in zip(batch, plans, strict=True)]
            self.stats.num_steps += 1
            self.stats.rows_run += len(batch)
            self.stats.tokens_held += sum(len(seq.data) for seq in batch)
            self.stats.slots_held += self.blocks.num_allocated * self.blocks.block_size
        outcomes = self.worker.execute_round(metadata, [length for length, _ in plans])
        finished = []
        with self.worker.timer.stage("commit"):
            for seq, outcome, (_, reason) in zip(batch, outcomes, plans, strict=True):
                stop = self._commit(seq, outcome, reason)
                if stop is not None:
                    finished.append(self._finish(seq, stop))
        return finished

    def _plan(self, seq: _Running) -> tuple[int, SkipReason | None]:
        return plan_proposal_len(
            seq.metadata,
            max_proposal_len=self._max_proposal_len,
            target_max=self.worker.target.max_model_len,
            draft_max=self.worker.proposer.max_model_len,
        )

    def _with_slots(self, seq: _Running, proposal_len: int) -> SequenceMetadata:
        """The sequence's metadata with KV slots for its tokens and the proposal's."""
        self.blocks.grow(seq.metadata.seq_id, len(seq.data) + proposal_len)
        seq.metadata = replace(seq.metadata, block_table=self.blocks.block_table(seq.metadata.seq_id))
        return seq.metadata

    def _commit(self, seq: _Running, outcome: RoundOutcome, reason: SkipReason | None) -> StopReason | None:
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
        return self._append(seq, record.output_token_ids, None if stop is None else stop[1])

    def _append(self, seq: _Running, tokens: list[int], stop: StopReason | None) -> StopReason | None:
        """Commits ``tokens``; the reason if the sequence ends with them."""
        seq.data.output_token_ids.extend(tokens)
        self.worker.rewind(seq.metadata.seq_id, len(seq.data))
        if stop is not None:
            return stop
        full = len(seq.data) >= self.worker.target.max_model_len
        spent = len(seq.data.output_token_ids) >= seq.request.sampling.max_new_tokens
        return "length" if full or spent else None

    def _finish(self, seq: _Running, stop: StopReason) -> RequestRecord:
        self._running.remove(seq)
        self.blocks.free(seq.metadata.seq_id)
        self.worker.forget(seq.metadata.seq_id)
        tokens, now = seq.data.output_token_ids, self._clock()
        return RequestRecord(
            request_id=seq.request.request_id,
            turn=seq.request.turn,
            sample=seq.metadata.sample,
            category=seq.request.category,
            prompt=seq.request.prompt,
            prompt_token_ids=seq.request.prompt_token_ids,
            token_ids=tokens,
            text=self._stop.decode(tokens),
            stop_reason=stop,
            time_to_first_token=seq.first_token - seq.admitted,
            time_per_output_token=(now - seq.first_token) / (len(tokens) - 1) if len(tokens) > 1 else None,
            rounds=seq.rounds,
        )
