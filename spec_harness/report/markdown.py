"""report.md: what the summary shows in the terminal, for whoever reads the files later or pastes them somewhere."""

from pathlib import Path

from spec_harness.report.formats import bar_text
from spec_harness.report.table import Bar, Line, Table, holds_figures
from spec_harness.report.tables import headline, run_tables
from spec_harness.results.schema import RunResults, replace_text


def write_report(path: Path, results: RunResults) -> None:
    replace_text(path, report_text(results))


def report_text(results: RunResults) -> str:
    who, *answers = headline(results)
    parts = [f"# spec_harness: {escaped(who.text)}", *(f"**{escaped(line.text)}**" for line in answers)]
    for table in run_tables(results):
        parts.append(table_text(table))
        parts += [table.hint] if table.hint else []
    if results.notes:
        parts += ["## Notes", "\n".join(f"- {escaped(note)}" for note in results.notes)]
    started = results.provenance.started_at.strftime("%Y-%m-%d %H:%M")
    parts.append(f"Started {started}, {results.provenance.duration_s:.0f} s on {results.provenance.device}.")
    return "\n\n".join(parts) + "\n"


def table_text(table: Table) -> str:
    rules = [":--", *("--:" if holds_figures(column) else ":--" for column in table.columns)]
    rows = [[table.title, *table.columns], rules, *([_cell(cell) for cell in row] for row in table.rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(cell: str | Bar | Line) -> str:
    if isinstance(cell, Bar):
        return bar_text(cell.share)
    if isinstance(cell, Line):
        return f"**{escaped(cell.text)}**" if cell.tone else escaped(cell.text)
    return escaped(cell)


def escaped(text: str) -> str:
    """Names and paths are no markup."""
    for character in "\\|*_<[`":
        text = text.replace(character, f"\\{character}")
    return " ".join(text.split())
