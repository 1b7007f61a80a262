"""Oracle 3: logits on the paged cache equal the model's own, per architecture; what cannot is refused by name."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spec_harness.errors import UserError
from spec_harness.kv_cache.kv_cache import KVCache
from spec_harness.worker.model_loader import LoadedModel, build_random, prepare
from spec_harness.worker.model_runner import ModelRunner, QueryRow
from spec_harness.worker.paged_check import dense_logits
from tests.helpers import CPU, SMALL, forwards, shuffled_tables, tiny_loaded, tiny_model

WINDOW = {"sliding_window": 8}
MOE = {"num_local_experts": 4, "num_experts_per_tok": 2}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "mistral": WINDOW,
    "gemma2": {
        **WINDOW,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 10.0,
        "query_pre_attn_scalar": 16,
    },
    "gemma3_text": WINDOW,
    "gpt2": {},
    "gpt_neox": {},
    "opt": {"ffn_dim": 128, "word_embed_proj_dim": 64, "init_std": 0.3},
    "gpt_oss": {
        **WINDOW,
        **MOE,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
    "phimoe": {**WINDOW, **MOE},  # gives its window to the mask only
}
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


def largest_difference(paged: Sequence[Tensor], dense: Sequence[Tensor]) -> float:
    return max(float((p - d).abs().max()) for p, d in zip(paged, dense, strict=True))


def dense(loaded: LoadedModel) -> list[Tensor]:
    return [dense_logits(loaded.model, ids) for ids in sequences()]


@pytest.mark.parametrize("model_type", list(ARCHITECTURES))
def test_paged_logits_equal_dense_ones(model_type: str) -> None:
    loaded = tiny_loaded(model_type, **ARCHITECTURES[model_type])
    expected = dense(loaded)
    assert max(float(d.abs().max()) for d in expected) > 4  # logits worth comparing
    assert largest_difference(paged_logits(loaded, fresh_cache(loaded), tables()), expected) <= 1e-4


@pytest.mark.parametrize("model_type", ["mistral", "gemma2", "gpt_oss", "phimoe"])
def test_the_window_of_the_fixtures_matters(model_type: str) -> None:
    """Were the window ignored, the comparison above would fail: without it the dense logits are others."""
    options = ARCHITECTURES[model_type]
    wide = {**options, "sliding_window": 200}
    difference = largest_difference(dense(tiny_loaded(model_type, **options)), dense(tiny_loaded(model_type, **wide)))
    assert difference > 0.1


def test_soft_capping_of_the_fixture_matters() -> None:
    options = {**ARCHITECTURES["gemma2"], "attn_logit_softcapping": None}
    difference = largest_difference(
        dense(tiny_loaded("gemma2", **ARCHITECTURES["gemma2"])), dense(tiny_loaded("gemma2", **options))
    )
    assert difference > 0.01


@pytest.mark.parametrize("model_type", ["llama", "mistral", "gemma2", "gpt_oss"])
def test_nan_in_block_0_and_in_free_blocks_changes_no_logits(model_type: str) -> None:
    """Padding of a gather must repeat slots of the sequence itself: a masked NaN key still gives NaN."""
    loaded = tiny_loaded(model_type, **ARCHITECTURES[model_type])
    clean = paged_logits(loaded, fresh_cache(loaded), tables())
    cache = fresh_cache(loaded)
    for tensor in (*cache.keys, *cache.values):
        tensor.fill_(float("nan"))  # also in owned blocks: a slot must be written before it is read
    poisoned = paged_logits(loaded, cache, tables())
    owned = {block for table in tables() for block in table}
    for block in set(range(NUM_BLOCKS + 1)) - owned:
        assert cache.keys[0][block * BLOCK_SIZE : (block + 1) * BLOCK_SIZE].isnan().all()  # never written
    assert all(torch.equal(p, c) for p, c in zip(poisoned, clean, strict=True))


def last_logits(loaded: LoadedModel, table: Sequence[int], other: Sequence[int]) -> Tensor:
    """Logits of the last token of the first sequence, prefilled under ``table``, then continued under ``other``."""
    ids = sequences()[0]
    runner = ModelRunner(loaded.model, fresh_cache(loaded))
    with torch.inference_mode():
        runner.run([QueryRow(block_table=list(table), start=0, token_ids=ids[:-1])])
        return runner.run([QueryRow(block_table=list(other), start=len(ids) - 1, token_ids=ids[-1:])])


def test_comparison_detects_two_swapped_entries_of_a_block_table(target: LoadedModel) -> None:
    """The swapped ones are the first and the last, which is only partly filled. (Without a window, full blocks may
    trade places unseen: keys carry their positions, and attention sums over a set.)"""
    table, expected = tables()[0], [dense(target)[0][-1:]]
    assert largest_difference([last_logits(target, table, table)], expected) <= 1e-4
    assert largest_difference([last_logits(target, table, [table[-1], *table[1:-1], table[0]])], expected) > 0.1


def test_comparison_detects_two_swapped_full_blocks_under_a_window() -> None:
    loaded = tiny_loaded("mistral", **WINDOW)
    table, expected = tables()[0], [dense(loaded)[0][-1:]]
    swapped = [table[-2], *table[1:-2], table[0], table[-1]]
    assert largest_difference([last_logits(loaded, table, swapped)], expected) > 0.1


def test_comparison_detects_a_block_of_another_sequence(target: LoadedModel) -> None:
    table, expected = tables()[0], [dense(target)[0][-1:]]
    assert largest_difference([last_logits(target, table, [tables()[1][0], *table[1:]])], expected) > 0.1


REFUSED: dict[str, dict[str, Any]] = {
    "bloom": {"n_layer": 2, "n_head": 4},
    "mamba": {"state_size": 4},
    "falcon_h1": {
        "mamba_d_ssm": 64,
        "mamba_n_heads": 4,
        "mamba_d_head": 16,
        "mamba_d_state": 8,
        "mamba_n_groups": 1,
    },
    "llama4_text": {"intermediate_size_mlp": 128, "num_local_experts": 2, "attention_chunk_size": 8},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "mpt": {"d_model": 64, "n_heads": 4, "n_layers": 2},
    "jamba": {"num_experts": 2, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 4, "mamba_d_state": 4},
}


@pytest.mark.parametrize("model_type", list(REFUSED))
def test_architectures_that_would_be_measured_wrong_are_refused_by_name(model_type: str) -> None:
    with pytest.raises(UserError, match=f"^target: architecture '{model_type}' cannot be measured: "):
        tiny_loaded(model_type, **REFUSED[model_type])


def test_alibi_positions_are_refused() -> None:
    """Falcon with ALiBi keeps its positions in the mask, which paged attention never builds."""
    sizes = {key: value for key, value in SMALL.items() if key != "head_dim"}
    config = {"model_type": "falcon", **sizes, "alibi": True, "new_decoder_architecture": False}
    model = build_random(config, where="target", device=CPU, dtype="float32", seed=0)
    with pytest.raises(UserError, match="architecture 'falcon' cannot be measured"):
        prepare(model, where="target", max_model_len=128)


def test_a_model_with_one_layer_off_the_interface_is_refused() -> None:
    model = tiny_model()
    model.model.layers[1].self_attn = SilentAttention()
    with pytest.raises(UserError, match="architecture 'llama' cannot be measured: 1 of its 2 layers use"):
        prepare(model, where="target", max_model_len=None)


class SilentAttention(nn.Module):
    """Attention that mixes tokens without the registered function."""

    def forward(self, hidden_states: Tensor, **_: Any) -> tuple[Tensor, None]:
        return hidden_states.cumsum(1), None


def test_a_model_that_keeps_information_elsewhere_is_refused() -> None:
    """Every layer calls the attention function, yet each hidden state also leans on the one before it."""
    model = tiny_model()
    model.model.layers[0].mlp.register_forward_hook(
        lambda _, __, out: out + 0.1 * nn.functional.pad(out, (0, 0, 1, 0))[:, :-1]
    )
    with pytest.raises(UserError, match="architecture 'llama' cannot be measured: its logits on the paged KV cache"):
        prepare(model, where="target", max_model_len=None)


def test_a_chunked_attention_without_layer_types_is_refused() -> None:
    model = tiny_model()
    model.config.attention_chunk_size = 8
    with pytest.raises(UserError, match="attends within chunks"):
        prepare(model, where="target", max_model_len=None)


@pytest.mark.parametrize("rope_type", ["dynamic", "longrope"])
def test_a_rotary_scale_that_depends_on_the_batch_is_refused_beyond_its_original_maximum(rope_type: str) -> None:
    model = tiny_model(attn_implementation=None)
    model.config.rope_parameters = {
        "rope_type": rope_type,
        "rope_theta": 10000.0,
        "factor": 2.0,
        "original_max_position_embeddings": 64,
    }
    with pytest.raises(UserError, match=rf"its {rope_type} rotary scale .* set max_model_len=64 or lower"):
        prepare(model, where="target", max_model_len=65)
    assert prepare(model, where="target", max_model_len=64).max_model_len == 64


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("model_type", ["llama", "gemma2"])
def test_half_precision_models_are_accepted_with_a_tolerance_of_their_own(model_type: str, dtype: str) -> None:
    # Weights larger than those of trained models amplify rounding beyond what the check allows.
    config = {"model_type": model_type, **SMALL, **ARCHITECTURES[model_type], "initializer_range": 0.1}
    model = build_random(config, where="target", device=CPU, dtype=dtype, seed=0)
    check = prepare(model, where="target", max_model_len=None).check
    assert check.max_difference <= check.cap
    assert check.max_difference < check.tie_tolerance <= check.cap


def test_a_refused_model_ran_no_more_than_the_checks(target: LoadedModel) -> None:
    with forwards(target.model) as seen:
        prepare(target.model, where="target", max_model_len=None)
    assert len(seen) == 1 + 2 + 4  # probe, two dense sequences, prefill and three decodes
