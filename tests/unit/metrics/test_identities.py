"""Equalities between counts: any that was tampered with is found, by the name of the identity that it breaks."""

from collections.abc import Callable
from typing import Any

import pytest

from spec_harness.metrics.counts import ProposalCounts, counts_by_request
from spec_harness.metrics.identities import IdentityError, check_identities

Make = Callable[..., Any]

# Counts printed in public reports of other tools, and what the definitions make of them. vLLM's engine v0 always
# proposed k tokens, so its rounds are draft_tokens / k, and its emitted tokens include the recovered or bonus ones.

Make = Callable[..., Any]

TAMPERED: list[tuple[str, str, Callable[[Any], Any]]] = [
    ("num_drafts", "sum of accepted_length_histogram = num_drafts", lambda n: n + 1),
    ("num_accepted_tokens", r"sum of j \* accepted_length_histogram", lambda n: n + 1),
    ("skipped", "sum of skipped", lambda skipped: skipped | {"cap": skipped["cap"] + 1}),
    ("num_accepted_beyond", "mean_acceptance_length = 1", lambda n: [n[0] + 1, *n[1:]]),
    ("num_accepted_beyond", "never rises", lambda n: n[::-1]),
    ("num_emitted_tokens", "num_emitted_tokens = num_accepted_tokens", lambda n: n - 1),
    ("rounds_ended_by_accepted_eos", "num_emitted_tokens = num_accepted_tokens", lambda n: n + 1),
    ("num_prefill_tokens", "tokens in generations.jsonl", lambda n: n + 1),
    ("num_draft_tokens", "sum over requests = pooled num_draft_tokens", lambda n: n + 1),
    ("num_aligned_tokens", "sum over requests = pooled num_aligned_tokens", lambda n: n + 1),
    ("num_reached", "sum over requests = pooled num_reached", lambda n: [n[0] + 1, *n[1:]]),
    ("expected_acceptance_rate_above", "sum over requests = pooled expected_acceptance_rate_above", lambda x: x + 1e-3),
]


@pytest.mark.parametrize(("name", "identity", "tamper"), TAMPERED, ids=[f"{row[0]}: {row[1]}" for row in TAMPERED])
def test_tampered_counts_break_the_identity_by_name(
    random_requests: Make, name: str, identity: str, tamper: Any
) -> None:
    requests = random_requests(5, max_proposal_len=4)
    per_request = counts_by_request(requests, max_proposal_len=4)
    pooled = sum(per_request.values(), ProposalCounts(max_proposal_len=4))
    wrong = pooled + ProposalCounts(max_proposal_len=4)
    setattr(wrong, name, tamper(getattr(pooled, name)))
    ids = list(per_request)
    tokens = sum(len(request.token_ids) for request in requests)
    with pytest.raises(IdentityError, match=identity) as caught:
        check_identities(wrong, per_request=per_request, generated_tokens=tokens, seen_ids=ids, expected_ids=ids)
    assert " against " in str(caught.value)


def test_lost_and_doubled_requests_are_named() -> None:
    """A sampler that pads uneven ranks runs a request twice: as a set the ids would look right."""
    nothing = ProposalCounts(max_proposal_len=1)
    for seen, text in ((["a"], "missing ['b']"), (["a", "b", "b"], "surplus ['b']"), (["a", "x"], "surplus ['x']")):
        with pytest.raises(IdentityError) as caught:
            check_identities(nothing, per_request={}, generated_tokens=0, seen_ids=seen, expected_ids=["b", "a"])
        assert text in str(caught.value)
    check_identities(nothing, per_request={}, generated_tokens=0, seen_ids=["a", "b"], expected_ids=["b", "a"])
