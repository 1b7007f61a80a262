"""The verdict on a greedy output: equal, a tie that rounding explains, or a fault."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from spec_harness.models.load import LoadedModel
from spec_harness.models.paged_check import dense_logits
from spec_harness.requests import RequestRecord
from spec_harness.trust.baseline import judge, judge_all, record_key
from tests.helpers import generate, prompts

PROMPT = prompts(1, seed=3)[0]
Make = Callable[..., RequestRecord]


@pytest.fixture(scope="module")
def output(target: LoadedModel) -> list[int]:
    return generate(target, PROMPT, max_new_tokens=8)


@pytest.fixture
def record(make_request: Callable[..., Any]) -> Make:
    """``record(token_ids, **fields)``."""

    def make(token_ids: list[int], **fields: Any) -> RequestRecord:
        made: RequestRecord = make_request([], prompt_token_ids=PROMPT, **fields)
        return replace(made, token_ids=token_ids)

    return make


def runner_up(target: LoadedModel, output: list[int], at: int) -> tuple[int, float]:
    """The second best token after ``output[:at]``, and how far its logit is behind."""
    top = dense_logits(target.model, PROMPT + output[:at])[-1].topk(2)
    assert int(top.indices[0]) == output[at]
    return int(top.indices[1]), float(top.values[0] - top.values[1])


def with_tolerance(target: LoadedModel, tolerance: float) -> LoadedModel:
    return replace(target, check=replace(target.check, tie_tolerance=tolerance))


def test_the_same_tokens_are_equal(target: LoadedModel, output: list[int], record: Make) -> None:
    assert judge(target, record(output), record(list(output))) == "equal"


@pytest.mark.parametrize("at", [0, 4, 7])
@pytest.mark.parametrize("swapped", [False, True])
def test_the_margin_of_the_first_difference_decides(
    at: int, swapped: bool, target: LoadedModel, output: list[int], record: Make
) -> None:
    """Whichever of the two went the other way, and whatever comes behind the difference."""
    second, margin = runner_up(target, output, at)
    pair = [record(output), record([*output[:at], second, 5, 5])]
    ours, theirs = reversed(pair) if swapped else pair
    assert judge(with_tolerance(target, margin * 1.01), ours, theirs) == "tie"
    assert judge(with_tolerance(target, margin * 0.99), ours, theirs) == "fault"
    assert judge(target, ours, theirs) == "fault"  # the fixture's margins are far from rounding


def test_two_wrong_tokens_that_tie_with_each_other_are_a_fault(
    target: LoadedModel, output: list[int], record: Make
) -> None:
    """Their distance to the best token counts, not that to each other."""
    logits = dense_logits(target.model, PROMPT)[-1]
    order = logits.sort(descending=True)
    gaps = order.values[1:-1] - order.values[2:]
    place = int(gaps[5:].argmin()) + 6
    first, second = order.indices[place : place + 2].tolist()
    gap, behind = float(logits[first] - logits[second]), float(logits.max() - logits[second])
    assert gap < behind / 10
    loose = with_tolerance(target, max(gap * 2, behind / 2))
    assert judge(loose, record([first]), record([second])) == "fault"


@pytest.mark.parametrize("swapped", [False, True])
def test_one_that_goes_on_where_the_other_stopped_is_a_fault(
    swapped: bool, target: LoadedModel, output: list[int], record: Make
) -> None:
    pair = [record(output), record(output[:5])]
    ours, theirs = reversed(pair) if swapped else pair
    assert judge(with_tolerance(target, 1e9), ours, theirs) == "fault"


def test_a_logit_that_is_nan_is_no_tie(
    target: LoadedModel, output: list[int], record: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    nan = torch.full((1, target.vocab_size), float("nan"))
    monkeypatch.setattr("spec_harness.trust.baseline.dense_logits", lambda *_: nan)
    assert judge(target, record([1]), record([2])) == "fault"


def test_different_prompts_are_not_compared(target: LoadedModel, output: list[int], record: Make) -> None:
    """As after a tie in the turn before."""
    other = replace(record(output), prompt_token_ids=[*PROMPT, 9])
    assert judge(target, record(output), other) is None


def test_verdicts_are_set_and_counted(target: LoadedModel, output: list[int], record: Make) -> None:
    second, margin = runner_up(target, output, 2)
    tied = [*output[:2], second]
    records = [
        record(output, request_id="equal"),
        record(tied, request_id="tie"),
        record(output[:3], request_id="fault"),
        record(output, request_id="alone"),
        record(output, request_id="equal", turn=1),
    ]
    baseline = [record(output, request_id=name) for name in ("equal", "tie", "fault")]
    baseline.append(replace(record(output, request_id="equal", turn=1), prompt_token_ids=[1, 2]))
    loose = with_tolerance(target, margin * 1.01)
    counts = judge_all(loose, records, {record_key(item): item for item in baseline})
    assert counts == {"equal": 1, "tie": 1, "fault": 1}
    assert [item.baseline_verdict for item in records] == ["equal", "tie", "fault", None, None]
