"""Proposal counts: the declared sums, collected round by round, of one request or of many."""

from collections.abc import Iterable
from typing import Any

from spec_harness.metrics.declaration import Sum, Tally
from spec_harness.metrics.statistics import SUMS, InnerSums, PublishedSums
from spec_harness.requests import RequestRecord, RoundRecord

_SUMS = [(name, one.of) for name, one in SUMS.items() if isinstance(one, Sum)]
_TALLIES = [(name, one.of) for name, one in SUMS.items() if isinstance(one, Tally)]


class ProposalCounts(PublishedSums, InnerSums):
    """Sums over rounds. Adding two of them pools their rounds."""

    def __init__(self, *, max_proposal_len: int, num_sequences: int = 0) -> None:
        """Nothing counted but ``num_sequences`` prefills."""
        if max_proposal_len < 0:
            raise ValueError(f"max_proposal_len must be at least 0, not {max_proposal_len}")
        self.max_proposal_len = max_proposal_len  # k: gives the lists their lengths, is not summed
        for name, one in SUMS.items():
            start = one.empty(max_proposal_len) if isinstance(one, Tally) else one.per_sequence * num_sequences
            setattr(self, name, start)

    @classmethod
    def from_rounds(
        cls, rounds: Iterable[RoundRecord], *, max_proposal_len: int, num_prefill_tokens: int
    ) -> "ProposalCounts":
        """Counts of these rounds, and of the prefills (one token each) that came before them."""
        counts = cls(max_proposal_len=max_proposal_len, num_sequences=num_prefill_tokens)
        for record in rounds:
            counts.add(record)
        return counts

    def add(self, record: RoundRecord) -> None:
        """Count one round. The record is already cut at an accepted end-of-sequence token."""
        proposed, accepted = record.proposal_len, record.num_accepted
        where = f"request {record.request_id}, round {record.round}"
        if not 0 <= accepted <= proposed <= self.max_proposal_len:
            raise ValueError(f"{where}: need 0 <= {accepted=} <= {proposed=} <= {self.max_proposal_len}")
        if (record.skip_reason is None) != (proposed > 0):
            raise ValueError(f"{where}: {record.skip_reason=} does not fit {proposed=}")
        totals = vars(self)
        for name, of in _SUMS:
            totals[name] += of(record)
        for name, keys in _TALLIES:
            for key in keys(record):
                totals[name][key] += 1

    def sums(self) -> dict[str, Any]:
        """Every sum by name."""
        return {name: getattr(self, name) for name in SUMS}

    def __add__(self, other: "ProposalCounts") -> "ProposalCounts":
        if self.max_proposal_len != other.max_proposal_len:
            raise ValueError(f"cannot pool max_proposal_len {self.max_proposal_len} and {other.max_proposal_len}")
        pooled, theirs = ProposalCounts(max_proposal_len=self.max_proposal_len), other.sums()
        for name, value in self.sums().items():
            setattr(pooled, name, _plus(value, theirs[name]))
        return pooled

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProposalCounts) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]  # it changes


def _plus(left: Any, right: Any) -> Any:
    if isinstance(left, list):
        return [a + b for a, b in zip(left, right, strict=True)]
    if isinstance(left, dict):
        return {key: left[key] + right[key] for key in left}
    return left + right


def counts_by_request(
    requests: Iterable[RequestRecord], *, max_proposal_len: int, prefills: bool = True
) -> dict[str, ProposalCounts]:
    """Counts of each request id, its turns and samples pooled: rounds of one request are not independent.

    Sorted by id, so that intervals depend neither on the order of finishing nor on the batch that brought it about.
    """
    counts: dict[str, ProposalCounts] = {}
    for request in requests:
        own = ProposalCounts.from_rounds(
            request.rounds, max_proposal_len=max_proposal_len, num_prefill_tokens=int(prefills)
        )
        counts[request.request_id] = counts[request.request_id] + own if request.request_id in counts else own
    return dict(sorted(counts.items()))
