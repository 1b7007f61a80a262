"""The command ``spec-eval``: a Hydra application whose mistakes cost one line, not a traceback.

The configuration is composed and checked before Hydra starts, so that a wrong one imports no torch and creates no
directory. Exit codes: 0 done, 1 a fault while running, 2 the configuration or the input is wrong.
"""

import logging
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.types import RunMode
from omegaconf import DictConfig

from spec_harness import __version__
from spec_harness.cli.compose import (
    APP_NAME,
    CONFIG_NAME,
    VERSION_BASE,
    Plan,
    Request,
    conf_dir,
    make_plan,
    parse,
    to_config,
)
from spec_harness.cli.terminal import print_error, tolerate_encodings
from spec_harness.config import register_schema
from spec_harness.errors import UserError
from spec_harness.results.run_directory import (
    Footprint,
    announce,
    check_unused,
    check_writable,
    failed_jobs,
    job_stamps,
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
    request = parse(arguments)
    plan = make_plan(request) if request.composes else None
    if plan is None or not request.runs:
        return _start_hydra(_run_job, request.argv())
    check_writable(plan.output_dir, key=plan.output_key)
    return _sweep(request, plan) if plan.is_sweep else _run_once(request, plan)


def _run_once(request: Request, plan: Plan) -> int:
    """A job that turns out to be misconfigured leaves nothing behind, as if it had been refused at once.

    Its UserError is carried past Hydra, which would print it as a traceback.
    """
    refusals: list[UserError] = []

    def job(cfg: DictConfig) -> None:
        try:
            _run_job(cfg)
        except UserError as error:
            refusals.append(error)

    check_unused(plan.output_dir)
    footprint = Footprint.before(plan.output_dir)
    try:
        code = _start_hydra(job, _with_output_dir(request, plan))
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


def _sweep(request: Request, plan: Plan) -> int:
    earlier = job_stamps(plan.output_dir)
    try:
        code = _start_hydra(_run_sweep_job, _with_output_dir(request, plan))
    except KeyboardInterrupt:
        code = 1
        for directory in unfinished_jobs(plan.output_dir, earlier):
            record_failure(directory, KeyboardInterrupt("interrupted"))
        if not job_stamps(plan.output_dir):
            print_error("interrupted before the first job")
    if job_stamps(plan.output_dir):
        _summarize(plan.output_dir, shown=plan.verbose)
    failures = failed_jobs(plan.output_dir, earlier)
    for line in failures:
        print_error(line)
    return 1 if failures else code


def _summarize(sweep_dir: Path, *, shown: bool) -> None:
    """All jobs of the directory in one table. It tells nothing that the jobs' own files do not, so that its failure is
    none of the sweep's."""
    from spec_harness.report.show import show_sweep
    from spec_harness.report.sweep_summary import MARKDOWN, write_sweep_summary

    try:
        write_sweep_summary(sweep_dir)
        if shown:
            show_sweep(sweep_dir)
    except Exception as error:
        log.warning("no summary of the sweep: %s", error)
    else:
        print(f"All jobs: {sweep_dir / MARKDOWN}\nWith figures, to mail: spec-report html {sweep_dir}")


def _run_job(cfg: DictConfig) -> None:
    """The run itself: only here is torch imported."""
    config = to_config(cfg)

    settings = HydraConfig.get()
    announce(Path(settings.runtime.output_dir))

    from spec_harness.run import run

    sweep = Path(settings.sweep.dir).name if settings.mode == RunMode.MULTIRUN else None
    run(config, run_dir=Path(settings.runtime.output_dir), sweep=sweep)


def _run_sweep_job(cfg: DictConfig) -> None:
    """A job's failure is kept in its status.json, the only record that crosses processes, and goes no further.

    Raised, it would stop the batches behind it, and Hydra would show the first failing job's alone.
    """
    try:
        _run_job(cfg)
    except Exception as error:
        log.error("%s", error, exc_info=not isinstance(error, UserError))
        record_failure(Path(HydraConfig.get().runtime.output_dir), error)


def _with_output_dir(request: Request, plan: Plan) -> list[str]:
    """Names the directory that was checked: composed again, its time stamp would differ."""
    quoted = QuotedString(str(plan.output_dir), Quote.single).with_quotes()
    return request.argv(f"{plan.output_key}={quoted}")


def _start_hydra(job: Callable[[DictConfig], None], arguments: list[str]) -> int:
    """Hands over to Hydra, which reads ``sys.argv`` and ends a failed run with ``sys.exit``."""
    register_schema()
    application = hydra.main(config_path=str(conf_dir()), config_name=CONFIG_NAME, version_base=VERSION_BASE)(job)
    before = sys.argv
    sys.argv = [APP_NAME, *arguments]
    try:
        application()
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else 0 if exit_.code is None else 1
    except Exception:  # with HYDRA_FULL_ERROR Hydra lets it through
        traceback.print_exc()
        return 1
    finally:
        sys.argv = before
    return 0
