"""Proposal statistics: sums collected round by round, and one pure function that turns the sums into rates.

Every rate is a ratio of pooled sums, taken once at the end; a ratio whose denominator is zero is ``None``, never 0.
Symbols: ``l`` draft tokens proposed in a round, ``a`` accepted (unbroken prefix), ``n`` aligned, ``e`` emitted,
``k = max_proposal_len``; sums run over rounds. This module knows neither torch, files nor time.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_args

from spec_harness.spec_decode.records import RequestRecord, RoundRecord, SkipReason

SKIP_REASONS: tuple[SkipReason, ...] = get_args(SkipReason)


class IdentityError(RuntimeError):
    """Two figures that must be equal are not: the statistics of this run cannot be trusted."""


def _plus(left: Any, right: Any) -> Any:
    if left is None or right is None:  # unknown plus anything is unknown
        return None
    if isinstance(left, list):
        return [a + b for a, b in zip(left, right, strict=True)]
    if isinstance(left, dict):
        return {key: left[key] + right[key] for key in left}
    return left + right


@dataclass(kw_only=True)
class ProposalCounts:
    """Sums over rounds, host integers but for ``expected_acceptance_sum``. Adding two of them pools their rounds."""

    max_proposal_len: int  # k: gives the lists their lengths, is not summed
    num_prefill_tokens: int = 0  # one per sequence: the token that its prefill emitted
    num_rounds: int = 0
    num_drafts: int = 0  # rounds with l > 0
    num_draft_tokens: int = 0  # Σl
    num_accepted_tokens: int = 0  # Σa
    num_aligned_tokens: int | None = 0  # Σn; None where unknown (drafts off the text were never drawn)
    num_emitted_tokens: int = 0  # Σe
    num_draft_tokens_past_end: int = 0  # drafted behind an accepted end-of-sequence token; not in Σl
    rounds_ended_by_accepted_eos: int = 0
    expected_acceptance_sum: float = 0.0  # Σ of Σ_v min(draft, target) over the positions judged
    expected_acceptance_count: int = 0  # those positions: the accepted ones and the first rejected one
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
        self.num_aligned_tokens = _plus(self.num_aligned_tokens, record.num_aligned)
        self.num_emitted_tokens += record.num_emitted
        self.num_draft_tokens_past_end += record.num_draft_tokens_past_end
        self.rounds_ended_by_accepted_eos += record.ended_by_accepted_eos
        self.expected_acceptance_sum += sum(record.expected_acceptance)
        self.expected_acceptance_count += len(record.expected_acceptance)
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
        pooled = {name: _plus(value, theirs[name]) for name, value in self.sums().items()}
        return ProposalCounts(max_proposal_len=self.max_proposal_len, **pooled)


def counts_by_request(requests: Iterable[RequestRecord], *, max_proposal_len: int) -> dict[str, ProposalCounts]:
    """Counts of each request id, its turns and samples pooled: rounds of one request are not independent."""
    counts: dict[str, ProposalCounts] = {}
    for request in requests:
        own = ProposalCounts.from_rounds(request.rounds, max_proposal_len=max_proposal_len, num_prefill_tokens=1)
        counts[request.request_id] = counts[request.request_id] + own if request.request_id in counts else own
    return counts


@dataclass(frozen=True, kw_only=True)
class ProposalStatistics:
    """What ``compute`` returns, by the names of results.json, where each formula stands. ``None`` is unknown."""

    num_prefill_tokens: int
    num_rounds: int
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_aligned_tokens: int | None
    num_emitted_tokens: int
    num_output_tokens: int
    num_draft_tokens_past_end: int
    rounds_ended_by_accepted_eos: int
    skipped: dict[SkipReason, int]
    accepted_length_histogram: list[int]
    coverage: float | None
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    tokens_per_target_pass: float | None
    acceptance_rate_per_position: list[float | None]
    acceptance_rate_per_position_unconditional: list[float | None]
    conditional_acceptance_per_position: list[float | None]
    aligned_rate: float | None
    system_efficiency: float | None
    expected_acceptance_rate: float | None
    macro_mean_acceptance_length: float | None
    token_weighted_mean_acceptance_length: float | None


def ratio(numerator: int | float | None, denominator: int | float) -> float | None:
    """Their quotient; ``None`` if the numerator is unknown or the denominator is zero."""
    return None if numerator is None or denominator == 0 else numerator / denominator


def mean_acceptance_length(counts: ProposalCounts) -> float | None:
    """1 + Σa / num_drafts in tokens: the bonus or recovered token included."""
    accepted = ratio(counts.num_accepted_tokens, counts.num_drafts)
    return None if accepted is None else 1 + accepted


def _mean_over_requests(per_request: Iterable[ProposalCounts], *, by_tokens: bool) -> float | None:
    """Mean of each request's mean acceptance length, requests without any proposal left out."""
    total = weights = 0.0
    for counts in per_request:
        length = mean_acceptance_length(counts)
        if length is not None:
            weight = counts.num_prefill_tokens + counts.num_emitted_tokens if by_tokens else 1
            total += weight * length
            weights += weight
    return ratio(total, weights)


def compute(counts: ProposalCounts, per_request: Collection[ProposalCounts] = ()) -> ProposalStatistics:
    """All proposal statistics of pooled ``counts``; ``per_request`` serves the two means over requests only."""
    c = counts
    shared = {item.name for item in fields(ProposalStatistics)} & c.sums().keys()
    beyond, proposed, reached = c.num_accepted_beyond, c.num_proposed_beyond, c.num_reached
    return ProposalStatistics(
        **{name: value for name, value in c.sums().items() if name in shared},
        num_output_tokens=c.num_prefill_tokens + c.num_emitted_tokens,
        coverage=ratio(c.num_drafts, c.num_rounds),
        acceptance_rate=ratio(c.num_accepted_tokens, c.num_draft_tokens),
        mean_acceptance_length=mean_acceptance_length(c),
        tokens_per_target_pass=ratio(c.num_emitted_tokens, c.num_rounds),
        acceptance_rate_per_position=[ratio(a, b) for a, b in zip(beyond, proposed, strict=True)],
        acceptance_rate_per_position_unconditional=[ratio(a, c.num_drafts) for a in beyond],
        conditional_acceptance_per_position=[ratio(a, b) for a, b in zip(beyond, reached, strict=True)],
        aligned_rate=ratio(c.num_aligned_tokens, c.num_draft_tokens),
        system_efficiency=ratio(c.num_emitted_tokens, c.num_draft_tokens + c.num_rounds),  # Σe / Σ(l + 1)
        expected_acceptance_rate=ratio(c.expected_acceptance_sum, c.expected_acceptance_count),
        macro_mean_acceptance_length=_mean_over_requests(per_request, by_tokens=False),
        token_weighted_mean_acceptance_length=_mean_over_requests(per_request, by_tokens=True),
    )


def _require(identity: str, left: Any, right: Any, *, holds: bool | None = None) -> None:
    if not (left == right if holds is None else holds):
        raise IdentityError(f"identity broken: {identity}: {left} against {right}")


def check_counts(counts: ProposalCounts) -> None:
    """The identities that pooled counts satisfy on their own; ``IdentityError`` names the one that is broken."""
    c, bars, beyond = counts, counts.accepted_length_histogram, counts.num_accepted_beyond
    weighted = sum(j * count for j, count in enumerate(bars))
    _require("sum of accepted_length_histogram = num_drafts", sum(bars), c.num_drafts)
    _require("sum of j * accepted_length_histogram[j] = num_accepted_tokens", weighted, c.num_accepted_tokens)
    _require("sum of skipped = num_rounds - num_drafts", sum(c.skipped.values()), c.num_rounds - c.num_drafts)
    # Compared as integers (times num_drafts), printed as the lengths that a reader knows.
    name = "mean_acceptance_length = 1 + sum of acceptance_rate_per_position_unconditional"
    left, right = (1 + total / max(c.num_drafts, 1) for total in (c.num_accepted_tokens, sum(beyond)))
    _require(name, left, right, holds=sum(beyond) == c.num_accepted_tokens)
    for i in range(1, len(beyond)):
        name = f"acceptance_rate_per_position_unconditional never rises (positions {i - 1}, {i}; as counts)"
        _require(name, beyond[i - 1], beyond[i], holds=beyond[i] <= beyond[i - 1])
    expected = c.num_accepted_tokens + c.num_rounds - c.rounds_ended_by_accepted_eos
    name = "num_emitted_tokens = num_accepted_tokens + num_rounds - rounds_ended_by_accepted_eos"
    _require(name, c.num_emitted_tokens, expected)


def check_identities(
    counts: ProposalCounts,
    *,
    per_request: Mapping[str, ProposalCounts],
    generated_tokens: int,
    seen_ids: Iterable[str],
    expected_ids: Iterable[str],
) -> None:
    """Every identity of a finished run; ``IdentityError`` names the first one broken and both figures.

    ``generated_tokens`` is the number of token ids in generations.jsonl. The ids are compared as multisets, so that a
    request that two ranks both ran is found: give each as often as it has sequences.
    """
    check_counts(counts)
    output = counts.num_prefill_tokens + counts.num_emitted_tokens
    name = "num_prefill_tokens + num_emitted_tokens = tokens in generations.jsonl"
    _require(name, output, generated_tokens)
    total = sum(per_request.values(), ProposalCounts(max_proposal_len=counts.max_proposal_len)).sums()
    for key, pooled in counts.sums().items():
        close = math.isclose(total[key], pooled, rel_tol=1e-9) if isinstance(pooled, float) else None
        _require(f"sum over requests = pooled {key}", total[key], pooled, holds=close)
    seen, expected = Counter(seen_ids), Counter(expected_ids)
    missing, surplus = sorted((expected - seen).elements()), sorted((seen - expected).elements())
    name = f"request ids seen = data set (missing {missing[:5]}, surplus {surplus[:5]})"
    _require(name, f"{seen.total()} seen", f"{expected.total()} in the data set", holds=seen == expected)
