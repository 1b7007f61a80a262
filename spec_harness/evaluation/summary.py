"""The summary of a run in the terminal: every figure with what it means in plain words, in at most 100 columns.

Reads a checked ``RunResults`` only, so that it says nothing that results.json does not. ASCII but for box lines and
bars, which fall back where the terminal's encoding lacks them.
"""

from pathlib import Path

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from spec_harness.evaluation.results import (
    Estimate,
    IntegrityResults,
    Latency,
    ProposalResults,
    RunResults,
    TimeShare,
    TimingResults,
)

WIDTH = 100  # columns
BAR_WIDTH = 16  # columns of a full bar


def print_summary(results: RunResults, directory: Path, *, console: Console | None = None) -> None:
    """Print the summary; its last line is where the files are, never wrapped so that it can be copied.

    A pipe or a file has no width of its own and gets all 100 columns.
    """
    if console is None:
        console = Console()
        console.width = min(console.width, WIDTH) if console.is_terminal else WIDTH
    bar = "#" if console.options.ascii_only else "\N{FULL BLOCK}"
    for part in summary_parts(results, bar=bar):
        console.print(part, width=min(console.width, WIDTH))
        console.print()
    console.print(Text.assemble(("Files: ", "bold"), str(directory)), soft_wrap=True)


def summary_parts(results: RunResults, *, bar: str) -> list[RenderableType]:
    """The blocks of the summary from top to bottom; ``bar`` is the character of bars."""
    proposal = results.proposal
    parts: list[RenderableType] = [_headline(results)]
    if proposal.num_drafts:
        parts += [_rates(proposal), _positions_and_lengths(proposal, bar)]
        if len(results.breakdowns.category) > 1:
            parts.append(_categories(results.breakdowns.category))
    parts.append(_counts(results))
    if results.timing is not None:
        parts.append(_timing(results.timing, drafted=proposal.num_drafts > 0))
        if results.timing.time_share is not None:
            parts.append(_time_share(results.timing.time_share, bar))
    parts.append(_trust(results.integrity))
    if results.notes:
        notes = Table.grid(padding=(0, 1))
        for note in results.notes:
            notes.add_row("", "-", Text(note))
        parts.append(Group(_indented(_title("Notes")), notes))
    return parts


def _headline(results: RunResults) -> RenderableType:
    """Who ran, and the one answer; what forbids believing the figures comes before it."""
    draft, target, proposal = results.provenance.draft, results.provenance.target.name, results.proposal
    longest = _tokens(len(proposal.accepted_length_histogram) - 1)
    proposer = f"draft {draft.name}" if draft else "no draft model"
    who = f"{proposer}, target {target}, up to {longest} proposed a round"
    lines = [Text.assemble(("spec_harness  ", "bold"), who if proposal.num_drafts else f"target {target}")]
    equality = results.integrity.baseline_equality
    speedup = results.timing.speedup.value if results.timing else None
    if results.status == "failed":
        lines.append(Text("The run FAILED: the figures cover only the requests finished before.", style="bold red"))
    if any(check.verdict == "fail" for check in results.integrity.checks):
        lines.append(Text("Do not use these figures: an integrity check failed, see below.", style="bold red"))
    if equality is not None and equality.fault:
        text = f"Do not use these figures: {equality.fault:,} outputs differ from plain decoding by more than rounding."
        lines.append(Text(text, style="bold red"))
    elif proposal.num_drafts == 0:
        lines.append(Text("Nothing was proposed: plain decoding by the target alone, no rates.", style="bold"))
    elif speedup is not None:
        verdict = "faster than" if speedup > 1 else "slower than" if speedup < 1 else "as fast as"
        text = f"Speculative decoding is {verdict} plain decoding here: {speedup:.2f}x its tokens per second."
        lines.append(Text(text, style="bold green" if speedup > 1 else "bold yellow"))
    return Group(*lines)


def _rates(proposal: ProposalResults) -> RenderableType:
    p, of_drafts, of_rounds = proposal, _percent(proposal.coverage.value), _percent(1.0)
    table = _table("Proposals", "value", "coverage", "what it is")
    for row in (
        ("acceptance rate", _rate(p.acceptance_rate), of_drafts, "accepted / proposed draft tokens"),
        (
            "mean acceptance length",
            _number(p.mean_acceptance_length),
            of_drafts,
            "accepted tokens per proposal + 1 by the target",
        ),
        (
            "tokens per target pass",
            _number(p.tokens_per_target_pass),
            of_rounds,
            "emitted tokens / rounds (1 without a draft)",
        ),
        ("system efficiency", _rate(p.system_efficiency), of_rounds, "emitted tokens / those if all were accepted"),
        ("aligned rate", _rate(p.aligned_rate), of_drafts, "acceptable / proposed, earlier rejections ignored"),
        (
            "expected acceptance",
            _rate(p.expected_acceptance_rate),
            of_drafts,
            "overlap of draft and target probabilities",
        ),
    ):
        table.add_row(*row)
    hint = "coverage: share of the rounds that the figure is about (those with a proposal, or all)"
    return Group(table, _indented(Text(hint, style="dim")))


def _positions_and_lengths(proposal: ProposalResults, bar: str) -> RenderableType:
    positions = _table("Draft token", "accepted", "if reached")
    rates = zip(proposal.acceptance_rate_per_position, proposal.conditional_acceptance_per_position, strict=True)
    for place, (rate, conditional) in enumerate(rates, start=1):
        positions.add_row(f"no. {place}", _percent(rate.value), _percent(conditional.value))
    lengths = _table("Accepted", "proposals", "")
    most = max(proposal.accepted_length_histogram)
    for length, count in enumerate(proposal.accepted_length_histogram):
        lengths.add_row(_tokens(length), f"{count:,}", _bar(count / most, bar))
    side_by_side = Table.grid(padding=(0, 2))
    side_by_side.add_row(positions, lengths)
    coverage = _percent(proposal.coverage.value)
    text = f"accepted: of proposals this long; if reached: of those without a rejection before (coverage {coverage})"
    return Group(side_by_side, _indented(Text(text, style="dim")))


def _categories(categories: dict[str, ProposalResults]) -> RenderableType:
    table = _table("Category", "requests", "acceptance rate", "mean acceptance length", "coverage")
    for name, section in categories.items():
        rate, length = _rate(section.acceptance_rate), _number(section.mean_acceptance_length)
        table.add_row(Text(name), f"{section.num_requests:,}", rate, length, _percent(section.coverage.value))
    return table


def _counts(results: RunResults) -> RenderableType:
    p, kv = results.proposal, results.kv
    table = _table("Counts", "")
    table.add_row("requests", f"{p.num_requests:,}")
    emitted = f"{p.num_emitted_tokens:,} in {p.num_rounds:,} rounds"
    table.add_row("output tokens", f"{p.num_output_tokens:,} = {p.num_prefill_tokens:,} by prefills + {emitted}")
    if p.num_drafts:
        past_end = f", {p.num_draft_tokens_past_end:,} more behind an end of text" * (p.num_draft_tokens_past_end > 0)
        table.add_row("draft tokens", f"{p.num_draft_tokens:,} proposed, {p.num_accepted_tokens:,} accepted{past_end}")
        reasons = [f"{count:,} {_SKIPPED[reason]}" for reason, count in p.skipped.items() if count]
        if reasons:
            table.add_row("rounds without any", ", ".join(reasons))
    if kv is not None:
        facts = [f"{kv.num_blocks:,} blocks of {_tokens(kv.block_size)}"]
        facts += [] if kv.blocks_allocated_peak is None else [f"{kv.blocks_allocated_peak:,} used at most"]
        facts += [] if kv.utilization is None else [f"{_percent(kv.utilization)} of slots filled"]
        facts += [f"{kv.preemptions:,} preemptions"] if kv.preemptions else []
        table.add_row("KV cache", ", ".join(facts))
    return table


_SKIPPED = {
    "cap": "by the request's own cap",
    "budget": "near the end of the token budget",
    "target_max": "at the target's maximum length",
    "draft_max": "at the draft's maximum length",
    "disabled": "disabled by batch size",
    "low_confidence": "draft not confident",
    "no_match": "no n-gram match",
}


def _timing(timing: TimingResults, *, drafted: bool) -> RenderableType:
    table = _table("Time", "value", "what it is")
    if drafted:
        speed = _number(timing.speculative_tokens_per_second, digits=1, unit=" tokens/s")
        table.add_row("speculative", speed, "output tokens / wall time, with proposals")
    measured = timing.baseline_tokens_per_second.value is not None
    alone = timing.baseline_tokens_per_second if measured or drafted else timing.speculative_tokens_per_second
    speed = _number(alone, digits=1, unit=" tokens/s")
    table.add_row("baseline", speed, "output tokens / wall time, the target alone")
    if drafted:
        table.add_row("speed-up", _number(timing.speedup, unit="x"), "speculative / baseline; same prompts, same run")
    if timing.draft_cost_ratio is not None:
        table.add_row("draft cost ratio", f"{timing.draft_cost_ratio:.3f}", "time of a draft step / of a target step")
    if timing.time_to_first_token is not None:
        table.add_row("first token after", _latency(timing.time_to_first_token), "median (95th percentile)")
    if timing.time_per_output_token is not None:
        table.add_row("each further token", _latency(timing.time_per_output_token), "median (95th percentile)")
    return table


def _time_share(share: TimeShare, bar: str) -> RenderableType:
    table = _table("Where time goes", "share", "", "what it is")
    for stage, value in share.model_dump().items():
        table.add_row(stage, _percent(value), _bar(value, bar), TimeShare.model_fields[stage].description)
    return table


def _trust(integrity: IntegrityResults) -> RenderableType:
    """Output against plain decoding, and the integrity checks: those that failed by name."""
    table = _table("Trust", "")
    output = Text("not compared with plain decoding")
    if (equality := integrity.baseline_equality) is not None:
        output = Text(f"{equality.equal:,} equal to plain decoding, {equality.tie:,} tie (differs by rounding), ")
        output.append(f"{equality.fault:,} fault (a bug)", style="bold red" if equality.fault else "")
    table.add_row("outputs", output)
    failed = [check for check in integrity.checks if check.verdict == "fail"]
    passed = sum(check.verdict == "pass" for check in integrity.checks)
    outcome = f"{passed} passed, {len(failed)} failed" if integrity.checks else "none ran"
    table.add_row("integrity checks", Text(f"{outcome} (level {integrity.level})", style="bold red" if failed else ""))
    for check in failed:
        figures = f"{_figure(check.figure)}, tolerance {_figure(check.tolerance)}"
        table.add_row("", Text(f"failed: {check.name}: {figures}", style="red"))
    return table


def _title(text: str) -> Text:
    return Text(text, style="bold cyan")


def _indented(text: Text) -> RenderableType:
    return Padding(text, (0, 0, 0, 1))


def _table(title: str, *columns: str) -> Table:
    """A table headed by its title; columns of words and bars are left-aligned, columns of figures right-aligned."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    table.add_column(_title(title), no_wrap=True)
    for column in columns:
        if column == "what it is":
            table.add_column(column, style="dim")
        else:
            table.add_column(column, justify="right" if column else "left")
    return table


def _bar(share: float, character: str) -> str:
    """A bar of at least one character for anything above zero."""
    return character * max(round(share * BAR_WIDTH), int(share > 0))


def _tokens(count: int) -> str:
    return f"{count:,} token" + ("" if count == 1 else "s")


def _percent(value: float | None) -> str:
    return "n/a" if value is None else f"{100 * value:.1f} %"


def _rate(estimate: Estimate) -> str:
    interval = "" if estimate.ci95 is None else f" ({100 * estimate.ci95[0]:.1f} to {100 * estimate.ci95[1]:.1f})"
    return _percent(estimate.value) + interval


def _number(estimate: Estimate, *, digits: int = 2, unit: str = "") -> str:
    if estimate.value is None:
        return "n/a"
    interval = "" if estimate.ci95 is None else " ({:,.{d}f} to {:,.{d}f})".format(*estimate.ci95, d=digits)
    return f"{estimate.value:,.{digits}f}{unit}{interval}"


def _latency(times: Latency) -> str:
    return f"{1000 * times.p50:,.1f} ms ({1000 * times.p95:,.1f})"


def _figure(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3g}"
