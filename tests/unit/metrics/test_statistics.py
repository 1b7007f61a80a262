"""Proposal statistics against published counts, hand-computed cases, and a naive loop over the rounds."""

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from spec_harness.metrics.counts import SKIP_REASONS, ProposalCounts, counts_by_request
from spec_harness.metrics.identities import check_counts, check_identities
from spec_harness.metrics.statistics import ProposalStatistics, compute
from spec_harness.requests import RequestRecord

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
        counts = ProposalCounts.from_histogram(report["accepted_length_histogram"])
        check_counts(counts)
    else:
        rounds = report["draft_tokens"] // report["k"]
        counts = ProposalCounts(
            max_proposal_len=report["k"],
            num_rounds=rounds,
            num_drafts=rounds,
            num_draft_tokens=report["draft_tokens"],
            num_accepted_tokens=report["emitted"] - rounds,
            num_aligned_tokens=report["aligned"],
            num_emitted_tokens=report["emitted"],
        )
    figures = compute(counts)
    for name, value in report["expect"].items():
        if name == "note":
            continue
        exact = isinstance(value, int)
        assert getattr(figures, name) == (value if exact else pytest.approx(value, abs=0.0005)), name


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report["source"])
def test_published_counts_give_the_published_figures(report: dict[str, Any]) -> None:
    check_report(report)


def test_published_counts_of_the_shared_file() -> None:
    path = Path(__file__).parents[4] / "shared" / "data" / "metric_fixtures.json"
    if not path.is_file():
        pytest.skip("the file of published counts lies beside the checkout only where the reports are collected")
    for report in json.loads(path.read_text(encoding="utf-8"))["fixtures"]:
        check_report(report)


def test_a_histogram_alone_leaves_the_aligned_rate_unknown() -> None:
    assert compute(ProposalCounts.from_histogram([3, 1])).aligned_rate is None


RANKS = ((1, 1), (2, 2), (3, 4), (5, 8), (9, 16), (17, 32), (33, 10**9))


def naive(requests: list[RequestRecord], k: int) -> dict[str, Any]:
    """Every pooled figure from the definitions, each by its own pass over the rounds."""
    rounds = [record for request in requests for record in request.rounds]
    drafts = [record for record in rounds if record.proposal_len > 0]

    def over(numerator: float, denominator: float) -> float | None:
        return numerator / denominator if denominator else None

    def beyond(i: int) -> int:
        return sum(record.num_accepted > i for record in drafts)

    proposed = sum(record.proposal_len for record in rounds)
    accepted = sum(record.num_accepted for record in rounds)
    emitted = sum(record.num_emitted for record in rounds)
    judged = [value for record in rounds for value in record.expected_acceptance]
    ours, theirs, apart, ranks = (
        [value for record in rounds for value in getattr(record, name)]
        for name in ("draft_entropy", "target_entropy", "kl_target_draft", "target_rank_in_draft")
    )
    lengths, weights = [], []
    for request in requests:
        own = [record for record in request.rounds if record.proposal_len > 0]
        if own:
            lengths.append(1 + sum(record.num_accepted for record in own) / len(own))
            weights.append(len(request.token_ids))
    return {
        "num_prefill_tokens": len(requests),
        "num_rounds": len(rounds),
        "num_drafts": len(drafts),
        "num_draft_tokens": proposed,
        "num_accepted_tokens": accepted,
        "num_aligned_tokens": sum(record.num_aligned for record in rounds),
        "num_emitted_tokens": emitted,
        "num_output_tokens": sum(len(request.token_ids) for request in requests),
        "num_draft_tokens_past_end": sum(record.num_draft_tokens_past_end for record in rounds),
        "rounds_ended_by_accepted_eos": sum(record.ended_by_accepted_eos for record in rounds),
        "skipped": {reason: sum(record.skip_reason == reason for record in rounds) for reason in SKIP_REASONS},
        "accepted_length_histogram": [sum(record.num_accepted == j for record in drafts) for j in range(k + 1)],
        "coverage": over(len(drafts), len(rounds)),
        "acceptance_rate": over(accepted, proposed),
        "mean_acceptance_length": 1 + accepted / len(drafts) if drafts else None,
        "tokens_per_target_pass": over(emitted, len(rounds)),
        "acceptance_rate_per_position": [
            over(beyond(i), sum(record.proposal_len > i for record in drafts)) for i in range(k)
        ],
        "acceptance_rate_per_position_unconditional": [over(beyond(i), len(drafts)) for i in range(k)],
        "conditional_acceptance_per_position": [
            over(beyond(i), sum(record.num_accepted >= i and record.proposal_len > i for record in drafts))
            for i in range(k)
        ],
        "aligned_rate": over(sum(record.num_aligned for record in rounds), proposed),
        "system_efficiency": over(emitted, sum(record.proposal_len + 1 for record in rounds)),
        "expected_acceptance_rate": over(sum(judged), len(judged)),
        "draft_entropy": over(sum(ours), len(ours)),
        "target_entropy": over(sum(theirs), len(theirs)),
        "kl_target_draft": over(sum(apart), len(apart)),
        "target_rank_in_draft": [sum(low <= rank <= high for rank in ranks) for low, high in RANKS],
        "macro_mean_acceptance_length": over(sum(lengths), len(lengths)),
        "token_weighted_mean_acceptance_length": over(
            sum(length * weight for length, weight in zip(lengths, weights, strict=True)), sum(weights)
        ),
    }


@pytest.mark.parametrize("k", [0, 1, 4, 8])
@pytest.mark.parametrize("seed", range(4))
def test_every_figure_equals_a_naive_loop(random_requests: Make, seed: int, k: int) -> None:
    requests = random_requests(seed, max_proposal_len=k)
    per_request = counts_by_request(requests, max_proposal_len=k)
    pooled = sum(per_request.values(), ProposalCounts(max_proposal_len=k))
    figures = compute(pooled, per_request.values())
    expected = naive(requests, k)
    assert expected.keys() == {item.name for item in fields(ProposalStatistics)}
    for name, value in expected.items():
        assert getattr(figures, name) == (pytest.approx(value) if isinstance(value, float) else value), name
    ids = [request.request_id for request in requests]
    tokens = sum(len(request.token_ids) for request in requests)
    check_identities(pooled, per_request=per_request, generated_tokens=tokens, seen_ids=ids, expected_ids=ids)


def test_figures_by_hand(make_round: Make) -> None:
    rounds = [make_round(3, 1, num_aligned=2), make_round(3, 3), make_round(2, 0), make_round(0, 0)]
    figures = compute(ProposalCounts.from_rounds(rounds, max_proposal_len=3, num_prefill_tokens=1))
    assert figures.num_output_tokens == 1 + 8  # 2 + 4 + 1 + 1 emitted
    assert figures.coverage == 3 / 4
    assert figures.acceptance_rate == 4 / 8
    assert figures.mean_acceptance_length == 1 + 4 / 3
    assert figures.tokens_per_target_pass == 8 / 4
    assert figures.acceptance_rate_per_position == [2 / 3, 1 / 3, 1 / 2]
    assert figures.acceptance_rate_per_position_unconditional == [2 / 3, 1 / 3, 1 / 3]
    assert figures.conditional_acceptance_per_position == [2 / 3, 1 / 2, 1 / 1]
    assert figures.accepted_length_histogram == [1, 1, 0, 1]
    assert figures.aligned_rate == 5 / 8
    assert figures.system_efficiency == 8 / (8 + 4)
    assert figures.skipped["budget"] == 1


def test_end_of_text_inside_the_accepted_prefix(make_round: Make) -> None:
    """Four drafted, all accepted, the second is the end of text: two count, two lie behind it, no bonus token.

    Counting all four as accepted is how an engine comes to report more accepted tokens than it emitted
    (vllm issue 56101).
    """
    counts = ProposalCounts(max_proposal_len=4)
    counts.add(make_round(2, 2, eos=True, past_end=2))
    figures = compute(counts)
    assert (figures.num_draft_tokens, figures.num_accepted_tokens, figures.num_emitted_tokens) == (2, 2, 2)
    assert (figures.num_draft_tokens_past_end, figures.rounds_ended_by_accepted_eos) == (2, 1)
    assert figures.accepted_length_histogram == [0, 0, 1, 0, 0]
    assert figures.acceptance_rate_per_position == [1, 1, None, None]
    check_counts(counts)


def test_end_of_text_at_the_last_place(make_round: Make) -> None:
    counts = ProposalCounts(max_proposal_len=4)
    counts.add(make_round(4, 4, eos=True))
    figures = compute(counts)
    assert (figures.num_draft_tokens, figures.num_accepted_tokens, figures.num_emitted_tokens) == (4, 4, 4)
    assert figures.num_draft_tokens_past_end == 0
    check_counts(counts)


def test_end_of_text_drafted_behind_a_rejection_is_an_ordinary_round(make_round: Make) -> None:
    counts = ProposalCounts(max_proposal_len=4)
    counts.add(make_round(4, 1))
    figures = compute(counts)
    assert (figures.num_draft_tokens, figures.num_accepted_tokens, figures.num_emitted_tokens) == (4, 1, 2)
    assert figures.rounds_ended_by_accepted_eos == 0
    check_counts(counts)


@pytest.mark.parametrize(("k", "reason"), [(3, "draft_max"), (0, "cap")])
def test_without_any_proposal_rates_are_unknown_not_zero(make_round: Make, k: int, reason: str) -> None:
    rounds = [make_round(0, 0, skip_reason=reason)] * 5
    counts = ProposalCounts.from_rounds(rounds, max_proposal_len=k, num_prefill_tokens=1)
    figures = compute(counts, [counts])
    check_counts(counts)
    assert figures.coverage == 0
    assert figures.tokens_per_target_pass == 1
    assert figures.system_efficiency == 1
    assert figures.skipped == dict.fromkeys(SKIP_REASONS, 0) | {reason: 5}
    assert figures.acceptance_rate_per_position == [None] * k
    for name in ("acceptance_rate", "mean_acceptance_length", "aligned_rate", "expected_acceptance_rate"):
        assert getattr(figures, name) is None, name
    assert figures.macro_mean_acceptance_length is None
    assert figures.token_weighted_mean_acceptance_length is None


def test_nothing_at_all() -> None:
    figures = compute(ProposalCounts(max_proposal_len=2))
    assert figures.num_output_tokens == 0
    assert figures.coverage is None
    assert figures.tokens_per_target_pass is None


def test_records_that_contradict_themselves_are_refused(make_round: Make) -> None:
    counts = ProposalCounts(max_proposal_len=3)
    for record in (make_round(4, 0), make_round(2, 3), make_round(2, 1, skip_reason="cap")):
        with pytest.raises(ValueError, match="request r0, round 0"):
            counts.add(record)
    with pytest.raises(ValueError, match="skip_reason"):
        counts.add(make_round(0, 0, skip_reason=None))
    with pytest.raises(ValueError, match="cannot pool"):
        counts + ProposalCounts(max_proposal_len=2)
    with pytest.raises(ValueError, match="needs 4 entries"):
        ProposalCounts(max_proposal_len=3, accepted_length_histogram=[1])


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
    figures = compute(sum(counts.values(), ProposalCounts(max_proposal_len=4)), counts.values())
    assert (figures.num_prefill_tokens, figures.num_emitted_tokens, figures.num_output_tokens) == (3, 10, 13)
    assert figures.mean_acceptance_length == 1 + 6 / 4
    assert figures.macro_mean_acceptance_length == ((1 + 4 / 3) + 3) / 2
    assert figures.token_weighted_mean_acceptance_length == pytest.approx(((1 + 4 / 3) * 9 + 3 * 4) / 13)


def test_proposals_cut_by_the_budget_leave_far_places_unknown(make_round: Make) -> None:
    """k = 8, five output tokens: the prefill's, then 3 of 3, then nothing may be proposed for the last one."""
    counts = ProposalCounts(max_proposal_len=8, num_prefill_tokens=1)
    counts.add(make_round(3, 2))
    counts.add(make_round(0, 0, skip_reason="budget"))
    figures = compute(counts)
    check_counts(counts)
    assert (figures.num_output_tokens, figures.num_draft_tokens, figures.num_accepted_tokens) == (5, 3, 2)
    assert figures.accepted_length_histogram == [0, 0, 1, 0, 0, 0, 0, 0, 0]
    assert figures.acceptance_rate_per_position == [1, 1, 0, None, None, None, None, None]
    assert figures.acceptance_rate_per_position_unconditional == [1, 1, 0, 0, 0, 0, 0, 0]
    assert figures.conditional_acceptance_per_position == [1, 1, 0, None, None, None, None, None]
    assert (figures.coverage, figures.skipped["budget"]) == (1 / 2, 1)
    assert (figures.tokens_per_target_pass, figures.system_efficiency) == (4 / 2, 4 / 5)


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
    figures = compute(counts)
    assert (figures.draft_entropy, figures.target_entropy, figures.kl_target_draft) == (1.5, 0.375, 0.0625)
    assert figures.target_rank_in_draft == [1, 0, 0, 0, 0, 0, 1]
    assert figures.expected_acceptance_rate == 0.75
    nothing = compute(
        ProposalCounts.from_rounds([make_round(4, 0, **silent)], max_proposal_len=4, num_prefill_tokens=1)
    )
    assert (nothing.draft_entropy, nothing.kl_target_draft) == (None, None)


def test_divergences_that_are_nothing_but_rounding_do_not_fail_a_run(make_round: Make, make_request: Make) -> None:
    """A target that drafts for itself: the terms are about 1e-8 of either sign, and their sum depends on its order."""
    terms = [3e-8, -1e-8, -2e-8 + 1e-17]
    requests = [make_request([make_round(1, 1, kl_target_draft=[x])], request_id=f"r{i}") for i, x in enumerate(terms)]
    per_request = counts_by_request(requests, max_proposal_len=1)
    pooled = sum(per_request.values(), ProposalCounts(max_proposal_len=1))
    pooled = replace(pooled, kl_target_draft_sum=sum(terms[::-1]) + 2e-17)
    check_identities(
        pooled, per_request=per_request, generated_tokens=9, seen_ids=list(per_request), expected_ids=list(per_request)
    )
