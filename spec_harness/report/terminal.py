"""The tables of a run or a sweep in the terminal, in at most 100 columns.

ASCII but for box lines and bars, which fall back where the terminal's encoding lacks them. In a narrow terminal
explanations go first; no figure is ever cut.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich import box
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from spec_harness.report.formats import bar_text, printable
from spec_harness.report.headline import headline
from spec_harness.report.table import MEANING, Bar, Line, Table, holds_figures
from spec_harness.report.tables import run_tables
from spec_harness.results.schema import RunResults

WIDTH = 100  # columns
_UNBOUNDED = 10_000  # columns, wider than any table
_STYLES = {"": "", "good": "bold green", "caution": "bold yellow", "alarm": "bold red"}


def print_summary(
    results: RunResults, directory: Path | None, *, console: Console | None = None, brief: bool = False
) -> None:
    """Print the summary; its last line is where the files are, never wrapped so that it can be copied. ``brief``: for
    one job of many, the headline only."""
    console = plain_console() if console is None else console
    print_headline(console, headline(results))
    if not brief:
        print_tables(console, run_tables(results))
        print_notes(console, results.notes)
    if not brief and console.width < WIDTH:
        console.print(Text("What the figures mean: in report.md, or here at 100 columns.", style="dim"))
    if directory is not None:
        console.print(Text.assemble(("Files: ", "bold"), str(directory)), soft_wrap=True)


def print_sweep(directory: Path) -> None:
    """Its tables, and what they come to. pandas is imported here: the table of a run does without."""
    from spec_harness.report.sweep import load_sweep
    from spec_harness.report.sweep_tables import sweep_headline, sweep_tables
    from spec_harness.report.verdict import verdict

    sweep, console = load_sweep(directory), plain_console()
    print_headline(console, sweep_headline(sweep, name=str(directory)))
    print_tables(console, sweep_tables(sweep))
    answer = verdict(sweep)
    if answer is not None:
        print_notes(console, answer.reasons, title=answer.headline)


def plain_console() -> Console:
    """Standard output. A pipe or a file has no width of its own and gets all 100 columns, unless ``COLUMNS`` says."""
    console = Console()
    known = console.is_terminal or "COLUMNS" in os.environ
    console.width = min(console.width, WIDTH) if known else WIDTH
    return console


def print_headline(console: Console, lines: Sequence[Line]) -> None:
    name = Text.assemble(("spec_harness  ", "bold"), lines[0].text)
    print_part(console, Group(name, *(_text(line) for line in lines[1:])))


def print_notes(console: Console, notes: Sequence[str], *, title: str = "Notes") -> None:
    if notes:
        grid = Grid.grid(padding=(0, 1))
        for note in notes:
            grid.add_row("", "-", Text(note))
        print_part(console, Group(_indented(_title(title)), grid))


def print_part(console: Console, part: RenderableType) -> None:
    console.print(part, width=min(console.width, WIDTH))
    console.print()


def print_tables(console: Console, tables: Sequence[Table]) -> None:
    bar = "#" if console.options.ascii_only else "\N{FULL BLOCK}"
    width = min(console.width, WIDTH)
    for group in _neighbors(tables):
        side_by_side = Grid.grid(padding=(0, 2))
        side_by_side.add_row(*(_grid(table, bar) for table in group))
        if len(group) > 1 and _fits(console, side_by_side, width):
            print_part(console, Group(side_by_side, *(_hint(table.below()) for table in group if table.below())))
        else:
            for table in group:
                print_part(console, _fitting(console, table, bar, width))


def _fitting(console: Console, table: Table, bar: str, width: int) -> Group:
    """Without what is dispensable where columns would have to be squeezed, or with its columns closer together."""
    spare = [name for name in table.dispensable if name in table.columns]
    choices = [(spare[:count], tight) for count in range(len(spare) + 1) for tight in (False, True)]
    if MEANING in spare:  # better no explanations than a crowd
        choices.remove(([], True))
    grids = [(_grid(table, bar, without=without, tight=tight), without) for without, tight in choices]
    fitting = (pair for pair in grids if _fits(console, pair[0], width))
    grid, without = next(fitting, (_grid(table, bar, without=spare), spare))
    return Group(grid, *([_hint(table.below(without))] if table.below(without) else []))


def _fits(console: Console, grid: Grid, width: int) -> bool:
    """No column would have to be squeezed."""
    unbounded = console.options.update(width=_UNBOUNDED)
    return Measurement.get(console, unbounded, grid).maximum <= width


def _neighbors(tables: Sequence[Table]) -> Iterator[list[Table]]:
    """Tables in groups that stand side by side."""
    group: list[Table] = []
    for table in tables:
        if group and not table.beside:
            yield group
            group = []
        group.append(table)
    if group:
        yield group


def _grid(table: Table, bar: str, *, without: Sequence[str] = (), tight: bool = False) -> Grid:
    shown = [i for i, column in enumerate(table.columns) if column not in without]
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, collapse_padding=tight, pad_edge=not tight)
    grid.add_column(_title(table.title), overflow="fold")
    for column in (table.columns[i] for i in shown):
        style = "dim" if column == MEANING else ""
        grid.add_column(column, justify="right" if holds_figures(column) else "left", overflow="fold", style=style)
    for first, *cells in table.rows:
        grid.add_row(_cell(first, bar), *(_cell(cells[i], bar) for i in shown))
    return grid


def _cell(cell: str | Bar | Line, bar: str) -> Text:
    if isinstance(cell, Bar):
        return Text(bar_text(cell.share, blocks=bar != "#"))
    return _text(cell) if isinstance(cell, Line) else Text(printable(cell))


def _text(line: Line) -> Text:
    return Text(printable(line.text), style=_STYLES[line.tone])


def _hint(text: str) -> RenderableType:
    return _indented(Text(text, style="dim"))


def _title(text: str) -> Text:
    return Text(text, style="bold cyan")


def _indented(text: Text) -> RenderableType:
    return Padding(text, (0, 0, 0, 1))
