"""From counts to the proposal section of results.json: every rate with its interval."""

from collections.abc import Collection, Sequence
from typing import Any

from spec_harness.metrics.bootstrap import Bootstrap
from spec_harness.metrics.counts import ProposalCounts
from spec_harness.metrics.declaration import Estimate, Ratio
from spec_harness.metrics.statistics import ESTIMATES, ProposalResults
from spec_harness.requests import RoundRecord


def proposal_results(counts: ProposalCounts, per_request: Collection[ProposalCounts]) -> ProposalResults:
    """The proposal section of pooled ``counts``; an estimate's n counts the requests with a value of their own."""
    published = {name: value for name, value in counts.sums().items() if name in ProposalResults.model_fields}
    section: dict[str, Any] = {"num_requests": len(per_request)} | published
    bootstrap = Bootstrap(len(per_request))
    for name, one in ESTIMATES.items():
        terms = [one.terms(own) for own in per_request]
        if isinstance(one, Ratio):
            pooled, offset = one.terms(counts), one.offset
        else:
            pooled, offset = (sum(above for above, _ in terms), sum(below for _, below in terms)), 0.0
        if isinstance(pooled[0], list):
            section[name] = [
                _estimate(both, [(above[i], below[i]) for above, below in terms], bootstrap, offset)
                for i, both in enumerate(zip(*pooled, strict=True))
            ]
        else:
            section[name] = _estimate(pooled, terms, bootstrap, offset)
    return ProposalResults.model_validate(section)


def ratio(name: str, counts: object) -> float | None:
    """The named ratio of ``counts``, which has its two sums as attributes; ``None`` where its denominator is zero."""
    one = ESTIMATES[name]
    assert isinstance(one, Ratio)
    above, below = one.terms(counts)
    return one.offset + above / below if below else None


def ratio_of_rounds(name: str, rounds: Collection[RoundRecord]) -> float | None:
    longest = max((record.proposal_len for record in rounds), default=0)
    return ratio(name, ProposalCounts.from_rounds(rounds, max_proposal_len=longest, num_prefill_tokens=0))


def _estimate(pooled: tuple[Any, Any], terms: Sequence[tuple[Any, Any]], draws: Bootstrap, offset: float) -> Estimate:
    """``terms``: numerator and denominator of each request."""
    if not pooled[1]:
        return Estimate(value=None, n=0)
    value = offset + pooled[0] / pooled[1]
    if not terms:
        return Estimate(value=value, n=0)
    above, below = zip(*terms, strict=True)
    return Estimate(value=value, ci95=draws.ratio(above, below, offset=offset), n=sum(x > 0 for x in below))
