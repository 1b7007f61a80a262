"""report.md: what the summary shows in the terminal, for whoever reads the files later or pastes them somewhere."""

from collections.abc import Sequence
from pathlib import Path

from spec_harness.report.formats import bar_text
from spec_harness.report.headline import headline, origin
from spec_harness.report.table import Bar, Line, Table, holds_figures
from spec_harness.report.tables import run_tables
from spec_harness.results.schema import RunResults, replace_text


def write_report(path: Path, results: RunResults) -> None:
    parts = [headline_text("spec_harness:", headline(results)), *map(table_text, run_tables(results))]
    parts += [bullets("Notes", results.notes)] if results.notes else []
    replace_text(path, "\n\n".join([*parts, _escaped(origin(results))]) + "\n")


def headline_text(kind: str, lines: Sequence[Line]) -> str:
    title, *others = (_escaped(line.text) for line in lines)
    return "\n\n".join([f"# {kind} {title}", *(f"**{text}**" for text in others)])


def bullets(title: str, texts: Sequence[str]) -> str:
    return "\n".join([f"## {_escaped(title)}", "", *(f"- {_escaped(text)}" for text in texts)])


def table_text(table: Table) -> str:
    """The table, and its hint below it."""
    rules = [":--", *("--:" if holds_figures(column) else ":--" for column in table.columns)]
    rows = [[table.title, *table.columns], rules, *([_cell(cell) for cell in row] for row in table.rows)]
    text = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"{text}\n\n{table.below()}" if table.below() else text


def _cell(cell: str | Bar | Line) -> str:
    if isinstance(cell, Bar):
        return bar_text(cell.share)
    if isinstance(cell, Line):
        return f"**{_escaped(cell.text)}**" if cell.tone else _escaped(cell.text)
    return _escaped(cell)


def _escaped(text: str) -> str:
    """Names and paths are no markup."""
    for character in "\\|*_<[`":
        text = text.replace(character, f"\\{character}")
    return " ".join(text.split())
