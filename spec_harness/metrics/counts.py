"""Proposal counts: sums collected round by round, of one request or of many. No torch, no files, no time.

Symbols: ``l`` draft tokens proposed in a round, ``a`` accepted (unbroken prefix), ``n`` aligned, ``e`` emitted,
``k = max_proposal_len``; sums run over rounds.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, fields
from typing import Any, get_args

from spec_harness.requests import RequestRecord, RoundRecord, SkipReason

SKIP_REASONS: tuple[SkipReason, ...] = get_args(SkipReason)
# Lowest rank of each bar of target_rank_in_draft: 1, 2, 3-4, 5-8, 9-16, 17-32, 33 and more.
RANK_BINS = (1, 2, 3, 5, 9, 17, 33)


def plus(left: Any, right: Any) -> Any:
    """Adds numbers, and lists or dicts of them entry by entry."""
    if left is None or right is None:  # unknown plus anything is unknown
        return None
    if isinstance(left, list):
        return [a + b for a, b in zip(left, right, strict=True)]
    if isinstance(left, dict):
        return {key: left[key] + right[key] for key in left}
    return left + right


@dataclass(kw_only=True)
class ProposalCounts:
    """Sums over rounds. Adding two of them pools their rounds."""

    max_proposal_len: int  # k: gives the lists their lengths, is not summed
    num_prefill_tokens: int = 0  # one per sequence: the token that its prefill emitted
    num_rounds: int = 0
    num_drafts: int = 0  # rounds with l > 0
    num_draft_tokens: int = 0  # Σl
    num_accepted_tokens: int = 0  # Σa
    num_aligned_tokens: int | None = 0  # Σn; None where unknown (drafts off the text were never drawn)
    num_emitted_tokens: int = 0  # Σe
    num_draft_tokens_past_end: int = 0  # drafted after an accepted end-of-sequence token; not in Σl
    rounds_ended_by_accepted_eos: int = 0
    expected_acceptance_sum: float = 0.0  # Σ of Σ_v min(draft, target) over the positions judged
    expected_acceptance_count: int = 0  # those positions: the accepted ones and the first rejected one
    draft_entropy_sum: float = 0.0  # nats, over those of them where the proposer has a distribution of its own
    target_entropy_sum: float = 0.0
    kl_target_draft_sum: float = 0.0
    num_compared: int = 0  # positions in these three sums
    target_rank_in_draft: list[int] = field(default_factory=list)  # [len(RANK_BINS)]: those positions by rank
    skipped: dict[SkipReason, int] = field(default_factory=lambda: dict.fromkeys(SKIP_REASONS, 0))  # rounds with l = 0
    accepted_length_histogram: list[int] = field(default_factory=list)  # [k + 1]: rounds with l > 0 and a = j
    num_accepted_beyond: list[int] = field(default_factory=list)  # [k]: rounds with a > i
    num_proposed_beyond: list[int] = field(default_factory=list)  # [k]: rounds with l > i
    num_reached: list[int] = field(default_factory=list)  # [k]: rounds with a >= i and l > i

    def __post_init__(self) -> None:
        k = self.max_proposal_len
        if k < 0:
            raise ValueError(f"max_proposal_len must be at least 0, not {k}")
        lengths = {"accepted_length_histogram": k + 1}
        lengths["target_rank_in_draft"] = len(RANK_BINS)
        lengths |= dict.fromkeys(("num_accepted_beyond", "num_proposed_beyond", "num_reached"), k)
        for name, length in lengths.items():
            values = getattr(self, name)
            if not values:
                setattr(self, name, [0] * length)
            elif len(values) != length:
                raise ValueError(f"{name} needs {length} entries for max_proposal_len={k}, not {len(values)}")

    @classmethod
    def from_histogram(cls, histogram: Collection[int]) -> "ProposalCounts":
        """Counts behind a published accepted-length histogram of k + 1 entries.

        Assumes that every round proposed exactly k tokens and none ended in an accepted end-of-sequence token. The
        histogram does not tell what followed a rejection, so ``num_aligned_tokens`` is unknown.
        """
        bars, k = list(histogram), len(histogram) - 1
        if k < 1:
            raise ValueError(f"a histogram of proposals has at least two entries, not {len(bars)}")
        rounds = sum(bars)
        accepted = sum(j * count for j, count in enumerate(bars))
        return cls(
            max_proposal_len=k,
            num_rounds=rounds,
            num_drafts=rounds,
            num_draft_tokens=k * rounds,
            num_accepted_tokens=accepted,
            num_aligned_tokens=None,
            num_emitted_tokens=accepted + rounds,
            accepted_length_histogram=bars,
            num_accepted_beyond=[sum(bars[i + 1 :]) for i in range(k)],
            num_proposed_beyond=[rounds] * k,
            num_reached=[sum(bars[i:]) for i in range(k)],
        )

    @classmethod
    def from_rounds(
        cls, rounds: Iterable[RoundRecord], *, max_proposal_len: int, num_prefill_tokens: int
    ) -> "ProposalCounts":
        """Counts of these rounds, and of the prefills (one token each) that came before them."""
        counts = cls(max_proposal_len=max_proposal_len, num_prefill_tokens=num_prefill_tokens)
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
        self.num_rounds += 1
        self.num_draft_tokens += proposed
        self.num_accepted_tokens += accepted
        self.num_aligned_tokens = plus(self.num_aligned_tokens, record.num_aligned)
        self.num_emitted_tokens += record.num_emitted
        self.num_draft_tokens_past_end += record.num_draft_tokens_past_end
        self.rounds_ended_by_accepted_eos += record.ended_by_accepted_eos
        self.expected_acceptance_sum += sum(record.expected_acceptance)
        self.expected_acceptance_count += len(record.expected_acceptance)
        self.draft_entropy_sum += sum(record.draft_entropy)
        self.target_entropy_sum += sum(record.target_entropy)
        self.kl_target_draft_sum += sum(record.kl_target_draft)
        self.num_compared += len(record.draft_entropy)
        for rank in record.target_rank_in_draft:
            self.target_rank_in_draft[bisect_right(RANK_BINS, rank) - 1] += 1
        if record.skip_reason is not None:
            self.skipped[record.skip_reason] += 1
            return
        self.num_drafts += 1
        self.accepted_length_histogram[accepted] += 1
        for i in range(proposed):
            self.num_proposed_beyond[i] += 1
            self.num_accepted_beyond[i] += accepted > i
            self.num_reached[i] += accepted >= i

    def sums(self) -> dict[str, Any]:
        """Every summed field by name: all but ``max_proposal_len``."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.name != "max_proposal_len"}

    def __add__(self, other: "ProposalCounts") -> "ProposalCounts":
        if self.max_proposal_len != other.max_proposal_len:
            raise ValueError(f"cannot pool max_proposal_len {self.max_proposal_len} and {other.max_proposal_len}")
        theirs = other.sums()
        pooled = {name: plus(value, theirs[name]) for name, value in self.sums().items()}
        return ProposalCounts(max_proposal_len=self.max_proposal_len, **pooled)


def counts_by_request(requests: Iterable[RequestRecord], *, max_proposal_len: int) -> dict[str, ProposalCounts]:
    """Counts of each request id, its turns and samples pooled: rounds of one request are not independent.

    Sorted by id, so that intervals depend neither on the order of finishing nor on the batch that brought it about.
    """
    counts: dict[str, ProposalCounts] = {}
    for request in requests:
        own = ProposalCounts.from_rounds(request.rounds, max_proposal_len=max_proposal_len, num_prefill_tokens=1)
        counts[request.request_id] = counts[request.request_id] + own if request.request_id in counts else own
    return dict(sorted(counts.items()))
