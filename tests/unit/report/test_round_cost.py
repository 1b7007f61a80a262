"""The cost of a round, by hand, and figures as text."""

from collections.abc import Callable
from typing import Any

import pytest

from spec_harness.report.formats import bar_text
from spec_harness.report.round_cost import decoding_speedup, prediction_error, round_cost, whole_prediction
from spec_harness.results.schema import Estimate, RunResults, TimeShare, TimingResults

Make = Callable[..., Any]
SHARE = TimeShare(prefill=0.2, propose=0.3, score=0.4, verify=0.05, commit=0.03, scheduler=0.02)


@pytest.fixture
def run(make_round: Make, make_request: Make, make_results: Make) -> Callable[..., RunResults]:
    """Rounds of 3 tokens; decoding takes 0.8 of the time, plain decoding 1.6 - 0.2 for the same tokens."""

    def make(**timing: Any) -> RunResults:
        known: dict[str, Any] = {"time_share": SHARE, "predicted_speedup": 2.1} | timing
        speed = Estimate(value=100.0, n=1)
        whole = {"speculative_tokens_per_second": speed, "baseline_tokens_per_second": speed}
        speedup = Estimate(value=timing.pop("speedup", 1.6), n=1)
        known.pop("speedup", None)
        requests = [make_request([make_round(4, 2)] * 5)]
        results: RunResults = make_results(
            requests, max_proposal_len=4, timing=TimingResults(speedup=speedup, **whole, **known)
        )
        return results

    return make


def test_a_round_by_hand(run: Callable[..., RunResults]) -> None:
    results = run()
    assert decoding_speedup(results) == pytest.approx(1.4 / 0.8)
    cost = round_cost(results)
    assert cost is not None
    assert sum(cost.values()) == pytest.approx(3 * 0.8 / 1.4)
    assert cost["scoring"] == pytest.approx(3 * 0.4 / 1.4)
    assert prediction_error(results) == pytest.approx(2.1 / 1.75)
    assert results.timing is not None
    assert whole_prediction(results.timing) == pytest.approx(0.2 + 0.8 * 2.1)


def test_another_speed_up_may_be_given(run: Callable[..., RunResults]) -> None:
    """In a sweep it is over plain decoding of all jobs."""
    assert decoding_speedup(run(), 1.0) == pytest.approx(1.0)


def test_what_was_not_measured_has_no_cost(run: Callable[..., RunResults]) -> None:
    for results in (run(time_share=None), run(speedup=None), run(speedup=0.15)):
        assert round_cost(results) is None
        assert prediction_error(results) is None
    assert prediction_error(run(predicted_speedup=None)) is None


@pytest.mark.parametrize(
    ("share", "blocks", "ascii_text"),
    [
        (0.0, "", ""),
        (1.0, "\u2588" * 16, "#" * 16),
        (0.001, "\u258f", "#"),
        (0.5, "\u2588" * 8, "#" * 8),
        (0.1, "\u2588\u258b", "##"),
    ],
)
def test_bars(share: float, blocks: str, ascii_text: str) -> None:
    assert bar_text(share) == blocks
    assert bar_text(share, blocks=False) == ascii_text
