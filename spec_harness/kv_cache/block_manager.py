"""Which blocks each sequence owns. Pure integers: no tensor, no model, no notion of layers.

One table indexes the draft's cache and the target's, so a block id means the same slots in both.
"""

from collections.abc import Iterable


class OutOfBlocksError(RuntimeError):
    """More blocks were asked for than are free; nothing was changed."""


def blocks_for(num_slots: int, block_size: int) -> int:
    """Blocks that hold ``num_slots`` tokens."""
    return -(-num_slots // block_size)


class BlockManager:
    """Hands out KV blocks 1 ... ``num_blocks``. Block 0 is never handed out: padded writes may go there.

    Invariant (``check_integrity``): free + owned == total, and no block is owned twice.
    """

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"num_blocks and block_size must be at least 1, not {num_blocks} and {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks, 0, -1))  # a stack: the lowest ids go first, freed ones are reused at once
        self._tables: dict[int, list[int]] = {}
        self.peak_allocated = 0  # most blocks owned at one time
        self.total_allocated = 0  # blocks handed out so far

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_allocated(self) -> int:
        return self.num_blocks - len(self._free)

    def grow(self, seq_id: int, num_slots: int) -> None:
        """Gives ``seq_id`` (new or known) at least ``num_slots`` slots; raises ``OutOfBlocksError`` and changes nothing
        if too few blocks are free. Never shrinks."""
        table = self._tables.get(seq_id, [])
        missing = blocks_for(num_slots, self.block_size) - len(table)
        if missing > len(self._free):
            raise OutOfBlocksError(
                f"sequence {seq_id} needs {missing} more KV blocks for {num_slots} tokens, but {self.num_free} of "
                f"{self.num_blocks} are free"
            )
        if missing > 0:
            table = self._tables.setdefault(seq_id, table)
            table.extend(self._free.pop() for _ in range(missing))
            self.total_allocated += missing
            self.peak_allocated = max(self.peak_allocated, self.num_allocated)

    def free(self, seq_id: int) -> None:
        """Takes back all blocks of ``seq_id``."""
        self._free.extend(reversed(self._tables.pop(seq_id)))

    def block_table(self, seq_id: int) -> list[int]:
        """A copy of the block ids of ``seq_id``, in the order of its tokens."""
        return list(self._tables[seq_id])

    def sequences(self) -> Iterable[int]:
        return self._tables.keys()

    def check_integrity(self) -> None:
        """Raises ``AssertionError`` unless every block is free or owned, exactly once."""
        owned = [block for table in self._tables.values() for block in table]
        everything = sorted(self._free + owned)
        if everything != list(range(1, self.num_blocks + 1)):
            raise AssertionError(
                f"KV blocks leaked or shared: {len(self._free)} free + {len(owned)} owned != {self.num_blocks} in all"
            )
