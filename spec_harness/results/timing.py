"""The timing section of results.json: speeds, the speed-up, shares of the time and latencies of engine runs."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from spec_harness.metrics.bootstrap import Bootstrap
from spec_harness.requests import RequestRecord
from spec_harness.results.schema import Estimate, StepTimeResults, TimeShare, TimingResults, latency

SPECULATIVE, BASELINE = "speculative", "baseline"  # names of engine runs
_STAGES = tuple(TimeShare.model_fields)


@runtime_checkable
class TimedRun(Protocol):
    """One engine's run over the requests."""

    @property
    def name(self) -> str: ...
    @property
    def records(self) -> Sequence[RequestRecord]: ...
    @property
    def wall_s(self) -> float: ...
    @property
    def stage_s(self) -> Mapping[str, float] | None: ...


def timing_results(
    runs: Sequence[TimedRun], *, step_times: StepTimeResults | None = None, **predicted: float | None
) -> TimingResults:
    """Output tokens, the prefills' included, over wall time in the engine; stages and latencies of the first run."""
    first, by_name = runs[0], {run.name: run for run in runs}
    speculative, baseline = by_name.get(SPECULATIVE), by_name.get(BASELINE)
    return TimingResults(
        speculative_tokens_per_second=_speed(speculative),
        baseline_tokens_per_second=_speed(baseline),
        speedup=_speedup(speculative, baseline),
        step_times=step_times,
        time_share=_time_share(first),
        time_to_first_token=latency([record.time_to_first_token for record in first.records]),
        time_per_output_token=latency(
            [r.time_per_output_token for r in first.records if r.time_per_output_token is not None]
        ),
        **predicted,
    )


def _speed(run: TimedRun | None) -> Estimate:
    if run is None or run.wall_s <= 0:
        return Estimate(value=None, n=0)
    tokens, seconds = _per_request(run)
    interval = Bootstrap(len(tokens)).ratio(list(tokens.values()), [seconds[key] for key in tokens])
    return Estimate(value=sum(tokens.values()) / run.wall_s, ci95=interval, n=len(tokens))


def _speedup(speculative: TimedRun | None, baseline: TimedRun | None) -> Estimate:
    """Requests are resampled in pairs: a request's two runs do much the same work."""
    if speculative is None or baseline is None or speculative.wall_s <= 0 or baseline.wall_s <= 0:
        return Estimate(value=None, n=0)
    columns = (*_per_request(speculative), *_per_request(baseline))
    draws, ids = Bootstrap(len(columns[0])), list(columns[0])
    t, s, u, v = (draws.sums([column[key] for key in ids]) for column in columns)
    ours, theirs = sum(columns[0].values()) / speculative.wall_s, sum(columns[2].values()) / baseline.wall_s
    return Estimate(value=ours / theirs, ci95=draws.interval((t / s) / (u / v)), n=len(ids))


def _per_request(run: TimedRun) -> tuple[dict[str, int], dict[str, float]]:
    """Output tokens and seconds of each request id, turns and samples together. The seconds sum to the wall time: what
    lies between the steps' own clocks and the run's is shared out, or an interval might not contain its value."""
    tokens: dict[str, int] = defaultdict(int)
    seconds: dict[str, float] = defaultdict(float)
    # In the order of their ids, so that the bootstrap's draws do not depend on who finished first.
    for record in sorted(run.records, key=lambda record: record.request_id):
        tokens[record.request_id] += len(record.token_ids)
        seconds[record.request_id] += record.engine_s
    scale = run.wall_s / (sum(seconds.values()) or 1.0)
    return tokens, {key: scale * spent for key, spent in seconds.items()}


def _time_share(run: TimedRun) -> TimeShare | None:
    """Shares of the wall time. What no stage timed is the host's work between them: the scheduler's."""
    if run.wall_s <= 0 or run.stage_s is None:
        return None
    timed = {stage: run.stage_s.get(stage, 0.0) for stage in _STAGES}
    timed["scheduler"] += max(0.0, run.wall_s - sum(timed.values()))
    total = sum(timed.values())
    return TimeShare(**{stage: seconds / total for stage, seconds in timed.items()})
