"""What a sweep recommends: this draft, this length, this speed-up, give or take; and why not another."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spec_harness.analysis.comparable import unlike
from spec_harness.analysis.compare import SPEED, compare
from spec_harness.analysis.points import NOBODY, Point
from spec_harness.errors import UserError
from spec_harness.evaluation.results import Estimate
from spec_harness.evaluation.round_cost import in_words, predicted_off, round_cost


@dataclass(frozen=True)
class Verdict:
    best: Point
    headline: str
    reasons: list[str]  # whole sentences


def verdict(points: Sequence[Point]) -> Verdict | None:
    """By measured speed-up, or by tokens per second where plain decoding was not run. ``None`` without any speed, and
    for runs that answer different questions.

    The target as its own draft is a check of the harness and no candidate, unless there is no other.
    """
    if unlike([point.run.results for point in points]):
        return None
    drafting = [p for p in points if p.draft != NOBODY and p.k and _is_own_draft(p) == all(map(_is_own_draft, points))]
    compared = [p for p in drafting if _speedup(p).value is not None]
    ranked = sorted(compared or [p for p in drafting if _speed(p).value is not None], key=_gain, reverse=True)
    if not ranked:
        return None
    best, others = ranked[0], ranked[1:]
    left_out = [p.label for p in points if p.draft != NOBODY and p.k and p not in drafting]
    checks = [f"No candidate, since the target as its own draft is a check: {'; '.join(left_out)}."] * bool(left_out)
    what = ", ".join(
        [f"draft {best.draft}", f"proposal length {best.k}", *(f"{k}={v}" for k, v in best.others.items())]
    )
    if not compared:
        headline = f"The fastest is {what}: {_with_interval(_speed(best), ' tokens/s', 0)}."
        reasons = ["Plain decoding was not run as well (baseline=off): this does not say whether speculation pays."]
        return Verdict(best, headline, reasons + _slower(best, others, _paired) + checks)
    speed = f"{_with_interval(_speedup(best), 'x')} the speed of plain decoding"
    if _gain(best) > 1:
        sure = _certainty(_speedup(best)) == []
        headline = f"{'Use' if sure else 'If at all, use'} {what}. Expect {speed}."
    elif _certainty(_speedup(best)) == []:
        headline = f"Do not use any of these drafts here. The best, {what}, runs at {speed}."
    else:
        headline = f"None of these drafts is clearly faster here. The best, {what}, runs at {speed}."
    why = [_balance(best), *_neighbors(best, others), *_slower(best, others, _apart), *_unsettled(ranked)]
    return Verdict(best, headline, [*_certainty(_speedup(best)), *why, *checks])


def _certainty(speedup: Estimate) -> list[str]:
    if speedup.ci95 is None:
        return ["Too few requests for an interval: the figure may be far off."]
    if speedup.ci95[0] <= 1 <= speedup.ci95[1]:
        return ["The interval contains 1: with other prompts of this kind it could be either; measure more prompts."]
    return []


def _balance(best: Point) -> str:
    """The yield of a round against its cost, each stage by itself."""
    p, timing, cost = best.run.results.proposal, best.run.results.timing, round_cost(best.run.results)
    gain = p.tokens_per_target_pass.value
    text = (
        f"Each pass of the target yields {gain:.2f} tokens instead of 1" if gain is not None else "It yields no tokens"
    )
    if p.acceptance_rate.value is not None:
        text += f" ({p.acceptance_rate.value:.0%} of the draft's tokens are accepted)"
    if cost is not None:
        text += f", and a round takes the time of {sum(cost.values()):.2f} plain steps ({in_words(cost)})"
    if timing is not None and timing.predicted_speedup is not None:
        text += f". Acceptance and step times predict {timing.predicted_speedup:.2f}x"
    return text + "."


def _neighbors(best: Point, others: Sequence[Point]) -> list[str]:
    """What one step to a shorter or longer proposal would change: the tokens of a round, and its cost."""
    mine = [point for point in others if point.series == best.series]
    shorter = max((point for point in mine if point.k < best.k), key=lambda point: point.k, default=None)
    longer = min((point for point in mine if point.k > best.k), key=lambda point: point.k, default=None)
    reasons = []
    for other in filter(None, (shorter, longer)):
        ours, theirs = _tokens_and_cost(best), _tokens_and_cost(other)
        if ours is not None and theirs is not None:
            tokens, steps = theirs[0] - ours[0], theirs[1] - ours[1]
            text = f"{_more(tokens)} tokens and costs {_more(steps)} plain steps"
            reasons.append(f"With proposals of {other.k} a round yields {text}.")
    return reasons


def _tokens_and_cost(point: Point) -> tuple[float, float] | None:
    tokens, cost = point.run.results.proposal.tokens_per_target_pass.value, round_cost(point.run.results)
    return None if tokens is None or cost is None else (tokens, sum(cost.values()))


def _more(difference: float) -> str:
    return f"{abs(difference):.2f} {'fewer' if difference < 0 else 'more'}"


def _unsettled(ranked: Sequence[Point]) -> list[str]:
    """The intervals do not show that the machine was busy with something else; a prediction that failed does."""
    off = [point.label for point in ranked if predicted_off(point.run.results) is not None]
    return [f"Repeat these, measured far from what acceptance and step times predict: {'; '.join(off)}."] * bool(off)


def _slower(best: Point, others: Sequence[Point], clearly: Callable[[Point, Point], bool]) -> list[str]:
    """Which others one cannot tell from the best."""
    unclear = [other.label for other in others if not clearly(best, other)]
    reasons = [f"Not clearly slower than it: {'; '.join(unclear)}."] if unclear else []
    if len(unclear) < len(others):
        reasons.append(f"Clearly slower: {len(others) - len(unclear)} of the {len(others)} other runs.")
    return reasons


def _apart(best: Point, other: Point) -> bool:
    """Their speed-ups' intervals do not touch. Each was measured against plain decoding in its own run, so that a
    machine that got slower in between does not count."""
    ours, theirs = _speedup(best).ci95, _speedup(other).ci95
    return ours is not None and theirs is not None and theirs[1] < ours[0]


def _paired(best: Point, other: Point) -> bool:
    """The difference in speed is real, the requests paired between the two runs."""
    try:
        change = next(difference for difference in compare(best.run, other.run) if difference.name == SPEED)
    except UserError:  # other prompts or another target: nothing to pair
        return False
    return change.verdict == "A higher"


def _is_own_draft(point: Point) -> bool:
    draft = point.run.results.config.get("draft")
    return isinstance(draft, dict) and draft.get("kind") == "self"


def _gain(point: Point) -> float:
    return _speedup(point).value or _speed(point).value or 0.0


def _speedup(point: Point) -> Estimate:
    timing = point.run.results.timing
    return Estimate(value=None, n=0) if timing is None else timing.speedup


def _speed(point: Point) -> Estimate:
    timing = point.run.results.timing
    return Estimate(value=None, n=0) if timing is None else timing.speculative_tokens_per_second


def _with_interval(estimate: Estimate, unit: str, digits: int = 2) -> str:
    text = f"{estimate.value:,.{digits}f}{unit}"
    if estimate.ci95 is None:
        return f"{text} (no interval)"
    low, high = estimate.ci95
    return f"{text} (95 % interval {low:,.{digits}f} to {high:,.{digits}f})"
