"""The terminal summary: says the figures of results.json, within 100 columns, whatever was or was not measured."""

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from spec_harness.report.markdown import write_report
from spec_harness.report.terminal import plain_console, print_summary
from spec_harness.results.schema import (
    BaselineEquality,
    Check,
    Estimate,
    IntegrityResults,
    RunResults,
    TimingResults,
)

Make = Callable[..., Any]


def rendered(results: RunResults, *, directory: str = "outputs/here", width: int = 100, encoding: str = "utf-8") -> str:
    buffer = io.BytesIO()
    stream = io.TextIOWrapper(buffer, encoding=encoding)
    print_summary(results, Path(directory), console=Console(file=stream, width=width))
    stream.flush()
    return buffer.getvalue().decode(encoding)


@pytest.fixture
def requests(random_requests: Make) -> Any:
    return random_requests(3, max_proposal_len=4)


def test_says_the_figures_with_coverage_beside_the_rates(requests: Any, make_results: Make) -> None:
    results = make_results(requests, max_proposal_len=4)
    text = rendered(results)
    proposal = results.proposal
    lines = text.splitlines()
    (rate,) = [line for line in lines if line.startswith(" acceptance rate")]
    assert f"{100 * proposal.acceptance_rate.value:.1f} %" in rate
    assert f"{100 * proposal.coverage.value:.1f} %" in rate
    assert "accepted / proposed draft tokens" in rate
    (length,) = [line for line in lines if line.startswith(" mean acceptance length")]
    assert f"{proposal.mean_acceptance_length.value:.2f}" in length
    assert "1.27x plain decoding" in text
    for words in ("speculative", "1,412.3 tokens/s", "1,110.2 tokens/s", "near the end of the token budget", "a note"):
        assert words in text
    assert "6 equal to plain decoding, 1 tie (differs by rounding), 0 fault" in text
    assert all(len(line) <= 100 for line in lines)
    assert lines[-1] == "Files: outputs/here"
    assert "\x1b" not in text  # plain where it is not a terminal


def test_nothing_wraps_or_is_cut_at_100_columns(random_requests: Make, make_results: Make) -> None:
    """At 100 columns each table row is one line, for the longest proposals, intervals and speeds too."""
    fast = Estimate(value=123_456.7, ci95=(113_456.7, 133_456.7), n=60)
    timing = TimingResults(
        speculative_tokens_per_second=fast,
        baseline_tokens_per_second=fast,
        speedup=Estimate(value=10.51, ci95=(10.25, 11.75), n=60),
        predicted_speedup=1.5,
        draft_cost_ratio=0.123,
    )
    requests = random_requests(3, max_proposal_len=12, num_requests=60)
    results = make_results(requests, max_proposal_len=12, timing=timing, notes=[])
    certain = Estimate(value=1.0, ci95=(0.995, 1.0), n=60)
    rates = {"acceptance_rate": certain, "acceptance_rate_per_position": [certain] * 12}
    results = results.model_copy(update={"proposal": results.proposal.model_copy(update=rates)})
    text = rendered(results)
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    assert rendered(results, width=100) == rendered(results, width=300)
    known = (" ", "\N{BOX DRAWINGS LIGHT HORIZONTAL}", "spec_harness", "Speculative", "Files", "")
    assert all(line.startswith(known) for line in text.splitlines())
    rows = [line.split() for line in text.splitlines()]
    assert ["acceptance", "rate", "100.0", "%", "99.5", "to", "100.0"] in [row[:7] for row in rows]
    assert ["speculative", "123,456.7", "tokens/s", "113,456.7", "to", "133,456.7"] in [row[:6] for row in rows]
    assert ["speed-up", "10.51x", "10.25", "to", "11.75"] in [row[:5] for row in rows]
    for kind in ("no. 12", "12 tokens"):
        assert kind in text


@pytest.mark.parametrize("width", [80, 64])
def test_a_narrow_terminal_loses_explanations_but_no_figure(
    width: int, random_requests: Make, make_results: Make
) -> None:
    """Rich cuts what does not fit: at 80 columns, the most common width, most figures ended in an ellipsis."""
    results = make_results(random_requests(3, max_proposal_len=4, num_requests=60), max_proposal_len=4)
    wide, narrow = rendered(results).splitlines(), rendered(results, width=width).splitlines()
    assert all(len(line) <= width for line in narrow)
    assert "\N{HORIZONTAL ELLIPSIS}" not in "".join(narrow)
    proposal = results.proposal
    for estimate in (proposal.acceptance_rate, *proposal.acceptance_rate_per_position):
        assert estimate.value is not None
        assert estimate.ci95 is not None
        cells = f"{100 * estimate.value:.1f} %", f"{100 * estimate.ci95[0]:.1f} to {100 * estimate.ci95[1]:.1f}"
        assert any(all(cell in line for cell in cells) for line in narrow), cells
    assert "accepted / proposed draft tokens" in "".join(wide)
    assert "accepted / proposed" not in "".join(narrow)
    (hint,) = [i for i, line in enumerate(narrow) if line.startswith(" accepted: of proposals this long")]
    assert any("no. 4" in line for line in narrow[:hint])  # below its own table, where two do not fit side by side
    assert any("4 tokens" in line for line in narrow[hint:])


@pytest.mark.parametrize(("columns", "width"), [(None, 100), ("72", 72), ("300", 100)])
def test_a_pipe_is_as_wide_as_it_is_told(columns: str | None, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    assert plain_console().width == width


def test_without_proposals_there_are_no_rates(make_round: Make, make_request: Make, make_results: Make) -> None:
    requests = [make_request([make_round(0, 0, skip_reason="cap")] * 3)]
    text = rendered(make_results(requests, max_proposal_len=0, timing=None, kv=None))
    assert "plain decoding by the target alone" in text
    for words in ("acceptance", "Draft token", "draft tokens", "n/a"):
        assert words not in text


def test_asking_in_vain_costs_time_and_says_so(make_round: Make, make_request: Make, make_results: Make) -> None:
    """Where every round was without a proposal, the time that asking cost was in results.json only."""
    requests = [make_request([make_round(0, 0, skip_reason="disabled")] * 3, request_id=f"r{i}") for i in range(9)]
    slower = TimingResults(
        speculative_tokens_per_second=Estimate(value=68.0, ci95=(60.0, 70.0), n=9),
        baseline_tokens_per_second=Estimate(value=100.0, ci95=(90.0, 110.0), n=9),
        speedup=Estimate(value=0.68, ci95=(0.67, 0.7), n=9),
    )
    text = rendered(make_results(requests, max_proposal_len=4, timing=slower))
    for words in ("Nothing was proposed", "slower than plain decoding here: 0.68x", "68.0 tokens/s", "100.0 tokens/s"):
        assert words in text


def test_a_job_of_many_is_told_in_brief(requests: Any, make_results: Make) -> None:
    buffer = io.StringIO()
    results = make_results(requests, max_proposal_len=4)
    print_summary(results, Path("outputs/here"), console=Console(file=buffer, width=100), brief=True)
    assert "acceptance rate" not in buffer.getvalue()
    assert buffer.getvalue().splitlines()[-1] == "Files: outputs/here"


def test_no_interval_no_baseline_no_comparison(requests: Any, make_results: Make) -> None:
    unknown = Estimate(value=None, n=0)
    timing = TimingResults(
        speculative_tokens_per_second=Estimate(value=10.0, n=7), baseline_tokens_per_second=unknown, speedup=unknown
    )
    integrity = IntegrityResults(level="off")
    text = rendered(make_results(requests, max_proposal_len=4, timing=timing, integrity=integrity))
    assert "not compared with plain decoding" in text
    assert "none ran (level off)" in text
    assert "n/a" in text
    assert "faster" not in text
    assert "slower" not in text


def test_a_fault_comes_before_the_speed(requests: Any, make_results: Make) -> None:
    integrity = IntegrityResults(
        level="full",
        checks=[Check(name="[draft] cache", figure=0.5, tolerance=1e-4, verdict="fail")],
        baseline_equality=BaselineEquality(equal=5, tie=0, fault=2),
    )
    text = rendered(make_results(requests, max_proposal_len=4, integrity=integrity, status="failed"))
    for line, words in zip(text.splitlines()[1:4], ("FAILED", "integrity check failed", "2 outputs"), strict=True):
        assert words in line
    assert "faster" not in text
    assert "failed: [draft] cache: 0.5, tolerance 0.0001" in text  # brackets are no markup


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("interrupted", "INTERRUPTED: figures of the 7 requests that had finished."),
        ("partial", "PARTIAL: figures of the first 7 requests only"),
    ],
)
def test_a_run_that_is_not_whole_says_so_first(status: str, words: str, requests: Any, make_results: Make) -> None:
    assert words in rendered(make_results(requests, max_proposal_len=4, status=status)).splitlines()[1]


def test_every_rate_stands_beside_its_coverage(requests: Any, make_results: Make) -> None:
    results = make_results(requests, max_proposal_len=4)
    coverage = f"{100 * results.proposal.coverage.value:.1f} %"
    lines = rendered(results).splitlines()
    for name in ("acceptance rate", "aligned rate", "expected acceptance", "same best token", "divergence"):
        (line,) = [line for line in lines if line.startswith(f" {name}  ")]
        assert coverage in line
    assert any(f"(coverage {coverage})" in line for line in lines)  # the rates by place
    for name, section in results.breakdowns.category.items():
        (line,) = [line for line in lines if line.startswith(f" {name}  ")]
        assert f"{100 * section.coverage.value:.1f} %" in line


def test_turns_are_told_apart_where_there_are_several(make_round: Make, make_request: Make, make_results: Make) -> None:
    requests = [make_request([make_round(2, turn)], turn=turn) for turn in (0, 1)]
    assert "Turn" in rendered(make_results(requests, max_proposal_len=2))
    assert "Turn" not in rendered(make_results(requests[:1], max_proposal_len=2))


def test_the_report_holds_what_the_terminal_shows(requests: Any, make_results: Make, tmp_path: Path) -> None:
    results = make_results(requests, max_proposal_len=4, notes=["watch a|b"])
    write_report(tmp_path / "report.md", results)
    report = (tmp_path / "report.md").read_text()
    tables = [line.strip("| ").split(" | ") for line in report.splitlines() if line.startswith("| ")]
    cells = {cell.strip() for row in tables for cell in row}
    for line in rendered(results).splitlines():
        for cell in re.split(r"\s{3,}", line.strip()):
            if cell and not cell.startswith(("spec_harness", "Files", "- ", "\N{BOX DRAWINGS LIGHT HORIZONTAL}")):
                assert cell in cells or cell in report.replace("\\", ""), cell
    assert "- watch a\\|b" in report
    assert report.startswith("# spec_harness: draft tiny-draft, target tiny-target, up to 4 tokens proposed a round\n")
    assert "**1.27x plain decoding" in report


def test_a_long_path_stays_on_one_line(requests: Any, make_results: Make) -> None:
    directory = "outputs/" + "long-name/" * 20
    text = rendered(make_results(requests, max_proposal_len=4), directory=directory, width=80)
    assert text.splitlines()[-1] == "Files: " + directory.rstrip("/")


def test_a_terminal_without_unicode(requests: Any, make_results: Make) -> None:
    text = rendered(make_results(requests, max_proposal_len=4), encoding="ascii")
    assert "####" in text
