"""A run or a sweep in the terminal: its tables, and what they come to."""

from pathlib import Path

from spec_harness.report.jobs import is_run, read_run
from spec_harness.report.terminal import plain_console, print_headline, print_notes, print_summary, print_tables


def show(directory: Path) -> None:
    """Raises ``UserError`` where there is nothing to read."""
    if is_run(directory):
        print_summary(read_run(directory), directory)
    else:
        show_sweep(directory)


def show_sweep(directory: Path) -> None:
    """pandas is imported here: the table of a run does without."""
    from spec_harness.report.sweep import load_sweep
    from spec_harness.report.sweep_tables import sweep_headline, sweep_tables
    from spec_harness.report.verdict import verdict

    sweep, console = load_sweep(directory), plain_console()
    print_headline(console, sweep_headline(sweep, name=str(directory)))
    print_tables(console, sweep_tables(sweep))
    answer = verdict(sweep)
    if answer is not None:
        print_notes(console, answer.reasons, title=answer.headline)
