"""The terminal summary: says the figures of results.json, within 100 columns, whatever was or was not measured."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from spec_harness.evaluation.results import (
    BaselineEquality,
    Check,
    Estimate,
    IntegrityResults,
    RunResults,
    TimingResults,
)
from spec_harness.evaluation.summary import print_summary

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
    assert "faster than plain decoding here: 1.27x" in text
    for words in ("speculative", "1,412.3 tokens/s", "1,110.2 tokens/s", "near the end of the token budget", "a note"):
        assert words in text
    assert "6 equal to plain decoding, 1 tie (differs by rounding), 0 fault" in text
    assert all(len(line) <= 100 for line in lines)
    assert lines[-1] == "Files: outputs/here"
    assert "\x1b" not in text  # plain where it is not a terminal


def test_nothing_wraps_or_is_cut_at_100_columns(random_requests: Make, make_results: Make) -> None:
    """At 100 columns each table row is one line, for the longest proposals and intervals too."""
    results = make_results(random_requests(3, max_proposal_len=12, num_requests=300), max_proposal_len=12)
    proposal = results.proposal.model_copy(update={"acceptance_rate": Estimate(value=0.5, ci95=(0.48, 0.52), n=300)})
    results = results.model_copy(update={"proposal": proposal, "notes": []})
    text = rendered(results)
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    assert "50.0 % (48.0 to 52.0)" in text
    assert rendered(results, width=100) == rendered(results, width=300)
    known = (" ", "\N{BOX DRAWINGS LIGHT HORIZONTAL}", "spec_harness", "Speculative", "Files", "")
    assert all(line.startswith(known) for line in text.splitlines())


def test_without_proposals_there_are_no_rates(make_round: Make, make_request: Make, make_results: Make) -> None:
    requests = [make_request([make_round(0, 0, skip_reason="cap")] * 3)]
    text = rendered(make_results(requests, max_proposal_len=0, timing=None, kv=None))
    assert "plain decoding by the target alone" in text
    for words in ("acceptance", "Draft token", "draft tokens", "n/a"):
        assert words not in text


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


def test_a_long_path_stays_on_one_line(requests: Any, make_results: Make) -> None:
    directory = "outputs/" + "long-name/" * 20
    text = rendered(make_results(requests, max_proposal_len=4), directory=directory, width=80)
    assert text.splitlines()[-1] == "Files: " + directory.rstrip("/")


def test_a_terminal_without_unicode(requests: Any, make_results: Make) -> None:
    text = rendered(make_results(requests, max_proposal_len=4), encoding="ascii")
    assert "####" in text
