"""One run from start to end: build, test, results, and the truth about how it ended."""

import logging
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lightning import Callback, Trainer, seed_everything
from lightning.pytorch.loggers import Logger

from spec_harness.build import Evaluation, build
from spec_harness.config import EvalConfig
from spec_harness.evaluation.module import Pass, SpecDecodeEvalModule
from spec_harness.evaluation.progress import EvalProgress, phase
from spec_harness.evaluation.provenance import model_identity, provenance
from spec_harness.evaluation.sections import integrity_results, kv_results, timing_results
from spec_harness.evaluation.tracking import RunningFigures, finish, log_results, make_loggers
from spec_harness.metrics.breakdowns import breakdowns
from spec_harness.metrics.counts import counts_by_request
from spec_harness.metrics.estimates import proposal_results
from spec_harness.metrics.identities import check_identities
from spec_harness.models.configured import model_name, quiet_transformers
from spec_harness.report.markdown import write_report
from spec_harness.report.notes import notes
from spec_harness.report.terminal import print_summary
from spec_harness.results.run_files import RunFiles, StatusFile, write_token_texts
from spec_harness.results.schema import (
    BaselineEquality,
    Check,
    RunResults,
    write_results,
)
from spec_harness.trust.baseline import judge_all, record_key
from spec_harness.trust.kv_gate import SIZES, require, run_gate
from spec_harness.trust.step_profile import StepTimes, measure_steps

log = logging.getLogger(__name__)


class BaselineFaultError(RuntimeError):
    """Greedy output differs from the baseline's by more than rounding: some part of the engine is broken."""


def run(config: EvalConfig, *, run_dir: Path, sweep: str | None) -> RunResults:
    """Runs one evaluation into ``run_dir``, which exists. ``sweep`` names the sweep it belongs to.

    Raises ``UserError`` for what the user can mend and anything else for a fault; finished requests are kept then, and
    ``status.json`` says what happened.
    """
    status = StatusFile(run_dir / "status.json")
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
    started, began = datetime.now(UTC), time.perf_counter()
    seed_everything(config.seed, verbose=False)
    shown = config.trainer.enable_progress_bar and config.verbose
    with phase("loading the models and comparing their paged logits with dense ones", shown=shown):
        evaluation = build(config)
    status.update(0, requests_total=evaluation.num_sequences)
    settings = asdict(config.logger) | {"group": config.logger.group or sweep}
    loggers += make_loggers(**settings, run_dir=run_dir, config=asdict(config))
    with phase(f"integrity checks ({config.integrity})", shown=shown):
        gate = _gate(config, evaluation)
    with RunFiles(run_dir) as files:
        module = evaluation.module(_Bookkeeper(evaluation, files, status), RunningFigures(loggers))
        device = evaluation.target.model.device
        _trainer(config, run_dir, loggers).test(module, datamodule=evaluation.data, verbose=False)
        finished = len(evaluation.passes[0].records)
        status.update(finished, requests_total=finished)  # a conversation may have ended before its last turn
        for loaded in filter(None, (evaluation.target, evaluation.draft)):
            loaded.model.to(device)  # type: ignore[arg-type]  # Lightning moves models to the CPU at the end
        with phase("step times and intervals", shown=shown):
            results = _results(config, evaluation, gate, module, files, started, time.perf_counter() - began)
    write_results(run_dir / "results.json", results)
    write_report(run_dir / "report.md", results)
    records, encoder = evaluation.passes[0].records, evaluation.conversations.encoder
    texts = write_token_texts(run_dir / "token_texts.json", records, encoder.token_text)
    log_results(loggers, results, records, texts)
    equality = results.integrity.baseline_equality
    if equality is not None and equality.fault:
        raise BaselineFaultError(
            f"{equality.fault} of {len(evaluation.requests)} greedy outputs differ from the baseline by more than "
            f"rounding explains; see baseline_verdict in {run_dir / 'requests.parquet'}"
        )
    return results


class _Bookkeeper:
    """Told of every finished sequence; the files hold those of the first pass, which is what the run is about."""

    def __init__(self, evaluation: Evaluation, files: RunFiles, status: StatusFile) -> None:
        self._first = evaluation.passes[0]
        self._files = files
        self._status = status

    def __call__(self, current: Pass, record: Any) -> None:
        if current is self._first:
            self._files.add(record)
            self._status.update(len(current.records))


def _trainer(config: EvalConfig, run_dir: Path, loggers: Sequence[Logger]) -> Trainer:
    progress = config.trainer.enable_progress_bar and config.verbose
    callbacks: list[Callback] = [EvalProgress()] if progress else []
    return Trainer(
        accelerator=config.trainer.accelerator,
        devices=config.trainer.devices,
        logger=list(loggers) or False,
        callbacks=callbacks,
        enable_progress_bar=progress,
        enable_checkpointing=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        default_root_dir=run_dir,
    )


def _results(
    config: EvalConfig,
    evaluation: Evaluation,
    gate: Sequence[Check],
    module: SpecDecodeEvalModule,
    files: RunFiles,
    started: datetime,
    duration_s: float,
) -> RunResults:
    first, target, draft = evaluation.passes[0], evaluation.target, evaluation.draft
    k = evaluation.settings.max_proposal_len
    equality = _equality(config, evaluation)
    counts, steps = module.proposals.compute(), _step_times(evaluation)
    per_request = counts_by_request(first.records, max_proposal_len=k)
    check_identities(
        counts,
        per_request=per_request,
        generated_tokens=files.num_generated_tokens,
        seen_ids=[record.request_id for record in first.records],
        expected_ids=[request.request_id for request in evaluation.requests for _ in range(request.num_samples)]
        + module.follow_ups,
    )
    results = RunResults(
        status="failed" if equality is not None and equality.fault else "done",
        mode="run",
        config=asdict(config),
        provenance=provenance(
            target=model_identity(target, name=model_name(config.target), revision=config.target.revision),
            draft=None
            if draft is None
            else model_identity(draft, name=model_name(config.draft), revision=config.draft.revision),
            device=target.model.device,
            seeds={"seed": config.seed, "sampling.seed": config.sampling.seed},
            prompts_sha256=evaluation.prompts_sha256,
            started_at=started,
            duration_s=duration_s,
        ),
        integrity=integrity_results(config.integrity, target, draft, gate, equality),
        proposal=proposal_results(counts, list(per_request.values())),
        timing=timing_results(evaluation.passes, counts, steps),
        kv=kv_results(first, evaluation.settings, target, draft),
        breakdowns=breakdowns(first.records, max_proposal_len=k),
        notes=[
            *evaluation.notes,
            *evaluation.conversations.notes(),
            *_vocabulary_notes(first),
            *_profile_notes(evaluation, steps),
        ],
    )
    return results.model_copy(update={"notes": [*results.notes, *notes(results, first.records)]})


def _to_explain(evaluation: Evaluation) -> bool:
    """There is a speed-up."""
    return len(evaluation.passes) > 1 and evaluation.settings.max_proposal_len > 0


def _profile_notes(evaluation: Evaluation, steps: StepTimes | None) -> list[str]:
    if steps is not None or not _to_explain(evaluation):
        return []
    return ["No step times, no predicted speed-up: a model's maximum length leaves no room for the micro-profile."]


def _step_times(evaluation: Evaluation) -> StepTimes | None:
    """The micro-profile at the run's mean batch."""
    if not _to_explain(evaluation):
        return None
    stats = evaluation.passes[0].stats
    return measure_steps(
        evaluation.target,
        evaluation.draft or evaluation.ngram,
        evaluation.settings,
        [request.prompt_token_ids for request in evaluation.requests],
        batch=max(1, round(stats.rows_run / max(1, stats.num_steps))),
    )


def _gate(config: EvalConfig, evaluation: Evaluation) -> list[Check]:
    """The engine proves itself before it is measured. Raises ``IntegrityError``."""
    if config.integrity == "off":
        return []
    prompts = [request.prompt_token_ids for request in evaluation.requests]
    checks = run_gate(SIZES[config.integrity], evaluation.target, evaluation.draft, evaluation.settings, prompts)
    require(checks)
    return checks


def _vocabulary_notes(done: Pass) -> list[str]:
    mass = done.draft_mass_outside
    if mass is None:
        return []
    return [
        f"The draft gave {mass:.2%} of its probability to token ids that the target lacks; it was masked and the rest "
        "renormalized."
    ]


def _equality(config: EvalConfig, evaluation: Evaluation) -> BaselineEquality | None:
    """Greedy outputs only: sampled ones agree with the baseline's in distribution, not token by token."""
    if config.sampling.temperature > 0 or len(evaluation.passes) < 2:
        return None
    first, baseline = evaluation.passes
    others = {record_key(record): record for record in baseline.records}
    return BaselineEquality(**judge_all(evaluation.target, first.records, others))


def _quiet_libraries() -> None:
    """A run says what it has to say in its summary; the libraries' chatter about it stays out of the terminal."""
    quiet_transformers()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*GPU available but not used.*")
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")  # lightning calls what torch deprecated
