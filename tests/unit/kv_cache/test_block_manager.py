import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec_harness.kv_cache.block_manager import BlockManager, OutOfBlocksError, blocks_for


@pytest.mark.parametrize(("slots", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_blocks_for_rounds_up(slots: int, blocks: int) -> None:
    assert blocks_for(slots, 4) == blocks


def test_block_0_is_never_handed_out() -> None:
    blocks = BlockManager(num_blocks=3, block_size=4)
    blocks.grow(7, 12)
    assert sorted(blocks.block_table(7)) == [1, 2, 3]
    assert blocks.num_free == 0


def test_grow_keeps_the_blocks_already_owned_and_never_shrinks() -> None:
    blocks = BlockManager(num_blocks=9, block_size=4)
    blocks.grow(1, 5)
    table = blocks.block_table(1)
    assert len(table) == 2
    blocks.grow(1, 8)
    assert blocks.block_table(1) == table
    blocks.grow(1, 9)
    assert blocks.block_table(1)[:2] == table
    blocks.grow(1, 1)
    assert len(blocks.block_table(1)) == 3


def test_out_of_blocks_changes_nothing() -> None:
    blocks = BlockManager(num_blocks=3, block_size=4)
    blocks.grow(1, 8)
    for seq_id in (1, 2):
        with pytest.raises(
            OutOfBlocksError, match=rf"sequence {seq_id} needs \d more KV blocks for 20 tokens, but 1 of 3"
        ):
            blocks.grow(seq_id, 20)
    assert len(blocks.block_table(1)) == 2
    with pytest.raises(KeyError):
        blocks.block_table(2)
    assert (blocks.num_free, blocks.num_allocated, blocks.peak_allocated) == (1, 2, 2)
    blocks.check_integrity()


def test_freed_blocks_are_used_again() -> None:
    blocks = BlockManager(num_blocks=2, block_size=1)
    blocks.grow(1, 2)
    table = blocks.block_table(1)
    blocks.free(1)
    blocks.grow(2, 2)
    assert blocks.block_table(2) == table
    with pytest.raises(KeyError):
        blocks.block_table(1)


def test_a_block_table_is_a_copy() -> None:
    blocks = BlockManager(num_blocks=4, block_size=1)
    blocks.grow(1, 2)
    blocks.block_table(1).append(99)
    assert 99 not in blocks.block_table(1)
    blocks.check_integrity()


@pytest.mark.parametrize("fault", ["shared", "lost", "host"])
def test_integrity_notices_a_shared_and_a_lost_block(fault: str) -> None:
    blocks = BlockManager(num_blocks=4, block_size=1, num_host_blocks=2)
    blocks.grow(1, 2)
    blocks.check_integrity()
    if fault == "shared":
        blocks._tables[2] = [blocks._tables[1][0]]
    elif fault == "lost":
        blocks._tables[1].pop()
    else:
        blocks._host_free.pop()
    with pytest.raises(AssertionError):
        blocks.check_integrity()


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 4), (4, 0)])
def test_sizes_below_one_are_refused(num_blocks: int, block_size: int) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        BlockManager(num_blocks=num_blocks, block_size=block_size)


def test_forked_sequences_share_blocks_until_one_writes() -> None:
    blocks = BlockManager(num_blocks=6, block_size=4)
    blocks.grow(1, 6)
    blocks.fork(1, 2)
    assert blocks.block_table(2) == blocks.block_table(1)
    assert (blocks.num_allocated, blocks.num_saved) == (2, 2)
    shared = blocks.block_table(1)
    copies = blocks.grow(2, 7, write_from=6)
    assert copies == [(shared[1], blocks.block_table(2)[1])]
    assert blocks.block_table(1) == shared
    assert blocks.block_table(2)[0] == shared[0]
    assert blocks.grow(1, 7, write_from=6) == []  # the other one has left the block
    assert (blocks.num_allocated, blocks.num_saved) == (3, 1)
    blocks.free(1)
    assert (blocks.num_allocated, blocks.num_saved) == (2, 0)
    blocks.check_integrity()


class Model:
    """A device and a host memory of integers, on which the pairs that a block manager returns are carried out.

    Whatever is done to a sequence, its slots must go on holding what it wrote: that is all a KV cache is for.
    """

    def __init__(self, *, num_blocks: int, block_size: int, num_host_blocks: int) -> None:
        self.blocks = BlockManager(num_blocks=num_blocks, block_size=block_size, num_host_blocks=num_host_blocks)
        self.device = [[-1] * block_size for _ in range(num_blocks + 1)]
        self.host = [[-1] * block_size for _ in range(num_host_blocks)]
        self.written: dict[int, list[int]] = {}
        self.swapped: set[int] = set()
        self.clock = 0

    def apply(self, operation: tuple[str, int, int]) -> None:
        name, seq_id, amount = operation
        if name == "fork":
            if seq_id in self.written and seq_id not in self.swapped and amount not in self.written:
                self.blocks.fork(seq_id, amount)
                self.written[amount] = list(self.written[seq_id])
        elif name == "grow":
            if seq_id not in self.swapped:
                self.grow(seq_id, amount)
        elif seq_id in self.written:
            getattr(self, name)(seq_id)

    def grow(self, seq_id: int, amount: int) -> None:
        """Writes ``amount`` tokens, from two positions before the end on, as after a rejection."""
        tokens = self.written.get(seq_id, [])
        start = max(0, len(tokens) - 2)
        before = self.blocks._tables.get(seq_id, [])[:]
        try:
            copies = self.blocks.grow(seq_id, start + amount, write_from=start)
        except OutOfBlocksError:
            assert self.blocks._tables.get(seq_id, []) == before
            return
        self.move(self.device, self.device, copies)
        fresh = list(range(self.clock, self.clock + amount))
        self.clock += amount
        self.written[seq_id] = tokens[:start] + fresh
        size = self.blocks.block_size
        for offset, token in enumerate(fresh):
            position = start + offset
            self.device[self.blocks.block_table(seq_id)[position // size]][position % size] = token

    def free(self, seq_id: int) -> None:
        self.blocks.free(seq_id)
        del self.written[seq_id]
        self.swapped.discard(seq_id)

    def swap_out(self, seq_id: int) -> None:
        if seq_id not in self.swapped and self.blocks.can_swap_out(seq_id):
            self.move(self.device, self.host, self.blocks.swap_out(seq_id))
            self.swapped.add(seq_id)

    def swap_in(self, seq_id: int) -> None:
        if seq_id in self.swapped:
            try:
                pairs = self.blocks.swap_in(seq_id)
            except OutOfBlocksError:
                assert self.blocks.is_swapped_out(seq_id)
                return
            self.move(self.host, self.device, pairs)
            self.swapped.remove(seq_id)

    @staticmethod
    def move(source: list[list[int]], destination: list[list[int]], pairs: list[tuple[int, int]]) -> None:
        for index, block in [(d, list(source[s])) for s, d in pairs]:
            destination[index] = block

    def check(self) -> None:
        self.blocks.check_integrity()
        owned: set[int] = set()
        for seq_id, tokens in self.written.items():
            assert self.blocks.is_swapped_out(seq_id) == (seq_id in self.swapped)
            if seq_id not in self.swapped:
                table = self.blocks.block_table(seq_id)
                assert 0 not in table
                assert [t for block in table for t in self.device[block]][: len(tokens)] == tokens
                owned |= set(table)
        assert self.blocks.num_allocated == len(owned)


SEQUENCE_IDS = st.integers(0, 4)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("grow"), SEQUENCE_IDS, st.integers(1, 20)),
        st.tuples(st.just("fork"), SEQUENCE_IDS, SEQUENCE_IDS),
        st.tuples(st.sampled_from(["free", "swap_out", "swap_in"]), SEQUENCE_IDS, st.just(0)),
    ),
    max_size=50,
)


@given(OPERATIONS, st.integers(1, 16), st.integers(1, 5), st.integers(0, 8))
def test_any_sequence_of_operations_keeps_the_blocks_whole_and_every_sequence_its_tokens(
    operations: list[tuple[str, int, int]], num_blocks: int, block_size: int, num_host_blocks: int
) -> None:
    model = Model(num_blocks=num_blocks, block_size=block_size, num_host_blocks=num_host_blocks)
    for operation in operations:
        model.apply(operation)
        model.check()
    for seq_id in list(model.written):
        model.free(seq_id)
        model.check()
    assert model.blocks.num_free == num_blocks
