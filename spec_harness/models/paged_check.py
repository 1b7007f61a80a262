"""Whether a model may be measured on the paged cache. What would be measured silently wrong is refused by name.

Some architectures keep information elsewhere than in keys and values (state-space layers, convolutions), or attend to
later tokens. Their output would differ from the model's own.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from spec_harness.errors import UserError
from spec_harness.kv_cache.kv_cache import KVCache, LayerShape
from spec_harness.models.layer_probe import Refuse, check_config, probe_layers, refusing_errors
from spec_harness.worker.attention import PAGED
from spec_harness.worker.model_runner import ModelRunner, QueryRow

# Largest paged-dense difference that rounding explains, as a share of the largest |logit|.
_CAP = {torch.float32: 1e-5, torch.bfloat16: 2.0**-5, torch.float16: 2.0**-8}
_RANDOM_SAMPLES = (40, 14)  # tokens of each
_NUM_SAMPLES, _LONGEST_SAMPLE = 4, 512  # real prompts compared, and their tokens
_STEPS, _BLOCK_SIZE = 3, 4


@dataclass(frozen=True)
class PagedCheck:
    """Paged against dense logits of one model and dtype."""

    max_difference: float
    max_logit: float  # largest |logit| of the dense model
    cap: float  # largest difference allowed
    tie_tolerance: float  # margins up to this are numerical ties


@contextmanager
def attention_set_to(model: PreTrainedModel, implementation: str) -> Iterator[None]:
    """The model with another attention implementation, for the time of the block."""
    before = model.config._attn_implementation
    model.set_attn_implementation(implementation)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@torch.inference_mode()
def dense_logits(
    model: PreTrainedModel, token_ids: Sequence[int], *, implementation: str = "eager"
) -> Float[Tensor, "L V"]:
    """The model's own logits at every position of one sequence, without our cache and attention."""
    with attention_set_to(model, implementation):
        ids = torch.tensor([list(token_ids)], device=model.device)
        logits: Tensor = model(input_ids=ids, use_cache=False).logits[0]
    return logits


def check_paged_attention(
    model: PreTrainedModel, *, where: str, max_model_len: int, samples: Sequence[Sequence[int]] = ()
) -> tuple[list[LayerShape], PagedCheck]:
    """Refuses (``UserError``) what cannot be measured; leaves the model set to paged attention.

    Returns what each layer caches, and how far paged logits are from dense ones.
    """
    name = model.config.model_type
    refuse = _refusal(name, where)
    check_config(model, max_model_len, refuse)
    layers = probe_layers(model, refuse)
    vocab_size = int(model.config.get_text_config().vocab_size)
    usable = [ids[:_LONGEST_SAMPLE] for ids in samples if len(ids) > _STEPS and max(ids) < vocab_size]
    sequences = usable[:_NUM_SAMPLES] or _random_samples(vocab_size, max_model_len)
    with refusing_errors(refuse):
        check = measure_paged(model, layers, sequences)
    if check.max_difference > check.cap and model.dtype != torch.float32:
        own = _own_difference(model, sequences)
        check = paged_check(check.max_difference, check.max_logit, model.dtype, own_difference=own)
    if not isfinite(check.max_logit):
        raise UserError(
            f"{where}: the model gives NaN or infinite logits: damaged weights, or an overflow in this dtype"
        )
    if not check.max_difference <= check.cap:  # NaN fails too
        if _looks_ahead(model, sequences[0], check.cap):
            raise refuse("it attends to later tokens, so cached keys and values do not stay right")
        raise refuse(
            f"its logits on the paged KV cache differ from its own by {check.max_difference:.1e} (allowed: "
            f"{check.cap:.1e}), so it keeps information elsewhere than in keys, values and position ids"
        )
    model.set_attn_implementation(PAGED)
    return layers, check


def _refusal(name: str, where: str) -> Refuse:
    return lambda reason: UserError(f"{where}: architecture '{name}' cannot be measured: {reason}")


def _random_samples(vocab_size: int, max_model_len: int) -> list[list[int]]:
    """Random token ids (seeded), two sequences of different lengths, so that they share a packed forward."""
    generator = torch.Generator().manual_seed(0)
    lens = [min(length, max_model_len) for length in _RANDOM_SAMPLES]
    return [torch.randint(0, vocab_size, (n,), generator=generator).tolist() for n in lens]


@torch.inference_mode()
def measure_paged(
    model: PreTrainedModel, layers: Sequence[LayerShape], sequences: Sequence[Sequence[int]]
) -> PagedCheck:
    """Prefill all but the last tokens of ``sequences`` in one packed forward, then decode three steps (fewer if
    shorter), with block tables in shuffled order; compare every logit with the dense model's."""
    dense = [dense_logits(model, ids) for ids in sequences]
    steps = min(_STEPS, min(len(ids) for ids in sequences) - 1)
    with attention_set_to(model, PAGED):
        paged = _paged_logits(model, layers, sequences, steps)
    difference = max(float((p.float() - d.float()).abs().max()) for p, d in zip(paged, dense, strict=True))
    max_logit = max(float(d.float().abs().max()) for d in dense)
    return paged_check(difference, max_logit, model.dtype)


def _own_difference(model: PreTrainedModel, sequences: Sequence[Sequence[int]]) -> float:
    """How far two attention implementations of the model itself are apart: in half precision this can exceed the cap.
    Our cache has no part in it, so it cannot hide a fault of ours. 0 where the model has but one."""
    try:
        pairs = [(dense_logits(model, ids), dense_logits(model, ids, implementation="sdpa")) for ids in sequences]
    except ValueError:
        return 0.0
    return max(float((eager.float() - sdpa.float()).abs().max()) for eager, sdpa in pairs)


def _looks_ahead(model: PreTrainedModel, token_ids: Sequence[int], cap: float) -> bool:
    """Whether the model's own logits of the first half of a sequence depend on its second half."""
    half = len(token_ids) // 2
    whole, alone = dense_logits(model, token_ids)[:half], dense_logits(model, token_ids[:half])
    return bool((whole.float() - alone.float()).abs().max() > cap)


def paged_check(difference: float, max_logit: float, dtype: torch.dtype, *, own_difference: float = 0.0) -> PagedCheck:
    """The tie tolerance is twice the difference measured (two logits may be off by it, in opposite directions), at
    least two rounding steps. The difference is capped (or by twice what the model's own implementations differ by, if
    that is more): a broken cache cannot widen it."""
    cap = max(_CAP[dtype] * max_logit, 2 * own_difference)
    floor = min(2 * torch.finfo(dtype).eps * max_logit, cap)
    return PagedCheck(difference, max_logit, cap, max(2 * min(difference, cap), floor))


def _paged_logits(
    model: PreTrainedModel, layers: Sequence[LayerShape], sequences: Sequence[Sequence[int]], steps: int
) -> list[Tensor]:
    widths = [-(-len(ids) // _BLOCK_SIZE) for ids in sequences]
    blocks: Int[Tensor, " N"] = torch.randperm(sum(widths), generator=torch.Generator().manual_seed(1)) + 1
    tables = [table.tolist() for table in blocks.split(widths)]
    cache = KVCache(layers, num_blocks=sum(widths), block_size=_BLOCK_SIZE, dtype=model.dtype, device=model.device)
    runner = ModelRunner(model, cache)
    parts: list[list[Tensor]] = [[] for _ in sequences]
    for step in range(steps + 1):
        rows = []
        for ids, table in zip(sequences, tables, strict=True):
            end = len(ids) - steps + step
            start = 0 if step == 0 else end - 1
            fed = list(ids[start:end])
            rows.append(QueryRow(block_table=table, start=start, token_ids=fed, num_logits=len(fed)))
        logits = runner.run(rows).split([row.num_logits for row in rows])
        for part, piece in zip(parts, logits, strict=True):
            part.append(piece)
    return [torch.cat(part) for part in parts]
