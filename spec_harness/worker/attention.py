"""Attention on the paged KV cache for unmodified Hugging Face models.

``transformers`` lets a model's attention be any registered function; ours gets each layer's packed query, key and
value. It writes the new keys and values into the cache, then attends over each sequence's own slots. What it must know
of the batch lies in a context variable for the time of the forward: not every model hands the keyword arguments of its
forward on to its attention. Causality and the sliding window are applied here. The window is what the model asks of its
*mask* (some models give it nowhere else), so the registered mask function passes it on in the mask's place.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from spec_harness.kv_cache.block_table import context_slots, slot_mapping
from spec_harness.kv_cache.kv_cache import KVCache

PAGED = "spec_harness_paged"
# Rows with up to this many query tokens are padded to one shape: padding them costs less than a second kernel call.
_SMALL_QUERY = 16


@dataclass(frozen=True)
class QueryGroup:
    """Sequences whose queries are padded to one length Q and whose contexts to one length L (G of them)."""

    tokens: Int[Tensor, "G Q"]  # index of each query token among the packed ones; padding repeats the row's last
    positions: Int[Tensor, "G Q"]  # position of each query token in its sequence
    slots: Int[Tensor, "G L"]  # where the context lies; padding repeats the row's last slot
    _masks: dict[int | None, Tensor] = field(default_factory=dict)

    def visible(self, window: int | None) -> Bool[Tensor, "G 1 Q L"]:
        """Which keys each query sees: those up to its own position, and within the last ``window`` tokens."""
        if window not in self._masks:
            keys = torch.arange(self.slots.shape[1], device=self.slots.device)[None, None]
            queries = self.positions[:, :, None]
            mask = keys <= queries
            if window is not None:
                mask &= keys > queries - window
            self._masks[window] = mask[:, None]
        return self._masks[window]


@dataclass(frozen=True)
class PagedBatch:
    """Everything attention needs to know of one packed forward of T tokens."""

    cache: KVCache
    slots: Int[Tensor, " T"]  # where the KV of each packed token is written
    groups: Sequence[QueryGroup]
    unpad: Int[Tensor, " T"] | None  # index of each packed token among the groups' padded ones; None: the same order

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Forwards of a model inside the block are of this batch."""
        token = _in_use.set(self)
        try:
            yield
        finally:
            _in_use.reset(token)

    @classmethod
    def build(
        cls,
        cache: KVCache,
        *,
        query_lens: Sequence[int],
        seq_lens: Sequence[int],
        block_tables: Int[Tensor, "B W"],
        rows: Int[Tensor, " T"],
        positions: Int[Tensor, " T"],
    ) -> "PagedBatch":
        """``query_lens[b]`` tokens of sequence b are fed; with them it has ``seq_lens[b]`` tokens."""
        device = positions.device
        starts = [0]
        for length in query_lens:
            starts.append(starts[-1] + length)
        groups: list[QueryGroup] = []
        order: list[tuple[int, int]] = []
        for members in _group_by_query_len(query_lens):
            width = max(query_lens[b] for b in members)
            tokens = [[starts[b] + min(i, query_lens[b] - 1) for i in range(width)] for b in members]
            offset = sum(group.tokens.numel() for group in groups)
            order += [
                (starts[b] + i, offset + g * width + i) for g, b in enumerate(members) for i in range(query_lens[b])
            ]
            index = torch.tensor(tokens, device=device)
            chosen = torch.tensor(members, device=device)
            lens = torch.tensor([seq_lens[b] for b in members], device=device)
            context = context_slots(block_tables[chosen], lens, max(seq_lens[b] for b in members), cache.block_size)
            groups.append(QueryGroup(index, positions[index], context))
        uniform = len(groups) == 1 and len(order) == groups[0].tokens.numel()
        unpad = None if uniform else torch.tensor([padded for _, padded in sorted(order)], device=device)
        return cls(cache, slot_mapping(block_tables, rows, positions, cache.block_size), groups, unpad)


_in_use: ContextVar[PagedBatch] = ContextVar("the batch of the forward under way")


def batch_in_use() -> PagedBatch:
    return _in_use.get()


def _group_by_query_len(query_lens: Sequence[int]) -> list[list[int]]:
    """Rows of similar query length together, so that one long prefill does not pad every decode."""
    buckets: dict[int, list[int]] = {}
    for row, length in enumerate(query_lens):
        bucket = 0 if length <= _SMALL_QUERY else length.bit_length()
        buckets.setdefault(bucket, []).append(row)
    return list(buckets.values())


def paged_attention(
    module: nn.Module,
    query: Float[Tensor, "1 H T D"],
    key: Float[Tensor, "1 K T D"],
    value: Float[Tensor, "1 K T E"],
    attention_mask: int | None,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Float[Tensor, " H"] | None = None,
    **_: Any,
) -> tuple[Float[Tensor, "1 T H E"], None]:
    """The registered attention function; ``attention_mask`` is the window that ``window_of_mask`` passed on.

    ``softcap`` (Gemma 2) and ``s_aux``, the attention sinks (gpt-oss), are what models give as keywords.
    """
    layer = int(module.layer_idx)  # type: ignore[arg-type]  # nn.Module types every attribute as Tensor | Module
    paged = batch_in_use()
    paged.cache.write(layer, paged.slots, key[0].transpose(0, 1), value[0].transpose(0, 1))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    packed = query[0].transpose(0, 1)
    outputs = []
    for group in paged.groups:
        q = packed[group.tokens] if paged.unpad is not None else packed.view(*group.tokens.shape, *packed.shape[1:])
        k, v = paged.cache.gather(layer, group.slots)
        visible = group.visible(attention_mask)
        if softcap is None and s_aux is None:
            out = _attend(q, k, v, visible, scale)
        else:
            out = _attend_eager(q, k, v, visible, scale, softcap, s_aux)
        outputs.append(out.reshape(-1, *out.shape[2:]))
    flat = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    # Contiguous like the output of transformers' own functions: some models take a view of it.
    return (flat.contiguous() if paged.unpad is None else flat[paged.unpad])[None], None


def _attend(
    q: Float[Tensor, "G Q H D"],
    k: Float[Tensor, "G L K D"],
    v: Float[Tensor, "G L K E"],
    visible: Bool[Tensor, "G 1 Q L"],
    scale: float,
) -> Float[Tensor, "G Q H E"]:
    """The query heads that share a key head become further queries of that head, so no key is copied per head."""
    g, q_len, heads, dim = q.shape
    shared = heads // k.shape[2]
    q = q.view(g, q_len, -1, shared, dim).permute(0, 2, 3, 1, 4).reshape(g, -1, shared * q_len, dim)
    mask = visible if shared == 1 else visible.repeat(1, 1, shared, 1)
    out = scaled_dot_product_attention(q, k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask, scale=scale)
    return out.view(g, -1, shared, q_len, v.shape[-1]).permute(0, 3, 1, 2, 4).reshape(g, q_len, heads, -1)


def _attend_eager(
    q: Float[Tensor, "G Q H D"],
    k: Float[Tensor, "G L K D"],
    v: Float[Tensor, "G L K E"],
    visible: Bool[Tensor, "G 1 Q L"],
    scale: float,
    softcap: float | None,
    sinks: Float[Tensor, " H"] | None,
) -> Float[Tensor, "G Q H E"]:
    """For what the fused kernel lacks: soft-capped scores, and sinks (a score per head that takes weight, gives
    none)."""
    shared = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(shared, dim=2).transpose(1, 2) for x in (k, v))
    scores = (q.transpose(1, 2) @ k.transpose(2, 3)) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.masked_fill(~visible, float("-inf"))
    if sinks is not None:
        column = sinks.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, column], dim=-1)
    weights = scores.softmax(-1, dtype=torch.float32).to(v.dtype)
    if sinks is not None:
        weights = weights[..., :-1]
    return (weights @ v).transpose(1, 2)


def window_of_mask(*_: Any, local_size: int | None = None, **__: Any) -> int | None:
    """The registered mask function: no mask is built, only the window of a sliding one is passed on."""
    return local_size


# Registration is transformers' own way of adding an attention function; it holds no state.
AttentionInterface.register(PAGED, paged_attention)
AttentionMaskInterface.register(PAGED, window_of_mask)
