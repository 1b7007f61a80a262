"""Plain decoding of all runs of a sweep, pooled: the same work in each, so its spread shows what the machine did."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log
from statistics import median
from typing import Any

from spec_harness.report.comparable import SILENT, flatten, has_prefix, workload_key
from spec_harness.report.round_cost import FAR_OFF, prediction_error
from spec_harness.results.schema import Estimate, RunResults

# Speeds closer than this are never called different: two runs of the same work on a quiet machine are not, either.
FLOOR = 1.05
_ENOUGH, _LIMIT = 4, 1.2  # runs; a prediction's error / the usual one of the sweep, or the inverse
# What plain decoding does not see of the configuration.
_UNSEEN = (*SILENT, "draft", "proposal", "integrity", "seed", "sampling.seed", "baseline")


@dataclass(frozen=True)
class PooledBaseline:
    """Plain decoding's tokens per second in each run that measured it."""

    speeds: Sequence[float]
    work: Mapping[str, Any] = field(default_factory=dict)  # what was decoded, how and where

    @property
    def speed(self) -> float:
        """The median, which one hiccup of the machine does not move."""
        return median(self.speeds)

    @property
    def noise(self) -> float:
        """The factor by which two speeds may differ without meaning anything: as far apart as this same work was, or,
        so that one hiccup does not count, the repeatability limit if that is less (ISO 5725: 2.8 standard deviations,
        here estimated from the median deviation)."""
        deviation = median(abs(log(speed / self.speed)) for speed in self.speeds)
        return max(FLOOR, min(max(self.speeds) / min(self.speeds), exp(2.8 * 1.4826 * deviation)))


def pooled_baseline(runs: Sequence[RunResults]) -> PooledBaseline | None:
    """``None`` unless two runs or more measured plain decoding, and all of those did the same work in it."""
    measured = [(one, speed) for one in runs if (speed := baseline_speed(None, one))]
    works = [_work(one) for one, _ in measured]
    if len(measured) < 2 or any(work != works[0] for work in works):
        return None
    return PooledBaseline([speed for _, speed in measured], works[0])


def disagrees_with_prediction(runs: Sequence[RunResults], pooled: PooledBaseline | None) -> list[bool]:
    """Which runs were measured far from what acceptance and step times predict. ``_ENOUGH`` runs or more are compared
    with each other: what the prediction leaves out, as the ends of short runs, is left out of all of them; a busy
    machine strikes some."""
    off = [prediction_error(one, speedup_over(pooled, one).value) for one in runs]
    known = [log(error) for error in off if error is not None]
    usual, limit = (median(known), _LIMIT) if len(known) >= _ENOUGH else (0.0, FAR_OFF)
    return [error is not None and abs(log(error) - usual) > log(limit) for error in off]


def speedup_over(pooled: PooledBaseline | None, results: RunResults) -> Estimate:
    """The run's speed over the pooled baseline; its own speed-up where that is of other work, or there is none."""
    if results.timing is None:
        return Estimate(value=None, n=0)
    drafted = results.timing.speculative_tokens_per_second
    if pooled is None or drafted.value is None or _work(results) != pooled.work:
        return results.timing.speedup
    ci95 = None if drafted.ci95 is None else (drafted.ci95[0] / pooled.speed, drafted.ci95[1] / pooled.speed)
    return Estimate(value=drafted.value / pooled.speed, ci95=ci95, n=drafted.n)


def baseline_speed(pooled: PooledBaseline | None, results: RunResults) -> float | None:
    """Plain decoding's tokens per second that the run's speed-up is over."""
    if pooled is not None and _work(results) == pooled.work:
        return pooled.speed
    return None if results.timing is None else results.timing.baseline_tokens_per_second.value


def _work(results: RunResults) -> dict[str, Any]:
    """What plain decoding did, by which code, and where."""
    source = results.provenance
    where = source.model_dump(include={"device", "threads", "versions", "git_commit", "prompts_sha256"})
    seen = {key: x for key, x in flatten(results.config).items() if not has_prefix(key, _UNSEEN)}
    return seen | workload_key(results) | where
