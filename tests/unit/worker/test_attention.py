"""Paged attention against a loop over queries and heads."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from spec_harness.kv_cache.block_table import pad_block_tables
from spec_harness.kv_cache.kv_cache import KVCache, LayerShape
from spec_harness.worker.attention import PagedBatch, paged_attention, window_of_mask
from tests.helpers import CPU, shuffled_tables

HEADS, DIM, VALUE_DIM, BLOCK_SIZE, NUM_BLOCKS = 6, 8, 5, 4, 60


def naive(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention of the last ``len(q)`` tokens of one sequence: q [Q H D], k [L K D], v [L K E]."""
    out = torch.zeros(len(q), q.shape[1], v.shape[-1], dtype=torch.float64)
    shared = q.shape[1] // k.shape[1]
    for i in range(len(q)):
        position = len(k) - len(q) + i
        first = 0 if window is None else max(0, position - window + 1)
        for h in range(q.shape[1]):
            keys, values = (x[first : position + 1, h // shared].double() for x in (k, v))
            scores = keys @ q[i, h].double() * scale
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            weights = scores.exp()
            total = weights.sum() + (0 if sinks is None else sinks[h].double().exp())
            out[i, h] = (weights / total) @ values
    return out.float()


class Layer(nn.Module):
    layer_idx = 0


def check(
    query_lens: Sequence[int],
    seq_lens: Sequence[int],
    *,
    kv_heads: int = 2,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: bool = False,
) -> PagedBatch:
    """Runs the rows together, their earlier tokens' KV already in the cache, and compares each with ``naive``."""
    torch.manual_seed(0)
    cache = KVCache(
        [LayerShape(kv_heads, DIM, VALUE_DIM)],
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        dtype=torch.float32,
        device=CPU,
    )
    for tensor in (*cache.keys, *cache.values):
        tensor.fill_(float("nan"))
    tables = shuffled_tables(seq_lens, BLOCK_SIZE, num_blocks=NUM_BLOCKS)
    keys, values = ([torch.randn(n, kv_heads, d) for n in seq_lens] for d in (DIM, VALUE_DIM))
    queries = [torch.randn(n, HEADS, DIM) for n in query_lens]
    for b, (fed, length) in enumerate(zip(query_lens, seq_lens, strict=True)):
        for p in range(length - fed):
            slot = torch.tensor([tables[b][p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE])
            cache.write(0, slot, keys[b][p : p + 1], values[b][p : p + 1])
    batch = PagedBatch.build(
        cache,
        query_lens=query_lens,
        seq_lens=seq_lens,
        block_tables=torch.tensor(pad_block_tables(tables)),
        rows=torch.tensor([b for b, n in enumerate(query_lens) for _ in range(n)]),
        positions=torch.tensor(
            [p for n, length in zip(query_lens, seq_lens, strict=True) for p in range(length - n, length)]
        ),
    )

    def packed(parts: list[Tensor]) -> Tensor:
        fed = [part[len(part) - n :] for part, n in zip(parts, query_lens, strict=True)]
        return torch.cat(fed).transpose(0, 1)[None]

    sink = torch.randn(HEADS) if sinks else None
    with batch.in_use():
        output, _ = paged_attention(
            Layer(),
            packed(queries),
            packed(keys),
            packed(values),
            window,
            scaling=scale,
            softcap=softcap,
            s_aux=sink,
        )
    expected = [
        naive(q, k, v, scale=DIM**-0.5 if scale is None else scale, window=window, softcap=softcap, sinks=sink)
        for q, k, v in zip(queries, keys, values, strict=True)
    ]
    torch.testing.assert_close(output[0], torch.cat(expected), rtol=1e-5, atol=1e-5)
    output.view(1, len(output[0]), -1)  # some models take this view, which needs it to be contiguous
    return batch


CASES = {
    "decode": ([1, 1, 1], [9, 1, 30]),
    "prefill": ([9, 4, 17], [9, 4, 17]),
    "mixed": ([1, 20, 5, 1, 17], [12, 20, 11, 3, 40]),
    "scoring": ([5, 5], [13, 22]),
    "single": ([3], [7]),
}


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize("case", CASES)
def test_attention_with_shared_heads_equals_a_naive_loop(case: str, kv_heads: int) -> None:
    check(*CASES[case], kv_heads=kv_heads)


@pytest.mark.parametrize("window", [1, 3, 8, 100])
@pytest.mark.parametrize("case", CASES)
def test_attention_under_a_window_equals_a_naive_loop(case: str, window: int) -> None:
    check(*CASES[case], window=window)


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize(("softcap", "sinks"), [(2.0, False), (None, True), (2.0, True)])
def test_soft_capping_and_sinks_equal_a_naive_loop(softcap: float | None, sinks: bool, window: int | None) -> None:
    check(*CASES["mixed"], softcap=softcap, sinks=sinks, window=window)


def test_the_models_own_scale_is_used() -> None:
    check(*CASES["mixed"], scale=0.9)
    check(*CASES["mixed"], scale=0.9, softcap=2.0)


def test_rows_of_similar_query_length_share_a_group() -> None:
    batch = check([1, 20, 5, 1, 17, 40], [12, 20, 11, 3, 40, 40])
    assert sorted(group.tokens.shape for group in batch.groups) == [(1, 40), (2, 20), (3, 5)]


def test_rows_of_one_query_length_need_no_reordering() -> None:
    assert check([2, 2], [9, 4]).unpad is None
    assert check([2, 1], [9, 4]).unpad is not None


def test_the_mask_function_passes_on_the_window_only() -> None:
    assert window_of_mask(batch_size=1, local_size=8) == 8
    assert window_of_mask(batch_size=1) is None
