"""Reading the files of finished runs into frames. No torch, no Lightning: a notebook on a laptop is enough."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

from spec_harness.errors import UserError
from spec_harness.report.comparable import flatten
from spec_harness.report.jobs import Job, find_jobs, read_run
from spec_harness.results.run_files import REQUESTS_SCHEMA, ROUNDS_SCHEMA
from spec_harness.results.schema import Estimate, RunResults, read_results

_GENERATION = {"request_id", "turn", "sample", "prompt_token_ids", "token_ids"}  # keys that the readers need


@dataclass(frozen=True)
class Run:
    """One run's directory. The columns of the frames are those of the files, see the README."""

    directory: Path
    results: RunResults

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row a sequence."""
        return _frame(self.directory / "requests.parquet", REQUESTS_SCHEMA.names)

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """One row a sequence and round."""
        return _frame(self.directory / "rounds.parquet", ROUNDS_SCHEMA.names)

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
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(f"{path}: cannot be read: {error}") from error
        for number, row in enumerate(rows, start=1):
            if not isinstance(row, dict) or not row.keys() >= _GENERATION:
                raise UserError(f"{path}, line {number}: is no finished output")
        return rows


@dataclass(frozen=True)
class Sweep:
    """The jobs of a sweep: those with results, and the others with the reason."""

    directory: Path
    all_jobs: list[Job]
    runs: list[Run]  # of those with results
    jobs: pd.DataFrame  # one row a job, see load_sweep

    @property
    def failures(self) -> list[Job]:
        return [job for job in self.all_jobs if job.results is None]


def load_run(directory: str | Path) -> Run:
    """Reads one run. Raises ``UserError`` if a file is missing, cut off or of another schema."""
    folder = Path(directory)
    results = read_run(folder)
    for name in ("requests.parquet", "rounds.parquet"):
        try:
            pq.read_metadata(folder / name)
        except (OSError, ValueError) as error:
            raise UserError(f"{folder / name}: cannot be read: {error}") from error
    return Run(folder, results)


def load_sweep(directory: str | Path) -> Sweep:
    """Reads all jobs below ``directory``. Raises ``UserError`` if there is none.

    The frame's columns: ``job``, ``state`` and ``error``; one for each key of the command lines (a value as configured,
    or the name of an option); every single figure of the sections proposal and timing, an estimate as three columns
    ``name``, ``name_low`` and ``name_high`` (its 95 % interval). What is not known is missing (NaN).
    """
    folder = Path(directory)
    jobs = find_jobs(folder)
    rows = [
        {"job": job.name, "state": job.state, "error": job.error} | _settings(job) | _figures(job.results)
        for job in jobs
    ]
    runs = [Run(job.directory, job.results) for job in jobs if job.results is not None]
    return Sweep(folder, jobs, runs, pd.DataFrame(rows))


def latest_run(outputs: str | Path = "outputs") -> Path:
    """The directory of the newest finished single run below ``outputs``. Raises ``UserError`` if there is none."""
    for path in sorted(Path(outputs).glob("*/results.json"), key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            if read_results(path).status == "done":
                return path.parent
        except UserError:  # of another version: an older one may still do
            continue
    raise UserError(f"{outputs}: no finished run; make one with spec-eval")


def latest_sweep(outputs: str | Path, *, varied: str) -> Path | None:
    """The directory of the newest sweep below ``outputs``/multirun whose jobs with results differ in ``varied``, a key
    or a section of the configuration; ``None`` if there is none."""
    for folder in sorted(Path(outputs, "multirun").glob("*/"), key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            configs = [flatten(job.results.config) for job in find_jobs(folder) if job.results is not None]
        except UserError:  # it holds no job
            continue
        own = [{key: x for key, x in one.items() if f"{key}.".startswith(f"{varied}.")} for one in configs]
        if any(one != own[0] for one in own):
            return folder
    return None


def _settings(job: Job) -> dict[str, Any]:
    """The job's overrides; with the configured value, which has a type, where the key leads to one."""
    config = {} if job.results is None else job.results.config
    return {key: _configured(config, key, text) for key, text in job.overrides.items()}


def _configured(config: Mapping[str, Any], key: str, text: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = value.get(part, {}) if isinstance(value, Mapping) else {}
    return text if isinstance(value, Mapping | list) else value


def _figures(results: RunResults | None) -> dict[str, Any]:
    if results is None:
        return {}
    row: dict[str, Any] = {}
    for section in (results.proposal, results.timing):
        for name, value in [] if section is None else section:
            if isinstance(value, Estimate):
                low, high = value.ci95 or (None, None)
                row |= {name: value.value, f"{name}_low": low, f"{name}_high": high}
            elif isinstance(value, int | float):
                row[name] = value
    return row


def _frame(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    try:
        frame = pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    missing = [column for column in columns if column not in frame]
    if missing:
        raise UserError(f"{path}: the column {missing[0]} is missing: a file of another kind or version")
    return frame
