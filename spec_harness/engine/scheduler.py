"""Which sequences run next, and in which KV blocks: policy on plain integers. No tensor, no model, no record."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from spec_harness.kv_cache.block_manager import BlockManager, OutOfBlocksError, blocks_for
from spec_harness.kv_cache.cache_ops import CacheOps


@dataclass(frozen=True)
class Demand:
    """What one waiting request asks for."""

    prompt_len: int  # tokens
    max_slots: int  # KV slots of one sequence at its full length
    num_samples: int = 1


@dataclass(frozen=True)
class RowDemand:
    """What one running sequence asks for in the next round."""

    seq_id: int
    num_slots: int  # KV slots, those that it has included
    write_from: int  # the first position that the round writes


@dataclass(frozen=True)
class RoundPlan:
    """Who takes part in a round, and what becomes of the KV blocks before it."""

    seq_ids: list[int]  # oldest first
    cache_ops: CacheOps
    tokens_held: int  # tokens in the blocks of those that take part; a shared block's count once
    slots_held: int
    preempted: dict[int, bool]  # by id; true: its KV lies on the host, false: it is gone


class Scheduler:
    """Admits while a sequence slot and the blocks of a first round are free. When blocks run out, the newest sequence
    is preempted; it comes back, before any new one, once there is room. A proposal is never shortened for lack of
    blocks: KV settings change time, not statistics."""

    def __init__(self, blocks: BlockManager, *, max_num_seqs: int, max_proposal_len: int, swap: bool = False) -> None:
        """``swap``: a preempted sequence's blocks move to the host where it has room, instead of being recomputed."""
        self.blocks = blocks
        self._max_num_seqs = max_num_seqs
        self._max_proposal_len = max_proposal_len
        self._swap = swap
        self._running: list[int] = []  # oldest first
        self._preempted: deque[int] = deque()  # oldest first
        self._lens: dict[int, int] = {}  # tokens of each sequence that has not finished
        self._max_slots: dict[int, int] = {}
        self._ops = CacheOps()  # block moves since the last round, in the order in which they were decided
        self._next_seq_id = 0

    @property
    def running(self) -> Sequence[int]:
        """The sequences that hold blocks, oldest first."""
        return tuple(self._running)

    @property
    def has_free_slot(self) -> bool:
        return not self._preempted and len(self._running) < self._max_num_seqs

    def check(self, demand: Demand) -> None:
        """Raises ``ValueError`` for what could never be admitted."""
        needed = blocks_for(demand.max_slots, self.blocks.block_size)
        if needed > self.blocks.num_blocks:
            raise ValueError(f"needs {needed} KV blocks, the pool has {self.blocks.num_blocks}")
        if not 1 <= demand.num_samples <= self._max_num_seqs:
            raise ValueError(f"asks for {demand.num_samples} samples, where 1 to {self._max_num_seqs} can run")

    def resume(self) -> None:
        """Takes preempted sequences back. A recomputed one catches up in its next ordinary round: no prefill."""
        while self._preempted and len(self._running) < self._max_num_seqs:
            seq_id = self._preempted[0]
            slots = min(self._lens[seq_id] + self._max_proposal_len, self._max_slots[seq_id])
            if blocks_for(slots, self.blocks.block_size) > self.blocks.num_free:
                return
            self._preempted.popleft()
            if self.blocks.is_swapped_out(seq_id):
                self._ops.swap_in += self.blocks.swap_in(seq_id)
            self.blocks.grow(seq_id, slots)
            self._running.append(seq_id)
            self._running.sort()

    def admit(self, demand: Demand) -> list[int]:
        """Ids for the sequences of a request, which share the prompt's blocks; none while it has to wait."""
        if self._preempted or len(self._running) + demand.num_samples > self._max_num_seqs:
            return []
        slots = min(demand.prompt_len + self._max_proposal_len + 1, demand.max_slots)
        # Each further sample writes after the shared prompt, so into a block of its own.
        needed = blocks_for(slots, self.blocks.block_size) + demand.num_samples - 1
        if min(needed, self.blocks.num_blocks) > self.blocks.num_free:
            return []
        first, self._next_seq_id = self._next_seq_id, self._next_seq_id + demand.num_samples
        seq_ids = list(range(first, self._next_seq_id))
        self.blocks.grow(first, demand.prompt_len if demand.num_samples > 1 else slots)
        for seq_id in seq_ids:
            if seq_id != first:
                self.blocks.fork(first, seq_id)
            self._lens[seq_id], self._max_slots[seq_id] = demand.prompt_len, demand.max_slots
        self._running += seq_ids
        return seq_ids

    def plan(self, rows: Sequence[RowDemand]) -> RoundPlan:
        """KV slots for the next round of all running sequences: oldest first, at the newest ones' expense."""
        seq_ids: list[int] = []
        preempted: dict[int, bool] = {}
        for row in rows:
            while row.seq_id in self._running:
                try:
                    self._ops.copy += self.blocks.grow(row.seq_id, row.num_slots, write_from=row.write_from)
                except OutOfBlocksError:
                    newest = self._running[-1]
                    preempted[newest] = self._preempt(newest)
                else:
                    seq_ids.append(row.seq_id)
                    break
        ops, self._ops = self._ops, CacheOps()
        # Whatever is written next has been copied, so the blocks that are still shared are full ones.
        shared = self.blocks.num_saved * self.blocks.block_size
        return RoundPlan(
            seq_ids,
            ops,
            tokens_held=sum(self._lens[seq_id] for seq_id in seq_ids) - shared,
            slots_held=self.blocks.num_allocated * self.blocks.block_size,
            preempted=preempted,
        )

    def _preempt(self, seq_id: int) -> bool:
        """Takes the sequence's blocks; true if their content goes to the host."""
        self._running.remove(seq_id)
        self._preempted.appendleft(seq_id)
        swapped = self._swap and self.blocks.can_swap_out(seq_id)
        if swapped:
            self._ops.swap_out += self.blocks.swap_out(seq_id)
        else:
            self.blocks.free(seq_id)
        return swapped

    def extend(self, seq_id: int, num_tokens: int) -> None:
        """Notes that a running sequence has ``num_tokens`` more."""
        self._lens[seq_id] += num_tokens

    def finish(self, seq_id: int) -> None:
        """Frees what a running sequence holds."""
        self._running.remove(seq_id)
        self.blocks.free(seq_id)
        del self._lens[seq_id], self._max_slots[seq_id]
