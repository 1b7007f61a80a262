"""From the command line to checked configurations: what Hydra would run is composed and judged before Hydra runs it.

Hydra's own handling of a mistake is a message of several lines, exit code 1 and, inside a job, a directory left behind.
So everything that can be known without a model is checked here, for each point of a sweep, and a UserError says what is
wrong. Neither torch nor anything that needs it is imported.
"""

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from spec_harness.cli.errors import explain
from spec_harness.config import EvalConfig, ModelConfig, register_schema
from spec_harness.data.prompts import BUILTIN_PROMPTS, read_jsonl, select_rows
from spec_harness.errors import UserError

CONFIG_NAME = "eval"
APP_NAME = "spec-eval"
VERSION_BASE = "1.3"


def conf_dir() -> Path:
    """The folder of configurations: inside the installed package, else that of the checkout."""
    package = Path(__file__).parents[1]
    packaged = package / "conf"
    return packaged if packaged.is_dir() else package.parent / "conf"


@dataclass(frozen=True)
class Request:
    """A parsed command line."""

    overrides: list[str]
    flags: list[str]  # every argument that is no override
    multirun: bool
    composes: bool  # whether it needs a configuration at all
    runs: bool  # false: it only shows something
    config_dir: Path
    config_name: str
    extra_config_dir: Path | None

    def argv(self, *more_overrides: str) -> list[str]:
        """Arguments in the one order that Hydra's parser accepts with every flag."""
        return [*self.overrides, *more_overrides, *self.flags]


@dataclass(frozen=True)
class Plan:
    """What will be run, known to be valid as far as that can be known without a model."""

    is_sweep: bool
    output_dir: Path  # of the run or of the sweep, not created yet
    verbose: bool

    @property
    def output_key(self) -> str:
        return "hydra.sweep.dir" if self.is_sweep else "hydra.run.dir"


def parse(argv: Sequence[str]) -> Request:
    """Hydra's own arguments; its flags may stand before, between and behind the overrides."""
    parser = get_args_parser()
    parser.exit_on_error = False
    try:
        args, unknown = parser.parse_known_intermixed_args(list(argv))
    except argparse.ArgumentError as error:
        raise UserError(f"{error}; see {APP_NAME} --help") from error
    if unknown:
        raise UserError(f"unknown argument {unknown[0]}; see {APP_NAME} --help")
    _check_flags(args)
    return Request(
        overrides=list(args.overrides),
        flags=_without(argv, args.overrides),
        multirun=args.multirun,
        composes=not (args.hydra_help or args.shell_completion),
        runs=not (args.help or args.hydra_help or args.shell_completion or args.cfg or args.info),
        config_dir=Path(args.config_path) if args.config_path else conf_dir(),
        config_name=args.config_name or CONFIG_NAME,
        extra_config_dir=Path(args.config_dir).absolute() if args.config_dir else None,
    )


def _check_flags(args: argparse.Namespace) -> None:
    modes = [args.run, args.multirun, args.cfg, args.info, args.shell_completion]
    if sum(bool(mode) for mode in modes) > 1:
        raise UserError("only one of --run, --multirun (-m), --cfg, --info and --shell-completion can be given")
    if args.resolve and not (args.cfg or args.help):
        raise UserError("--resolve needs --cfg job")
    if args.experimental_rerun:
        raise UserError("--experimental-rerun is not supported; the directory of a run holds its overrides, in .hydra")
    if args.config_path and not Path(args.config_path).is_absolute():
        raise UserError(
            f"--config-path must be absolute, not {args.config_path}; --config-dir adds a folder of your own"
        )
    if args.config_dir and not Path(args.config_dir).is_dir():
        raise UserError(f"--config-dir: there is no folder {args.config_dir}")


def make_plan(request: Request) -> Plan:
    """Composes and checks each point; raises UserError for the first mistake. Creates nothing."""
    overrides = _parse_overrides(request.overrides)
    fixed = [override for override in overrides if not override.is_sweep_override()]
    with _hydra(request):
        base = _compose(request, [override.input_line or "" for override in fixed])
        is_sweep = request.multirun or base.hydra.mode == RunMode.MULTIRUN
        if request.runs:
            _check_runs(request, overrides, base, is_sweep=is_sweep)
        output_dir = _output_dir(base, is_sweep=is_sweep)
        return Plan(is_sweep=is_sweep, output_dir=output_dir, verbose=base.get("verbose") is not False)


def to_config(cfg: DictConfig, overrides: Sequence[str] = ()) -> EvalConfig:
    """The typed configuration of a composed one.

    Merging plain values into a fresh schema refuses keys that an override added with a plus.
    """
    try:
        plain = OmegaConf.to_container(
            OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"]), resolve=True
        )
        config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(EvalConfig), plain))
    except UserError:
        raise
    except Exception as error:
        raise explain(error, overrides) from error
    assert isinstance(config, EvalConfig)
    return config


def check_inputs(config: EvalConfig) -> None:
    """What the standard library can tell about the files that the configuration names."""
    for model in (config.draft, config.target):
        _check_model_path(model)
    path = BUILTIN_PROMPTS if config.data.path is None else Path(config.data.path)
    try:
        rows = read_jsonl(path)
    except UserError as error:
        raise UserError(f"data.path: {error}") from error
    select_rows(rows, limit=config.data.limit, category=config.data.category)


def _check_model_path(model: ModelConfig) -> None:
    """Refuses what is written like a path and is no folder; anything else may be a hub id, which costs a look-up."""
    if model.path is None or os.path.isdir(model.path):  # which, unlike Path's, is False for a name too long to be one
        return
    if os.path.exists(model.path):
        raise UserError(f"{model.group}.path: {model.path} is not a folder; give the folder that holds the model")
    if model.path.startswith(("/", "./", "../", "~")):
        raise UserError(f"{model.group}.path: {model.path} does not exist; give a folder, or a hub id such as org/name")


def _check_runs(request: Request, overrides: list[Override], base: DictConfig, *, is_sweep: bool) -> None:
    sweeps = [override for override in overrides if override.is_sweep_override()]
    if not is_sweep:
        if sweeps:
            raise UserError(f"{sweeps[0].input_line} has several values: add -m to sweep over them, or quote the value")
        _check_point(base, request.overrides)
        return
    hydra_overrides = [override.input_line or "" for override in overrides if override.is_hydra_override()]
    for line in hydra_overrides:
        if line.startswith("hydra.sweep.subdir=") and "${" not in line:
            raise UserError(f"{line}: all jobs of the sweep would share one directory; use ${{hydra:job.num}} in it")
    points = _points(overrides, base)
    if not points:
        raise UserError("the sweep has no job: one of its ranges or choices is empty")
    for number, point in enumerate(points):
        try:
            _check_point(_compose(request, [*hydra_overrides, *point]), point)
        except UserError as error:
            raise UserError(f"job {number} of the sweep ({' '.join(point)}): {error}") from error


def _check_point(cfg: DictConfig, overrides: Sequence[str]) -> None:
    check_inputs(to_config(cfg, overrides))


def _points(overrides: Sequence[Override], base: DictConfig) -> list[list[str]]:
    """Overrides of each job, as Hydra's basic sweeper makes them.

    Another sweeper chooses its points while it runs; then only what all of them share can be checked.
    """
    task = [override.input_line or "" for override in overrides if not override.is_hydra_override()]
    sweeper = base.hydra.sweeper
    if sweeper["_target_"] != f"{BasicSweeper.__module__}.{BasicSweeper.__qualname__}":
        return [[override.input_line or "" for override in overrides if not override.is_sweep_override()]]
    params = [f"{key}={value}" for key, value in (sweeper.params or {}).items()]
    (points,) = BasicSweeper.split_arguments(_parse_overrides([*params, *task]), max_batch_size=None)
    return points


def _parse_overrides(overrides: Sequence[str]) -> list[Override]:
    try:
        return OverridesParser.create().parse_overrides(list(overrides))
    except OverrideParseException as error:
        raise explain(error, overrides) from error


def _output_dir(base: DictConfig, *, is_sweep: bool) -> Path:
    """Hydra's directories may refer to its own configuration, which a resolver looks up globally."""
    holder = HydraConfig.instance()
    previous = holder.cfg
    holder.set_config(base)
    try:
        return Path(str(base.hydra.sweep.dir if is_sweep else base.hydra.run.dir))
    except Exception as error:
        raise explain(error, []) from error
    finally:
        holder.cfg = previous


@contextmanager
def _hydra(request: Request) -> Iterator[None]:
    register_schema()
    with initialize_config_dir(str(request.config_dir), job_name=APP_NAME, version_base=VERSION_BASE):
        yield


def _compose(request: Request, overrides: Sequence[str]) -> DictConfig:
    extra = request.extra_config_dir
    search_path = [f"hydra.searchpath=['file://{extra}']"] if extra is not None else []
    try:
        return compose(request.config_name, overrides=[*search_path, *overrides], return_hydra_config=True)
    except Exception as error:  # Hydra lets some mistakes through as bare TypeError or ValueError
        raise explain(error, overrides) from error


def _without(argv: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """The arguments that are no overrides, in their order."""
    left = list(overrides)
    flags = []
    for argument in argv:
        if argument in left:
            left.remove(argument)
        else:
            flags.append(argument)
    return flags
