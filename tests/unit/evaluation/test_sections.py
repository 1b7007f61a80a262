"""What an engine's report adds to the results, and what is said of what it lacks."""

from collections.abc import Callable
from typing import Any

import pytest

from spec_harness.engine import BlockUsage, EngineReport, EngineStats
from spec_harness.evaluation.engine_run import EngineRun
from spec_harness.evaluation.sections import kv_results, limitations
from spec_harness.results.schema import KVResults

Make = Callable[..., Any]
SIZES = KVResults(block_size=4, num_blocks=10, bytes_per_block_target=100, bytes_per_block_draft=20)


def finished(*records: Any, **report: Any) -> EngineRun:
    return EngineRun(
        name="speculative",
        make_engine=lambda: pytest.fail("not to be called"),
        records=list(records),
        report=EngineReport(**{"stats": EngineStats(), **report}),
    )


def test_kv_figures_are_those_of_both_caches(make_request: Make) -> None:
    stats = EngineStats(tokens_held=30, slots_held=40, preemptions=2, swaps=1)
    kv = kv_results(SIZES, finished(make_request([]), stats=stats, blocks=BlockUsage(peak=6, total=9)))
    assert kv is not None
    assert kv.bytes_per_output_token == 9 * (100 + 20) / 1
    assert (kv.utilization, kv.blocks_allocated_peak, kv.blocks_allocated) == (0.75, 6, 9)
    assert (kv.block_size, kv.num_blocks, kv.preemptions, kv.swaps) == (4, 10, 2, 1)


def test_kv_figures_without_any_round() -> None:
    kv = kv_results(SIZES, finished(blocks=BlockUsage(peak=0, total=0)))
    assert kv is not None
    assert (kv.utilization, kv.bytes_per_output_token) == (None, None)


def test_what_an_engine_cannot_give_is_missing_and_said() -> None:
    run = finished(notes=["mine"])
    assert kv_results(SIZES, run) is None
    assert kv_results(None, finished(blocks=BlockUsage(peak=6, total=9))) is None
    assert limitations(run) == [
        "mine",
        "The engine gives no figures of a KV cache.",
        "The engine does not time its stages.",
    ]
    assert limitations(finished(blocks=BlockUsage(peak=6, total=9), stage_s={})) == []
