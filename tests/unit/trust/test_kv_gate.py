"""The gate's parts; that it notices planted faults is shown in ``tests/integration/test_gate.py``."""

from typing import Any

import pytest

from spec_harness.engine import Capabilities, EngineSettings, build_engine
from spec_harness.engine.native import NativeEngine
from spec_harness.models.load import LoadedModel
from spec_harness.results.schema import Check
from spec_harness.trust.kv_gate import SIZES, IntegrityError, _requests, require, run_gate
from tests.helpers import noisy_copy, prompts, tiny_loaded

SETTINGS = EngineSettings(block_size=4, num_blocks=9, max_num_seqs=2, max_proposal_len=2)


def check(name: str, figure: float | None, verdict: str) -> Check:
    return Check(name=name, figure=figure, tolerance=0.5, verdict=verdict)


def test_passed_and_skipped_checks_are_no_error() -> None:
    require([check("a", 0.1, "pass"), check("b", None, "skipped")])
    require([])


def test_an_error_names_every_failed_check_with_its_figure() -> None:
    checks = [check("a", 0.1, "pass"), check("b", 0.75, "fail"), check("c", float(2), "fail")]
    with pytest.raises(IntegrityError, match=r"^b: 0\.75, allowed 0\.5; c: 2, allowed 0\.5$"):
        require(checks)


def test_the_first_prompts_are_tried_cut_to_the_gates_size(target: LoadedModel) -> None:
    texts = prompts(10, low=80, high=120)
    for size in SIZES.values():
        requests = _requests(size, [target], texts)
        assert len(requests) == size.num_prompts
        longest = min(size.longest_prompt, 120)
        assert [r.prompt_token_ids for r in requests] == [text[:longest] for text in texts[: size.num_prompts]]
        assert {r.sampling.max_new_tokens for r in requests} == {size.num_tokens}
        assert not any(r.sampling.stop_token_ids for r in requests)


@pytest.mark.parametrize("maximum", [2, 3, 5, 16, 40])
def test_prompts_leave_room_for_output_in_the_smallest_model(target: LoadedModel, maximum: int) -> None:
    short = noisy_copy(target, scale=0.02, max_model_len=maximum)
    for request in _requests(SIZES["quick"], [target, short], prompts(4, low=60, high=70)):
        assert 1 <= len(request.prompt_token_ids) < maximum
        assert maximum < 24 or len(request.prompt_token_ids) + 12 < maximum


@pytest.mark.parametrize("maximum", [2, 3, 5])
def test_models_of_very_few_positions_pass(maximum: int) -> None:
    """With a maximum of 2 the prompts were once cut to nothing, and the run ended in a ValueError."""
    target = tiny_loaded(max_model_len=maximum)
    checks = run_gate(SIZES["quick"], target, target, SETTINGS, prompts(2))
    assert not any(c.verdict == "fail" for c in checks)


def test_without_prompts_there_is_nothing_to_check(target: LoadedModel) -> None:
    assert run_gate(SIZES["quick"], target, None, SETTINGS, []) == []


def test_the_gate_does_not_depend_on_the_runs_pool_or_sampling(target: LoadedModel, draft: LoadedModel) -> None:
    """A pool for one request, proposals switched off by a threshold or a batch: the gate tries the engine all the
    same."""
    settings = EngineSettings(
        block_size=4,
        num_blocks=1,
        max_num_seqs=1,
        max_proposal_len=0,
        min_draft_prob=0.99,
        disable_above_batch=1,
        preemption="swap",
    )
    checks = run_gate(SIZES["quick"], target, draft, settings, prompts(4))
    assert {c.verdict for c in checks} == {"pass"}
    assert len(checks) == 7


def test_an_engine_that_shows_no_cache_is_judged_by_its_tokens_alone(
    target: LoadedModel, draft: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(*arguments: Any) -> NativeEngine:
        engine = build_engine(*arguments)
        engine._capabilities = Capabilities()
        return engine

    monkeypatch.setattr("spec_harness.trust.kv_gate.build_engine", closed)
    checks = run_gate(SIZES["quick"], target, draft, SETTINGS, prompts(2))
    require(checks)
    assert len(checks) == 7
    for check in checks:
        assert (check.verdict, check.figure is None) == (("skipped", True) if "KV" in check.name else ("pass", False))
