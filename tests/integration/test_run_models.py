"""Checkpoints that cannot be measured are refused by name, with exit code 2 and nothing left behind; others run."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from spec_harness.report.load import load_run
from tests.helpers import SMALL, tiny_loaded
from tests.run_helpers import (
    copy_packaged,
    error_line,
    outputs_of,
    packaged_tokenizer,
    random_checkpoint,
    save_draft_of,
    spec_eval,
)

TINY = ("data.limit=2", "sampling.max_new_tokens=4", "baseline=off")

pytestmark = pytest.mark.usefixtures("clean_process")


def refused(capfd: pytest.CaptureFixture[str], *overrides: str) -> str:
    assert spec_eval(*TINY, *overrides) == 2
    assert not Path("run").exists()
    return error_line(capfd.readouterr().err)


def swap_tokens(folder: Path, first: int, second: int) -> tuple[str, str]:
    """Exchanges the ids of two tokens of a saved tokenizer; returns the two tokens."""
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    vocab: dict[str, int] = content["model"]["vocab"]
    tokens = {index: token for token, index in vocab.items()}
    vocab[tokens[first]], vocab[tokens[second]] = second, first
    path.write_text(json.dumps(content), encoding="utf-8")
    return tokens[first], tokens[second]


def test_the_first_token_that_differs_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Sizes agree, and so do nearly all tokens: only their comparison shows it."""
    draft = copy_packaged("draft", tmp_path / "draft")
    before, after = swap_tokens(draft, 1000, 1500)
    line = refused(capfd, f"draft.path={draft}")
    assert "draft and target have different tokenizers" in line
    assert f"token 1000 is {after!r} to the draft and {before!r} to the target" in line


def test_a_folder_with_only_pickled_weights(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    target = copy_packaged("target", tmp_path / "target")
    weights = load_file(target / "model.safetensors")
    torch.save(weights, target / "pytorch_model.bin")
    (target / "model.safetensors").unlink()
    line = refused(capfd, f"target.path={target}")
    assert f"target.path={target}" in line
    assert "only pickled weights" in line
    assert spec_eval(*TINY, f"target.path={target}", "target.allow_pickle=true") == 0
    assert spec_eval(*TINY, run_dir="packaged") == 0
    assert outputs_of(Path("run")) == outputs_of(Path("packaged"))


def test_an_architecture_that_cannot_be_paged(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = AutoConfig.for_model("bloom", vocab_size=4096, hidden_size=32, n_layer=2, n_head=2)
    folder = tmp_path / "bloom"
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    packaged_tokenizer().save_pretrained(folder)
    assert "target: architecture 'bloom' cannot be measured" in refused(
        capfd, f"target.path={folder}", "target.max_model_len=256"
    )
    assert "draft: architecture 'bloom' cannot be measured" in refused(
        capfd, f"draft.path={folder}", "draft.max_model_len=256"
    )


def test_a_checkpoint_that_lacks_weights(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """They would be random, and measured as if they were the model's."""
    target = copy_packaged("target", tmp_path / "target")
    weights = load_file(target / "model.safetensors")
    missing = next(name for name in weights if name.endswith("layers.1.mlp.down_proj.weight"))
    del weights[missing]
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    line = refused(capfd, f"target.path={target}")
    assert f"the checkpoint lacks weights (1, e.g. {missing})" in line


def test_weights_that_are_nan_from_the_start(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    draft = copy_packaged("draft", tmp_path / "draft")
    weights = load_file(draft / "model.safetensors")
    name = next(name for name in weights if name.endswith("mlp.down_proj.weight"))
    weights[name][0, 0] = float("nan")
    save_file(weights, draft / "model.safetensors", metadata={"format": "pt"})
    assert refused(capfd, f"draft.path={draft}").startswith("error: draft: ")


def test_a_folder_without_a_model(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    assert f"target.path={folder}: the folder holds no model (no config.json)" in refused(
        capfd, f"target.path={folder}"
    )
    packaged_tokenizer().save_pretrained(folder)
    assert f"target.path={folder}: " in refused(capfd, f"target.path={folder}")


def test_a_hub_id_that_cannot_be_found(capfd: pytest.CaptureFixture[str]) -> None:
    """Offline, as the tests are."""
    assert "draft.path=nobody/nothing: no tokenizer can be loaded" in refused(capfd, "draft.path=nobody/nothing")


def test_a_target_with_fewer_tokens_than_its_tokenizer(capfd: pytest.CaptureFixture[str]) -> None:
    line = refused(capfd, "target=random", "target.config.vocab_size=300")
    assert "target: the model has 300 tokens, but its tokenizer gives prompt " in line


def test_lengths_that_the_models_cannot_hold(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    target = random_checkpoint(tmp_path / "target", max_position_embeddings=64)
    draft = random_checkpoint(tmp_path / "draft", max_position_embeddings=16)
    models = (f"target.path={target}", f"draft.path={draft}")
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "import os"}\n')
    assert "below the draft's maximum of 16 tokens" in refused(
        capfd, *models, f"data.path={rows}", "proposal.max_proposal_len=16"
    )
    assert "target.max_model_len=100 is above the model's maximum of 64 positions" in refused(
        capfd, *models, f"data.path={rows}", "target.max_model_len=100"
    )
    rows.write_text(json.dumps({"id": "long", "prompt": "import os\n" * 60}) + "\n")
    line = refused(capfd, *models, f"data.path={rows}")
    assert f"{rows}: prompt 'long' has " in line
    assert "the target takes 1 to 63" in line


def test_a_pool_too_small_for_the_largest_request(capfd: pytest.CaptureFixture[str]) -> None:
    line = refused(capfd, "kv_cache.num_blocks=2", "sampling.max_new_tokens=64")
    assert "kv_cache.num_blocks=2 is too small: the largest request needs " in line


def test_a_draft_from_a_folder(tmp_path: Path) -> None:
    """A random target in a folder, and a draft that is a noisy copy of it: some of its tokens are accepted."""
    config: dict[str, Any] = {**SMALL, "vocab_size": len(packaged_tokenizer()), "eos_token_id": None}
    target, folder = tiny_loaded(**config), tmp_path / "target"
    target.model.save_pretrained(folder)
    packaged_tokenizer().save_pretrained(folder)
    draft = save_draft_of(target, tmp_path / "draft")
    overrides = (f"target.path={folder}", f"draft.path={draft}", "sampling.max_new_tokens=24", "data.limit=4")
    assert spec_eval(*overrides) == 0
    results = load_run("run").results
    assert results.proposal.acceptance_rate.value is not None
    assert 0.05 < results.proposal.acceptance_rate.value < 0.95
    assert results.provenance.target.name == str(folder)
    assert results.provenance.draft is not None
    assert results.provenance.draft.name == str(draft)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_other_dtypes(dtype: str) -> None:
    assert spec_eval(*TINY, f"target.dtype={dtype}", f"draft.dtype={dtype}") == 0
    provenance = load_run("run").results.provenance
    assert provenance.draft is not None
    assert (provenance.target.dtype, provenance.draft.dtype) == (dtype, dtype)
