import torch

from spec_harness.kv_cache.block_table import context_slots, pad_block_tables, slot_mapping
from tests.helpers import shuffled_tables


def test_padding_appends_block_0() -> None:
    assert pad_block_tables([[3], [5, 1, 2], [4, 6]]) == [[3, 0, 0], [5, 1, 2], [4, 6, 0]]


def test_slots_are_those_of_the_definition() -> None:
    for block_size in (1, 3, 8):
        lengths = [7, 1, 20]
        tables = shuffled_tables(lengths, block_size, num_blocks=60)
        padded = torch.tensor(pad_block_tables(tables))
        rows = torch.tensor([b for b, n in enumerate(lengths) for _ in range(n)])
        positions = torch.tensor([p for n in lengths for p in range(n)])
        expected = [
            tables[b][p // block_size] * block_size + p % block_size for b, n in enumerate(lengths) for p in range(n)
        ]
        assert slot_mapping(padded, rows, positions, block_size).tolist() == expected
        assert len(set(expected)) == sum(lengths)

        context = context_slots(padded, torch.tensor(lengths), max(lengths), block_size)
        for b, n in enumerate(lengths):
            own = expected[sum(lengths[:b]) : sum(lengths[: b + 1])]
            assert context[b].tolist() == own + [own[-1]] * (max(lengths) - n)  # the last slot is repeated, no block 0
