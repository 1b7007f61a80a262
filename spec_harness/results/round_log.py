"""``round_log.jsonl``: all that an evaluation finishes, one flushed line per sequence of every engine run.

The first line is a ``RunHeader``. A killed process loses only what was in flight; a line that it could not end is left
out on reading. The parquet files and, after a kill, the results are made from it. No torch.
"""

import json
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from spec_harness.errors import UserError
from spec_harness.requests import RequestRecord, RoundRecord
from spec_harness.results.schema import KVResults, Provenance

ROUND_LOG = "round_log.jsonl"
LOG_VERSION: Literal[1] = 1
_OF_THE_REQUEST = ("request_id", "turn", "sample")  # a round's keys that its request's line has
_ROUND_KEYS = [field.name for field in fields(RoundRecord) if field.name not in _OF_THE_REQUEST]


class RunHeader(BaseModel):
    """What is known of an evaluation before its first round."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    log_version: Literal[1] = LOG_VERSION
    config: dict[str, JsonValue]
    provenance: Provenance = Field(description="its duration is 0: not over yet")
    integrity: str = Field(description="level of the checks")
    max_proposal_len: int = Field(description="tokens")
    kv: KVResults | None = Field(default=None, description="sizes alone; null for an engine without KV blocks")
    runs: list[str] = Field(description="names of the engine runs in their order; the results are the first one's")
    num_sequences: int = Field(description="of each run, later turns included")
    notes: list[str] = Field(default_factory=list)


class RoundLog:
    """Writes the log of one evaluation; an older one is replaced."""

    def __init__(self, path: Path, header: RunHeader) -> None:
        self.path = path
        # A lone surrogate in a prompt becomes the very escape by which JSON writes one.
        self._file = path.open("w", encoding="utf-8", errors="backslashreplace")
        self._write(header.model_dump(mode="json"))

    def add(self, run: str, record: RequestRecord) -> None:
        """``record`` is on its way to the disk when this returns."""
        rounds = [{key: getattr(one, key) for key in _ROUND_KEYS} for one in record.rounds]
        self._write({"run": run, "logged_at": time.time()} | vars(record) | {"rounds": rounds})

    def close(self) -> None:
        self._file.close()

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._file.flush()


class LoggedRuns:
    """What a round log holds."""

    def __init__(self, path: Path) -> None:
        """Raises ``UserError`` if there is no header of this version."""
        self.path = path
        line = next(self._lines(), None)
        if line is None:
            raise UserError(f"{path}: the log has no first line: nothing was run")
        try:
            self.header = RunHeader.model_validate_json(line)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            key = ".".join(str(part) for part in first["loc"])
            raise UserError(f"{path}, line 1: {key}: {first['msg']}: of another version?") from error

    def sequences(self, run: str) -> Iterator[RequestRecord]:
        """The finished sequences of one engine run, one at a time."""
        return (record for name, _, record in self._records() if name == run)

    def all(self) -> tuple[dict[str, list[RequestRecord]], float | None]:
        """The finished sequences of every run, and when the last of them was written (Unix seconds)."""
        found: dict[str, list[RequestRecord]] = defaultdict(list)
        last: float | None = None
        for name, logged_at, record in self._records():
            found[name].append(record)
            last = logged_at
        return found, last

    def _records(self) -> Iterator[tuple[str, float, RequestRecord]]:
        for number, text in enumerate(self._lines(), start=1):
            if number == 1:
                continue
            try:
                line = json.loads(text)
                name, logged_at = line.pop("run"), line.pop("logged_at")
                own = {key: line[key] for key in _OF_THE_REQUEST}
                line["rounds"] = [RoundRecord(**own, **one) for one in line["rounds"]]
                record = RequestRecord(**line)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise UserError(f"{self.path}, line {number}: is no finished sequence: {error}") from error
            yield name, logged_at, record

    def _lines(self) -> Iterator[bytes]:
        try:
            with self.path.open("rb") as lines:  # the last one may end within a character
                yield from (line for line in lines if line.endswith(b"\n"))
        except OSError as error:
            raise UserError(f"{self.path}: cannot be read: {error}") from error
