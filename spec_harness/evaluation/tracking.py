"""Weights & Biases and CSV: what a run sends to its loggers. They mirror results.json, which is the source of truth."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import wandb
from lightning.pytorch.loggers import CSVLogger, Logger, WandbLogger

from spec_harness.errors import UserError
from spec_harness.evaluation.module import SpecDecodeEvalModule
from spec_harness.evaluation.results import RunResults

# Lightning's own step goes back to 0 in the test epoch, so running figures have an axis of their own.
STEP = "engine_step"
_EVERY = 10  # engine steps between two records
_SECTIONS = ("proposal", "timing", "kv")


def plain_numbers(results: RunResults) -> dict[str, int | float]:
    """Every figure of results.json as ``section/name`` (``section/name/i`` in lists): estimates by their value; missing
    ones are left out."""
    dumped = results.model_dump(mode="json", include={*_SECTIONS, "integrity"})
    numbers = {key: value for section in _SECTIONS for key, value in _flat(section, dumped[section])}
    numbers |= dict(_flat("integrity/baseline_equality", dumped["integrity"]["baseline_equality"]))
    return numbers


def _flat(key: str, value: Any) -> Iterator[tuple[str, int | float]]:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return
    if isinstance(value, int | float):
        yield key, value
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _flat(f"{key}/{index}", item)
    elif set(value) == {"value", "ci95", "n"}:
        yield from _flat(key, value["value"])
    else:
        for name, item in value.items():
            yield from _flat(f"{key}/{name}", item)


def make_loggers(
    *,
    kinds: Sequence[str],
    run_dir: Path,
    mode: str,
    project: str,
    group: str | None,
    tags: Sequence[str],
    name: str | None,
    config: dict[str, Any],
) -> list[Logger]:
    """The loggers asked for, started. W&B keeps all its files inside ``run_dir``, so that a moved folder still
    syncs. Raises ``UserError`` for what W&B refuses, as a project's name or a run online without a key."""
    loggers: list[Logger] = []
    if "wandb" in kinds:
        # Without this an offline run still reports its own errors over the network.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        os.environ["WANDB_DATA_DIR"] = str(run_dir / "wandb")
        (run_dir / "wandb").mkdir(exist_ok=True)
        try:
            run = wandb.init(
                dir=run_dir,
                mode=mode,  # type: ignore[arg-type]  # checked against the same choices by the configuration
                project=project,
                group=group,
                tags=list(tags),
                name=name,
                job_type="eval",
                config=config,
                settings=wandb.Settings(silent=True, disable_git=True, x_disable_stats=True, console="off"),
            )
        except wandb.errors.UsageError as error:
            raise UserError(f"logger (mode {mode}): W&B refuses: {error}") from error
        run.define_metric(STEP, hidden=True)
        run.define_metric("running/*", step_metric=STEP)
        loggers.append(WandbLogger(experiment=run, save_dir=run_dir))
    if "csv" in kinds:
        loggers.append(CSVLogger(save_dir=run_dir, name="", version="csv"))
    return loggers


def log_results(loggers: list[Logger], results: RunResults) -> None:
    """W&B's summary, and one row of the CSV, equal to results.json."""
    numbers = plain_numbers(results)
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            run = logger.experiment
            run.summary.update(numbers)
            histogram = results.proposal.accepted_length_histogram
            if any(histogram):
                edges = np.arange(len(histogram) + 1) - 0.5
                run.log({"accepted_length_histogram": wandb.Histogram(np_histogram=(np.array(histogram), edges))})
        else:
            logger.log_metrics(numbers)
            logger.save()


class RunningFigures:
    """Running acceptance and speed, logged every ``_EVERY`` engine steps: each W&B record costs about 0.4 ms."""

    def __init__(self, loggers: list[Logger]) -> None:
        self._loggers = loggers

    def __call__(self, module: SpecDecodeEvalModule) -> None:
        if module.num_engine_steps % _EVERY or not self._loggers:
            return
        current = module.current_pass
        figures = {
            f"running/{current.name}/acceptance_rate": current.acceptance_rate,
            f"running/{current.name}/tokens_per_second": current.tokens_per_second if current.records else None,
            f"running/{current.name}/requests_done": len(current.records),
        }
        numbers = {key: float(value) for key, value in figures.items() if value is not None}
        for logger in self._loggers:
            logger.log_metrics({**numbers, STEP: float(module.num_engine_steps)})


def finish(loggers: list[Logger], *, exit_code: int) -> None:
    """Ends the W&B run with the job's exit code; unfinished, the jobs of a sweep would share one run."""
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            logger.experiment.finish(exit_code=exit_code)
        else:
            logger.finalize("success" if exit_code == 0 else "failed")
