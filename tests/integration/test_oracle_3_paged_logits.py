"""Oracle 3: logits on the paged cache equal the model's own; a model that cannot is refused by name.

Per architecture: ``test_architectures.py``. Here: what the comparison detects, and what the checks at load refuse.
"""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spec_harness.errors import UserError
from spec_harness.models.load import LoadedModel, prepare
from spec_harness.worker.model_runner import ModelRunner, QueryRow
from tests.architectures import BY_NAME
from tests.helpers import forwards, tiny_model
from tests.paged import (
    BLOCK_SIZE,
    NUM_BLOCKS,
    dense,
    fresh_cache,
    largest_difference,
    paged_logits,
    sequences,
    tables,
)

pytestmark = pytest.mark.shapes


def test_soft_capping_of_the_fixture_matters() -> None:
    family = BY_NAME["gemma2"]
    assert largest_difference(dense(family.load()), dense(family.load(attn_logit_softcapping=None))) > 0.01


@pytest.mark.parametrize("model_type", ["llama", "mistral", "gemma2", "gpt_oss"])
def test_nan_in_block_0_and_in_free_blocks_changes_no_logits(model_type: str) -> None:
    """Padding of a gather must repeat slots of the sequence itself: a masked NaN key still gives NaN."""
    loaded = BY_NAME[model_type].load()
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
    loaded = BY_NAME["mistral"].load()
    table, expected = tables()[0], [dense(loaded)[0][-1:]]
    swapped = [table[-2], *table[1:-2], table[0], table[-1]]
    assert largest_difference([last_logits(loaded, table, swapped)], expected) > 0.1


def test_comparison_detects_a_block_of_another_sequence(target: LoadedModel) -> None:
    table, expected = tables()[0], [dense(target)[0][-1:]]
    assert largest_difference([last_logits(target, table, [tables()[1][0], *table[1:]])], expected) > 0.1


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


def test_a_model_whose_forward_fails_is_refused() -> None:
    model = tiny_model()
    model.model.layers[1].mlp.up_proj = nn.Linear(3, 3)
    with pytest.raises(UserError, match=r"architecture 'llama' cannot be measured: its forward fails \(.*shapes"):
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
    model = BY_NAME[model_type].build(dtype=dtype, initializer_range=0.1)
    check = prepare(model, where="target", max_model_len=None).check
    assert check.max_difference <= check.cap
    assert check.max_difference < check.tie_tolerance <= check.cap


def test_a_refused_model_ran_no_more_than_the_checks(target: LoadedModel) -> None:
    with forwards(target.model) as seen:
        prepare(target.model, where="target", max_model_len=None)
    assert len(seen) == 1 + 2 + 4  # probe, two dense sequences, prefill and three decodes
