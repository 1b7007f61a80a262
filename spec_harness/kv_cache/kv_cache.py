"""The storage: keys and values of every layer, by slot. Knows nothing of sequences."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from spec_harness.kv_cache.cache_ops import BlockPair, CacheOps


@dataclass(frozen=True)
class LayerShape:
    """What one attention layer caches for one token."""

    num_kv_heads: int
    key_dim: int
    value_dim: int


class KVCache:
    """Keys ``[slots, H, D]`` and values ``[slots, H, E]`` of each layer, with slots = (num_blocks + 1) * block_size.

    The one block on top is block 0, which belongs to no sequence. Host blocks hold what is swapped out (pinned memory
    beside a GPU).
    """

    def __init__(
        self,
        layers: Sequence[LayerShape],
        *,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        num_host_blocks: int = 0,
    ) -> None:
        self.layers, self.dtype, self.device = tuple(layers), dtype, device
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.num_host_blocks = num_host_blocks
        slots, host_slots = (num_blocks + 1) * block_size, num_host_blocks * block_size
        shapes = [((x.num_kv_heads, x.key_dim), (x.num_kv_heads, x.value_dim)) for x in layers]
        self.keys = [torch.zeros(slots, *key, dtype=dtype, device=device) for key, _ in shapes]
        self.values = [torch.zeros(slots, *value, dtype=dtype, device=device) for _, value in shapes]
        pinned = device.type == "cuda" and num_host_blocks > 0
        self._host = [
            torch.zeros(host_slots, *shape, dtype=dtype, pin_memory=pinned) for pair in shapes for shape in pair
        ]

    @classmethod
    def like(cls, other: "KVCache", *, num_blocks: int) -> "KVCache":
        """An empty cache for the same model."""
        return cls(
            other.layers,
            num_blocks=num_blocks,
            block_size=other.block_size,
            dtype=other.dtype,
            device=other.device,
        )

    @staticmethod
    def bytes_per_block(layers: Sequence[LayerShape], *, block_size: int, dtype: torch.dtype) -> int:
        """Bytes of keys and values that one block takes over all layers."""
        per_token = sum(x.num_kv_heads * (x.key_dim + x.value_dim) for x in layers)
        return per_token * block_size * dtype.itemsize

    def write(
        self, layer: int, slots: Int[Tensor, " T"], key: Float[Tensor, "T H D"], value: Float[Tensor, "T H E"]
    ) -> None:
        self.keys[layer].index_copy_(0, slots, key)
        self.values[layer].index_copy_(0, slots, value)

    def gather(
        self, layer: int, slots: Int[Tensor, "B L"]
    ) -> tuple[Float[Tensor, "B L H D"], Float[Tensor, "B L H E"]]:
        """Copies of the keys and values at ``slots``; does not change the cache."""
        flat = slots.reshape(-1)
        key = self.keys[layer].index_select(0, flat)
        value = self.values[layer].index_select(0, flat)
        return key.view(*slots.shape, *key.shape[1:]), value.view(*slots.shape, *value.shape[1:])

    def apply(self, ops: CacheOps) -> None:
        """Carries out ``ops``. Raises ``ValueError`` and changes nothing if an id is wrong."""
        ops.check(num_blocks=self.num_blocks, num_host_blocks=self.num_host_blocks)
        device = [storage for pair in zip(self.keys, self.values, strict=True) for storage in pair]
        for own, host in zip(device, self._host, strict=True):
            self._move(host, own, ops.swap_in)
            self._move(own, host, ops.swap_out)
            self._move(own, own, ops.copy)

    def _move(self, source: Tensor, destination: Tensor, pairs: Sequence[BlockPair]) -> None:
        """Reads all sources before it writes a destination."""
        if not pairs:
            return
        sources, destinations = (torch.tensor(ids) for ids in zip(*pairs, strict=True))
        blocks = source.unflatten(0, (-1, self.block_size))[sources.to(source.device)]
        target = destination.unflatten(0, (-1, self.block_size))
        target.index_copy_(0, destinations.to(destination.device), blocks.to(destination.device))
