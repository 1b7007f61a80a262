"""From block tables to slots: where in the storage the KV of a position lies.

Slot of position p of a sequence = ``block_table[p // block_size] * block_size + p % block_size``.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor


def pad_block_tables(block_tables: Sequence[Sequence[int]]) -> list[list[int]]:
    """Rows of equal length; the padding (block 0) is never read, see ``context_slots``."""
    width = max(len(table) for table in block_tables)
    return [[*table, *[0] * (width - len(table))] for table in block_tables]


def slot_mapping(
    block_tables: Int[Tensor, "B W"], rows: Int[Tensor, " T"], positions: Int[Tensor, " T"], block_size: int
) -> Int[Tensor, " T"]:
    """Slot of each packed token, given its row (which sequence) and its position in that sequence."""
    return block_tables[rows, positions // block_size] * block_size + positions % block_size


def context_slots(
    block_tables: Int[Tensor, "B W"], seq_lens: Int[Tensor, " B"], max_len: int, block_size: int
) -> Int[Tensor, "B L"]:
    """Slots of positions 0 ... ``max_len`` - 1 of each sequence (``max_len`` = L tokens).

    Past the end of a sequence its last slot is repeated: padding then reads only what that sequence wrote itself. A
    slot of block 0 or of a free block could hold NaN, and a masked NaN key still gives NaN.
    """
    positions = torch.minimum(torch.arange(max_len, device=seq_lens.device)[None], seq_lens[:, None] - 1)
    return block_tables.gather(1, positions // block_size) * block_size + positions % block_size
