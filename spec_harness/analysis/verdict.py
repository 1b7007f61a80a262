"""What a sweep recommends: this draft, this length, this speed-up, give or take; and why not another."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from spec_harness.analysis.comparable import section, unlike
from spec_harness.analysis.compare import SPEED, compare
from spec_harness.analysis.points import NOBODY, Point
from spec_harness.analysis.yardstick import FLOOR, Yardstick, doubtful, speedup_over, yardstick
from spec_harness.errors import UserError
from spec_harness.evaluation.results import Estimate
from spec_harness.evaluation.round_cost import decoding_speedup, in_words, round_cost

_NAMED = 4  # runs that are listed by name


@dataclass(frozen=True)
class Rated:
    """A run that proposed something, and its speed-up: over plain decoding of the whole sweep where that was the same
    work in every run, else of its own run."""

    point: Point
    speedup: Estimate
    doubtful: bool  # measured far from what its acceptance and step times predict: the machine was busy


@dataclass(frozen=True)
class Verdict:
    best: Point
    headline: str
    reasons: list[str]  # whole sentences


def rate_points(points: Sequence[Point]) -> list[Rated]:
    """Those that proposed something, in their order."""
    stick = yardstick([point.run.results for point in points])
    proposing = [point for point in points if point.draft != NOBODY and point.k]
    doubts = doubtful([point.run.results for point in proposing], stick)
    return [Rated(p, speedup_over(stick, p.run.results), doubt) for p, doubt in zip(proposing, doubts, strict=True)]


def verdict(points: Sequence[Point]) -> Verdict | None:
    """By measured speed-up, or by tokens per second where plain decoding was not run. ``None`` without any speed, and
    for runs that answer different questions.

    The target as its own draft is a check of the harness and no candidate, unless there is no other; nor is a run that
    its own prediction contradicts.
    """
    if unlike([point.run.results for point in points]):
        return None
    stick = yardstick([point.run.results for point in points])
    rated = rate_points(points)
    checks = [one for one in rated if _is_own_draft(one.point)]
    drafting = [one for one in rated if one not in checks] or rated
    checks = [one for one in checks if one not in drafting]
    compared = [one for one in drafting if one.speedup.value is not None]
    timed = compared or [one for one in drafting if _speed(one.point).value is not None]
    suspects = [one for one in timed if one.doubtful]
    settled = [one for one in timed if not one.doubtful] or timed
    if not settled:
        return None
    ranked = sorted(settled, key=_gain, reverse=True)
    best, others = ranked[0], ranked[1:]
    same_work = stick is not None or not compared
    noise = FLOOR if stick is None else stick.noise
    clearly: Callable[[Rated, Rated], bool] = (lambda a, b: _paired(a, b, noise)) if same_work else _apart
    unclear = [other for other in others if not clearly(best, other)]
    reasons = [*_certainty(best, noise), *_noise(stick), *_balance(best)]
    if others:
        slower = "Clearly slower" if stick else "Slower than the choice of prompts explains"
        reasons.append(f"{slower}: {len(others) - len(unclear)} of the {len(others)} other candidates.")
    if suspects and suspects != timed:
        reasons.append(
            f"Left out, measured other than acceptance and step times predict, so repeat: {_labels(suspects)}."
        )
    if checks:
        reasons.append(f"No candidate, since the target as its own draft is a check: {_labels(checks)}.")
    reasons += [note for note in best.point.run.results.notes if "outputs loop" in note]
    also = _undecided(unclear, of=len(others))
    return Verdict(best.point, _headline(best, also, compared=bool(compared), noise=noise), reasons)


def _undecided(unclear: Sequence[Rated], *, of: int) -> str:
    if not unclear:
        return ""
    if len(unclear) == of > 1:
        return f" None of the {of} other candidates is clearly slower."
    return f" Not clearly slower here: {_labels(unclear)}."


def _headline(best: Rated, also: str, *, compared: bool, noise: float) -> str:
    point = best.point
    settings = [f"{key}={value}" for key, value in point.others.items()]
    what = ", ".join([f"draft {point.draft}", f"proposal length {point.k}", *settings])
    if not compared:
        return f"The fastest is {what}: {_with_interval(_speed(point), ' tokens/s', 0)}.{also}"
    speed = f"{_with_interval(best.speedup, 'x')} the speed of plain decoding"
    gain, sure = best.speedup.value or 0.0, not _certainty(best, noise)
    if gain > 1:
        return f"{'Use' if sure else 'If at all, use'} {what}. Expect {speed}.{also}"
    if sure:
        return f"Do not use any of these drafts here. The best, {what}, runs at {speed}."
    return f"None of these drafts is clearly faster here. The best, {what}, runs at {speed}."


def _certainty(best: Rated, noise: float) -> list[str]:
    if best.speedup.value is None:
        return ["Plain decoding was not run as well (baseline=off): this does not say whether speculation pays."]
    if best.speedup.ci95 is None:
        return ["Too few requests for an interval: the figure may be far off."]
    if best.speedup.ci95[0] <= 1 <= best.speedup.ci95[1]:
        return ["The interval contains 1: with other prompts of this kind it could be either; measure more prompts."]
    if 1 / noise <= best.speedup.value <= noise:
        return [f"Its distance from plain decoding is within what the machine varied ({noise - 1:.0%}): repeat it."]
    return []


def _noise(stick: Yardstick | None) -> list[str]:
    if stick is None:
        return ["How much the machine's speed varied is not known: repeat the sweep to rely on small differences."]
    slowest, fastest, limit = min(stick.speeds), max(stick.speeds), f"{stick.noise - 1:.0%}"
    return [
        f"Plain decoding, the same work in {len(stick.speeds)} runs, ran at {slowest:,.0f} to {fastest:,.0f} tokens/s; "
        f"the speed-ups are over the median, {stick.speed:,.0f}. Differences below {limit} may be the machine's: "
        "repeat the sweep to tell closer ones apart."
    ]


def _balance(best: Rated) -> list[str]:
    """The yield of a round against its cost, stage by stage."""
    results, speedup = best.point.run.results, best.speedup.value
    gain, cost = results.proposal.tokens_per_target_pass.value, round_cost(results, speedup)
    decoding, timing = decoding_speedup(results, speedup), results.timing
    if gain is None or cost is None or decoding is None or timing is None:
        return []
    predicted = "" if timing.predicted_speedup is None else f" (predicted: {timing.predicted_speedup:.2f}x)"
    return [
        f"A round yields {gain:.2f} tokens for the time of {sum(cost.values()):.2f} plain steps ({in_words(cost)}): "
        f"{decoding:.2f}x in decoding alone{predicted}. Prefill, which both pay, makes it {speedup:.2f}x."
    ]


def _apart(best: Rated, other: Rated) -> bool:
    """Their speed-ups' intervals do not touch, each measured against plain decoding in its own run."""
    ours, theirs = best.speedup.ci95, other.speedup.ci95
    return ours is not None and theirs is not None and theirs[1] * FLOOR < ours[0]


def _paired(best: Rated, other: Rated, noise: float) -> bool:
    """The difference in speed is neither the choice of prompts, with requests paired, nor the machine's."""
    try:
        differences = compare(best.point.run, other.point.run)
    except UserError:  # other prompts or another target: nothing to pair
        return False
    change = next(difference for difference in differences if difference.name == SPEED)
    return replace(change, noise=noise).verdict == "A higher"


def _labels(rated: Sequence[Rated]) -> str:
    names = [one.point.label for one in rated]
    more = f"; and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return "; ".join(names[:_NAMED]) + more


def _is_own_draft(point: Point) -> bool:
    draft, proposal = (section(point.run.results, name) for name in ("draft", "proposal"))
    return draft.get("kind") == "self" and proposal.get("kind") == "draft_model"


def _gain(rated: Rated) -> float:
    return rated.speedup.value or _speed(rated.point).value or 0.0


def _speed(point: Point) -> Estimate:
    timing = point.run.results.timing
    return Estimate(value=None, n=0) if timing is None else timing.speculative_tokens_per_second


def _with_interval(estimate: Estimate, unit: str, digits: int = 2) -> str:
    text = f"{estimate.value:,.{digits}f}{unit}"
    if estimate.ci95 is None:
        return f"{text} (no interval)"
    low, high = estimate.ci95
    return f"{text} (95 % interval {low:,.{digits}f} to {high:,.{digits}f})"
