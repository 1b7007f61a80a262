"""What a sweep recommends: this draft, this length, this speed-up, give or take; and why not another."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from spec_harness.errors import UserError
from spec_harness.report.comparable import incomparable_keys, section, speed
from spec_harness.report.compare import SPEED, compare
from spec_harness.report.points import NOBODY, Point
from spec_harness.report.pooled_baseline import (
    FLOOR,
    PooledBaseline,
    disagrees_with_prediction,
    pooled_baseline,
    speedup_over,
)
from spec_harness.report.round_cost import decoding_speedup, in_words, round_cost
from spec_harness.results.schema import Estimate

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


def verdict(points: Sequence[Point]) -> Verdict | None:
    """By tokens per second, which on the same prompts rank as speed-ups over the same plain decoding do. ``None``
    without any speed, and for runs that answer different questions.

    The target as its own draft is a check of the harness and no candidate, unless there is no other; nor is a run that
    its own prediction contradicts.
    """
    runs = [point.run.results for point in points]
    if incomparable_keys(runs):
        return None
    pooled = pooled_baseline(runs)
    proposing = [p for p in points if p.draft != NOBODY and p.k and speed(p.run.results).value is not None]
    doubts = disagrees_with_prediction([point.run.results for point in proposing], pooled)
    rated = [Rated(p, speedup_over(pooled, p.run.results), doubt) for p, doubt in zip(proposing, doubts, strict=True)]
    drafting = [one for one in rated if not _is_own_draft(one.point)] or rated
    settled = [one for one in drafting if not one.doubtful] or drafting
    if not settled:
        return None
    best, *others = sorted(settled, key=lambda one: speed(one.point.run.results).value or 0.0, reverse=True)
    noise = FLOOR if pooled is None else pooled.noise
    apart = {id(other): _slower(best, other, noise) for other in others}
    unclear = [other for other in others if apart[id(other)] is False]
    reasons = [*_certainty(best, noise), *_noise(pooled), *_balance(best)]
    if others:
        slower = "Clearly slower" if pooled else "Slower than the choice of prompts explains"
        reasons.append(f"{slower}: {sum(map(bool, apart.values()))} of the {len(others)} other candidates.")
    reasons += _listed("Not compared, their files cannot be read", [o for o in others if apart[id(o)] is None])
    doubtful_ones = [one for one in drafting if one.doubtful and one not in settled]
    reasons += _listed("Left out, measured other than acceptance and step times predict, so repeat", doubtful_ones)
    checks = [one for one in rated if one not in drafting]
    reasons += _listed("No candidate, since the target as its own draft is a check", checks)
    reasons += [note for note in best.point.run.results.notes if "outputs loop" in note]
    return Verdict(best.point, _headline(best, _undecided(unclear, of=len(others)), noise=noise), reasons)


def _listed(what: str, rated: Sequence[Rated]) -> list[str]:
    return [f"{what}: {_labels(rated)}."] if rated else []


def _undecided(unclear: Sequence[Rated], *, of: int) -> str:
    if not unclear:
        return ""
    if len(unclear) == of > 1:
        return f" None of the {of} other candidates is clearly slower."
    return f" Not clearly slower here: {_labels(unclear)}."


def _headline(best: Rated, also: str, *, noise: float) -> str:
    point = best.point
    settings = [f"{key}={value}" for key, value in point.others.items()]
    what = ", ".join([f"draft {point.draft}", f"proposal length {point.k}", *settings])
    if best.speedup.value is None:
        return f"The fastest is {what}: {_with_interval(speed(point.run.results), ' tokens/s', 0)}.{also}"
    gain = f"{_with_interval(best.speedup, 'x')} the speed of plain decoding"
    sure = not _certainty(best, noise)
    if best.speedup.value > 1:
        return f"{'Use' if sure else 'If at all, use'} {what}. Expect {gain}.{also}"
    if sure:
        return f"Do not use any of these drafts here. The best, {what}, runs at {gain}."
    return f"None of these drafts is clearly faster here. The best, {what}, runs at {gain}."


def _certainty(best: Rated, noise: float) -> list[str]:
    if best.speedup.value is None:
        return ["Plain decoding was not run as well (baseline=off): this does not say whether speculation pays."]
    if best.doubtful:
        return ["Every run was measured other than acceptance and step times predict: repeat on a quiet machine."]
    if best.speedup.ci95 is None:
        return ["Too few requests for an interval: the figure may be far off."]
    if best.speedup.ci95[0] <= 1 <= best.speedup.ci95[1]:
        return ["The interval contains 1: with other prompts of this kind it could be either; measure more prompts."]
    if 1 / noise <= best.speedup.value <= noise:
        return [f"Its distance from plain decoding is within what the machine varied ({noise - 1:.0%}): repeat it."]
    return []


def _noise(pooled: PooledBaseline | None) -> list[str]:
    if pooled is None:
        return ["How much the machine's speed varied is not known: repeat the sweep to rely on small differences."]
    slowest, fastest, limit = min(pooled.speeds), max(pooled.speeds), f"{pooled.noise - 1:.0%}"
    return [
        f"Plain decoding, the same work in {len(pooled.speeds)} runs, ran at {slowest:,.0f} to {fastest:,.0f} tokens/s;"
        f" the speed-ups are over the median, {pooled.speed:,.0f}. Differences below {limit} may be the machine's: "
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


def _slower(best: Rated, other: Rated, noise: float) -> bool | None:
    """Whether neither the choice of prompts, with requests paired, nor the machine explains the difference in speed;
    ``None`` if a file that tells is damaged."""
    try:
        differences = compare(best.point.run, other.point.run)
    except UserError:
        return None
    change = next(difference for difference in differences if difference.name == SPEED)
    return replace(change, noise=max(noise, change.noise)).verdict == "A higher"


def _labels(rated: Sequence[Rated]) -> str:
    names = [one.point.label for one in rated]
    more = f"; and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return "; ".join(names[:_NAMED]) + more


def _is_own_draft(point: Point) -> bool:
    draft, proposal = (section(point.run.results, name) for name in ("draft", "proposal"))
    return draft.get("kind") == "self" and proposal.get("kind") == "draft_model"


def _with_interval(estimate: Estimate, unit: str, digits: int = 2) -> str:
    text = f"{estimate.value:,.{digits}f}{unit}"
    if estimate.ci95 is None:
        return f"{text} (no interval)"
    low, high = estimate.ci95
    return f"{text} (95 % interval {low:,.{digits}f} to {high:,.{digits}f})"
