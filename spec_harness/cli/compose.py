"""From the command line to checked configurations: what Hydra would run is composed and judged before Hydra runs it.

Hydra's own handling of a mistake is a message of several lines, exit code 1 and, inside a job, a directory left behind.
So everything that can be known without a model is checked here, for each point of a sweep, and a UserError says what is
wrong. Neither torch nor anything that needs it is imported.
"""

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from spec_harness.cli.application import APP_NAME, VERSION_BASE, conf_dir, register_schema
from spec_harness.cli.command_line import CommandLine
from spec_harness.cli.explain import explain
from spec_harness.config import EvalConfig
from spec_harness.data.prompts import BUILTIN_PROMPTS, read_jsonl, select_rows
from spec_harness.errors import UserError
from spec_harness.validation import validated

_BASIC_SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"


@dataclass(frozen=True)
class Plan:
    """What will be run, known to be valid as far as that can be known without a model."""

    is_sweep: bool
    output_dir: Path  # of the run or of the sweep, not created yet
    verbose: bool

    @property
    def output_key(self) -> str:
        return "hydra.sweep.dir" if self.is_sweep else "hydra.run.dir"


def make_plan(line: CommandLine) -> Plan:
    """Composes and checks each point; raises UserError for the first mistake. Creates nothing."""
    with _hydra(line):
        overrides = _parse(line.overrides)
        base = _compose(line, [_text(override) for override in overrides if not override.is_sweep_override()])
        is_sweep = line.multirun or base.hydra.mode == RunMode.MULTIRUN
        if line.runs and is_sweep:
            _check_sweep(line, overrides, base)
        elif line.runs:
            _check_run(line, overrides, base)
        output_dir = Path(_resolved(base, "hydra.sweep.dir" if is_sweep else "hydra.run.dir"))
        return Plan(is_sweep=is_sweep, output_dir=output_dir, verbose=base.get("verbose") is not False)


def to_config(cfg: DictConfig, overrides: Sequence[str] = (), *, cwd: str | None = None) -> EvalConfig:
    """The typed configuration of a composed one; its paths are relative to ``cwd``. Raises ``UserError``."""
    try:
        own = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])
        plain: Any = OmegaConf.to_container(own, resolve=True, throw_on_missing=True)
    except Exception as error:
        raise explain(error, overrides) from error
    return validated(EvalConfig, plain, cwd=cwd)


def optimizes(hydra: Any) -> bool:
    """Whether the sweeper wants the jobs' figures, to choose its next points."""
    return bool(hydra.mode == RunMode.MULTIRUN and hydra.sweeper["_target_"] != _BASIC_SWEEPER)


def _check_run(line: CommandLine, overrides: Sequence[Override], base: DictConfig) -> None:
    sweeps = [_text(override) for override in overrides if override.is_sweep_override()]
    if sweeps:
        raise UserError(f"{sweeps[0]} has several values: add -m to sweep over them, or quote the value")
    _check_inputs(to_config(base, line.overrides))


def _check_sweep(line: CommandLine, overrides: Sequence[Override], base: DictConfig) -> None:
    points = _points(overrides, base)
    if not points:
        raise UserError("the sweep has no job: one of its ranges or choices is empty")
    hydra_overrides = [_text(override) for override in overrides if override.is_hydra_override()]
    jobs: dict[str, int] = {}
    for number, point in enumerate(points):
        try:
            cfg = _compose(line, [*hydra_overrides, *point])
            _check_inputs(to_config(cfg, point))
        except UserError as error:
            raise UserError(f"job {number} of the sweep ({' '.join(point)}): {error}") from error
        subdir = os.path.normpath(_resolved(cfg, "hydra.sweep.subdir", job=number))
        if subdir in jobs:
            raise UserError(
                f"hydra.sweep.subdir: jobs {jobs[subdir]} and {number} of the sweep would share one directory, "
                f"{subdir}; use ${{hydra:job.num}} in it"
            )
        jobs[subdir] = number


def _check_inputs(config: EvalConfig) -> None:
    """What can be told without a model about what the configuration names."""
    from spec_harness.results.objective import check_objective  # numpy: a mistake found above need not wait for it

    check_objective(config.objective)
    for model in (config.draft, config.target):
        model.check_path()
    path = BUILTIN_PROMPTS if config.data.path is None else Path(config.data.path)
    try:
        rows = read_jsonl(path)
    except UserError as error:
        raise UserError(f"data.path: {error}") from error
    select_rows(rows, limit=config.data.limit, category=config.data.category)


def _points(overrides: Sequence[Override], base: DictConfig) -> list[list[str]]:
    """Overrides of each job, as Hydra's basic sweeper makes them.

    Another sweeper chooses its points while it runs; then only what all of them share can be checked.
    """
    task = [override for override in overrides if not override.is_hydra_override()]
    if base.hydra.sweeper["_target_"] != _BASIC_SWEEPER:
        return [[_text(override) for override in task if not override.is_sweep_override()]]
    params = _parse([f"{key}={value}" for key, value in (base.hydra.sweeper.params or {}).items()])
    choices = {override.get_key_element(): _choices(override) for override in [*params, *task]}
    return [list(point) for point in itertools.product(*choices.values())]


def _choices(override: Override) -> list[str]:
    key = override.get_key_element()
    if not override.is_sweep_override():
        return [f"{key}={override.get_value_element_as_str()}"]
    if not override.is_discrete_sweep():
        raise UserError(
            f"{_text(override)}: an interval has no list of values; give some (1,2,4 or range(1,5)), or a sweeper that "
            "samples it, such as hydra/sweeper=optuna"
        )
    return [f"{key}={value}" for value in override.sweep_string_iterator()]


def _parse(overrides: Sequence[str]) -> list[Override]:
    """Globs look their options up in the configuration."""
    parser = OverridesParser.create(GlobalHydra.instance().config_loader())
    try:
        return parser.parse_overrides(list(overrides))
    except Exception as error:
        raise explain(error, overrides) from error


def _text(override: Override) -> str:
    return override.input_line or ""


def _resolved(cfg: DictConfig, key: str, *, job: int | None = None) -> str:
    """A key of Hydra's own, which may refer to its whole configuration; a resolver looks that up globally."""
    if job is not None:
        with open_dict(cfg):
            cfg.hydra.job.num, cfg.hydra.job.id = job, f"job_id_for_{job}"
    holder = HydraConfig.instance()
    previous = holder.cfg
    holder.set_config(cfg)
    try:
        return str(OmegaConf.select(cfg, key, throw_on_missing=True))
    except Exception as error:
        raise explain(error, []) from error
    finally:
        holder.cfg = previous


@contextmanager
def _hydra(line: CommandLine) -> Iterator[None]:
    register_schema()
    with initialize_config_dir(str(conf_dir()), job_name=APP_NAME, version_base=VERSION_BASE):
        yield


def _compose(line: CommandLine, overrides: Sequence[str]) -> DictConfig:
    extra = line.extra_config_dir
    search_path = [f"hydra.searchpath=['file://{extra}']"] if extra is not None else []
    try:
        return compose(line.config_name, overrides=[*search_path, *overrides], return_hydra_config=True)
    except Exception as error:  # Hydra lets some mistakes through as bare TypeError or ValueError
        raise explain(error, overrides) from error
