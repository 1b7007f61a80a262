"""The tables of a run: every figure with its interval and what it means in plain words.

They say nothing that results.json does not.
"""

from spec_harness.metrics.bootstrap import MIN_REQUESTS
from spec_harness.metrics.statistics import SINGLE
from spec_harness.report.formats import UNKNOWN, factor, latency, number, percent, rate, short, together, tokens
from spec_harness.report.table import MEANING, Bar, Line, Table
from spec_harness.results.schema import (
    IntegrityResults,
    ProposalResults,
    RunResults,
    TimeShare,
    TimingResults,
)

_POSITIONS = 16  # of a proposal, that are shown


def run_tables(results: RunResults) -> list[Table]:
    """The tables from top to bottom."""
    proposal, parts = results.proposal, []
    if proposal.num_drafts:
        parts += [_rates(proposal), _positions(proposal), _lengths(proposal)]
        by_group = {"Category": results.breakdowns.category, "Turn": results.breakdowns.turn}
        parts += [_groups(name, sections) for name, sections in by_group.items() if len(sections) > 1]
    parts.append(_counts(results))
    if results.timing is not None:
        parts.append(_timing(results.timing))
        if results.timing.time_share is not None:
            parts.append(_time_share(results.timing.time_share))
    return [*parts, _trust(results.integrity)]


def _rates(p: ProposalResults) -> Table:
    covered = {"drafts": percent(p.coverage.value), "rounds": percent(1.0)}
    rows = []
    for name, one in SINGLE.items():
        estimate = getattr(p, name)
        if one.table and estimate.value is not None:
            unit = " nats" if one.unit == "nats" else ""
            cells = rate(estimate) if one.unit == "share" else number(estimate, unit=unit)
            rows.append((one.label, *cells, covered[one.speaks_of], one.meaning))
    if sum(p.target_rank_in_draft):
        best = percent(p.target_rank_in_draft[0] / sum(p.target_rank_in_draft))
        rows.append(("same best token", best, "", covered["drafts"], "the target's is the draft's too"))
    hint = "coverage: share of the rounds that the figure is about (those with a proposal, or all)"
    return Table(title="Proposals", columns=("value", "95 % interval", "coverage", MEANING), rows=rows, hint=hint)


def _positions(p: ProposalResults) -> Table:
    pairs = zip(p.acceptance_rate_per_position, p.conditional_acceptance_per_position, strict=True)
    rows = [(f"no. {i}", *rate(kept), percent(reached.value)) for i, (kept, reached) in enumerate(pairs, start=1)]
    coverage = percent(p.coverage.value)
    hint = f"accepted: of proposals this long; if reached: of those without a rejection before (coverage {coverage})"
    if len(rows) > _POSITIONS:
        hint += f"; no. {_POSITIONS + 1} to {len(rows)}: in results.json"
        rows = rows[:_POSITIONS]
    return Table(title="Draft token", columns=("accepted", "95 % interval", "if reached"), rows=rows, hint=hint)


def _lengths(p: ProposalResults) -> Table:
    most, counts = max(p.accepted_length_histogram), list(enumerate(p.accepted_length_histogram))
    if len(counts) > _POSITIONS + 1:
        counts = [(j, count) for j, count in counts if count][:_POSITIONS]
    rows = [(tokens(j), f"{count:,}", Bar(count / most)) for j, count in counts]
    return Table(title="Accepted", columns=("proposals", ""), rows=rows, beside=True)


def _groups(title: str, sections: dict[str, ProposalResults]) -> Table:
    rows = [
        (
            name,
            f"{section.num_requests:,}",
            together(*rate(section.acceptance_rate)),
            together(*number(section.mean_acceptance_length)),
            percent(section.coverage.value),
        )
        for name, section in sections.items()
    ]
    columns = ("requests", "acceptance rate", "mean acceptance length", "coverage")
    few = [section.num_requests < MIN_REQUESTS for section in sections.values()]
    hints = {"in brackets: 95 % intervals": not all(few), f"no intervals below {MIN_REQUESTS} requests": any(few)}
    hint = "; ".join(text for text, said in hints.items() if said)
    return Table(title=title, columns=columns, rows=rows, hint=hint)


def _counts(results: RunResults) -> Table:
    p, kv = results.proposal, results.kv
    requests = f"{p.num_requests:,}"
    if p.num_prefill_tokens != p.num_requests:
        requests += f", {p.num_prefill_tokens:,} outputs with their turns and samples"
    emitted = f"{p.num_emitted_tokens:,} in {p.num_rounds:,} rounds"
    rows = [
        ("requests", requests),
        ("output tokens", f"{p.num_output_tokens:,} = {p.num_prefill_tokens:,} by prefills + {emitted}"),
    ]
    if p.num_drafts:
        past_end = (
            f", {p.num_draft_tokens_past_end:,} more past the end of a text" if p.num_draft_tokens_past_end else ""
        )
        rows.append(("draft tokens", f"{p.num_draft_tokens:,} proposed, {p.num_accepted_tokens:,} accepted{past_end}"))
        reasons = [f"{count:,} {SKIPPED[reason]}" for reason, count in p.skipped.items() if count]
        rows += [("rounds without any", ", ".join(reasons))] if reasons else []
    if kv is not None:
        facts = [f"{kv.num_blocks:,} blocks of {tokens(kv.block_size)}"]
        facts += [] if kv.blocks_allocated_peak is None else [f"{kv.blocks_allocated_peak:,} used at most"]
        facts += [] if kv.utilization is None else [f"their slots {percent(kv.utilization)} full"]
        swaps = f", {kv.swaps:,} by swap" if kv.swaps else ""
        facts += [f"{kv.preemptions:,} preemptions{swaps}"] if kv.preemptions else []
        rows.append(("KV cache", ", ".join(facts)))
    return Table(title="Counts", columns=("",), rows=rows)


SKIPPED = {
    "cap": "by the request's own cap",
    "budget": "near the end of the token budget",
    "target_max": "at the target's maximum length",
    "draft_max": "at the draft's maximum length",
    "disabled": "disabled by batch size",
    "low_confidence": "draft not confident",
    "no_match": "no match found",
}


def _timing(timing: TimingResults) -> Table:
    ours, plain = timing.speculative_tokens_per_second, timing.baseline_tokens_per_second
    times = "median (and 95th percentile)"
    rows = []
    if ours.value is not None:
        rows.append(("speculative", *number(ours, digits=1, unit=" tokens/s"), "output tokens / wall time"))
    if plain.value is not None or ours.value is not None:
        rows.append(("baseline", *number(plain, digits=1, unit=" tokens/s"), "output tokens / time, the target alone"))
    if ours.value is not None:
        rows.append(("speed-up", *number(timing.speedup, unit="x"), "speculative / baseline"))
    for name, text, meaning in (
        ("speed-up predicted", factor(timing.predicted_speedup), "decoding alone, by step times"),
        ("draft cost ratio", short(timing.draft_cost_ratio), "draft step / target forward"),
        ("first token after", latency(timing.time_to_first_token), times),
        ("each further token", latency(timing.time_per_output_token), times),
    ):
        rows += [(name, text, "", meaning)] if text != UNKNOWN else []
    return Table(title="Time", columns=("value", "95 % interval", MEANING), rows=rows)


def _time_share(share: TimeShare) -> Table:
    rows = [
        (stage, percent(value), Bar(value), TimeShare.model_fields[stage].description or "")
        for stage, value in share.model_dump().items()
    ]
    return Table(title="Where time goes", columns=("share", "", MEANING), rows=rows)


def _trust(integrity: IntegrityResults) -> Table:
    """Output against plain decoding, and the integrity checks: those that failed by name."""
    output = Line("not compared with plain decoding")
    if (equality := integrity.baseline_equality) is not None:
        text = f"{equality.equal:,} equal to plain decoding, {equality.tie:,} tie (differs by rounding), "
        output = Line(f"{text}{equality.fault:,} fault (a bug)", "alarm" if equality.fault else "")
    failed = [check for check in integrity.checks if check.verdict == "fail"]
    passed = sum(check.verdict == "pass" for check in integrity.checks)
    outcome = f"{passed} passed, {len(failed)} failed" if integrity.checks else "none ran"
    rows = [
        ("outputs", output),
        ("integrity checks", Line(f"{outcome} (level {integrity.level})", "alarm" if failed else "")),
    ]
    for check in failed:
        figures = f"{short(check.figure)}, tolerance {short(check.tolerance)}"
        rows.append(("", Line(f"failed: {check.name}: {figures}", "alarm")))
    return Table(title="Trust", columns=("",), rows=rows)
