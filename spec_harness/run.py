"""One run from start to end: build, ``Trainer.test``, and the truth about how it ended. The command stands on it, and
``evaluate``, its face in Python."""

import logging
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from lightning import Callback, Trainer, seed_everything
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.loggers import Logger
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from spec_harness.build import build
from spec_harness.config import EvalConfig
from spec_harness.data.prompts import PromptRow, rows_of
from spec_harness.errors import UserError
from spec_harness.evaluation.callbacks import KeepFiles, KeepStatus
from spec_harness.evaluation.progress import EvalProgress, phase
from spec_harness.evaluation.tracking import RunningFigures, WandbResults, finish, make_loggers
from spec_harness.evaluation.trainer import trainer_arguments
from spec_harness.models.configured import GivenModel, quiet_transformers
from spec_harness.report.terminal import print_summary
from spec_harness.results.run_directory import Footprint, check_unused, check_writable
from spec_harness.results.schema import RunResults
from spec_harness.results.status import STATUS_FILE, StatusFile
from spec_harness.validation import shown, validated

# A folder or hub id, "tiny" (packaged) or "self" (a draft), a section of the configuration, or a model in memory, alone
# (a draft) or with its tokenizer.
Model: TypeAlias = str | Path | Mapping[str, Any] | PreTrainedModel | tuple[PreTrainedModel, PreTrainedTokenizerBase]


class BaselineFaultError(RuntimeError):
    """Greedy output differs from the baseline's by more than rounding: some part of the engine is broken."""


def evaluate(
    *,
    target: Model | None = None,
    draft: Model | None = None,
    prompts: Sequence[str | Mapping[str, Any]] | str | Path | None = None,
    max_proposal_len: int | None = None,
    output_dir: str | Path | None = None,
    **further: Any,
) -> RunResults:
    """Runs ``prompts`` with and without speculative decoding and returns what results.json would hold.

    ``prompts`` are texts to complete, mappings with the keys of a line of the JSONL file, or the path of such a file.
    ``further`` are keys and sections of ``EvalConfig``, as ``max_num_seqs=1`` and ``sampling={"temperature": 0.8}``;
    what is not given is as in ``spec-eval``, but nothing is logged or printed. Without an ``output_dir`` no file is
    written. A model in memory is used where it is, and is afterwards as it was.

    Raises ``UserError`` for what the caller can mend.
    """
    values: dict[str, Any] = {"verbose": False, "logger": {"kinds": []}, **further}
    for section in ("trainer", "data", "proposal"):
        if not isinstance(values.get(section, {}), Mapping):
            raise UserError(f"{section} must be a group of keys, not {shown(values[section])}")
    given: dict[str, GivenModel] = {}
    for role, model in (("target", target), ("draft", draft)):
        if isinstance(model, PreTrainedModel | tuple):
            if isinstance(model, tuple) and not (len(model) == 2 and isinstance(model[0], PreTrainedModel)):
                raise UserError(f"{role}: a tuple must be (model, tokenizer), both in memory")
            given[role] = GivenModel(*model) if isinstance(model, tuple) else GivenModel(model)
            values[role] = {"kind": "memory", "path": given[role].name}
        elif model is not None:
            named = {"kind": model} if model in ("tiny", "self") else {"path": str(model)}
            values[role] = named if isinstance(model, str | Path) else model
    if "target" in given:
        if given["target"].tokenizer is None:
            raise UserError("target: a model in memory needs its tokenizer beside it: target=(model, tokenizer)")
        on_gpu = given["target"].model.device.type == "cuda"
        values["trainer"] = {"accelerator": "gpu" if on_gpu else "cpu", **values.get("trainer", {})}
    rows = None if prompts is None or isinstance(prompts, str | Path) else rows_of(prompts)
    if isinstance(prompts, str | Path):
        values["data"] = {**values.get("data", {}), "path": str(prompts)}
    proposal = values.get("proposal", {})
    length = 0 if max_proposal_len is None and proposal.get("kind") == "none" else max_proposal_len
    values["proposal"] = proposal if length is None else {**proposal, "max_proposal_len": length}
    config = validated(EvalConfig, values)
    for configured in (config.target, config.draft):
        configured.check_path()
    if output_dir is None and config.logger.kinds:
        raise UserError("logger: loggers write into the run's directory; give an output_dir")
    with ExitStack() as borrowed:
        for one in given.values():
            borrowed.enter_context(one.borrowed())
        try:
            return _run_into(output_dir, config, given, rows)
        except SystemExit as error:  # what Lightning makes of an interrupt
            raise KeyboardInterrupt from error


def _run_into(
    output_dir: str | Path | None, config: EvalConfig, given: Mapping[str, GivenModel], rows: list[PromptRow] | None
) -> RunResults:
    if output_dir is None:
        return run(config, run_dir=None, given=given, rows=rows)
    directory = Path(output_dir)
    check_writable(directory, key="output_dir")
    check_unused(directory, key="output_dir")
    footprint = Footprint.before(directory)
    directory.mkdir(parents=True, exist_ok=True)
    try:
        return run(config, run_dir=directory, given=given, rows=rows)
    except UserError:
        footprint.remove_new()
        raise


def run(
    config: EvalConfig,
    *,
    run_dir: Path | None,
    sweep: str | None = None,
    given: Mapping[str, GivenModel] = MappingProxyType({}),
    rows: Sequence[PromptRow] | None = None,
) -> RunResults:
    """Runs one evaluation into ``run_dir``, which exists (none: no files). ``sweep`` names the sweep it belongs to;
    ``given`` and ``rows`` as in ``build``.

    Raises ``UserError`` for what the user can mend and anything else for a fault; finished requests are kept then, and
    ``status.json`` says what happened.
    """
    status = None if run_dir is None else StatusFile(run_dir / STATUS_FILE)
    loggers: list[Logger] = []
    exit_code = 1
    try:
        _quiet_libraries()
        seed_everything(config.seed, verbose=False)
        shown = config.trainer.enable_progress_bar and config.verbose
        arguments = trainer_arguments(config.trainer)
        with phase("loading the models and comparing their paged logits with dense ones", shown=shown):
            evaluation = build(config, given, rows)
        token_text = evaluation.encoder.token_text
        callbacks: list[Callback] = [EvalProgress()] if shown else []
        if run_dir is not None and status is not None:
            settings = config.logger.model_dump() | {"group": config.logger.group or sweep}
            loggers += make_loggers(**settings, run_dir=run_dir, config=evaluation.header.config)
            callbacks += [KeepFiles(run_dir, token_text), KeepStatus(status)]
        callbacks += [RunningFigures(), WandbResults(token_text)] if loggers else []
        trainer = _trainer(arguments, callbacks, loggers, run_dir)
        trainer.test(evaluation.module, datamodule=evaluation.data, verbose=False)
        results = evaluation.module.results
        if results is None:
            raise UserError("trainer.limit_test_batches=0 leaves nothing to run")
        _require_equal_texts(results)
        exit_code = 0
    except BaseException as error:
        if status is not None:  # Lightning turns an interrupt into an exit, which says nothing
            status.failed("interrupted" if isinstance(error, KeyboardInterrupt | SystemExit) else error)
        raise
    finally:
        finish(loggers, exit_code=exit_code)
    if status is not None:
        status.done()
    if config.verbose:
        print_summary(results, run_dir, brief=sweep is not None)
    return results


def _trainer(
    arguments: dict[str, Any], callbacks: list[Callback], loggers: list[Logger], run_dir: Path | None
) -> Trainer:
    """With the keys of ``trainer:``. Raises ``UserError`` for values that the Trainer refuses."""
    usual = {"enable_checkpointing": False, "enable_model_summary": False, "use_distributed_sampler": False}
    own = {
        "enable_progress_bar": any(isinstance(callback, EvalProgress) for callback in callbacks),
        "callbacks": [*callbacks, *arguments["callbacks"]],
        "logger": loggers or False,
        "default_root_dir": run_dir,
    }
    try:
        return Trainer(**usual | arguments | own)
    except (TypeError, ValueError, RuntimeError, MisconfigurationException) as error:
        raise UserError(f"trainer: {' '.join(str(error).split())}") from error


def _require_equal_texts(results: RunResults) -> None:
    equality = results.integrity.baseline_equality
    if equality is not None and equality.fault:
        compared = equality.equal + equality.tie + equality.fault
        raise BaselineFaultError(
            f"{equality.fault} of {compared} greedy outputs differ from the baseline by more than rounding explains; "
            "see baseline_verdict in requests.parquet"
        )


def _quiet_libraries() -> None:
    """A run says what it has to say in its summary; the libraries' chatter about it stays out of the terminal."""
    quiet_transformers()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*GPU available but not used.*")
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")  # lightning calls what torch deprecated
