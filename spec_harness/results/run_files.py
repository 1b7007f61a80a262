"""The files that one run leaves behind beside results.json, and what survives when it is interrupted.

``generations.jsonl`` and ``round_log.jsonl`` grow by one flushed line per finished sequence, so a killed process keeps
them. The parquet files, readable only once complete, are made from the log by ``finalize``. No torch.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spec_harness.metrics.counts import ProposalCounts
from spec_harness.metrics.statistics import compute
from spec_harness.requests import RequestRecord, RoundRecord
from spec_harness.results.round_log import ROUND_LOG, LoggedRuns, RoundLog, RunHeader

_ROW_GROUP = 256  # sequences
_COUNT = pa.int64()
_FLOATS = pa.list_(pa.float64())

ROUNDS_SCHEMA = pa.schema(
    [
        ("request_id", pa.string()),
        ("turn", _COUNT),
        ("sample", _COUNT),
        ("round", _COUNT),
        ("context_len", _COUNT),  # tokens before the round
        ("proposal_len", _COUNT),  # l
        ("num_accepted", _COUNT),  # a
        ("num_aligned", _COUNT),  # n
        ("num_emitted", _COUNT),  # e
        ("skip_reason", pa.string()),  # null if something was proposed
        ("draft_token_ids", pa.list_(_COUNT)),
        ("output_token_ids", pa.list_(_COUNT)),
        ("draft_probs", _FLOATS),
        ("target_probs", _FLOATS),
        ("expected_acceptance", _FLOATS),  # this and what follows: accepted positions and the first rejected one
        ("draft_entropy", _FLOATS),  # nats, of the raw distributions; empty where the proposer has none
        ("target_entropy", _FLOATS),
        ("kl_target_draft", _FLOATS),
        ("target_rank_in_draft", pa.list_(_COUNT)),
        ("num_draft_tokens_past_end", _COUNT),
        ("ended_by_accepted_eos", pa.bool_()),
    ]
)

REQUESTS_SCHEMA = pa.schema(
    [
        ("request_id", pa.string()),
        ("turn", _COUNT),
        ("sample", _COUNT),
        ("category", pa.string()),
        ("prompt_tokens", _COUNT),
        ("output_tokens", _COUNT),
        ("stop_reason", pa.string()),
        ("rounds", _COUNT),
        ("draft_tokens", _COUNT),
        ("accepted_tokens", _COUNT),
        ("acceptance_rate", pa.float64()),  # null if nothing was proposed
        ("mean_acceptance_length", pa.float64()),  # tokens; null if nothing was proposed
        ("time_to_first_token", pa.float64()),  # seconds
        ("time_per_output_token", pa.float64()),  # seconds; null for a single output token
        ("engine_s", pa.float64()),  # seconds: its share of the engine steps it took part in
        ("preemptions", _COUNT),
        ("baseline_verdict", pa.string()),  # null if not compared
    ]
)

GENERATION_KEYS = (
    "request_id",
    "turn",
    "sample",
    "category",
    "prompt",
    "prompt_token_ids",
    "text",
    "token_ids",
    "stop_reason",
)


def _round_row(record: RoundRecord) -> dict[str, Any]:
    return {name: getattr(record, name) for name in ROUNDS_SCHEMA.names}


def request_row(request: RequestRecord) -> dict[str, Any]:
    """The row of requests.parquet."""
    longest = max((record.proposal_len for record in request.rounds), default=0)
    counts = ProposalCounts.from_rounds(request.rounds, max_proposal_len=longest, num_prefill_tokens=1)
    figures = compute(counts)
    derived = {
        "prompt_tokens": len(request.prompt_token_ids),
        "output_tokens": len(request.token_ids),
        "rounds": figures.num_rounds,
        "draft_tokens": figures.num_draft_tokens,
        "accepted_tokens": figures.num_accepted_tokens,
        "acceptance_rate": figures.acceptance_rate,
        "mean_acceptance_length": figures.mean_acceptance_length,
    }
    return {name: derived[name] if name in derived else getattr(request, name) for name in REQUESTS_SCHEMA.names}


class RunFiles:
    """Writes ``round_log.jsonl``, ``generations.jsonl``, ``rounds.parquet`` and ``requests.parquet`` into one
    directory. All but the log hold the header's first run, which is what the results are about."""

    def __init__(self, directory: Path, header: RunHeader) -> None:
        self._directory = directory
        self._first = header.runs[0]
        self._log = RoundLog(directory / ROUND_LOG, header)
        # A lone surrogate in a prompt becomes the very escape by which JSON writes one.
        self._generations = (directory / "generations.jsonl").open("w", encoding="utf-8", errors="backslashreplace")

    def add(self, run: str, request: RequestRecord) -> None:
        """Keep a finished sequence of the named engine run: it is on disk when this returns."""
        self._log.add(run, request)
        if run == self._first:
            line = json.dumps({key: getattr(request, key) for key in GENERATION_KEYS}, ensure_ascii=False)
            self._generations.write(line + "\n")
            self._generations.flush()

    def finalize(self, judged: Iterable[RequestRecord] = ()) -> int:
        """Makes both parquet files of what the log holds, with the verdicts of ``judged``, and returns its output
        tokens. Calling it again rewrites them."""
        self._log.close()
        self._generations.close()
        verdicts = {(r.request_id, r.turn, r.sample): r.baseline_verdict for r in judged}
        logged, num_tokens = LoggedRuns(self._directory / ROUND_LOG), 0
        with (
            _parquet(self._directory / "rounds.parquet", ROUNDS_SCHEMA) as rounds,
            _parquet(self._directory / "requests.parquet", REQUESTS_SCHEMA) as requests,
        ):
            for batch in _batches(logged.sequences(self._first)):
                for record in batch:
                    record.baseline_verdict = verdicts.get((record.request_id, record.turn, record.sample))
                    num_tokens += len(record.token_ids)
                rounds.write_table(rounds_table(batch))
                requests.write_table(requests_table(batch))
        return num_tokens


def rounds_table(requests: Iterable[RequestRecord]) -> pa.Table:
    """The table of rounds.parquet."""
    rows = [_round_row(record) for request in requests for record in request.rounds]
    return pa.Table.from_pylist(rows, schema=ROUNDS_SCHEMA)


def requests_table(requests: Iterable[RequestRecord]) -> pa.Table:
    """The table of requests.parquet."""
    return pa.Table.from_pylist([request_row(request) for request in requests], schema=REQUESTS_SCHEMA)


def _batches(records: Iterator[RequestRecord]) -> Iterator[list[RequestRecord]]:
    """All rounds at once would be in memory a second time."""
    while batch := list(islice(records, _ROW_GROUP)):
        yield batch


@contextmanager
def _parquet(path: Path, schema: pa.Schema) -> Iterator[pq.ParquetWriter]:
    """Under its name once it is complete."""
    temporary = path.with_name(path.name + ".tmp")
    with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
        yield writer
    temporary.replace(path)


def token_texts(requests: Iterable[RequestRecord], text_of: Callable[[int], str]) -> dict[int, str]:
    """What each token id in the outputs and proposals says: to read them without the tokenizer."""
    ids: set[int] = set()
    for request in requests:
        ids.update(request.token_ids, *(record.draft_token_ids for record in request.rounds))
    return {token_id: text_of(token_id) for token_id in sorted(ids)}
