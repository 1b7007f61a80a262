"""The gate before a run: silent on a sound engine, and loud about every planted fault, in float32 and in bfloat16, in
the draft and in the target.

Faults are planted once the models are loaded, so that the checks at load do not see them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from spec_harness.engine import EngineSettings
from spec_harness.errors import UserError
from spec_harness.models.configured import ASSETS, quiet_transformers
from spec_harness.models.load import LoadedModel, prepare
from spec_harness.proposers.multi_step_worker import MultiStepWorker
from spec_harness.results.schema import Check
from spec_harness.trust.kv_gate import SIZES, IntegrityError, require, run_gate
from spec_harness.worker.attention import PagedBatch
from tests.faults import FAULTS, Fault
from tests.helpers import noisy_copy, prompts, tiny_loaded, tiny_model

SETTINGS = EngineSettings(block_size=4, num_blocks=100, max_num_seqs=4, max_proposal_len=4)
LEVELS = pytest.mark.parametrize("level", ["quick", pytest.param("full", marks=pytest.mark.slow)])
PROMPTS = prompts(8, seed=4, low=10, high=40)


@dataclass(frozen=True)
class Pair:
    target: LoadedModel
    draft: LoadedModel

    def of(self, role: str) -> LoadedModel:
        return self.draft if role == "draft" else self.target

    def checks(self, level: str = "quick", settings: EngineSettings = SETTINGS) -> dict[str, Check]:
        return {c.name: c for c in run_gate(SIZES[level], self.target, self.draft, settings, PROMPTS)}


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def pair(request: pytest.FixtureRequest) -> Pair:
    """With a sliding window, so that there is one to get wrong."""
    target = prepare(tiny_model("mistral", dtype=request.param, sliding_window=12), where="target", max_model_len=None)
    return Pair(target, noisy_copy(target, scale=0.02))


@LEVELS
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_a_sound_engine_passes(pair: Pair, level: str, block_size: int) -> None:
    checks = pair.checks(level, replace(SETTINGS, block_size=block_size))
    assert len(checks) == 7
    assert {c.verdict for c in checks.values()} == {"pass"}
    require(list(checks.values()))


@LEVELS
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model_type", ["llama", "qwen2", "gpt2", "gemma2"])
def test_sound_models_of_other_architectures_pass(model_type: str, dtype: str, level: str) -> None:
    target = prepare(tiny_model(model_type, dtype=dtype), where="target", max_model_len=None)
    for draft in (noisy_copy(target, scale=0.02), target):
        checks = Pair(target, draft).checks(level)
        assert {c.verdict for c in checks.values()} == {"pass"}, checks


@pytest.fixture
def planted(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Callable[[Fault, str], Pair]:
    def plant(fault: Fault, role: str) -> Pair:
        fault(monkeypatch, pair.of(role))
        return pair

    return plant


@LEVELS
@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_fails_the_gate(
    planted: Callable[[Fault, str], Pair], fault: Fault, role: str, level: str
) -> None:
    checks = planted(fault, role).checks(level)
    failed = {name for name, check in checks.items() if check.verdict == "fail"}
    print(fault.__name__, role, failed)
    assert failed
    with pytest.raises(IntegrityError, match="allowed"):
        require(list(checks.values()))


def test_a_draft_with_few_positions_is_tried_within_them() -> None:
    """Prompts were once cut to the target's maximum only: a draft of 16 positions then never ran in the gate, and
    whatever was wrong with it passed."""
    target = tiny_loaded()
    short = noisy_copy(target, scale=0.02, max_model_len=16)
    checks = run_gate(SIZES["quick"], target, short, SETTINGS, PROMPTS)
    assert {c.verdict for c in checks} == {"pass"}
    assert all(c.figure is not None for c in checks)


def test_a_draft_that_is_never_accepted_leaves_no_fault_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hole after a full acceptance never comes about with such a draft; the target as its own draft shows it."""
    target, stranger = tiny_loaded(), tiny_loaded(seed=5)

    class LastTokenOnlyWorker(MultiStepWorker):
        def rewind(self, seq_id: int, length: int) -> None:
            if self.num_computed_tokens(seq_id):
                self._num_computed_tokens[seq_id] = length - 1

    def failed() -> list[str]:
        checks = run_gate(SIZES["quick"], target, stranger, replace(SETTINGS, max_proposal_len=1), PROMPTS)
        return [check.name for check in checks if check.verdict == "fail"]

    assert not failed()
    monkeypatch.setattr("spec_harness.proposers.draft_model.MultiStepWorker", LastTokenOnlyWorker)
    assert any("tokens in the KV cache" in name for name in failed())


@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_attention_to_the_next_token_is_found_at_load(role: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The quick gate may miss it in a weak draft in bfloat16; all logits of a few prompts, compared at load, do not."""
    quiet_transformers()
    model = AutoModelForCausalLM.from_pretrained(ASSETS / role, dtype=dtype)
    build = PagedBatch.build

    def changed(*arguments: Any, **keywords: Any) -> PagedBatch:
        batch = build(*arguments, **keywords)
        return replace(batch, groups=[replace(group, positions=group.positions + 1) for group in batch.groups])

    monkeypatch.setattr(PagedBatch, "build", changed)
    with pytest.raises(UserError, match="logits on the paged KV cache differ from its own"):
        prepare(model, where=role, max_model_len=None)
