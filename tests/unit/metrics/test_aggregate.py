"""The torchmetrics carrier of the counts: equal to counting directly, and a plain sum over ranks."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from spec_harness.metrics.aggregate import ProposalMetric
from spec_harness.metrics.counts import ProposalCounts, counts_by_request

Make = Callable[..., Any]


def rounded(counts: ProposalCounts) -> ProposalCounts:
    """Sums of floats depend on their order in the last places."""
    floats = {name: round(value, 9) for name, value in counts.sums().items() if isinstance(value, float)}
    assert len(floats) == 4
    return replace(counts, **floats)


def test_metric_carries_the_same_sums(random_requests: Make) -> None:
    requests = random_requests(9, max_proposal_len=4)
    metric = ProposalMetric(4)
    with torch.inference_mode():
        for request in requests[:3]:
            metric.update(request.rounds, num_prefill_tokens=1)
    for request in requests[3:]:  # outside inference mode, on states made inside it
        metric.update(request.rounds, num_prefill_tokens=1)
    expected = sum(counts_by_request(requests, max_proposal_len=4).values(), ProposalCounts(max_proposal_len=4))
    counts = metric.compute()
    assert rounded(counts) == rounded(expected)
    assert type(counts.num_rounds) is int
    metric.reset()
    metric.update([])
    assert metric.compute() == ProposalCounts(max_proposal_len=4)


def test_metric_states_add_up_over_uneven_ranks(random_requests: Make) -> None:
    """Every state is an int64 or float64 sum: reducing the states of two ranks gives the counts of all rounds."""
    requests = random_requests(11, max_proposal_len=3, num_requests=9)
    ranks = [ProposalMetric(3), ProposalMetric(3)]
    for index, request in enumerate(requests):
        ranks[index % 5 == 0].update(request.rounds, num_prefill_tokens=1)
    whole = ProposalMetric(3)
    whole.update([])
    reductions: dict[str, Any] = dict(whole._reductions)
    for name, reduction in reductions.items():
        states = torch.stack([getattr(rank, name) for rank in ranks])
        assert states.dtype in (torch.int64, torch.float64)
        setattr(whole, name, reduction(states))
    expected = sum(counts_by_request(requests, max_proposal_len=3).values(), ProposalCounts(max_proposal_len=3))
    assert rounded(whole.compute()) == rounded(expected)
