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
    state: str  # running, interrupted, done or failed, see `read_status`; unknown without status.json
    error: str | None  # why it failed, or why its results cannot be read
    results: RunResults | None  # null unless it is done


def is_run(directory: Path) -> bool:
    return os.path.isfile(directory / RESULTS) or os.path.isfile(directory / STATUS)


def read_run(directory: Path) -> RunResults:
    """The results of one run; of one that was killed those of the sequences that had finished. ``UserError`` says how
    it ended if it has none."""
    if os.path.isfile(directory / STATUS):
        status = read_status(directory)
        if status.get("state") == "interrupted" and (directory / ROUND_LOG).is_file():
            return interrupted_results(directory)
        if not (directory / RESULTS).is_file() or status.get("state") == "running":
            raise UserError(f"{directory}: no finished results.json: {_ending(status)}")
    elif not os.path.isfile(directory / RESULTS):
        runs = [path.parent.relative_to(directory).as_posix() for path in sorted(directory.glob("*/" + STATUS))]
        problem = f"it holds runs ({runs[0]}, ...): give one of them" if runs else "give the directory of a run"
        raise UserError(f"{directory / RESULTS} is missing; {problem}")
    return read_results(directory / RESULTS)


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
    if state not in ("failed", "running", "interrupted") and (folder / RESULTS).is_file():
        try:
            results = read_results(folder / RESULTS)
        except UserError as refused:
            error = str(refused)
        if results is not None and results.status == "failed":
            state, error, results = "failed", "outputs differ from plain decoding", None
    elif state != "failed":
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
    """Numbers by their value, so that job 10 comes behind job 9."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", text)]
