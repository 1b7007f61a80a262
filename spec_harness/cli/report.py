"""The command ``spec-report``: what finished runs say. No torch: it answers at once, also on a laptop.

Exit codes: 0 done, 2 the directories given cannot be read or compared, 1 interrupted, or damaged in a way that nobody
thought of; one ``error:`` line each.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from spec_harness import __version__
from spec_harness.cli.terminal import print_error, tolerate_encodings
from spec_harness.errors import UserError


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    tolerate_encodings()
    try:
        arguments = _parser().parse_args(argv)
        if arguments.command == "show":
            _show(arguments.directory)
        elif arguments.command == "plot":
            _plot(arguments.directory)
        elif arguments.command == "html":
            _html(arguments.directory)
        else:
            _compare(arguments.directory_a, arguments.directory_b)
    except (UserError, OSError) as error:  # what cannot be written, or read, is named by the error itself
        print_error(error)
        return 2
    except KeyboardInterrupt:
        print_error("interrupted")
        return 1
    except Exception as error:  # a damaged file, in a way that nobody thought of
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        what = f"{type(error).__name__}: {error}"
        print_error(f"cannot be read as what spec-eval left ({what}); HYDRA_FULL_ERROR=1 shows where")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="spec-report", description="Reads what spec-eval left behind.")
    parser.add_argument("--version", action="version", version=f"spec-harness {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    show = commands.add_parser(
        "show",
        help="the table of a run, or one row for each job of a sweep",
        description="Prints the table of a run, with intervals and notes, or of a sweep: fastest first, what to use.",
    )
    show.add_argument("directory", type=Path, metavar="DIR", help="of a run or of a sweep")
    plot = commands.add_parser(
        "plot",
        help="the figures of a run or a sweep, as files",
        description="Draws the figures of a run or a sweep into DIR/figures, each as PNG and SVG.",
    )
    plot.add_argument("directory", type=Path, metavar="DIR", help="of a run or of a sweep")
    html = commands.add_parser(
        "html",
        help="one file to mail: figures, tables, outputs; of a sweep also which draft and length to use",
        description="Writes DIR/report.html, which needs no other file and no network. That of a sweep ends with what "
        "to use, and why.",
    )
    html.add_argument("directory", type=Path, metavar="DIR", help="of a run or of a sweep")
    compare = commands.add_parser(
        "compare",
        help="two runs on the same prompts: which is better, or is it noise?",
        description="Compares two runs with the same target, prompts and sampling (but for its seed), request by "
        "request. Says which is better, or that the difference is within noise.",
    )
    compare.add_argument("directory_a", type=Path, metavar="DIR_A", help="of a run")
    compare.add_argument("directory_b", type=Path, metavar="DIR_B", help="of the run to compare it with")
    return parser


def _show(directory: Path) -> None:
    from spec_harness.report.jobs import is_run, read_run
    from spec_harness.report.terminal import print_summary, print_sweep

    if is_run(directory):
        print_summary(read_run(directory), directory)
    else:
        print_sweep(directory)


def _plot(directory: Path) -> None:
    """matplotlib is imported here, and for the page, only."""
    from spec_harness.report.plots import plot

    for path in plot(directory):
        print(path)


def _html(directory: Path) -> None:
    from spec_harness.report.html import write_html

    print(write_html(directory))


def _compare(directory_a: Path, directory_b: Path) -> None:
    from spec_harness.report.compare import compare
    from spec_harness.report.compare_tables import compare_headline, compare_notes, compare_tables
    from spec_harness.report.load import load_run
    from spec_harness.report.terminal import plain_console, print_headline, print_notes, print_tables

    a, b, console = load_run(directory_a), load_run(directory_b), plain_console()
    differences = compare(a, b)
    print_headline(console, compare_headline(a, b, differences))
    print_tables(console, compare_tables(differences))
    print_notes(console, compare_notes(a, b))


if __name__ == "__main__":
    sys.exit(main())
