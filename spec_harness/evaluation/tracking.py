"""Weights & Biases and CSV: what a run sends to its loggers. They mirror results.json, which is the source of truth."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import wandb
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger, Logger, WandbLogger

from spec_harness.engine import EngineStats
from spec_harness.errors import UserError
from spec_harness.evaluation.callbacks import EvalCallback
from spec_harness.evaluation.engine_run import EngineRun
from spec_harness.evaluation.module import SpecDecodeEvalModule
from spec_harness.evaluation.tracking_tables import POSITION, media, position_lines
from spec_harness.metrics.estimates import ratio
from spec_harness.results.figures import plain_numbers
from spec_harness.results.run_files import token_texts

# Lightning's own step goes back to 0 in the test epoch, so running figures have an axis of their own.
STEP = "engine_step"
_EVERY = 10  # engine steps between two records, at first
_DENSE = 32  # records; each time there are so many more, the distance doubles: a long run is no longer to look at


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
                name=name or run_name(config),
                job_type="eval",
                config=config,
                settings=wandb.Settings(silent=True, disable_git=True, x_disable_stats=True, console="off"),
            )
        except wandb.errors.UsageError as error:
            raise UserError(f"logger (mode {mode}): W&B refuses: {error}") from error
        run.define_metric(STEP, hidden=True)
        run.define_metric("running/*", step_metric=STEP, summary="none")
        run.define_metric(POSITION, hidden=True)
        run.define_metric("position/*", step_metric=POSITION, summary="none")
        loggers.append(WandbLogger(experiment=run, save_dir=run_dir))
    if "csv" in kinds:
        loggers.append(CSVLogger(save_dir=run_dir, name="", version="csv"))
    return loggers


def run_name(config: Mapping[str, Any]) -> str | None:
    """What tells the runs of a project apart at a glance."""
    proposal, draft, cache = (config.get(key) or {} for key in ("proposal", "draft", "kv_cache"))
    if not proposal:
        return None
    if proposal["kind"] == "none":
        return "no proposals"
    draft_name = Path(draft["path"]).name if draft.get("path") else draft.get("kind")
    modelless = {"ngram": "n-gram", "custom": str(proposal.get("_target_")).rpartition(".")[2]}
    proposer = modelless.get(proposal["kind"], draft_name)
    return f"{proposer} k={proposal['max_proposal_len']} block={cache.get('block_size')}"


class WandbResults(Callback):
    """W&B's summary, exactly that of results.json (what Lightning logs is rounded to float32), and its tables."""

    def __init__(self, token_text: Callable[[int], str]) -> None:
        """``token_text``: what a token id says."""
        self._token_text = token_text

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, SpecDecodeEvalModule)
        results, records = pl_module.results, pl_module.runs[0].records
        assert results is not None
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                run = logger.experiment
                for line in position_lines(results):
                    run.log(line)
                run.log(media(results, records, token_texts(records, self._token_text)))
                run.summary.update(plain_numbers(results))


class RunningFigures(EvalCallback):
    """Running acceptance and speed, and means over the engine steps since the last record, every ``_EVERY`` steps or
    fewer: each W&B record costs about 0.4 ms."""

    def __init__(self) -> None:
        self._num_records = 0
        self._next = _EVERY
        self._run = ""
        self._before = EngineStats()

    def on_engine_step(self, trainer: Trainer, pl_module: SpecDecodeEvalModule, run: EngineRun) -> None:
        step = pl_module.num_engine_steps
        if not trainer.loggers or step < self._next:
            return
        self._num_records += 1
        self._next = step + _EVERY * 2 ** (self._num_records // _DENSE)
        figures = {
            "acceptance_rate": run.acceptance_rate,
            "tokens_per_second": run.tokens_per_second if run.records else None,
            "requests_done": len(run.records),
        } | self._since(run)
        numbers = {f"running/{run.name}/{key}": float(x) for key, x in figures.items() if x is not None}
        for logger in trainer.loggers:
            logger.log_metrics({**numbers, STEP: float(step)})

    def _since(self, run: EngineRun) -> dict[str, float | None]:
        """Means over the engine steps since the last record; ``None`` where there was nothing."""
        now = replace(run.stats)
        before = self._before if run.name == self._run else EngineStats()
        self._run, self._before = run.name, now
        since = EngineStats(**{key: value - getattr(before, key) for key, value in vars(now).items()})
        return {
            "step/sequences": _ratio(since.rows_run, since.num_steps),
            "step/acceptance_rate": ratio("acceptance_rate", since),
            "step/proposal_len": _ratio(since.num_draft_tokens, since.rows_run) if now.num_draft_tokens else None,
            "step/tokens_per_target_pass": _ratio(since.num_emitted_tokens, since.rows_run),
            "step/kv_utilization": _ratio(since.tokens_held, since.slots_held),
        }


def _ratio(numerator: int, denominator: int) -> float | None:
    return numerator / denominator if denominator else None


def finish(loggers: list[Logger], *, exit_code: int) -> None:
    """Ends the W&B run with the job's exit code; unfinished, the jobs of a sweep would share one run."""
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            logger.experiment.finish(exit_code=exit_code)
        else:
            logger.finalize("success" if exit_code == 0 else "failed")
