"""Reading the files of finished runs into frames. No torch, no Lightning: a notebook on a laptop is enough."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from spec_harness.errors import UserError
from spec_harness.metrics.counts import ProposalCounts
from spec_harness.report.jobs import read_run
from spec_harness.requests import RequestRecord, RoundRecord
from spec_harness.results.columns import (
    REQUESTS_REQUIRED,
    ROUNDS_REQUIRED,
    ROUNDS_SCHEMA,
    requests_table,
    rounds_table,
)
from spec_harness.results.round_log import ROUND_LOG, LoggedRuns
from spec_harness.results.schema import RunResults, read_results

_GENERATION = {"request_id", "turn", "sample", "prompt_token_ids", "token_ids"}  # keys that the readers need


@dataclass(frozen=True)
class Run:
    """One run's directory. The columns of the frames are those of the files, see the README."""

    directory: Path
    results: RunResults

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row a sequence."""
        if self._killed is not None:
            return pd.DataFrame(requests_table(self._killed).to_pandas())
        return _frame(self.directory / "requests.parquet", REQUESTS_REQUIRED)

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """One row a sequence and round."""
        if self._killed is not None:
            return pd.DataFrame(rounds_table(self._killed).to_pandas())
        return _frame(self.directory / "rounds.parquet", ROUNDS_REQUIRED)

    def counts(self) -> dict[str, ProposalCounts]:
        """The sums behind the rates of each request id, its turns and samples together."""
        k = len(self.results.proposal.accepted_length_histogram) - 1
        known = self.rounds[[name for name in ROUNDS_SCHEMA.names if name in self.rounds]]
        groups = defaultdict(list)
        for row in pa.Table.from_pandas(known, preserve_index=False).to_pylist():
            groups[row["request_id"]].append(RoundRecord(**row))
        return {
            str(one): ProposalCounts.from_rounds(groups[str(one)], max_proposal_len=k, num_prefill_tokens=int(n))
            for one, n in self.requests["request_id"].value_counts().items()
        }

    @cached_property
    def _killed(self) -> list[RequestRecord] | None:
        """The finished sequences of a run that was killed before it made files of them."""
        if self.results.status != "interrupted":
            return None
        log = LoggedRuns(self.directory / ROUND_LOG)
        return list(log.sequences(log.header.runs[0]))

    def token_texts(self) -> dict[int, str] | None:
        """What each token id of the outputs says; ``None`` for runs that did not keep that."""
        path = self.directory / "token_texts.json"
        if not path.is_file():
            return None
        try:
            return {int(token): str(text) for token, text in json.loads(path.read_text(encoding="utf-8")).items()}
        except (OSError, ValueError, AttributeError) as error:
            raise UserError(f"{path}: cannot be read: {error}") from error

    def generations(self) -> list[dict[str, Any]]:
        """The rows of generations.jsonl: prompts and outputs, as text and as token ids."""
        path = self.directory / "generations.jsonl"
        try:
            lines = path.read_text(encoding="utf-8").split("\n")
            ended = lines[:-1] if self.results.status == "interrupted" else lines  # a kill may cut the last one off
            rows = [json.loads(line) for line in ended if line]
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(f"{path}: cannot be read: {error}") from error
        for number, row in enumerate(rows, start=1):
            if not isinstance(row, dict) or not row.keys() >= _GENERATION:
                raise UserError(f"{path}, line {number}: is no finished output")
        return rows


def load_run(directory: str | Path) -> Run:
    """Reads one run; of one that was killed what had finished. Raises ``UserError`` if a file is missing, cut off or of
    another schema."""
    folder = Path(directory)
    results = read_run(folder)
    for name in ("requests.parquet", "rounds.parquet") if results.status != "interrupted" else ():
        try:
            pq.read_metadata(folder / name)
        except (OSError, ValueError) as error:
            raise UserError(f"{folder / name}: cannot be read: {error}") from error
    return Run(folder, results)


def latest_run(outputs: str | Path = "outputs") -> Path:
    """The directory of the newest finished single run below ``outputs``. Raises ``UserError`` if there is none."""
    for path in sorted(Path(outputs).glob("*/results.json"), key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            if read_results(path).status == "done":
                return path.parent
        except UserError:  # of another version: an older one may still do
            continue
    raise UserError(f"{outputs}: no finished run; make one with spec-eval")


def _frame(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    try:
        frame = pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    missing = [column for column in columns if column not in frame]
    if missing:
        raise UserError(f"{path}: the column {missing[0]} is missing: a file of another kind or version")
    return frame
