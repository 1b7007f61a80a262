import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from spec_harness.errors import UserError
from spec_harness.models.load import build_random, eos_token_ids, load_pretrained, prepare
from spec_harness.models.paged_check import dense_logits
from tests.helpers import CPU, SMALL, tiny_loaded, tiny_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_model().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def load(path: Path, **options: object) -> object:
    return load_pretrained(str(path), where="target", device=CPU, **options)


def refused(path: Path, **options: object) -> str:
    with pytest.raises(UserError) as error:
        load(path, **options)
    message = str(error.value)
    assert message.startswith(f"target.path={path}: ")
    assert "\n" not in message
    return message


def test_a_saved_model_gives_the_same_logits(folder: Path) -> None:
    model = load(folder)
    assert torch.equal(dense_logits(model, [3, 4, 5]), dense_logits(tiny_model(), [3, 4, 5]))
    assert not model.training
    assert not any(p.requires_grad for p in model.parameters())


def test_the_dtype_is_float32_on_the_cpu_unless_asked_for(folder: Path) -> None:
    assert load(folder).dtype == torch.float32
    assert load(folder, dtype="bfloat16").dtype == torch.bfloat16


def test_two_models_of_one_folder_share_no_config(folder: Path) -> None:
    first, second = load(folder), load(folder)
    prepare(first, where="target", max_model_len=None)
    assert second.config._attn_implementation == "eager"


def test_missing_weights_are_refused(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    lost = "model.layers.1.mlp.up_proj.weight"
    del weights[lost]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert f"the checkpoint lacks weights (1, e.g. {lost})" in refused(folder)


def test_only_pickled_weights_are_refused_and_can_be_allowed(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert "only pickled weights; convert them to safetensors, or set target.allow_pickle=true" in refused(folder)
    assert torch.equal(dense_logits(load(folder, allow_pickle=True), [3, 4]), dense_logits(tiny_model(), [3, 4]))


def test_an_unknown_folder_is_refused(tmp_path: Path) -> None:
    assert "no such folder" in refused(tmp_path / "nowhere")


def test_a_folder_without_weights_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    refused(folder)


def test_a_folder_without_config_is_refused(folder: Path) -> None:
    (folder / "config.json").unlink()
    refused(folder)


def test_weights_of_other_shapes_are_refused(folder: Path) -> None:
    """transformers raises a RuntimeError here, which is no fault of the run but a wrong checkpoint."""
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] = torch.ones(3)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert "shapes of the checkpoint's weights" in refused(folder)


def test_a_truncated_weights_file_is_refused(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])
    refused(folder)


def test_max_model_len_is_the_models_unless_lower() -> None:
    assert tiny_loaded().max_model_len == 256
    assert tiny_loaded(max_model_len=32).max_model_len == 32


def test_max_model_len_above_the_models_is_refused() -> None:
    with pytest.raises(UserError, match=r"target.max_model_len=257 is above the model's maximum of 256 positions"):
        tiny_loaded(max_model_len=257)


def test_a_model_without_a_maximum_needs_one_given(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    del model.config.max_position_embeddings
    monkeypatch.setattr(type(model.config), "max_position_embeddings", None)
    with pytest.raises(UserError, match="the model's config names no maximum length; give one"):
        prepare(model, where="draft", max_model_len=None)


def test_random_models_of_one_seed_are_equal() -> None:
    state = torch.get_rng_state()
    a, b, other = (tiny_model(seed=seed).lm_head.weight for seed in (3, 3, 4))
    assert torch.equal(a, b)
    assert not torch.equal(a, other)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "config",
    [
        SMALL,
        {**SMALL, "model_type": "no_such_type"},
        {**SMALL, "model_type": "llama", "num_attention_heads": 5},
        {**SMALL, "model_type": "falcon"},  # its head_dim cannot be set
    ],
)
def test_an_impossible_random_config_is_refused(config: dict[str, object]) -> None:
    with pytest.raises(UserError, match=r"^draft\.config: "):
        build_random(config, where="draft", device=CPU, dtype="float32", seed=0)


def test_what_is_no_causal_language_model_is_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "t5", "architectures": ["T5Model"]}))
    assert refused(folder).endswith("T5 is no causal language model in transformers")


def test_a_config_that_cannot_be_is_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_attention_heads": 5}))
    assert "not a multiple of the number of attention heads" in refused(folder)


def test_end_of_sequence_ids_come_from_the_generation_config_then_the_config_then_the_tokenizer() -> None:
    vocabulary = Tokenizer(WordLevel({"a": 0, "</s>": 9}, unk_token="a"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=vocabulary, eos_token="</s>")
    model = tiny_model()
    model.generation_config.eos_token_id = [4, 5]
    assert eos_token_ids(model, tokenizer) == {4, 5}
    model.generation_config.eos_token_id = None
    assert eos_token_ids(model, tokenizer) == {2}
    model.config.eos_token_id = None
    assert eos_token_ids(model, tokenizer) == {9}
    assert eos_token_ids(model, PreTrainedTokenizerFast(tokenizer_object=vocabulary)) == frozenset()
