"""How many KV blocks there is room for."""

from collections.abc import Sequence

import torch

from spec_harness.kv_cache.kv_cache import KVCache
from spec_harness.models.load import LoadedModel


def bytes_per_block(models: Sequence[LoadedModel], block_size: int) -> int:
    """Bytes that one block id takes in the caches of all ``models``."""
    return sum(KVCache.bytes_per_block(m.layers, block_size=block_size, dtype=m.dtype) for m in models)


def pool_size(models: Sequence[LoadedModel], *, block_size: int, memory_share: float, on_cpu: int) -> int:
    """Blocks that fit into ``memory_share`` of a GPU's memory next to what is already allocated there; on the
    CPU, whose memory is not the engine's to fill, ``on_cpu``."""
    device = models[0].model.device
    if device.type != "cuda":
        return on_cpu
    free, total = torch.cuda.mem_get_info(device)
    budget = int(total * memory_share) - (total - free)
    return max(0, budget) // bytes_per_block(models, block_size) - 1  # block 0 comes on top
