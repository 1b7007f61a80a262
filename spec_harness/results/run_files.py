"""The files that one run leaves behind beside results.json, and what survives when it is interrupted.

``generations.jsonl`` grows by one flushed line per finished request, so a killed process keeps them. A parquet file is
readable only once it is complete: both are written by ``finalize``, which must run from a ``finally``. ``status.json``
is there from the first second. No torch.
"""

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from spec_harness.metrics.counts import ProposalCounts
from spec_harness.metrics.statistics import compute
from spec_harness.requests import RequestRecord, RoundRecord
from spec_harness.results.schema import replace_text

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
    """Writes ``generations.jsonl``, ``rounds.parquet`` and ``requests.parquet`` into one directory.

    Use it as a context manager, so that an exception still leaves whole parquet files of the finished requests. The
    records are held until then; a ``baseline_verdict`` filled in after ``add`` is therefore written too.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.num_generated_tokens = 0  # token ids written to generations.jsonl
        self._requests: list[RequestRecord] = []
        # A lone surrogate in a prompt becomes the very escape by which JSON writes one.
        self._generations = (directory / "generations.jsonl").open("w", encoding="utf-8", errors="backslashreplace")

    def add(self, request: RequestRecord) -> None:
        """Keep a finished request: its generation is on disk when this returns."""
        line = json.dumps({key: getattr(request, key) for key in GENERATION_KEYS}, ensure_ascii=False)
        self._generations.write(line + "\n")
        self._generations.flush()
        self.num_generated_tokens += len(request.token_ids)
        self._requests.append(request)

    def finalize(self) -> None:
        """Write both parquet files of all requests added so far. Calling it again rewrites them."""
        self._generations.close()
        rounds = (_round_row(record) for request in self._requests for record in request.rounds)
        _write_parquet(self.directory / "rounds.parquet", rounds, ROUNDS_SCHEMA)
        requests = (request_row(request) for request in self._requests)
        _write_parquet(self.directory / "requests.parquet", requests, REQUESTS_SCHEMA)

    def __enter__(self) -> "RunFiles":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.finalize()
        except OSError:
            if error is None:
                raise  # else what ended the run is the better news


def write_token_texts(path: Path, requests: Iterable[RequestRecord], text_of: Callable[[int], str]) -> dict[int, str]:
    """Writes and returns what each token id in the outputs and proposals says: to read them without the tokenizer."""
    ids: set[int] = set()
    for request in requests:
        ids.update(request.token_ids, *(record.draft_token_ids for record in request.rounds))
    texts = {token_id: text_of(token_id) for token_id in sorted(ids)}
    replace_text(path, json.dumps(texts, ensure_ascii=True) + "\n")
    return texts


def _write_parquet(path: Path, rows: Iterable[dict[str, Any]], schema: pa.Schema) -> None:
    temporary = path.with_name(path.name + ".tmp")
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), temporary, compression="zstd")
    temporary.replace(path)


class StatusFile:
    """``status.json``: how far a run is, replaced as a whole at every change. Created in state ``running``."""

    def __init__(self, path: Path, *, requests_total: int | None = None) -> None:
        self.path = path
        self.requests_done = 0
        self.requests_total = requests_total  # null until the data set is read
        self.started_at = _now()
        self._write("running")

    def update(self, requests_done: int, *, requests_total: int | None = None) -> None:
        """Requests finished so far; ``requests_total`` once it is known."""
        self.requests_done = requests_done
        self.requests_total = self.requests_total if requests_total is None else requests_total
        self._write("running")

    def done(self) -> None:
        self._write("done")

    def failed(self, error: BaseException | str) -> None:
        """The run ended in ``error``: its type and the first line of its message are kept."""
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        self._write("failed", text.strip().split("\n", 1)[0])

    def _write(self, state: Literal["running", "done", "failed"], error: str | None = None) -> None:
        content = {
            "state": state,
            "started_at": self.started_at,
            "updated_at": _now(),
            "requests_done": self.requests_done,
            "requests_total": self.requests_total,
            "error": error,
        }
        text = json.dumps(content, indent=2) + "\n"
        try:
            replace_text(self.path, text)
        except OSError:
            if state != "failed":
                raise
            # The disk is full, say: the old file's own space may do, and what ended the run must not be hidden.
            with suppress(OSError):
                self.path.write_text(text, encoding="utf-8")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
