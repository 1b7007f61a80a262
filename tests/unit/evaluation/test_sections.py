"""The sections of results.json, from passes whose figures are known."""

from collections.abc import Callable
from typing import Any

import pytest

from spec_harness.engine.engine import EngineStats
from spec_harness.engine.native import EngineSettings
from spec_harness.evaluation.module import Pass
from spec_harness.metrics.counts import ProposalCounts
from spec_harness.models.load import LoadedModel
from spec_harness.results.schema import BaselineEquality, Check, TimingResults
from spec_harness.results.timing import BASELINE, SPECULATIVE, integrity_results, kv_results, timing_results

Make = Callable[..., Any]


def done(name: str, *records: Any, **figures: Any) -> Pass:
    made = Pass(name=name, scheduler=lambda: pytest.fail("not to be called"), **figures)
    for record in records:
        made.records.append(record)
    return made


def timing(*passes: Pass) -> TimingResults:
    return timing_results(passes, ProposalCounts(max_proposal_len=2), None)


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


def test_a_pass_that_took_no_time_has_no_speed(make_request: Make) -> None:
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


SETTINGS = EngineSettings(block_size=4, num_blocks=10, max_num_seqs=2, max_proposal_len=2)


def test_kv_figures_are_those_of_both_caches(target: LoadedModel, draft: LoadedModel, make_request: Make) -> None:
    stats = EngineStats(tokens_held=30, slots_held=40)
    finished = done(SPECULATIVE, make_request([]), stats=stats, blocks_peak=6, blocks_total=9)
    kv = kv_results(finished, SETTINGS, target, draft)
    # Two layers, keys and values, four tokens, two heads of 16 numbers of 4 bytes.
    block = 2 * 2 * 4 * 2 * 16 * 4
    assert (kv.bytes_per_block_target, kv.bytes_per_block_draft) == (block, block)
    assert kv.bytes_per_output_token == 9 * 2 * block / 1
    assert (kv.utilization, kv.blocks_allocated_peak, kv.blocks_allocated) == (0.75, 6, 9)
    assert (kv.block_size, kv.num_blocks) == (4, 10)


def test_kv_figures_without_a_draft_or_without_any_round(target: LoadedModel, make_request: Make) -> None:
    kv = kv_results(done(BASELINE), SETTINGS, target, None)
    assert kv.bytes_per_block_draft is None
    assert (kv.utilization, kv.bytes_per_output_token) == (None, None)


def test_integrity_names_every_check_with_its_figure(target: LoadedModel, draft: LoadedModel) -> None:
    gate = [Check(name="gate", figure=0.0, tolerance=1.0, verdict="pass")]
    equality = BaselineEquality(equal=3, tie=1, fault=0)
    results = integrity_results("quick", target, draft, gate, equality)
    assert [check.name for check in results.checks] == [
        "target: paged against dense logits",
        "draft: paged against dense logits",
        "gate",
    ]
    assert results.checks[0].figure == target.check.max_difference
    assert results.checks[1].tolerance == draft.check.cap
    assert (results.level, results.baseline_equality) == ("quick", equality)
    alone = integrity_results("off", target, None, [], None)
    assert [check.name for check in alone.checks] == ["target: paged against dense logits"]
    assert alone.baseline_equality is None
