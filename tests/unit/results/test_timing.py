"""Speeds, shares of the time and latencies of finished engine runs."""

from collections.abc import Callable
from typing import Any

import pytest

from spec_harness.engine import EngineReport, EngineStats
from spec_harness.evaluation.engine_run import EngineRun
from spec_harness.results.schema import TimingResults
from spec_harness.results.timing import BASELINE, SPECULATIVE, timing_results

Make = Callable[..., Any]


def done(name: str, *records: Any, wall_s: float = 0.0, stage_s: dict[str, float] | None = None) -> EngineRun:
    return EngineRun(
        name=name,
        make_engine=lambda: pytest.fail("not to be called"),
        records=list(records),
        wall_s=wall_s,
        report=EngineReport(stats=EngineStats(), stage_s=stage_s),
    )


def timing(*runs: EngineRun) -> TimingResults:
    return timing_results(runs)


def test_speeds_are_output_tokens_over_wall_time(make_round: Make, make_request: Make) -> None:
    """The prefill's token included: three requests of 1 + 2 tokens each."""
    requests = [make_request([make_round(2, 1)], request_id=f"r{i}", engine_s=0.5) for i in range(3)]
    results = timing(done(SPECULATIVE, *requests, wall_s=2.0), done(BASELINE, *requests, wall_s=3.0))
    assert (results.speculative_tokens_per_second.value, results.speculative_tokens_per_second.n) == (9 / 2, 3)
    assert (results.baseline_tokens_per_second.value, results.baseline_tokens_per_second.n) == (9 / 3, 3)
    assert (results.speedup.value, results.speedup.n) == (1.5, 3)


def test_a_speed_lies_in_its_own_interval(make_round: Make, make_request: Make) -> None:
    """The steps' clocks stop before the pass's does. With requests that took equally long, as in one full batch, the
    interval was so narrow that this left the value outside."""
    requests = [make_request([make_round(2, 1)], request_id=f"r{i}", engine_s=0.1) for i in range(8)]
    results = timing(done(SPECULATIVE, *requests, wall_s=0.801), done(BASELINE, *requests, wall_s=0.804))
    for estimate in (results.speculative_tokens_per_second, results.baseline_tokens_per_second, results.speedup):
        assert estimate.value is not None
        assert estimate.ci95 == (pytest.approx(estimate.value), pytest.approx(estimate.value))


def test_a_speed_up_needs_both_passes(make_request: Make) -> None:
    for alone, missing in ((SPECULATIVE, "baseline"), (BASELINE, "speculative")):
        results = timing(done(alone, make_request([]), wall_s=1.0))
        absent = getattr(results, f"{missing}_tokens_per_second")
        assert (absent.value, absent.n) == (None, 0)
        assert (results.speedup.value, results.speedup.n) == (None, 0)


def test_a_run_that_took_no_time_has_no_speed(make_request: Make) -> None:
    results = timing(done(SPECULATIVE, make_request([])), done(BASELINE, make_request([]), wall_s=1.0))
    assert results.speculative_tokens_per_second.value is None
    assert results.speedup.value is None
    assert results.time_share is None


def test_time_that_no_stage_measured_is_the_scheduler_s(make_request: Make) -> None:
    stages = {"propose": 1.0, "score": 2.0, "scheduler": 0.5}
    share = timing(done(SPECULATIVE, make_request([]), wall_s=5.0, stage_s=stages)).time_share
    assert share is not None
    assert share.model_dump() == {
        "prefill": 0.0,
        "propose": 0.2,
        "score": 0.4,
        "verify": 0.0,
        "commit": 0.0,
        "scheduler": 0.4,
    }


def test_shares_sum_to_one_even_if_stages_overlap(make_request: Make) -> None:
    """On a GPU the events of stages may add up to more than the host's clock saw."""
    share = timing(done(SPECULATIVE, make_request([]), wall_s=1.0, stage_s={"propose": 1.5, "score": 0.5})).time_share
    assert share is not None
    assert (share.propose, share.score, share.scheduler) == (0.75, 0.25, 0.0)


def test_latencies_leave_out_requests_of_a_single_token(make_request: Make) -> None:
    requests = [
        make_request([], time_to_first_token=0.1, time_per_output_token=None),
        make_request([], time_to_first_token=0.3, time_per_output_token=0.02),
    ]
    results = timing(done(SPECULATIVE, *requests, wall_s=1.0))
    assert results.time_to_first_token is not None
    assert results.time_to_first_token.mean == pytest.approx(0.2)
    assert results.time_per_output_token is not None
    assert results.time_per_output_token.mean == 0.02
    none = timing(done(SPECULATIVE, requests[0], wall_s=1.0))
    assert none.time_per_output_token is None


def test_an_engine_that_times_no_stages_has_no_shares(make_request: Make) -> None:
    assert timing(done(SPECULATIVE, make_request([]), wall_s=1.0)).time_share is None
