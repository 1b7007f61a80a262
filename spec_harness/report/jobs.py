"""Which runs there are below a directory, how each ended, and what it was asked to do. No pandas: it opens at once."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spec_harness.errors import UserError
from spec_harness.report.formats import printable
from spec_harness.results.assemble import interrupted_results
from spec_harness.results.round_log import ROUND_LOG
from spec_harness.results.schema import RunResults, read_results
from spec_harness.results.status import read_status

RESULTS, STATUS, OVERRIDES = "results.json", "status.json", ".hydra/overrides.yaml"


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run, finished or not."""

    directory: Path
    name: str  # its path below the sweep
    overrides: Mapping[str, str]  # as given on the command line: key and value
    state: str  # running, done, failed, partial or interrupted; unknown of a folder without status and results
    error: str | None  # why it failed, or why its results cannot be read
    results: RunResults | None  # of an interrupted one those of what had finished; null if there are none

    @property
    def finished(self) -> bool:
        """There are figures of all its requests."""
        return self.results is not None and self.results.status != "interrupted"


def is_run(directory: Path) -> bool:
    return os.path.isfile(directory / RESULTS) or os.path.isfile(directory / STATUS)


def read_run(directory: Path) -> RunResults:
    """The results of one run; of one that was killed those of the requests that had finished. ``UserError`` says how it
    ended if it has none."""
    if not is_run(directory):
        runs = [path.parent.relative_to(directory).as_posix() for path in sorted(directory.glob("*/" + STATUS))]
        problem = f"it holds runs ({runs[0]}, ...): give one of them" if runs else "give the directory of a run"
        raise UserError(f"{directory / RESULTS} is missing; {problem}")
    status = read_status(directory)
    results = _results(directory, status.get("state"))
    if results is None:
        raise UserError(f"{directory}: no finished results.json: {_ending(status)}")
    if status.get("state") == "failed" and results.status == "interrupted":
        return results.model_copy(update={"notes": [*results.notes, printable(f"It ended so: {_ending(status)}.")]})
    return results


def _results(folder: Path, state: str | None) -> RunResults | None:
    if state == "interrupted" and (folder / ROUND_LOG).is_file():
        return interrupted_results(folder)
    if state == "failed" and not (folder / RESULTS).is_file() and (folder / ROUND_LOG).is_file():
        results = interrupted_results(folder)
        return results if results.proposal.num_output_tokens else None
    unfinished = state in ("running", "interrupted") or not (folder / RESULTS).is_file()
    return None if unfinished else read_results(folder / RESULTS)


def find_jobs(directory: Path) -> list[Job]:
    """The runs below, in the order of their job numbers. Raises ``UserError`` if there is none."""
    found = {path.parents[name.count("/")] for name in (RESULTS, STATUS, OVERRIDES) for path in directory.rglob(name)}
    if not found:
        problem = "holds no run and no sweep" if directory.is_dir() else "is no directory"
        raise UserError(f"{directory} {problem}; give the directory that spec-eval named in its last line")
    return [_read_job(folder, directory) for folder in sorted(found, key=lambda folder: _in_order(str(folder)))]


def _read_job(folder: Path, below: Path) -> Job:
    status = read_status(folder)
    state, error, results = str(status.get("state", "unknown")), status.get("error"), None
    try:
        results = None if state == "failed" else _results(folder, state)
    except UserError as refused:
        error = str(refused)
    if results is not None and results.status == "failed":
        state, error, results = "failed", "outputs differ from plain decoding", None
    elif results is not None:
        state = results.status
    elif error is None:
        error = _ending(status)
    return Job(
        directory=folder,
        name=folder.relative_to(below).as_posix(),
        overrides=read_overrides(folder),
        state=state,
        error=None if error is None else printable(" ".join(str(error).split())),
        results=results,
    )


def read_overrides(folder: Path) -> dict[str, str]:
    """What the job's command line set, by key. ``+`` and ``~`` in front of a key are left out."""
    path = folder / OVERRIDES
    if not path.is_file():
        return {}
    from omegaconf import ListConfig, OmegaConf

    try:
        texts = OmegaConf.load(path)
    except Exception:  # a damaged file, in one of many ways: only labels are lost
        return {}
    pairs = (
        printable(str(text)).lstrip("+~").partition("=") for text in (texts if isinstance(texts, ListConfig) else [])
    )
    return {key: value.strip("'\"") for key, _, value in pairs}


def varying(overrides: Sequence[Mapping[str, str]]) -> list[str]:
    """The keys whose values differ between jobs: what a sweep swept."""
    keys = dict.fromkeys(key for one in overrides for key in one)
    return [key for key in keys if len({one.get(key) for one in overrides}) > 1]


def _ending(status: Mapping[str, Any]) -> str:
    if status.get("state") == "failed":
        return f"the run failed: {status.get('error')}"
    if status.get("state") in ("running", "interrupted"):
        done, total = status.get("requests_done"), status.get("requests_total")
        known = "killed" if status["state"] == "interrupted" else "still running, or killed elsewhere"
        return f"{known}: {done} of {total} requests done"
    return "ended without a result"


def _in_order(text: str) -> list[tuple[int, int, str]]:
    """Numbers by their value, so that job 10 comes after job 9."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", text)]
