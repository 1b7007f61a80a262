"""What a sweep recommends: this draft, this length, this speed-up, give or take; and why not another."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from spec_harness.errors import UserError
from spec_harness.report.compare import SPEED, compare
from spec_harness.report.formats import factor, number
from spec_harness.report.headline import named_proposer
from spec_harness.report.load import Run
from spec_harness.report.pooled_baseline import FLOOR, PooledBaseline
from spec_harness.report.round_cost import in_words
from spec_harness.report.sweep import Row, Sweep, cost, estimate
from spec_harness.results.schema import Estimate, ProposerIdentity

_NAMED = 4  # runs that are listed by name


@dataclass(frozen=True)
class Verdict:
    best: Row  # of the sweep's table
    run: Run
    headline: str
    reasons: list[str]  # whole sentences


def verdict(sweep: Sweep) -> Verdict | None:
    """By tokens per second, which on the same prompts rank as speed-ups over the same plain decoding do. ``None``
    without any speed, and for runs that answer different questions.

    The target as its own draft is a check of the harness and no candidate, unless there is no other; nor is a run that
    its own prediction contradicts.
    """
    if sweep.incomparable_keys:
        return None
    proposing = [row for row in sweep.ranked if row["k"] and row["tokens_per_second"] is not None]
    drafting = [row for row in proposing if not row["self_draft"]] or proposing
    settled = [row for row in drafting if not row["disagrees_with_prediction"]] or drafting
    if not settled:
        return None
    best, *others = sorted(settled, key=lambda row: -row["tokens_per_second"])
    run = sweep.run(best["job"])
    noise = FLOOR if sweep.pooled is None else sweep.pooled.noise
    slower = {row["job"]: _slower(run, sweep.run(row["job"]), noise) for row in others}
    reasons = [*_certainty(best, noise), *_noise(sweep.pooled), *_balance(best)]
    if others:
        what = "Clearly slower" if sweep.pooled else "Slower than the choice of prompts explains"
        reasons.append(f"{what}: {sum(map(bool, slower.values()))} of the {len(others)} other candidates.")
    unread = [row for row in others if slower[row["job"]] is None]
    doubted = [row for row in drafting if row["disagrees_with_prediction"] and row not in settled]
    checks = [row for row in proposing if row not in drafting]
    for what, rows in {
        "Not compared, their files cannot be read": unread,
        "Left out, measured other than acceptance and step times predict, so repeat": doubted,
        "No candidate, since the target as its own draft is a check": checks,
    }.items():
        reasons += [f"{what}: {_labels(rows)}."] if rows else []
    reasons += [note for note in run.results.notes if "outputs loop" in note]
    also = _undecided([row for row in others if slower[row["job"]] is False], len(others))
    return Verdict(best, run, _headline(best, also, noise), reasons)


def _undecided(unclear: Sequence[Row], others: int) -> str:
    if not unclear:
        return ""
    if len(unclear) == others > 1:
        return f" None of the {others} other candidates is clearly slower."
    return f" Not clearly slower here: {_labels(unclear)}."


def _headline(best: Row, also: str, noise: float) -> str:
    proposer = ProposerIdentity(name=best["proposer_name"], label=best["proposer"])
    what = f"{named_proposer(proposer)}, proposal length {best['k']}" + f", {best['other_settings']}" * bool(
        best["other_settings"]
    )
    if best["pooled_speedup"] is None:
        return f"The fastest is {what}: {_with_interval(estimate(best, 'tokens_per_second'), ' tokens/s', 0)}.{also}"
    gain = f"{_with_interval(estimate(best, 'pooled_speedup'), 'x')} the speed of plain decoding"
    sure = not _certainty(best, noise)
    if best["pooled_speedup"] > 1:
        return f"{'Use' if sure else 'If at all, use'} {what}. Expect {gain}.{also}"
    if sure:
        return f"Do not use any of these drafts here. The best, {what}, runs at {gain}."
    return f"None of these drafts is clearly faster here. The best, {what}, runs at {gain}."


def _certainty(best: Row, noise: float) -> list[str]:
    """What forbids relying on its speed-up; empty if nothing does."""
    speedup = estimate(best, "pooled_speedup")
    if speedup.value is None:
        return ["Plain decoding was not run as well (baseline=off): this does not say whether speculation pays."]
    if best["disagrees_with_prediction"]:
        return ["Every run was measured other than acceptance and step times predict: repeat on a quiet machine."]
    if speedup.ci95 is None:
        return ["Too few requests for an interval: the figure may be far off."]
    if speedup.ci95[0] <= 1 <= speedup.ci95[1]:
        return ["The interval contains 1: with other prompts of this kind it could be either; measure more prompts."]
    if 1 / noise <= speedup.value <= noise:
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


def _balance(best: Row) -> list[str]:
    """The yield of a round against its cost, stage by stage."""
    costs = cost(best)
    if not costs:
        return []
    predicted = best.get("predicted_speedup")
    return [
        f"A round yields {best['tokens_per_target_pass']:.2f} tokens for the time of {sum(costs.values()):.2f} plain "
        f"steps ({in_words(costs)}): {factor(best['decoding_speedup'])} in decoding alone"
        f"{'' if predicted is None else f' (predicted: {factor(predicted)})'}. Prefill, which both pay, makes it "
        f"{factor(best['pooled_speedup'])}."
    ]


def _slower(best: Run, other: Run, noise: float) -> bool | None:
    """Whether neither the choice of prompts, with requests paired, nor the machine explains the difference in speed;
    ``None`` if a file that tells is damaged."""
    try:
        differences = compare(best, other)
    except UserError:
        return None
    change = next(difference for difference in differences if difference.name == SPEED)
    return replace(change, noise=max(noise, change.noise)).verdict == "A higher"


def _labels(rows: Sequence[Row]) -> str:
    names = [row["label"] for row in rows]
    more = f"; and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return "; ".join(names[:_NAMED]) + more


def _with_interval(estimate: Estimate, unit: str, digits: int = 2) -> str:
    value, interval = number(estimate, digits=digits, unit=unit)
    return f"{value} (95 % interval {interval})" if interval else f"{value} (no interval)"
