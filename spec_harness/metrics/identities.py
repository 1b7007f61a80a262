"""Equalities that hold between the counts of any correct run. A breach fails the run: its figures could not be
trusted."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from spec_harness.metrics.counts import ProposalCounts


class IdentityError(RuntimeError):
    """Two figures that must be equal are not: the statistics of this run cannot be trusted."""


def require(identity: str, left: Any, right: Any, *, holds: bool | None = None) -> None:
    """Raises ``IdentityError`` that names the identity and both figures."""
    if not (left == right if holds is None else holds):
        raise IdentityError(f"identity broken: {identity}: {left} against {right}")


def check_counts(counts: ProposalCounts) -> None:
    """The identities that pooled counts satisfy on their own; ``IdentityError`` names the one that is broken."""
    c, bars, beyond = counts, counts.accepted_length_histogram, counts.num_accepted_beyond
    weighted = sum(j * count for j, count in enumerate(bars))
    require("sum of accepted_length_histogram = num_drafts", sum(bars), c.num_drafts)
    require("sum of j * accepted_length_histogram[j] = num_accepted_tokens", weighted, c.num_accepted_tokens)
    require("sum of skipped = num_rounds - num_drafts", sum(c.skipped.values()), c.num_rounds - c.num_drafts)
    # Compared as integers (times num_drafts), printed as the lengths that a reader knows.
    name = "mean_acceptance_length = 1 + sum of acceptance_rate_per_position_unconditional"
    left, right = (1 + total / max(c.num_drafts, 1) for total in (c.num_accepted_tokens, sum(beyond)))
    require(name, left, right, holds=sum(beyond) == c.num_accepted_tokens)
    for i in range(1, len(beyond)):
        name = f"acceptance_rate_per_position_unconditional never rises (positions {i - 1}, {i}; as counts)"
        require(name, beyond[i - 1], beyond[i], holds=beyond[i] <= beyond[i - 1])
    expected = c.num_accepted_tokens + c.num_rounds - c.rounds_ended_by_accepted_eos
    name = "num_emitted_tokens = num_accepted_tokens + num_rounds - rounds_ended_by_accepted_eos"
    require(name, c.num_emitted_tokens, expected)


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
    require(name, output, generated_tokens)
    total = sum(per_request.values(), ProposalCounts(max_proposal_len=counts.max_proposal_len)).sums()
    for key, pooled in counts.sums().items():
        # Divergences of nearly equal models are rounding of either sign: their sum may be as small as its own error.
        close = math.isclose(total[key], pooled, rel_tol=1e-9, abs_tol=1e-9) if isinstance(pooled, float) else None
        require(f"sum over requests = pooled {key}", total[key], pooled, holds=close)
    seen, expected = Counter(seen_ids), Counter(expected_ids)
    missing, surplus = sorted((expected - seen).elements()), sorted((seen - expected).elements())
    name = f"request ids seen = data set (missing {missing[:5]}, surplus {surplus[:5]})"
    require(name, f"{seen.total()} seen", f"{expected.total()} in the data set", holds=seen == expected)
