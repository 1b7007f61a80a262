"""Which blocks each sequence owns. Pure integers: no tensor, no model, no notion of layers.

One table indexes the draft's cache and the target's, so a block id means the same slots in both.
"""

from collections import Counter

from spec_harness.kv_cache.cache_ops import BlockPair


class OutOfBlocksError(RuntimeError):
    """More blocks were asked for than are free; nothing was changed."""


def blocks_for(num_slots: int, block_size: int) -> int:
    """Blocks that hold ``num_slots`` tokens."""
    return -(-num_slots // block_size)


class BlockManager:
    """Hands out KV blocks 1 ... ``num_blocks`` and host blocks 0 ... ``num_host_blocks`` - 1.

    Device block 0 is never handed out: padded writes may go there. Sequences that forked share blocks, which are
    counted; a shared block is replaced by a copy before one of them writes to it. A sequence owns device blocks or,
    swapped out, host blocks, never both.
    """

    def __init__(self, *, num_blocks: int, block_size: int, num_host_blocks: int = 0) -> None:
        if num_blocks < 1 or block_size < 1 or num_host_blocks < 0:
            raise ValueError(
                f"num_blocks and block_size must be at least 1 and num_host_blocks at least 0, not {num_blocks}, "
                f"{block_size} and {num_host_blocks}"
            )
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_host_blocks = num_host_blocks
        self._free = list(range(num_blocks, 0, -1))  # a stack: the lowest ids go first, freed ones are reused at once
        self._owners = Counter[int]()  # device block → sequences that own it
        self._tables: dict[int, list[int]] = {}
        self._host_free = list(range(num_host_blocks - 1, -1, -1))
        self._host_tables: dict[int, list[int]] = {}
        self.peak_allocated = 0  # most blocks owned at one time
        self.total_allocated = 0  # blocks handed out so far

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_allocated(self) -> int:
        return self.num_blocks - len(self._free)

    @property
    def num_saved(self) -> int:
        """Blocks that sharing saves: those in all tables together, less those allocated."""
        return sum(len(table) for table in self._tables.values()) - self.num_allocated

    def grow(self, seq_id: int, num_slots: int, *, write_from: int | None = None) -> list[BlockPair]:
        """Gives ``seq_id`` (new or known) at least ``num_slots`` slots. Never shrinks.

        Positions from ``write_from`` on are about to be written (``None``: none that the sequence has): blocks there
        that it shares are replaced by blocks of its own, and the (source, destination) pairs to copy are returned.
        Raises ``OutOfBlocksError`` and changes nothing if too few blocks are free.
        """
        table = self._tables.get(seq_id, [])
        first = len(table) if write_from is None else write_from // self.block_size
        shared = [i for i in range(first, len(table)) if self._owners[table[i]] > 1]
        missing = max(0, blocks_for(num_slots, self.block_size) - len(table))
        if missing + len(shared) > len(self._free):
            raise OutOfBlocksError(
                f"sequence {seq_id} needs {missing + len(shared)} more KV blocks for {num_slots} tokens, but "
                f"{self.num_free} of {self.num_blocks} are free"
            )
        copies = []
        for index in shared:
            own = self._take()
            copies.append((table[index], own))
            self._owners[table[index]] -= 1
            table[index] = own
        if missing:
            table = self._tables.setdefault(seq_id, table)
            table.extend(self._take() for _ in range(missing))
        return copies

    def fork(self, parent: int, child: int) -> None:
        """The new sequence ``child`` shares all blocks of ``parent``."""
        if child in self._tables or child in self._host_tables:
            raise ValueError(f"sequence {child} owns blocks already")
        self._tables[child] = list(self._tables[parent])
        self._owners.update(self._tables[child])

    def free(self, seq_id: int) -> None:
        """Takes back all blocks of ``seq_id``, on the device or the host. Raises ``KeyError`` if it owns none."""
        if seq_id in self._host_tables:
            self._host_free.extend(reversed(self._host_tables.pop(seq_id)))
        else:
            self._release(self._tables.pop(seq_id))

    def can_swap_out(self, seq_id: int) -> bool:
        return len(self._tables[seq_id]) <= len(self._host_free)

    def swap_out(self, seq_id: int) -> list[BlockPair]:
        """Moves the sequence's blocks to the host: (device, host) pairs to copy. Shared blocks stay with the others."""
        if not self.can_swap_out(seq_id):
            raise OutOfBlocksError(f"sequence {seq_id} needs {len(self._tables[seq_id])} host blocks")
        table = self._tables.pop(seq_id)
        self._host_tables[seq_id] = [self._host_free.pop() for _ in table]
        self._release(table)
        return list(zip(table, self._host_tables[seq_id], strict=True))

    def swap_in(self, seq_id: int) -> list[BlockPair]:
        """Moves them back: (host, device) pairs to copy. Raises ``OutOfBlocksError`` and changes nothing if too few are
        free."""
        needed = len(self._host_tables[seq_id])
        if needed > len(self._free):
            raise OutOfBlocksError(f"sequence {seq_id} needs {needed} KV blocks, but {self.num_free} are free")
        host = self._host_tables.pop(seq_id)
        self._tables[seq_id] = [self._take() for _ in host]
        self._host_free.extend(reversed(host))
        return list(zip(host, self._tables[seq_id], strict=True))

    def is_swapped_out(self, seq_id: int) -> bool:
        return seq_id in self._host_tables

    def block_table(self, seq_id: int) -> list[int]:
        """A copy of the device block ids of ``seq_id``, in the order of its tokens."""
        return list(self._tables[seq_id])

    def check_integrity(self) -> None:
        """Raises ``AssertionError`` unless every block is either free or owned, and counted as often as it is owned."""
        owners = Counter(block for table in self._tables.values() for block in table)
        if owners != +self._owners:
            raise AssertionError(f"KV block owners are miscounted: {owners} owned, {+self._owners} counted")
        if sorted(self._free + list(owners)) != list(range(1, self.num_blocks + 1)):
            raise AssertionError(
                f"KV blocks leaked or taken twice: {len(self._free)} free + {len(owners)} owned != {self.num_blocks}"
            )
        held = [block for table in self._host_tables.values() for block in table]
        if sorted(self._host_free + held) != list(range(self.num_host_blocks)):
            raise AssertionError(
                f"host blocks leaked: {len(self._host_free)} free + {len(held)} held != {self.num_host_blocks}"
            )

    def _take(self) -> int:
        block = self._free.pop()
        self._owners[block] = 1
        self.total_allocated += 1
        self.peak_allocated = max(self.peak_allocated, self.num_allocated)
        return block

    def _release(self, table: list[int]) -> None:
        for block in reversed(table):
            self._owners[block] -= 1
            if self._owners[block] == 0:
                del self._owners[block]
                self._free.append(block)
