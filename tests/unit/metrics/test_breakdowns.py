"""The proposal section by group: what is in each, and that the groups add up."""

from collections.abc import Callable
from typing import Any

import pytest

from spec_harness.metrics.breakdowns import breakdowns

Make = Callable[..., Any]
SUMS = ("num_rounds", "num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_emitted_tokens")


@pytest.mark.parametrize("seed", range(3))
def test_the_groups_of_each_breakdown_add_up_to_the_whole(seed: int, random_requests: Make, make_results: Make) -> None:
    requests = random_requests(seed, max_proposal_len=4, num_requests=12)
    results = make_results(requests, max_proposal_len=4)
    for grouping in ("category", "turn", "proposal_len", "context_bucket"):
        sections = getattr(results.breakdowns, grouping)
        for name in SUMS:
            assert sum(getattr(s, name) for s in sections.values()) == getattr(results.proposal, name), (grouping, name)
        prefills = sum(section.num_prefill_tokens for section in sections.values())
        assert prefills == (12 if grouping in ("category", "turn") else 0)


def test_by_category_and_turn(make_round: Make, make_request: Make) -> None:
    requests = [
        make_request([make_round(2, 2)], request_id="a", turn=0, category="chat"),
        make_request([make_round(2, 0), make_round(2, 1)], request_id="a", turn=1, category="chat"),
        make_request([make_round(1, 1)], request_id="b", turn=0, category="code"),
    ]
    found = breakdowns(requests, max_proposal_len=2)
    assert {name: (s.num_requests, s.acceptance_rate.value) for name, s in found.category.items()} == {
        "chat": (1, 3 / 6),
        "code": (1, 1.0),
    }
    assert {name: (s.num_requests, s.num_rounds) for name, s in found.turn.items()} == {"0": (2, 2), "1": (1, 2)}


def test_by_proposal_length_and_context(make_round: Make, make_request: Make) -> None:
    requests = [
        make_request([make_round(4, 2, context_len=63), make_round(1, 1, context_len=64)], request_id="a"),
        make_request([make_round(0, 0, context_len=1), make_round(4, 4, context_len=127)], request_id="b"),
    ]
    found = breakdowns(requests, max_proposal_len=4)
    assert {name: s.mean_acceptance_length.value for name, s in found.proposal_len.items()} == {
        "0": None,
        "1": 2.0,
        "4": 1 + 6 / 2,
    }
    assert {name: s.num_rounds for name, s in found.context_bucket.items()} == {"1-1": 1, "32-63": 1, "64-127": 2}
    assert found.context_bucket["64-127"].num_requests == 2
    assert found.context_bucket["64-127"].acceptance_rate.n == 2


def test_an_interval_needs_eight_requests_in_the_group(random_requests: Make) -> None:
    requests = random_requests(4, max_proposal_len=3, num_requests=24)
    for index, request in enumerate(requests):
        request.category = "few" if index < 5 else "many"
    found = breakdowns(requests, max_proposal_len=3).category
    assert found["few"].acceptance_rate.ci95 is None
    low, high = found["many"].acceptance_rate.ci95 or (0, 0)
    assert low < (found["many"].acceptance_rate.value or 0) < high
