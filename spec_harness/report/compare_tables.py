"""Two runs side by side, and in plain words which is better or that one cannot tell."""

from collections.abc import Sequence

from spec_harness.report.comparable import machine
from spec_harness.report.compare import EQUAL, RATES, SPEED, Difference, changed_settings, is_repeat
from spec_harness.report.formats import UNKNOWN
from spec_harness.report.headline import distrust, state
from spec_harness.report.load import Run
from spec_harness.report.pooled_baseline import pooled_baseline
from spec_harness.report.table import Line, Table, Tone

_NAMES = {name: rate.label for name, rate in RATES.items()} | {SPEED: "tokens per second"}
_SHARES = {name for name, rate in RATES.items() if rate.unit == "share"}
_SHOWN = 8  # changed settings


def compare_headline(a: Run, b: Run, differences: Sequence[Difference]) -> list[Line]:
    """Which runs, and an answer for acceptance and one for speed."""
    by_name = {difference.name: difference for difference in differences}
    requests = a.results.proposal.num_requests
    return [
        Line(f"{requests:,} requests in two runs"),
        Line(f"A = {a.directory}"),
        Line(f"B = {b.directory}"),
        _answer("Acceptance", by_name["acceptance_rate"], "{winner}'s proposals are accepted more often"),
        _answer("Tokens", by_name["tokens_per_target_pass"], "{winner} yields more tokens a pass of the target"),
        _speed(by_name[SPEED], a, b),
        *(Line(f"{name}: {line.text}", line.tone) for name, run in (("A", a), ("B", b)) for line in state(run.results)),
        *distrust(a.results, "the figures of A"),
        *distrust(b.results, "the figures of B"),
    ]


def compare_tables(differences: Sequence[Difference]) -> list[Table]:
    rows = [
        (
            _NAMES[d.name],
            _value(d, d.a),
            _value(d, d.b),
            _change(d, d.change),
            "" if d.ci95 is None else f"{_bare(d, d.ci95[0])} to {_bare(d, d.ci95[1])}",
            d.verdict,
        )
        for d in differences
    ]
    hint = "change: B - A, of tokens per second B / A; interval: the same requests resampled in pairs"
    columns = ("A", "B", "change", "95 % interval", "verdict")
    return [Table(title="Figure", columns=columns, rows=rows, hint=hint)]


def compare_notes(a: Run, b: Run) -> list[str]:
    """What differs beside the figures, and what the intervals do not cover."""
    notes = []
    changed = changed_settings(a.results, b.results)
    if changed:
        shown = [f"{key} {before} -> {after}" for key, (before, after) in list(changed.items())[:_SHOWN]]
        more = f", and {len(changed) - _SHOWN} more" * (len(changed) > _SHOWN)
        notes.append(f"Settings that differ (A -> B): {', '.join(shown)}{more}.")
    if is_repeat(a.results, b.results):
        notes.append("The runs have the same settings and code: any difference in speed is the machine's.")
    if "proposal.max_proposal_len" in changed:
        notes.append(
            "Longer proposals have a lower acceptance rate by themselves: later tokens are harder to guess. Tokens per "
            "target pass say more here."
        )
    if machine(a.results) != machine(b.results):
        (ours, first), (theirs, second) = machine(a.results), machine(b.results)
        notes.append(f"Measured on different machines: {ours} ({first} threads) and {theirs} ({second} threads).")
    notes.append(
        "The interval of tokens per second covers the choice of prompts, not what the machine did between the two "
        "runs: repeat both to see that."
    )
    return notes


def _speed(d: Difference, a: Run, b: Run) -> Line:
    """The interval covers the prompts; what the machine did between the runs shows in plain decoding, if anywhere."""
    if machine(a.results) != machine(b.results):
        return Line("Speed: not compared, the runs were measured on different machines.", "caution")
    if d.change is not None and is_repeat(a.results, b.results):
        return Line(
            f"Speed: the runs have the same settings, B / A is {_change(d, d.change)} by the machine.", "caution"
        )
    line = _answer("Speed", d, "{winner} was faster")
    if d.change is None:
        return line
    limit = f"{d.noise - 1:.0%}"
    pooled = pooled_baseline([a.results, b.results])
    if pooled is None:
        return Line(f"{line.text} Below {limit} no difference in speed is called clear.", line.tone)
    first, second = pooled.speeds
    text = f"Plain decoding, the same work in both runs, ran at {first:,.0f} and {second:,.0f} tokens/s: up to {limit}"
    return Line(f"{line.text} {text} may be the machine's.", line.tone)


def _answer(what: str, d: Difference, better: str) -> Line:
    if d.change is None:
        return Line(f"{what}: cannot be compared, a run has no such figure.", "caution")
    if d.verdict == EQUAL:
        return Line(f"{what}: the same in both.", "caution")
    interval = "" if d.ci95 is None else f" (95 %: {_bare(d, d.ci95[0])} to {_bare(d, d.ci95[1])})"
    figures = f"{'B / A' if d.is_ratio else 'B - A'} is {_change(d, d.change)}{interval}"
    words = {"within noise": "the difference is within noise", "too few requests": "too few requests to tell"}
    tone: Tone = "caution" if d.verdict in words else "good"
    return Line(f"{what}: {words.get(d.verdict, better.format(winner=d.verdict[0]))}, {figures}.", tone)


def _value(d: Difference, value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{100 * value:.1f} %" if d.name in _SHARES else f"{value:,.1f}" if d.is_ratio else f"{value:.2f}"


def _change(d: Difference, change: float | None) -> str:
    if change is None:
        return UNKNOWN
    return f"{_bare(d, change)}{'x' if d.is_ratio else ' points' if d.name in _SHARES else ''}"


def _bare(d: Difference, change: float) -> str:
    """Without its unit; differences with their sign, but for those that round to zero."""
    if d.is_ratio:
        return f"{change:.2f}"
    text = f"{100 * change:+.1f}" if d.name in _SHARES else f"{change:+.2f}"
    return text if float(text) else text.lstrip("+-")
