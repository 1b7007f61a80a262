"""Proposal counts as a torchmetrics metric: sums that add up across ranks. Rates are taken once, from its result."""

from collections.abc import Iterable
from typing import Any

import torch
from torchmetrics import Metric

from spec_harness.metrics.counts import ProposalCounts
from spec_harness.requests import RoundRecord


class ProposalMetric(Metric):
    """Carries every sum of ``ProposalCounts`` as one sum-reduced state (int64; sums of floats as float64).

    Means of per-rank rates are wrong when ranks hold different numbers of rounds; sums are right. Call ``update``
    once per batch of finished requests rather than once a round: each call adds one small tensor per state.
    """

    full_state_update = False
    higher_is_better = None
    is_differentiable = False

    def __init__(self, max_proposal_len: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.max_proposal_len = max_proposal_len
        for name, value in ProposalCounts(max_proposal_len=max_proposal_len).sums().items():
            self.add_state(name, default=_as_tensor(value), dist_reduce_fx="sum")

    def update(self, rounds: Iterable[RoundRecord], num_prefill_tokens: int = 0) -> None:
        """Add these rounds, and ``num_prefill_tokens`` sequences whose prefill emitted a token."""
        counts = ProposalCounts.from_rounds(
            rounds, max_proposal_len=self.max_proposal_len, num_prefill_tokens=num_prefill_tokens
        )
        for name, value in counts.sums().items():
            # Not in place: a state last touched in inference mode could not be changed outside it.
            setattr(self, name, getattr(self, name) + _as_tensor(value).to(self.device))

    def compute(self) -> ProposalCounts:
        """The pooled counts of all ranks."""
        counts = ProposalCounts(max_proposal_len=self.max_proposal_len)
        for name, value in counts.sums().items():
            total = getattr(self, name).tolist()
            setattr(counts, name, dict(zip(value, total, strict=True)) if isinstance(value, dict) else total)
        return counts


def _as_tensor(value: Any) -> torch.Tensor:
    values = list(value.values()) if isinstance(value, dict) else value
    return torch.tensor(values, dtype=torch.float64 if isinstance(value, float) else torch.int64)
