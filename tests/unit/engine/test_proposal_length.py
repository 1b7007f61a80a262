import pytest

from spec_harness.engine.proposal_length import ProposalLengths
from tests.helpers import metadata


def plan(
    length: int,
    *,
    k: int = 4,
    generated: int = 0,
    budget: int = 1000,
    cap: int | None = None,
    target_max: int = 1000,
    draft_max: int | None = None,
) -> tuple[int, str | None]:
    m = metadata(0, [1] * (length - generated), [], [2] * generated, max_new_tokens=budget, max_proposal_len=cap)
    return ProposalLengths(max_proposal_len=k, target_max=target_max, draft_max=draft_max).plan(m, batch=1)


@pytest.mark.parametrize("draft_max", [32, 33])
@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_about_the_drafts_maximum_the_proposal_uses_every_position_and_no_more(k: int, draft_max: int) -> None:
    """The origin stops proposing at len + k = draft_max already; positions go up to len + k - 2 only."""
    for beyond, expected in [(-1, k), (0, k), (1, k), (2, k - 1), (3, k - 2)]:
        length = draft_max + beyond - k
        proposal, reason = plan(length, k=k, draft_max=draft_max)
        assert proposal == max(0, expected)
        assert reason == (None if expected > 0 else "draft_max")
        assert proposal == 0 or length + proposal - 2 <= draft_max - 1


def test_a_round_never_emits_more_than_is_left_of_the_budget() -> None:
    for left, expected in [(7, 4), (5, 4), (4, 3), (2, 1)]:
        assert plan(30, generated=20 - left, budget=20) == (expected, None)
    assert plan(30, generated=19, budget=20) == (0, "budget")


def test_a_round_never_passes_the_targets_maximum() -> None:
    for left, expected in [(7, 4), (5, 4), (4, 3), (2, 1)]:
        assert plan(100 - left, target_max=100) == (expected, None)
    assert plan(99, target_max=100) == (0, "target_max")


@pytest.mark.parametrize(("cap", "expected"), [(None, (4, None)), (9, (4, None)), (2, (2, None)), (0, (0, "cap"))])
def test_a_requests_cap_only_lowers_the_runs(cap: int | None, expected: tuple[int, str | None]) -> None:
    assert plan(10, cap=cap) == expected


def test_no_proposals_at_k_0() -> None:
    assert plan(10, k=0) == (0, "cap")


def test_the_reason_is_the_smallest_term() -> None:
    assert plan(40, draft_max=32, target_max=41) == (0, "draft_max")
    assert plan(32, draft_max=32, target_max=33) == (0, "target_max")
    assert plan(50, draft_max=32, target_max=51, k=0) == (0, "draft_max")
