"""The command line of ``spec-eval``: Hydra's flags and overrides, told apart before Hydra sees them."""

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spec_harness.cli.application import APP_NAME, CONFIG_NAME
from spec_harness.config import EvalConfig
from spec_harness.errors import UserError
from spec_harness.validation import takes_text

_NUMBERS = re.compile(r"[\w.+-]+(,[\w.+-]+)*")


@dataclass(frozen=True)
class CommandLine:
    """A parsed command line."""

    overrides: list[str]
    flags: list[str]  # every argument that is no override
    multirun: bool
    composes: bool  # whether it needs a configuration at all
    runs: bool  # false: it only shows something
    config_name: str
    extra_config_dir: Path | None

    def argv(self, *more_overrides: str) -> list[str]:
        """Arguments in the one order that Hydra's parser accepts with every flag."""
        return [*self.overrides, *more_overrides, *self.flags]


def parse(argv: Sequence[str]) -> CommandLine:
    """Flags may stand before, between and after the overrides. Raises ``UserError``."""
    try:
        args, unknown = _parser().parse_known_intermixed_args(list(argv))
    except argparse.ArgumentError as error:
        raise UserError(f"{error}; see {APP_NAME} --help") from error
    if unknown:
        raise UserError(f"unknown argument {unknown[0]}; see {APP_NAME} --help")
    modes = [args.run, args.multirun, args.cfg, args.info, args.shell_completion]
    if sum(bool(mode) for mode in modes) > 1:
        raise UserError("only one of --run, --multirun (-m), --cfg, --info and --shell-completion can be given")
    if args.resolve and not (args.cfg or args.help):
        raise UserError("--resolve needs --cfg job")
    if args.config_dir and not Path(args.config_dir).is_dir():
        raise UserError(f"--config-dir: there is no folder {args.config_dir}")
    return CommandLine(
        overrides=[_text_quoted(override) for override in args.overrides],
        flags=_without(argv, args.overrides),
        multirun=args.multirun,
        composes=not (args.hydra_help or args.shell_completion),
        runs=not (args.help or args.hydra_help or args.shell_completion or args.cfg or args.info),
        config_name=args.config_name or CONFIG_NAME,
        extra_config_dir=Path(args.config_dir).absolute() if args.config_dir else None,
    )


def _parser() -> argparse.ArgumentParser:
    """The flags of Hydra that mean something here."""
    parser = argparse.ArgumentParser(prog=APP_NAME, add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("overrides", nargs="*")
    for flags in (
        ("--help", "-h"),
        ("--hydra-help",),
        ("--resolve",),
        ("--run", "-r"),
        ("--multirun", "-m"),
        ("--shell-completion", "-sc"),
    ):
        parser.add_argument(*flags, action="store_true")
    for flags in (("--package", "-p"), ("--config-name", "-cn"), ("--config-dir", "-cd")):
        parser.add_argument(*flags)
    parser.add_argument("--cfg", "-c", choices=["job", "hydra", "all"])
    choices = ["all", "config", "defaults", "defaults-tree", "plugins", "searchpath"]
    parser.add_argument("--info", "-i", const="all", nargs="?", choices=choices)
    return parser


def _text_quoted(override: str) -> str:
    """Where text belongs, a number is text: the tag 2.10 must not become 2.1, nor the commit 12e4567 infinite."""
    key, _, value = override.partition("=")
    if not (takes_text(EvalConfig, key.lstrip("+")) and _NUMBERS.fullmatch(value)):
        return override
    parts = [f"'{part}'" if part[0] in "+-.0123456789" else part for part in value.split(",")]
    return f"{key}={','.join(parts)}"


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
