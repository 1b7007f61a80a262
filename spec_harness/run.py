"""One run from start to end: build, ``Trainer.test``, and the truth about how it ended."""

import logging
import warnings
from pathlib import Path

from lightning import Callback, Trainer, seed_everything
from lightning.pytorch.loggers import Logger

from spec_harness.build import build
from spec_harness.config import EvalConfig
from spec_harness.errors import UserError
from spec_harness.evaluation.callbacks import KeepFiles, KeepStatus
from spec_harness.evaluation.progress import EvalProgress, phase
from spec_harness.evaluation.tracking import RunningFigures, WandbResults, finish, make_loggers
from spec_harness.evaluation.trainer import trainer_arguments
from spec_harness.models.configured import quiet_transformers
from spec_harness.report.terminal import print_summary
from spec_harness.results.schema import RunResults
from spec_harness.results.status import STATUS_FILE, StatusFile


class BaselineFaultError(RuntimeError):
    """Greedy output differs from the baseline's by more than rounding: some part of the engine is broken."""


def run(config: EvalConfig, *, run_dir: Path, sweep: str | None) -> RunResults:
    """Runs one evaluation into ``run_dir``, which exists. ``sweep`` names the sweep it belongs to.

    Raises ``UserError`` for what the user can mend and anything else for a fault; finished requests are kept then, and
    ``status.json`` says what happened.
    """
    status = StatusFile(run_dir / STATUS_FILE)
    loggers: list[Logger] = []
    exit_code = 1
    try:
        _quiet_libraries()
        results = _evaluate(config, run_dir, sweep, status, loggers)
        exit_code = 0
    except BaseException as error:
        # Lightning turns an interrupt into an exit, which says nothing.
        status.failed("interrupted" if isinstance(error, KeyboardInterrupt | SystemExit) else error)
        raise
    finally:
        finish(loggers, exit_code=exit_code)
    status.done()
    if config.verbose:
        print_summary(results, run_dir, brief=sweep is not None)
    return results


def _evaluate(
    config: EvalConfig, run_dir: Path, sweep: str | None, status: StatusFile, loggers: list[Logger]
) -> RunResults:
    seed_everything(config.seed, verbose=False)
    shown = config.trainer.enable_progress_bar and config.verbose
    arguments = trainer_arguments(config.trainer)
    with phase("loading the models and comparing their paged logits with dense ones", shown=shown):
        evaluation = build(config)
    settings = config.logger.model_dump() | {"group": config.logger.group or sweep}
    loggers += make_loggers(**settings, run_dir=run_dir, config=evaluation.header.config)
    token_text = evaluation.encoder.token_text
    callbacks: list[Callback] = [KeepFiles(run_dir, token_text), KeepStatus(status)]
    callbacks += [RunningFigures(), WandbResults(token_text)] if loggers else []
    callbacks += [EvalProgress()] if shown else []
    trainer = Trainer(
        **arguments
        | {
            "enable_progress_bar": shown,
            "logger": loggers or False,
            "callbacks": [*callbacks, *arguments["callbacks"]],
            "enable_checkpointing": False,
            "enable_model_summary": False,
            "use_distributed_sampler": False,
            "default_root_dir": run_dir,
        }
    )
    trainer.test(evaluation.module, datamodule=evaluation.data, verbose=False)
    results = evaluation.module.results
    if results is None:
        raise UserError("trainer.limit_test_batches=0 leaves nothing to run")
    equality = results.integrity.baseline_equality
    if equality is not None and equality.fault:
        raise BaselineFaultError(
            f"{equality.fault} of {len(evaluation.requests)} greedy outputs differ from the baseline by more than "
            f"rounding explains; see baseline_verdict in {run_dir / 'requests.parquet'}"
        )
    return results


def _quiet_libraries() -> None:
    """A run says what it has to say in its summary; the libraries' chatter about it stays out of the terminal."""
    quiet_transformers()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*GPU available but not used.*")
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")  # lightning calls what torch deprecated
