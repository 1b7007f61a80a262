"""Looking into an engine: what its caches hold, what it leaves behind, what a record says that must not change."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import config as jaxtyping_config
from torch import Tensor
from transformers import PreTrainedModel

from spec_harness.engine.native import NativeEngine
from spec_harness.kv_cache.kv_cache import KVCache
from spec_harness.models.paged_check import attention_set_to
from spec_harness.proposers.draft_model import DraftModelTop1Proposer
from spec_harness.requests import RequestRecord
from spec_harness.worker.worker import Worker


def assert_nothing_left(engine: NativeEngine) -> None:
    """No block is owned, on the device or the host, and no worker remembers a sequence."""
    engine.scheduler.blocks.check_integrity()
    assert engine.scheduler.blocks.num_free == engine.scheduler.blocks.num_blocks
    assert sorted(engine.scheduler.blocks._host_free) == list(range(engine.scheduler.blocks.num_host_blocks))
    for each in workers(engine):
        assert not each._num_computed_tokens


def workers(engine: NativeEngine) -> list[Worker]:
    """The target's worker and, if a draft model proposes, the draft's."""
    proposer = engine.worker.proposer
    return [engine.worker.target, *([proposer.worker] if isinstance(proposer, DraftModelTop1Proposer) else [])]


def poison_unowned_blocks(engine: NativeEngine) -> None:
    """NaN in block 0 and in every free block of both caches: whoever reads one is found out."""
    unowned = torch.tensor([0, *engine.scheduler.blocks._free])
    for each in workers(engine):
        cache = each.runner.cache
        for storage in (*cache.keys, *cache.values):
            storage.unflatten(0, (-1, cache.block_size))[unowned] = float("nan")


def drawn(record: RequestRecord) -> tuple[list[int], list[tuple[Any, ...]]]:
    """All that a request's randomness and its models decide; nothing that KV blocks or its neighbors may."""
    rounds = [
        (r.proposal_len, r.skip_reason, r.draft_token_ids, r.num_accepted, r.num_aligned, r.output_token_ids)
        for r in record.rounds
    ]
    return record.token_ids, rounds


def largest_kv_difference(engine: NativeEngine) -> float:
    """The largest difference between what is cached for the first ``num_computed_tokens`` of a running sequence and a
    fresh prefill of them, in the draft's cache and the target's.

    The fresh prefill is the dense model's own, with its own cache; ours is read slot by slot through the block table.
    """
    largest = 0.0
    for each in workers(engine):
        for seq in engine.running:
            count = each.num_computed_tokens(seq.seq_id)
            assert count < len(seq.data)  # the last token has been fed to no model
            if count:
                table = engine.scheduler.blocks.block_table(seq.seq_id)
                pairs = zip(
                    cached_kv(each.runner.cache, table, count),
                    dense_kv(each.runner.model, seq.data.token_ids[:count]),
                    strict=True,
                )
                differences = [float((ours - theirs).abs().max()) for ours, theirs in pairs]
                largest = max([largest, *differences]) if all(map(math.isfinite, differences)) else math.inf
    return largest


def cached_kv(cache: KVCache, block_table: Sequence[int], count: int) -> list[Tensor]:
    """Keys and values of positions 0 ... ``count`` - 1 of each layer, read through the block table."""
    size = cache.block_size
    slots = [block_table[position // size] * size + position % size for position in range(count)]
    return [storage[slots] for pair in zip(cache.keys, cache.values, strict=True) for storage in pair]


def dense_kv(model: PreTrainedModel, token_ids: Sequence[int]) -> list[Tensor]:
    """Keys and values ``[L, H, D]`` of each layer, from the model's own forward with its own cache."""
    with attention_set_to(model, "eager"):
        output = model(input_ids=torch.tensor([list(token_ids)]), use_cache=True)
    cache = output["cache"] if "cache" in output else output["past_key_values"]  # the name before transformers 5.24
    return [storage[0].transpose(0, 1) for layer in cache.layers for storage in (layer.keys, layer.values)]


@contextmanager
def shapes_unchecked() -> Iterator[None]:
    """Without the shape checks of every call, which take three quarters of the time of a tiny engine."""
    before = jaxtyping_config.jaxtyping_disable
    jaxtyping_config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping_config.update("jaxtyping_disable", before)
