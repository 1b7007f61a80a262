"""Plain decoding as the yardstick of a sweep: the same work in every run, so its spread shows what the machine did."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import harmonic_mean, median
from typing import Any

from spec_harness.analysis.comparable import flatten
from spec_harness.evaluation.results import Estimate, RunResults
from spec_harness.evaluation.round_cost import FAR_OFF, prediction_error

# Speeds closer than this are never called different: two runs of the same work on a quiet machine are not, either.
FLOOR = 1.05
# What plain decoding does not see of the configuration.
_UNSEEN = ("draft.", "proposal.", "logger.", "verbose", "integrity", "seed", "sampling.seed", "baseline", "trainer.en")


@dataclass(frozen=True)
class Yardstick:
    """Plain decoding's tokens per second in each run that measured it."""

    speeds: Sequence[float]

    @property
    def speed(self) -> float:
        """All runs' tokens over all their time: each decodes the same tokens."""
        return harmonic_mean(self.speeds)

    @property
    def noise(self) -> float:
        """The factor by which speeds may differ without meaning anything."""
        return max(FLOOR, max(self.speeds) / min(self.speeds))


def yardstick(runs: Sequence[RunResults]) -> Yardstick | None:
    """``None`` unless two runs or more measured plain decoding, and all of those did the same work in it."""
    measured = [(one, speed) for one in runs if (speed := _plain_speed(one))]
    works = [_work(one) for one, _ in measured]
    if len(measured) < 2 or any(work != works[0] for work in works):
        return None
    return Yardstick([speed for _, speed in measured])


def doubtful(runs: Sequence[RunResults], stick: Yardstick | None) -> list[bool]:
    """Which runs were measured far from what acceptance and step times predict, compared with the other runs: what the
    prediction leaves out, as the ends of short runs, is left out of all of them; a busy machine strikes some."""
    off = [prediction_error(one, speedup_over(stick, one).value) for one in runs]
    known = [error for error in off if error is not None]
    usual = median(known) if known else 1.0
    return [error is not None and max(error / usual, usual / error) > FAR_OFF for error in off]


def speedup_over(stick: Yardstick | None, results: RunResults) -> Estimate:
    """The run's speed-up over the yardstick, with the relative interval of its own; without one its own."""
    unknown = Estimate(value=None, n=0)
    if results.timing is None:
        return unknown
    own, speed = results.timing.speedup, results.timing.speculative_tokens_per_second.value
    if stick is None or not own.value or not speed:
        return own
    value = speed / stick.speed
    ci95 = None if own.ci95 is None else (own.ci95[0] * value / own.value, own.ci95[1] * value / own.value)
    return Estimate(value=value, ci95=ci95, n=own.n)


def _plain_speed(results: RunResults) -> float | None:
    return None if results.timing is None else results.timing.baseline_tokens_per_second.value


def _work(results: RunResults) -> dict[str, Any]:
    """What plain decoding did, and where."""
    machine = {"device": results.provenance.device, "threads": results.provenance.threads}
    return {key: x for key, x in flatten(results.config).items() if not key.startswith(_UNSEEN)} | machine
