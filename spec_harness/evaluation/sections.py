"""From finished passes to the sections of results.json."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from typing import Literal, cast

from spec_harness.engine.native import EngineSettings, bytes_per_block
from spec_harness.evaluation.module import Pass
from spec_harness.metrics.bootstrap import Bootstrap
from spec_harness.metrics.counts import ProposalCounts
from spec_harness.models.load import LoadedModel
from spec_harness.results.schema import (
    BaselineEquality,
    Check,
    Estimate,
    IntegrityResults,
    KVResults,
    StepTimeResults,
    TimeShare,
    TimingResults,
    latency,
)
from spec_harness.trust.step_profile import StepTimes

SPECULATIVE, BASELINE = "speculative", "baseline"
_STAGES = ("prefill", "propose", "score", "verify", "commit", "scheduler")


def timing_results(passes: Sequence[Pass], counts: ProposalCounts, steps: StepTimes | None) -> TimingResults:
    """Output tokens, the prefills' included, over wall time in the engine; stages and latencies of the first pass.

    With the step times of the micro-profile also what the cost model predicts.
    """
    first, by_name = passes[0], {done.name: done for done in passes}
    speculative, baseline = by_name.get(SPECULATIVE), by_name.get(BASELINE)
    return TimingResults(
        speculative_tokens_per_second=_speed(speculative),
        baseline_tokens_per_second=_speed(baseline),
        speedup=_speedup(speculative, baseline),
        draft_cost_ratio=None if steps is None else steps.draft_cost_ratio,
        predicted_speedup=_predicted(counts, steps),
        step_times=None if steps is None else StepTimeResults(**asdict(steps)),
        time_share=_time_share(first),
        time_to_first_token=latency([record.time_to_first_token for record in first.records]),
        time_per_output_token=latency(
            [r.time_per_output_token for r in first.records if r.time_per_output_token is not None]
        ),
    )


def _predicted(counts: ProposalCounts, steps: StepTimes | None) -> float | None:
    if steps is None or counts.num_rounds == 0:
        return None
    rounds = counts.num_rounds
    return steps.predicted_speedup(counts.num_emitted_tokens / rounds, counts.num_draft_tokens / rounds)


def _speed(done: Pass | None) -> Estimate:
    if done is None or done.tokens_per_second is None:
        return Estimate(value=None, n=0)
    tokens, seconds = per_request(done)
    interval = Bootstrap(len(tokens)).ratio(list(tokens.values()), [seconds[key] for key in tokens])
    return Estimate(value=done.tokens_per_second, ci95=interval, n=len(tokens))


def _speedup(speculative: Pass | None, baseline: Pass | None) -> Estimate:
    """Requests are resampled in pairs: a request's two runs do much the same work."""
    if speculative is None or baseline is None:
        return Estimate(value=None, n=0)
    ours, theirs = speculative.tokens_per_second, baseline.tokens_per_second
    if ours is None or theirs is None:
        return Estimate(value=None, n=0)
    tokens, seconds = per_request(speculative)
    other_tokens, other_seconds = per_request(baseline)
    draws, ids = Bootstrap(len(tokens)), list(tokens)
    numbers = (tokens, seconds, other_tokens, other_seconds)
    t, s, u, v = (draws.sums([column[key] for key in ids]) for column in numbers)
    return Estimate(value=ours / theirs, ci95=draws.interval((t / s) / (u / v)), n=len(ids))


def per_request(done: Pass) -> tuple[dict[str, int], dict[str, float]]:
    """Output tokens and seconds of each request id, turns and samples together. The seconds sum to the wall time: what
    lies between the steps' own clocks and the pass's is shared out, or an interval might not contain its value."""
    tokens: dict[str, int] = defaultdict(int)
    seconds: dict[str, float] = defaultdict(float)
    # In the order of their ids, so that the bootstrap's draws do not depend on who finished first.
    for record in sorted(done.records, key=lambda record: record.request_id):
        tokens[record.request_id] += len(record.token_ids)
        seconds[record.request_id] += record.engine_s
    scale = done.wall_s / (sum(seconds.values()) or 1.0)
    return tokens, {key: scale * spent for key, spent in seconds.items()}


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
