"""Proposal statistics against published counts, hand-computed cases, and a naive loop over the rounds."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spec_harness.metrics.counts import ProposalCounts, counts_by_request
from spec_harness.metrics.estimates import proposal_results
from spec_harness.metrics.identities import check_counts, check_identities
from spec_harness.metrics.statistics import SKIP_REASONS, ProposalResults
from tests.reference import assert_equal, counts_of_histogram, figures, naive

Make = Callable[..., Any]

# Counts printed in public reports of other tools, and what the definitions make of them. vLLM's engine v0 always
# proposed k tokens, so its rounds are draft_tokens / k, and its emitted tokens include the recovered or bonus ones.
REPORTS: list[dict[str, Any]] = [
    {
        "source": "vllm issue 48915, one request",
        "accepted_length_histogram": [39, 1, 0, 3],
        "k": 3,
        "expect": {
            "num_drafts": 43,
            "num_draft_tokens": 129,
            "num_accepted_tokens": 10,
            "mean_acceptance_length": 1.2326,
            "acceptance_rate": 0.0775,
        },
    },
    {
        "source": "vllm issue 9539, engine v0 log",
        "k": 3,
        "aligned": 8547,
        "draft_tokens": 13311,
        "emitted": 10616,
        "expect": {"aligned_rate": 0.642, "system_efficiency": 0.598},
    },
    {
        "source": "vllm issue 7301, engine v0 log: efficiency at its floor 1 / (k + 1)",
        "k": 5,
        "aligned": 1,
        "draft_tokens": 15,
        "emitted": 3,
        "expect": {"aligned_rate": 0.067, "system_efficiency": 0.167},
    },
]


def check_report(report: dict[str, Any]) -> None:
    if "accepted_length_histogram" in report:
        counts = counts_of_histogram(report["accepted_length_histogram"])
        check_counts(counts)
    else:
        rounds = report["draft_tokens"] // report["k"]
        counts = ProposalCounts(max_proposal_len=report["k"])
        counts.num_rounds = counts.num_drafts = rounds
        counts.num_draft_tokens = report["draft_tokens"]
        counts.num_accepted_tokens = report["emitted"] - rounds
        counts.num_aligned_tokens = report["aligned"]
        counts.num_emitted_tokens = report["emitted"]
        counts.system_efficiency_below = report["draft_tokens"] + rounds
    found = figures(counts)
    for name, value in report["expect"].items():
        if name == "note":
            continue
        exact = isinstance(value, int)
        assert getattr(found, name) == (value if exact else pytest.approx(value, abs=0.0005)), name


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report["source"])
def test_published_counts_give_the_published_figures(report: dict[str, Any]) -> None:
    check_report(report)


def test_published_counts_of_the_shared_file() -> None:
    path = Path(__file__).parents[4] / "shared" / "data" / "metric_fixtures.json"
    if not path.is_file():
        pytest.skip("the file of published counts lies beside the checkout only where the reports are collected")
    for report in json.loads(path.read_text(encoding="utf-8"))["fixtures"]:
        check_report(report)


@pytest.mark.parametrize("k", [0, 1, 4, 8])
@pytest.mark.parametrize("seed", range(4))
def test_every_figure_equals_a_naive_loop(random_requests: Make, seed: int, k: int) -> None:
    requests = random_requests(seed, max_proposal_len=k)
    per_request = counts_by_request(requests, max_proposal_len=k)
    pooled = sum(per_request.values(), ProposalCounts(max_proposal_len=k))
    outputs = {request.request_id: len(request.token_ids) for request in requests}
    expected = naive([vars(record) for request in requests for record in request.rounds], k, outputs)
    others = {"num_requests", "num_prefill_tokens", "num_output_tokens"}
    assert expected.keys() | others == ProposalResults.model_fields.keys()  # nothing is left out
    section = proposal_results(pooled, per_request.values())
    assert_equal(section, expected)
    assert (section.num_requests, section.num_prefill_tokens) == (len(requests), len(requests))
    assert section.num_output_tokens == sum(outputs.values())
    ids = [request.request_id for request in requests]
    tokens = sum(len(request.token_ids) for request in requests)
    check_identities(pooled, per_request=per_request, generated_tokens=tokens, seen_ids=ids, expected_ids=ids)


def test_figures_by_hand(make_round: Make) -> None:
    rounds = [make_round(3, 1, num_aligned=2), make_round(3, 3), make_round(2, 0), make_round(0, 0)]
    found = figures(ProposalCounts.from_rounds(rounds, max_proposal_len=3, num_prefill_tokens=1))
    assert found.num_output_tokens == 1 + 8  # 2 + 4 + 1 + 1 emitted
    assert found.coverage == 3 / 4
    assert found.acceptance_rate == 4 / 8
    assert found.mean_acceptance_length == 1 + 4 / 3
    assert found.tokens_per_target_pass == 8 / 4
    assert found.acceptance_rate_per_position == [2 / 3, 1 / 3, 1 / 2]
    assert found.acceptance_rate_per_position_unconditional == [2 / 3, 1 / 3, 1 / 3]
    assert found.conditional_acceptance_per_position == [2 / 3, 1 / 2, 1 / 1]
    assert found.accepted_length_histogram == [1, 1, 0, 1]
    assert found.aligned_rate == 5 / 8
    assert found.system_efficiency == 8 / (8 + 4)
    assert found.skipped["budget"] == 1


def test_end_of_text_inside_the_accepted_prefix(make_round: Make) -> None:
    """Four drafted, all accepted, the second is the end of text: two count, two lie behind it, no bonus token.

    Counting all four as accepted is how an engine comes to report more accepted tokens than it emitted
    (vllm issue 56101).
    """
    counts = ProposalCounts(max_proposal_len=4)
    counts.add(make_round(2, 2, eos=True, past_end=2))
    found = figures(counts)
    assert (found.num_draft_tokens, found.num_accepted_tokens, found.num_emitted_tokens) == (2, 2, 2)
    assert (found.num_draft_tokens_past_end, found.rounds_ended_by_accepted_eos) == (2, 1)
    assert found.accepted_length_histogram == [0, 0, 1, 0, 0]
    assert found.acceptance_rate_per_position == [1, 1, None, None]
    check_counts(counts)


def test_end_of_text_at_the_last_place(make_round: Make) -> None:
    counts = ProposalCounts(max_proposal_len=4)
    counts.add(make_round(4, 4, eos=True))
    found = figures(counts)
    assert (found.num_draft_tokens, found.num_accepted_tokens, found.num_emitted_tokens) == (4, 4, 4)
    assert found.num_draft_tokens_past_end == 0
    check_counts(counts)


def test_end_of_text_drafted_behind_a_rejection_is_an_ordinary_round(make_round: Make) -> None:
    counts = ProposalCounts(max_proposal_len=4)
    counts.add(make_round(4, 1))
    found = figures(counts)
    assert (found.num_draft_tokens, found.num_accepted_tokens, found.num_emitted_tokens) == (4, 1, 2)
    assert found.rounds_ended_by_accepted_eos == 0
    check_counts(counts)


@pytest.mark.parametrize(("k", "reason"), [(3, "draft_max"), (0, "cap")])
def test_without_any_proposal_rates_are_unknown_not_zero(make_round: Make, k: int, reason: str) -> None:
    rounds = [make_round(0, 0, skip_reason=reason)] * 5
    counts = ProposalCounts.from_rounds(rounds, max_proposal_len=k, num_prefill_tokens=1)
    found = figures(counts, [counts])
    check_counts(counts)
    assert found.coverage == 0
    assert found.tokens_per_target_pass == 1
    assert found.system_efficiency == 1
    assert found.skipped == dict.fromkeys(SKIP_REASONS, 0) | {reason: 5}
    assert found.acceptance_rate_per_position == [None] * k
    for name in ("acceptance_rate", "mean_acceptance_length", "aligned_rate", "expected_acceptance_rate"):
        assert getattr(found, name) is None, name
    assert found.macro_mean_acceptance_length is None
    assert found.token_weighted_mean_acceptance_length is None


def test_nothing_at_all() -> None:
    found = figures(ProposalCounts(max_proposal_len=2))
    assert found.num_output_tokens == 0
    assert found.coverage is None
    assert found.tokens_per_target_pass is None


def test_records_that_contradict_themselves_are_refused(make_round: Make) -> None:
    counts = ProposalCounts(max_proposal_len=3)
    for record in (make_round(4, 0), make_round(2, 3), make_round(2, 1, skip_reason="cap")):
        with pytest.raises(ValueError, match="request r0, round 0"):
            counts.add(record)
    with pytest.raises(ValueError, match="skip_reason"):
        counts.add(make_round(0, 0, skip_reason=None))
    with pytest.raises(ValueError, match="cannot pool"):
        counts + ProposalCounts(max_proposal_len=2)


def test_turns_and_samples_of_one_request_are_pooled(make_round: Make, make_request: Make) -> None:
    requests = [make_request([make_round(2, 1)], sample=sample) for sample in range(3)]
    counts = counts_by_request(requests, max_proposal_len=2)
    assert list(counts) == ["r0"]
    assert (counts["r0"].num_prefill_tokens, counts["r0"].num_rounds) == (3, 3)


def test_samples_of_one_request_are_one_request_in_the_means(make_round: Make, make_request: Make) -> None:
    """Two samples of r0, one of r1: the mean over requests has two terms, weighted by all their output tokens."""
    requests = [
        make_request([make_round(4, 4)], sample=0),  # 1 + 5 tokens
        make_request([make_round(4, 0), make_round(4, 0)], sample=1),  # 1 + 2 tokens
        make_request([make_round(4, 2, request_id="r1")], request_id="r1"),  # 1 + 3 tokens
    ]
    counts = counts_by_request(requests, max_proposal_len=4)
    found = figures(sum(counts.values(), ProposalCounts(max_proposal_len=4)), counts.values())
    assert (found.num_prefill_tokens, found.num_emitted_tokens, found.num_output_tokens) == (3, 10, 13)
    assert found.mean_acceptance_length == 1 + 6 / 4
    assert found.macro_mean_acceptance_length == ((1 + 4 / 3) + 3) / 2
    assert found.token_weighted_mean_acceptance_length == pytest.approx(((1 + 4 / 3) * 9 + 3 * 4) / 13)


def test_proposals_cut_by_the_budget_leave_far_places_unknown(make_round: Make) -> None:
    """k = 8, five output tokens: the prefill's, then 3 of 3, then nothing may be proposed for the last one."""
    counts = ProposalCounts(max_proposal_len=8, num_sequences=1)
    counts.add(make_round(3, 2))
    counts.add(make_round(0, 0, skip_reason="budget"))
    found = figures(counts)
    check_counts(counts)
    assert (found.num_output_tokens, found.num_draft_tokens, found.num_accepted_tokens) == (5, 3, 2)
    assert found.accepted_length_histogram == [0, 0, 1, 0, 0, 0, 0, 0, 0]
    assert found.acceptance_rate_per_position == [1, 1, 0, None, None, None, None, None]
    assert found.acceptance_rate_per_position_unconditional == [1, 1, 0, 0, 0, 0, 0, 0]
    assert found.conditional_acceptance_per_position == [1, 1, 0, None, None, None, None, None]
    assert (found.coverage, found.skipped["budget"]) == (1 / 2, 1)
    assert (found.tokens_per_target_pass, found.system_efficiency) == (4 / 2, 4 / 5)


def test_sums_of_entropies_and_ranks_by_hand(make_round: Make) -> None:
    counts = ProposalCounts(max_proposal_len=4)
    counts.add(
        make_round(
            3,
            1,
            draft_entropy=[1.0, 2.0],
            target_entropy=[0.5, 0.25],
            kl_target_draft=[0.125, 0.0],
            target_rank_in_draft=[1, 33],
        )
    )
    silent = {"draft_entropy": [], "target_entropy": [], "kl_target_draft": [], "target_rank_in_draft": []}
    counts.add(make_round(4, 0, **silent))  # an n-gram proposal: judged, but not compared
    found = figures(counts)
    assert (found.draft_entropy, found.target_entropy, found.kl_target_draft) == (1.5, 0.375, 0.0625)
    assert found.target_rank_in_draft == [1, 0, 0, 0, 0, 0, 1]
    assert found.expected_acceptance_rate == 0.75
    nothing = figures(
        ProposalCounts.from_rounds([make_round(4, 0, **silent)], max_proposal_len=4, num_prefill_tokens=1)
    )
    assert (nothing.draft_entropy, nothing.kl_target_draft) == (None, None)


def test_divergences_that_are_nothing_but_rounding_do_not_fail_a_run(make_round: Make, make_request: Make) -> None:
    """A target that drafts for itself: the terms are about 1e-8 of either sign, and their sum depends on its order."""
    terms = [3e-8, -1e-8, -2e-8 + 1e-17]
    requests = [make_request([make_round(1, 1, kl_target_draft=[x])], request_id=f"r{i}") for i, x in enumerate(terms)]
    per_request = counts_by_request(requests, max_proposal_len=1)
    pooled = sum(per_request.values(), ProposalCounts(max_proposal_len=1))
    vars(pooled)["kl_target_draft_above"] = sum(terms[::-1]) + 2e-17
    check_identities(
        pooled, per_request=per_request, generated_tokens=9, seen_ids=list(per_request), expected_ids=list(per_request)
    )
