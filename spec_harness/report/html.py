"""report.html: one file per run or sweep that needs nothing else, to be mailed or kept. No script, no link, no font."""

import re
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from spec_harness.report.headline import headline, origin
from spec_harness.report.jobs import is_run
from spec_harness.report.load import Run, load_run
from spec_harness.report.plots import run_figures, sweep_figures
from spec_harness.report.plots.style import NO_METADATA, styled
from spec_harness.report.plots.token_plot import by_acceptance, generation_tokens
from spec_harness.report.sweep import Sweep, load_sweep
from spec_harness.report.sweep_tables import sweep_headline, sweep_tables
from spec_harness.report.table import Bar, Line, holds_figures
from spec_harness.report.tables import run_tables
from spec_harness.report.token_view import legend_html, tokens_html
from spec_harness.report.verdict import verdict
from spec_harness.results.schema import replace_text

TEMPLATE = "report.html.jinja"
WORST = 5  # generations shown in full


def write_html(directory: str | Path) -> Path:
    """Writes report.html into the directory of a run or a sweep. Raises ``UserError`` if there is nothing to read."""
    folder = Path(directory)
    content = _of_run(load_run(folder)) if is_run(folder) else _of_sweep(load_sweep(folder))
    pages = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined)
    pages.trim_blocks = pages.lstrip_blocks = True
    pages.globals |= {"holds_figures": holds_figures, "run_tables": run_tables, "origin": origin}
    pages.globals["legend"] = Markup(legend_html())
    pages.tests |= {"bar": lambda cell: isinstance(cell, Bar), "line": lambda cell: isinstance(cell, Line)}
    replace_text(folder / "report.html", pages.get_template(TEMPLATE).render(content))
    return folder / "report.html"


def _of_run(run: Run) -> dict[str, Any]:
    shown = {"headline": headline(run.results), "figures": _inline(run_figures(run)), "outputs": _outputs(run)}
    return {"kind": "one run", "tables": run_tables(run.results), "run": run, "verdict": None} | shown


def _of_sweep(sweep: Sweep) -> dict[str, Any]:
    answer, lines = verdict(sweep), sweep_headline(sweep, name=sweep.directory.absolute().name)
    shown = {"headline": lines, "figures": _inline(sweep_figures(sweep)), "outputs": []}
    best = None if answer is None else answer.run
    return {"kind": "a sweep", "tables": sweep_tables(sweep), "run": best, "verdict": answer} | shown


def _inline(figures: Mapping[str, Figure]) -> list[tuple[str, Markup]]:
    """Title and picture of each."""
    return [(figure.axes[0].get_title(loc="left"), inline_svg(figure, name)) for name, figure in figures.items()]


def inline_svg(figure: Figure, name: str) -> Markup:
    """The figure as an element of a page: without what only a file needs, its ids made its own by ``name``."""
    file = BytesIO()
    with styled():
        figure.savefig(file, format="svg", metadata=NO_METADATA)
    svg = file.getvalue().decode()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|\sxmlns(:xlink)?=\"[^\"]*\"", "", svg, flags=re.DOTALL)
    return Markup(re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{name}-", svg.replace("xlink:href", "href")))


def _outputs(run: Run) -> list[dict[str, Any]]:
    """Those in which the draft was least often right, token by token."""
    texts = run.token_texts()
    if texts is None:
        return []
    found = []
    for row in by_acceptance(run)[:WORST]:
        generation, kinds = generation_tokens(run, row["request_id"], row["turn"], row["sample"])
        title = f"{row['request_id']}: {row['acceptance_rate']:.0%} of {row['draft_tokens']:,} draft tokens accepted"
        colored = Markup(tokens_html(generation["token_ids"], kinds, texts))
        found.append({"title": title, "prompt": generation["prompt"], "tokens": colored})
    return found
