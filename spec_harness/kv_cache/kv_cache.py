"""The storage: keys and values of every layer, by slot. Knows nothing of sequences."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class LayerShape:
    """What one attention layer caches for one token."""

    num_kv_heads: int
    key_dim: int
    value_dim: int


class KVCache:
    """Keys ``[slots, H, D]`` and values ``[slots, H, E]`` of each layer, with slots = (num_blocks + 1) * block_size.

    The one block on top is block 0, which belongs to no sequence.
    """

    def __init__(
        self,
        layers: Sequence[LayerShape],
        *,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        slots = (num_blocks + 1) * block_size
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.keys = [torch.zeros(slots, x.num_kv_heads, x.key_dim, dtype=dtype, device=device) for x in layers]
        self.values = [torch.zeros(slots, x.num_kv_heads, x.value_dim, dtype=dtype, device=device) for x in layers]

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
