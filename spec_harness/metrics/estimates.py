"""From counts to the proposal section of results.json: every rate with its interval."""

from collections.abc import Collection
from dataclasses import asdict
from typing import Any

from spec_harness.metrics.bootstrap import Bootstrap
from spec_harness.metrics.counts import ProposalCounts
from spec_harness.metrics.statistics import RATIOS, compute
from spec_harness.results.schema import Estimate, ProposalResults


def proposal_results(counts: ProposalCounts, per_request: Collection[ProposalCounts]) -> ProposalResults:
    """The proposal section of pooled ``counts``; an estimate's n counts the requests with a value of their own."""
    section: dict[str, object] = {"num_requests": len(per_request)}
    bootstrap = Bootstrap(len(per_request))
    for name, value in asdict(compute(counts, per_request)).items():
        if name not in RATIOS:
            section[name] = value
        elif isinstance(value, list):
            section[name] = [_estimate(name, x, per_request, bootstrap, i) for i, x in enumerate(value)]
        else:
            section[name] = _estimate(name, value, per_request, bootstrap, None)
    return ProposalResults.model_validate(section)


def _estimate(
    name: str,
    value: float | None,
    per_request: Collection[ProposalCounts],
    bootstrap: Bootstrap,
    position: int | None,
) -> Estimate:
    metric = RATIOS[name]
    pairs: list[tuple[Any, Any]] = [(metric.numerator(own), metric.denominator(own)) for own in per_request]
    if position is not None:
        pairs = [(above[position], below[position]) for above, below in pairs]
    n = sum(below > 0 for _, below in pairs)
    if value is None or not pairs:
        return Estimate(value=value, n=0 if value is None else n)
    above, below = zip(*pairs, strict=True)
    return Estimate(value=value, ci95=bootstrap.ratio(above, below, offset=metric.offset), n=n)
