"""Logits on the paged cache against the model's own, over several packed sequences: what oracle 3 compares."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spec_harness.kv_cache.kv_cache import KVCache
from spec_harness.models.load import LoadedModel
from spec_harness.models.paged_check import dense_logits
from spec_harness.worker.model_runner import ModelRunner, QueryRow
from tests.helpers import (
    CPU,
    acceptance_rate,
    generate,
    request,
    run,
    scheduler,
    shuffled_tables,
    smallest_margin,
)

BLOCK_SIZE, NUM_BLOCKS = 4, 40
# Tokens fed of each sequence, forward by forward: prefills, decodes and chunks of several tokens share forwards. Chunks
# above and below 16 tokens go through different groups.
CHUNKS = [[20, 1, 5, 17, 1, 1], [9, 1, 1, 4, 7, 1], [3, 5, 1, 1, 1, 2]]


def sequences(vocab: int = 128) -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, vocab, (sum(chunks),), generator=generator).tolist() for chunks in CHUNKS]


def fresh_cache(loaded: LoadedModel) -> KVCache:
    return KVCache(loaded.layers, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, dtype=loaded.dtype, device=CPU)


def tables() -> list[list[int]]:
    return shuffled_tables([sum(chunks) for chunks in CHUNKS], BLOCK_SIZE, num_blocks=NUM_BLOCKS)


@torch.inference_mode()
def paged_logits(loaded: LoadedModel, cache: KVCache, block_tables: Sequence[Sequence[int]]) -> list[Tensor]:
    """Logits at every position of ``sequences()``, fed in ``CHUNKS``."""
    runner = ModelRunner(loaded.model, cache)
    parts: list[list[Tensor]] = [[] for _ in CHUNKS]
    starts = [0] * len(CHUNKS)
    for step in range(len(CHUNKS[0])):
        rows = []
        for b, ids in enumerate(sequences()):
            fed = ids[starts[b] : starts[b] + CHUNKS[b][step]]
            rows.append(
                QueryRow(block_table=list(block_tables[b]), start=starts[b], token_ids=fed, num_logits=len(fed))
            )
            starts[b] += len(fed)
        for part, piece in zip(parts, runner.run(rows).split([row.num_logits for row in rows]), strict=True):
            part.append(piece)
    return [torch.cat(part) for part in parts]


def dense(loaded: LoadedModel) -> list[Tensor]:
    return [dense_logits(loaded.model, ids) for ids in sequences()]


@dataclass(frozen=True)
class Comparison:
    max_difference: float
    max_logit: float  # largest |logit| of the dense model


def compare(loaded: LoadedModel) -> Comparison:
    expected = dense(loaded)
    difference = largest_difference(paged_logits(loaded, fresh_cache(loaded), tables()), expected)
    return Comparison(difference, max(float(logits.abs().max()) for logits in expected))


def check_greedy(loaded: LoadedModel, *, k: int = 3, new_tokens: int = 16) -> None:
    """Through the whole engine, with itself as draft: the tokens of dense ``generate``, and every proposal accepted."""
    prompt = sequences()[1][:9]
    expected = generate(loaded, prompt, max_new_tokens=new_tokens)
    assert smallest_margin(loaded, prompt, expected) > loaded.check.tie_tolerance
    engine = scheduler(loaded, loaded, k=k, block_size=BLOCK_SIZE)
    records = run(engine, [request(0, prompt, max_new_tokens=new_tokens)])
    assert records["r0"].token_ids == expected
    assert acceptance_rate(records.values()) == 1


def largest_difference(paged: Sequence[Tensor], dense: Sequence[Tensor]) -> float:
    return max(float((p - d).abs().max()) for p, d in zip(paged, dense, strict=True))
