"""How many KV blocks an engine gets."""

from collections.abc import Sequence

import torch

from spec_harness.kv_cache.kv_cache import KVCache
from spec_harness.models.load import LoadedModel


def bytes_per_block(models: Sequence[LoadedModel], block_size: int) -> int:
    """Bytes that one block id takes in the caches of all ``models``."""
    return sum(KVCache.bytes_per_block(m.layers, block_size=block_size, dtype=m.dtype) for m in models)


def blocks_that_fit(models: Sequence[LoadedModel], *, block_size: int, memory_share: float) -> int:
    """Blocks that fit into ``memory_share`` of a GPU's memory next to what is already allocated there."""
    free, total = torch.cuda.mem_get_info(models[0].model.device)
    budget = int(total * memory_share) - (total - free)
    return max(0, budget) // bytes_per_block(models, block_size) - 1  # block 0 comes on top
