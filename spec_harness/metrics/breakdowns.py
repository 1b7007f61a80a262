"""The proposal section again, for groups of requests and groups of rounds."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from spec_harness.metrics.counts import ProposalCounts, counts_by_request
from spec_harness.metrics.estimates import proposal_results
from spec_harness.metrics.statistics import Breakdowns, ProposalResults
from spec_harness.requests import RequestRecord, RoundRecord


def breakdowns(requests: Sequence[RequestRecord], *, max_proposal_len: int) -> Breakdowns:
    """All groupings of results.json."""
    k = max_proposal_len
    return Breakdowns(
        category=by_request(requests, lambda request: request.category, max_proposal_len=k),
        turn=by_request(requests, lambda request: str(request.turn), max_proposal_len=k),
        proposal_len=by_round(requests, lambda record: record.proposal_len, str, max_proposal_len=k),
        context_bucket=by_round(
            requests, lambda record: record.context_len.bit_length(), _bucket_name, max_proposal_len=k
        ),
    )


def by_request(
    requests: Sequence[RequestRecord], key: Callable[[RequestRecord], str], *, max_proposal_len: int
) -> dict[str, ProposalResults]:
    """One section per group of requests, groups in alphabetical order."""
    groups: dict[str, list[RequestRecord]] = defaultdict(list)
    for request in requests:
        groups[key(request)].append(request)
    return {name: _section(groups[name], max_proposal_len, prefills=True) for name in sorted(groups)}


def by_round(
    requests: Sequence[RequestRecord],
    key: Callable[[RoundRecord], int],
    name: Callable[[int], str],
    *,
    max_proposal_len: int,
) -> dict[str, ProposalResults]:
    """One section per group of rounds, groups in the order of their keys. The rounds of a request stay together: it is
    requests that are resampled."""
    groups: dict[int, dict[int, list[RoundRecord]]] = defaultdict(lambda: defaultdict(list))
    for index, request in enumerate(requests):
        for record in request.rounds:
            groups[key(record)][index].append(record)
    sections = {}
    for group in sorted(groups):
        members = [replace(requests[index], rounds=rounds) for index, rounds in groups[group].items()]
        sections[name(group)] = _section(members, max_proposal_len, prefills=False)
    return sections


def _section(requests: Sequence[RequestRecord], max_proposal_len: int, *, prefills: bool) -> ProposalResults:
    own = counts_by_request(requests, max_proposal_len=max_proposal_len, prefills=prefills).values()
    return proposal_results(sum(own, ProposalCounts(max_proposal_len=max_proposal_len)), own)


def _bucket_name(bits: int) -> str:
    """Context lengths with this many binary digits: 64-127, 128-255, ..."""
    return f"{1 << (bits - 1)}-{(1 << bits) - 1}"
