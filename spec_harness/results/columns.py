"""The columns of the parquet files: in rounds.parquet the fields of ``RoundRecord``; in requests.parquet the plain
fields of ``RequestRecord``, two lengths, and statistics of the sequence."""

from collections.abc import Iterable
from dataclasses import MISSING, fields
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pyarrow as pa

from spec_harness.metrics.counts import ProposalCounts
from spec_harness.metrics.estimates import ratio
from spec_harness.metrics.statistics import SUMS
from spec_harness.requests import RequestRecord, RoundRecord

_PLAIN = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}
_LENGTHS = {"prompt_tokens": "prompt_token_ids", "output_tokens": "token_ids"}
_STATISTICS = {  # by column
    "rounds": "num_rounds",
    "draft_tokens": "num_draft_tokens",
    "accepted_tokens": "num_accepted_tokens",
    "acceptance_rate": "acceptance_rate",
    "mean_acceptance_length": "mean_acceptance_length",
}
_TEXTS = ("prompt", "text")  # they are in generations.jsonl


def _arrow(annotation: Any) -> pa.DataType:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is list:
        return pa.list_(_arrow(arguments[0]))
    if origin is Literal:
        return _PLAIN[type(arguments[0])]
    if origin in (Union, UnionType):
        return _arrow(next(x for x in arguments if x is not type(None)))
    return _PLAIN[annotation]


def _required(record: type) -> list[str]:
    """Fields that every file has had: what came later has a default."""
    return [x.name for x in fields(record) if x.default is MISSING and x.default_factory is MISSING]


_ROUND, _REQUEST = get_type_hints(RoundRecord), get_type_hints(RequestRecord)
_FACTS = [name for name, hint in _REQUEST.items() if get_origin(hint) is not list and name not in _TEXTS]
ROUNDS_SCHEMA = pa.schema({name: _arrow(hint) for name, hint in _ROUND.items()})
REQUESTS_SCHEMA = pa.schema(
    {name: _arrow(_REQUEST[name]) for name in _FACTS}
    | dict.fromkeys(_LENGTHS, pa.int64())
    | {column: pa.int64() if name in SUMS else pa.float64() for column, name in _STATISTICS.items()}
)
ROUNDS_REQUIRED = _required(RoundRecord)
REQUESTS_REQUIRED = [*(name for name in _required(RequestRecord) if name in _FACTS), *_LENGTHS, *_STATISTICS]


def request_row(request: RequestRecord) -> dict[str, Any]:
    """The row of requests.parquet; a rate is null if nothing was proposed."""
    longest = max((record.proposal_len for record in request.rounds), default=0)
    counts = ProposalCounts.from_rounds(request.rounds, max_proposal_len=longest, num_prefill_tokens=1)
    row = {name: getattr(request, name) for name in _FACTS}
    row |= {column: len(getattr(request, name)) for column, name in _LENGTHS.items()}
    for column, name in _STATISTICS.items():
        row[column] = getattr(counts, name) if name in SUMS else ratio(name, counts)
    return row


def rounds_table(requests: Iterable[RequestRecord]) -> pa.Table:
    """The table of rounds.parquet."""
    rows = [vars(record) for request in requests for record in request.rounds]
    return pa.Table.from_pylist(rows, schema=ROUNDS_SCHEMA)


def requests_table(requests: Iterable[RequestRecord]) -> pa.Table:
    """The table of requests.parquet."""
    return pa.Table.from_pylist([request_row(request) for request in requests], schema=REQUESTS_SCHEMA)
