"""What an engine's report adds to results.json, and what an engine could not give."""

from typing import Any

from spec_harness.evaluation.engine_run import EngineRun
from spec_harness.metrics.counts import ProposalCounts
from spec_harness.results.schema import KVResults, StepTimeResults
from spec_harness.trust.step_profile import draft_cost_ratio, predicted_speedup


def kv_results(sizes: KVResults | None, run: EngineRun) -> KVResults | None:
    """The KV cache in a finished run; ``None`` for an engine without KV blocks of its own."""
    blocks = None if run.report is None else run.report.blocks
    if sizes is None or blocks is None:
        return None
    held = blocks.total * ((sizes.bytes_per_block_target or 0) + (sizes.bytes_per_block_draft or 0))
    return sizes.model_copy(
        update={
            "blocks_allocated_peak": blocks.peak,
            "blocks_allocated": blocks.total,
            "utilization": run.stats.tokens_held / run.stats.slots_held if run.stats.slots_held else None,
            "preemptions": run.stats.preemptions,
            "swaps": run.stats.swaps,
            "bytes_per_output_token": held / run.num_output_tokens if run.num_output_tokens else None,
        }
    )


def predicted_times(counts: ProposalCounts, steps: StepTimeResults) -> dict[str, Any]:
    """What the step times of the micro-profile add to the timing section."""
    rounds = counts.num_rounds
    return {
        "step_times": steps,
        "draft_cost_ratio": draft_cost_ratio(steps),
        "predicted_speedup": predicted_speedup(
            steps, counts.num_emitted_tokens / rounds, counts.num_draft_tokens / rounds
        )
        if rounds
        else None,
    }


def limitations(run: EngineRun) -> list[str]:
    """Notes: what the engine says of itself, and which of its figures are missing."""
    if run.report is None:
        return []
    notes = list(run.report.notes)
    if run.report.blocks is None:
        notes.append("The engine gives no figures of a KV cache.")
    if run.report.stage_s is None:
        notes.append("The engine does not time its stages.")
    return notes
