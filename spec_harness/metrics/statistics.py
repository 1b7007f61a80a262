"""Proposal statistics: one table of ratios, and one pure function that takes them from the sums.

Every rate is a ratio of pooled sums, taken once at the end; a ratio whose denominator is zero is ``None``, never 0.
Symbols as in ``counts.py``. This module knows neither torch, files nor time.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from functools import reduce
from typing import Any

from spec_harness.metrics.counts import ProposalCounts, plus
from spec_harness.requests import SkipReason


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
    draft_entropy: float | None
    target_entropy: float | None
    kl_target_draft: float | None
    target_rank_in_draft: list[int]
    macro_mean_acceptance_length: float | None
    token_weighted_mean_acceptance_length: float | None


Number = int | float


@dataclass(frozen=True)
class Ratio:
    """A metric: offset + sum over requests of ``numerator`` / sum over requests of ``denominator``.

    Both take the counts of one request, or pooled counts where ``pools`` is true: then sums of counts give the same.
    They give a number, or one number per position.
    """

    numerator: Callable[[ProposalCounts], Number | list[int] | None]
    denominator: Callable[[ProposalCounts], Number | list[int]]
    offset: float = 0.0
    pools: bool = True


def _own_length(counts: ProposalCounts) -> float:
    """The mean acceptance length of one request; 0 if it had no proposal, and then its weight is 0 too."""
    return 1 + counts.num_accepted_tokens / counts.num_drafts if counts.num_drafts else 0.0


def _output_tokens(counts: ProposalCounts) -> int:
    return counts.num_prefill_tokens + counts.num_emitted_tokens


def _same(denominator: int, k: int) -> list[int]:
    return [denominator] * k


RATIOS: dict[str, Ratio] = {
    "coverage": Ratio(lambda c: c.num_drafts, lambda c: c.num_rounds),
    "acceptance_rate": Ratio(lambda c: c.num_accepted_tokens, lambda c: c.num_draft_tokens),
    "mean_acceptance_length": Ratio(lambda c: c.num_accepted_tokens, lambda c: c.num_drafts, offset=1.0),
    "tokens_per_target_pass": Ratio(lambda c: c.num_emitted_tokens, lambda c: c.num_rounds),
    "acceptance_rate_per_position": Ratio(lambda c: c.num_accepted_beyond, lambda c: c.num_proposed_beyond),
    "acceptance_rate_per_position_unconditional": Ratio(
        lambda c: c.num_accepted_beyond, lambda c: _same(c.num_drafts, c.max_proposal_len)
    ),
    "conditional_acceptance_per_position": Ratio(lambda c: c.num_accepted_beyond, lambda c: c.num_reached),
    "aligned_rate": Ratio(lambda c: c.num_aligned_tokens, lambda c: c.num_draft_tokens),
    "system_efficiency": Ratio(lambda c: c.num_emitted_tokens, lambda c: c.num_draft_tokens + c.num_rounds),
    "expected_acceptance_rate": Ratio(lambda c: c.expected_acceptance_sum, lambda c: c.expected_acceptance_count),
    "draft_entropy": Ratio(lambda c: c.draft_entropy_sum, lambda c: c.num_compared),
    "target_entropy": Ratio(lambda c: c.target_entropy_sum, lambda c: c.num_compared),
    "kl_target_draft": Ratio(lambda c: c.kl_target_draft_sum, lambda c: c.num_compared),
    "macro_mean_acceptance_length": Ratio(_own_length, lambda c: int(c.num_drafts > 0), pools=False),
    "token_weighted_mean_acceptance_length": Ratio(
        lambda c: _own_length(c) * _output_tokens(c),
        lambda c: _output_tokens(c) if c.num_drafts else 0,
        pools=False,
    ),
}


def ratio(numerator: int | float | None, denominator: int | float) -> float | None:
    """Their quotient; ``None`` if the numerator is unknown or the denominator is zero."""
    return None if numerator is None or denominator == 0 else numerator / denominator


def _value(metric: Ratio, parts: Collection[ProposalCounts]) -> float | list[float | None] | None:
    numerator: Any = reduce(plus, (metric.numerator(part) for part in parts)) if parts else 0
    denominator: Any = reduce(plus, (metric.denominator(part) for part in parts)) if parts else 0
    if isinstance(denominator, list):
        values = [ratio(a, b) for a, b in zip(numerator, denominator, strict=True)]
        return [None if value is None else metric.offset + value for value in values]
    value = ratio(numerator, denominator)
    return None if value is None else metric.offset + value


def compute(counts: ProposalCounts, per_request: Collection[ProposalCounts] = ()) -> ProposalStatistics:
    """All proposal statistics of pooled ``counts``; ``per_request`` serves the two means over requests only."""
    sums = counts.sums()
    values: dict[str, Any] = {item.name: sums[item.name] for item in fields(ProposalStatistics) if item.name in sums}
    for name, metric in RATIOS.items():
        values[name] = _value(metric, [counts] if metric.pools else per_request)
    return ProposalStatistics(num_output_tokens=_output_tokens(counts), **values)
