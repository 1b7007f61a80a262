"""A sweep as one table, one row per job: all that speaks of sweeps reads it, from the terminal to the notebooks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import BaseModel

from spec_harness.errors import UserError
from spec_harness.report.comparable import drafts_for_itself, flatten, incomparable_keys, speed
from spec_harness.report.jobs import Job, find_jobs, varying
from spec_harness.report.labels import labels
from spec_harness.report.load import Run
from spec_harness.report.pooled_baseline import (
    PooledBaseline,
    baseline_speed,
    disagrees_with_prediction,
    pooled_baseline,
    speedup_over,
)
from spec_harness.report.round_cost import decoding_speedup, round_cost, whole_prediction
from spec_harness.results.schema import Estimate, RunResults

LENGTH = "proposal.max_proposal_len"
_COST = "cost_"
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Sweep:
    """The jobs of a sweep: those with results, and the others with the reason."""

    directory: Path
    all_jobs: Sequence[Job]

    @cached_property
    def jobs(self) -> pd.DataFrame:
        """One row a job; see ``load_sweep`` for the columns."""
        return pd.DataFrame(self.rows)

    @cached_property
    def rows(self) -> list[Row]:
        """The same as one mapping a job, without what is missing."""
        results = [job.results for job in self.all_jobs if job.results is not None]
        figures = iter(table_rows(results, self.pooled))
        return [
            _job_columns(job, self.varied) | ({} if job.results is None else next(figures)) for job in self.all_jobs
        ]

    @property
    def ranked(self) -> list[Row]:
        """The rows of ``runs``."""
        return [row for job, row in zip(self.all_jobs, self.rows, strict=True) if job.finished]

    @property
    def interrupted(self) -> list[Row]:
        """The rows of jobs that were killed: figures of the requests that had finished."""
        return [row for row in self.rows if row["state"] == "interrupted" and "k" in row]

    @cached_property
    def runs(self) -> list[Run]:
        """Of the jobs that ended with results: what may be ranked and drawn."""
        return [Run(job.directory, job.results) for job in self.all_jobs if job.results is not None and job.finished]

    def run(self, job: str) -> Run:
        """By the name of its job."""
        return next(run for row, run in zip(self.ranked, self.runs, strict=True) if row["job"] == job)

    @property
    def failures(self) -> list[Job]:
        return [job for job in self.all_jobs if job.results is None]

    @cached_property
    def pooled(self) -> PooledBaseline | None:
        return pooled_baseline([run.results for run in self.runs])

    @cached_property
    def incomparable_keys(self) -> list[str]:
        """What forbids ranking the runs; empty where they answer the same question."""
        return incomparable_keys([run.results for run in self.runs])

    @cached_property
    def varied(self) -> list[str]:
        """The keys of the command lines whose values differ between the jobs."""
        return varying([job.overrides for job in self.all_jobs])


def load_sweep(directory: str | Path) -> Sweep:
    """Reads all jobs below ``directory``. Raises ``UserError`` if there is none.

    The columns of its frame ``jobs``:

    - ``job``, ``state``, ``error``, ``settings`` (what the sweep varied), and each key of the command lines (its value
      as configured, or the name of an option);
    - ``proposer`` (its label), ``proposer_name`` (draft_model, ngram, none or a class), ``k`` (max_proposal_len),
      ``label`` (tells the run from the others), ``series`` (runs of one series differ in k only), ``other_settings``;
    - every single figure of the sections proposal, timing and kv, those of inner sections after the section's name;
    - ``tokens_per_second``; ``baseline`` (plain decoding's, the median over the jobs where all did the same work),
      ``pooled_speedup`` (over that), ``disagrees_with_prediction``;
    - ``decoding_speedup`` (without the prefill that both pay), ``predicted_whole_speedup`` (with it), ``cost_…``:
      what a round costs, in steps of plain decoding.

    An estimate has three columns: ``name``, ``name_low`` and ``name_high`` (its 95 % interval). What is not known is
    missing (NaN).
    """
    return Sweep(Path(directory), find_jobs(Path(directory)))


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


def table_rows(runs: Sequence[RunResults], pooled: PooledBaseline | None = None) -> list[dict[str, Any]]:
    """The columns of a sweep's table that come from results."""
    doubts = disagrees_with_prediction(runs, pooled)
    return [
        label | _figures(one.proposal) | _figures(one.timing) | _figures(one.kv) | _rating(one, pooled, doubt)
        for one, label, doubt in zip(runs, labels(runs), doubts, strict=True)
    ]


def estimate(row: Row, name: str) -> Estimate:
    """A figure of a row with its interval; ``n`` counts all requests of the run."""
    low = row[f"{name}_low"]
    interval = None if low is None else (low, row[f"{name}_high"])
    return Estimate(value=row[name], ci95=interval, n=row["num_requests"])


def cost(row: Row) -> dict[str, float]:
    """What a round costs, by stage; empty where it is not known."""
    return {name.removeprefix(_COST): steps for name, steps in row.items() if name.startswith(_COST)}


def _job_columns(job: Job, varied: Sequence[str]) -> dict[str, Any]:
    config = {} if job.results is None else job.results.config
    shown = [(key, job.overrides[key]) for key in varied if key in job.overrides]
    columns = {
        "job": job.name,
        "state": job.state,
        "error": job.error,
        "settings": ", ".join(f"{'k' if key == LENGTH else key.rpartition('.')[2]}={x}" for key, x in shown),
    }
    return columns | {key: _configured(config, key, text) for key, text in job.overrides.items()}


def _configured(config: Mapping[str, Any], key: str, text: str) -> Any:
    """The value of an override as configured, which has a type, where its key leads to one."""
    value: Any = config
    for part in key.split("."):
        value = value.get(part, {}) if isinstance(value, Mapping) else {}
    return text if isinstance(value, Mapping | list) else value


def _figures(part: BaseModel | None, prefix: str = "") -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, value in part or ():
        if isinstance(value, Estimate):
            row |= _estimate(prefix + name, value)
        elif isinstance(value, BaseModel):
            row |= _figures(value, f"{prefix}{name}_")
        elif isinstance(value, int | float):
            row[prefix + name] = value
    return row


def _estimate(name: str, estimate: Estimate) -> dict[str, float | None]:
    low, high = estimate.ci95 or (None, None)
    return {name: estimate.value, f"{name}_low": low, f"{name}_high": high}


def _rating(results: RunResults, pooled: PooledBaseline | None, doubt: bool) -> dict[str, Any]:
    interrupted = results.status == "interrupted"  # other requests than the baseline's may have finished
    speedup = Estimate(value=None, n=0) if interrupted else speedup_over(pooled, results)
    costs = round_cost(results, speedup.value) or {}
    return {
        **_estimate("tokens_per_second", speed(results)),
        "baseline": baseline_speed(pooled, results),
        **_estimate("pooled_speedup", speedup),
        "disagrees_with_prediction": doubt,
        "decoding_speedup": decoding_speedup(results, speedup.value),
        "predicted_whole_speedup": None if results.timing is None else whole_prediction(results.timing),
        "self_draft": drafts_for_itself(results),
        **{f"{_COST}{stage}": steps for stage, steps in costs.items()},
    }
