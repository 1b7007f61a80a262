"""The files that one run leaves behind beside results.json, and what survives when it is interrupted.

``generations.jsonl`` and ``round_log.jsonl`` grow by one flushed line per finished sequence, so a killed process keeps
them. The parquet files, readable only once complete, are made from the log by ``finalize``. No torch.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from spec_harness.requests import RequestRecord
from spec_harness.results.columns import REQUESTS_SCHEMA, ROUNDS_SCHEMA, requests_table, rounds_table
from spec_harness.results.round_log import ROUND_LOG, LoggedRuns, RoundLog, RunHeader

_ROW_GROUP = 256  # sequences

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
