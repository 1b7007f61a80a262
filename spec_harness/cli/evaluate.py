"""The command ``spec-eval``: a Hydra application whose mistakes cost one line, not a traceback.

The configuration is composed and checked before Hydra starts, so that a wrong one imports no torch and creates no
directory. Exit codes: 0 done, 1 a fault while running, 2 the configuration or the input is wrong.
"""

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.types import RunMode
from omegaconf import DictConfig

from spec_harness import __version__
from spec_harness.cli.application import start
from spec_harness.cli.command_line import CommandLine, parse
from spec_harness.cli.compose import Plan, make_plan, optimizes, to_config
from spec_harness.cli.terminal import print_error, tolerate_encodings
from spec_harness.errors import UserError
from spec_harness.results.run_directory import (
    Footprint,
    announce,
    check_unused,
    check_writable,
    failed_jobs,
    jobs_of,
    record_failure,
    run_error,
    run_state,
    unfinished_jobs,
)

log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    tolerate_encodings()
    if os.getcwd() not in sys.path:  # modules of the user's own, last: they must not hide installed ones
        sys.path.append(os.getcwd())
    if "--version" in arguments:
        print(f"spec-harness {__version__}")
        return 0
    try:
        return _main(arguments)
    except UserError as error:
        print_error(error)
        return 2
    except KeyboardInterrupt:
        print_error("interrupted")
        return 1


def _main(arguments: list[str]) -> int:
    line = parse(arguments)
    plan = make_plan(line) if line.composes else None
    if plan is None or not line.runs:
        return start(_run_job, line.argv(), config_name=line.config_name)
    check_writable(plan.output_dir, key=plan.output_key)
    return _sweep(line, plan) if plan.is_sweep else _run_once(line, plan)


def _run_once(line: CommandLine, plan: Plan) -> int:
    """A job that turns out to be misconfigured leaves nothing behind, as if it had been refused at once.

    Its UserError is carried past Hydra, which would print it as a traceback.
    """
    refusals: list[UserError] = []

    def job(cfg: DictConfig) -> float | None:
        try:
            return _run_job(cfg)
        except UserError as error:
            refusals.append(error)
            return None

    check_unused(plan.output_dir)
    footprint = Footprint.before(plan.output_dir)
    try:
        code = start(job, _with_output_dir(line, plan), config_name=line.config_name)
    except KeyboardInterrupt:
        code = 1
    if refusals:
        footprint.remove_new()
        print_error(refusals[0])
        return 2
    if run_state(plan.output_dir) == "running":  # killed before it could say so
        record_failure(plan.output_dir, KeyboardInterrupt("interrupted"))
    if code == 0 and run_state(plan.output_dir) not in ("done", None):
        code = 1  # Lightning ends a run that was told to stop as if it were done
    if code and _was_interrupted(plan.output_dir):
        print_error(f"interrupted; what was finished is in {plan.output_dir}")
    return code


def _was_interrupted(run_dir: Path) -> bool:
    return run_error(run_dir) == "interrupted"


def _sweep(line: CommandLine, plan: Plan) -> int:
    if jobs_of(plan.output_dir):
        raise UserError(f"hydra.sweep.dir: {plan.output_dir} holds a sweep already; choose another directory")
    try:
        code = start(_run_sweep_job, _with_output_dir(line, plan), config_name=line.config_name)
    except KeyboardInterrupt:
        code = 1
        for directory in unfinished_jobs(plan.output_dir):
            record_failure(directory, KeyboardInterrupt("interrupted"))
        if not jobs_of(plan.output_dir):
            print_error("interrupted before the first job")
    if jobs_of(plan.output_dir):
        _summarize(plan.output_dir, shown=plan.verbose)
    failures = failed_jobs(plan.output_dir)
    for failure in failures:
        print_error(failure)
    return 1 if failures else code


def _summarize(sweep_dir: Path, *, shown: bool) -> None:
    """All jobs of the directory in one table. It tells nothing that the jobs' own files do not, so that its failure is
    none of the sweep's."""
    from spec_harness.report.sweep_summary import MARKDOWN, write_sweep_summary
    from spec_harness.report.terminal import print_sweep

    try:
        write_sweep_summary(sweep_dir)
        if shown:
            print_sweep(sweep_dir)
    except Exception as error:
        log.warning("no summary of the sweep: %s", error)
    else:
        print(f"All jobs: {sweep_dir / MARKDOWN}\nWith figures, to mail: spec-report html {sweep_dir}")


def _run_job(cfg: DictConfig) -> float | None:
    """The run itself: only here is torch imported. Returns the objective, for a sweeper that optimizes it."""
    hydra = HydraConfig.get()
    config = to_config(cfg, cwd=hydra.runtime.cwd)
    run_dir = Path(hydra.runtime.output_dir)
    announce(run_dir)

    from spec_harness.results.objective import objective_of
    from spec_harness.run import run

    sweep = Path(hydra.sweep.dir).name if hydra.mode == RunMode.MULTIRUN else None
    figure = objective_of(run(config, run_dir=run_dir, sweep=sweep), config.objective)
    if figure is None and optimizes(hydra):
        raise UserError(f"objective: {config.objective} is null in this run, so there is nothing to optimize")
    return figure


def _run_sweep_job(cfg: DictConfig) -> float | None:
    """A job's failure is kept in its status.json, the only record that crosses processes.

    Raised, it would stop the batches after it, and Hydra would show the first failing job's alone. A sweeper that
    optimizes must see it, though: it has its own rule for failures.
    """
    try:
        return _run_job(cfg)
    except Exception as error:
        log.error("%s", error, exc_info=not isinstance(error, UserError))
        record_failure(Path(HydraConfig.get().runtime.output_dir), error)
        if optimizes(HydraConfig.get()):
            raise
        return None


def _with_output_dir(line: CommandLine, plan: Plan) -> list[str]:
    """Names the directory that was checked: composed again, its time stamp would differ."""
    quoted = QuotedString(str(plan.output_dir), Quote.single).with_quotes()
    return line.argv(f"{plan.output_key}={quoted}")
