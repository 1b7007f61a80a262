"""From finished passes to the sections of results.json."""

from collections.abc import Sequence
from typing import Literal, cast

from spec_harness.evaluation.module import Pass
from spec_harness.evaluation.results import (
    BaselineEquality,
    Check,
    Estimate,
    IntegrityResults,
    KVResults,
    TimeShare,
    TimingResults,
    latency,
)
from spec_harness.spec_decode.engine import EngineSettings, bytes_per_block
from spec_harness.worker.model_loader import LoadedModel

SPECULATIVE, BASELINE = "speculative", "baseline"
_STAGES = ("prefill", "propose", "score", "verify", "commit", "scheduler")


def timing_results(passes: Sequence[Pass]) -> TimingResults:
    """Output tokens, the prefills' included, over wall time in the engine; stages and latencies of the first pass."""
    by_name = {done.name: done for done in passes}
    first = passes[0]
    speculative, baseline = _speed(by_name.get(SPECULATIVE)), _speed(by_name.get(BASELINE))
    speedup = (
        speculative.value / baseline.value
        if speculative.value is not None and baseline.value is not None and baseline.value > 0
        else None
    )
    return TimingResults(
        speculative_tokens_per_second=speculative,
        baseline_tokens_per_second=baseline,
        speedup=Estimate(value=speedup, n=0 if speedup is None else len(first.records)),
        time_share=_time_share(first),
        time_to_first_token=latency([record.time_to_first_token for record in first.records]),
        time_per_output_token=latency(
            [r.time_per_output_token for r in first.records if r.time_per_output_token is not None]
        ),
    )


def _speed(done: Pass | None) -> Estimate:
    speed = None if done is None else done.tokens_per_second
    return Estimate(value=speed, n=0 if done is None or speed is None else len(done.records))


def _time_share(done: Pass) -> TimeShare | None:
    """Shares of the wall time. What no stage timed is the host's work between them: the scheduler's."""
    if done.wall_s <= 0:
        return None
    timed = {stage: done.stage_s.get(stage, 0.0) for stage in _STAGES}
    timed["scheduler"] += max(0.0, done.wall_s - sum(timed.values()))
    total = sum(timed.values())
    return TimeShare(**{stage: seconds / total for stage, seconds in timed.items()})


def kv_results(done: Pass, settings: EngineSettings, target: LoadedModel, draft: LoadedModel | None) -> KVResults:
    """The KV cache in the pass ``done``."""
    models = [target] if draft is None else [target, draft]
    held = done.blocks_total * bytes_per_block(models, settings.block_size)
    return KVResults(
        block_size=settings.block_size,
        num_blocks=settings.num_blocks,
        blocks_allocated_peak=done.blocks_peak,
        blocks_allocated=done.blocks_total,
        utilization=done.stats.tokens_held / done.stats.slots_held if done.stats.slots_held else None,
        bytes_per_block_target=bytes_per_block([target], settings.block_size),
        bytes_per_block_draft=None if draft is None else bytes_per_block([draft], settings.block_size),
        preemptions=done.stats.preemptions,
        swaps=done.stats.swaps,
        bytes_per_output_token=held / done.num_output_tokens if done.num_output_tokens else None,
    )


def integrity_results(
    level: str,
    target: LoadedModel,
    draft: LoadedModel | None,
    gate: Sequence[Check],
    equality: BaselineEquality | None,
) -> IntegrityResults:
    """The checks at load, which always run, the gate's, and the comparison with the baseline."""
    models = {"target": target} | ({} if draft is None else {"draft": draft})
    return IntegrityResults(
        level=cast(Literal["full", "quick", "off"], level),  # checked by the configuration
        checks=[
            Check(
                name=f"{role}: paged against dense logits",
                figure=model.check.max_difference,
                tolerance=model.check.cap,
                verdict="pass",  # a model that does not pass is refused at load
            )
            for role, model in models.items()
        ]
        + list(gate),
        baseline_equality=equality,
    )
