"""report.html: one file per run or sweep that needs nothing else, to be mailed or kept. No script, no link, no font."""

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from io import BytesIO
from pathlib import Path

from matplotlib.figure import Figure

from spec_harness.report.jobs import is_run
from spec_harness.report.load import Run, Sweep, load_run, load_sweep
from spec_harness.report.plots import run_figures, sweep_figures
from spec_harness.report.plots.token_plot import by_acceptance, generation_tokens
from spec_harness.report.points import points
from spec_harness.report.style import NO_METADATA, styled
from spec_harness.report.sweep_tables import sweep_headline, sweep_tables
from spec_harness.report.table import Bar, Line, Table, holds_figures
from spec_harness.report.tables import headline, run_tables
from spec_harness.report.token_view import legend_html, tokens_html
from spec_harness.report.verdict import Verdict, verdict
from spec_harness.results.schema import RunResults, replace_text

WORST = 5  # generations shown in full
_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #111; background: #fff; }
body { max-width: 54rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: .5rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; border-bottom: 2px solid #0072B2; }
p, li { overflow-wrap: anywhere; }
figure { margin: 1.2rem 0; }
figure svg { display: table; width: 100%; max-width: 46rem; height: auto; }
.table { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .87rem; }
th, td { padding: .2rem .7rem .2rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid #ddd; }
th { border-bottom: 2px solid #666; white-space: nowrap; }
td:first-child { white-space: nowrap; }
td:last-child:not(.number) { min-width: 12rem; }
.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.bar { background: #0072B2; height: .8em; min-width: 1px; }
.hint { color: #555; font-size: .82rem; margin: .2rem 0 0; }
.good { color: #00684b; font-weight: 600; }
.caution { color: #8a4b00; font-weight: 600; }
.alarm { color: #b00020; font-weight: 600; }
.verdict { border-left: .3rem solid #0072B2; background: #f2f7fb; padding: .7rem 1rem; font-size: 1.05rem; }
details { margin: .6rem 0; border-bottom: 1px solid #ddd; padding-bottom: .6rem; }
summary { cursor: pointer; }
@media print { details { break-inside: avoid; } figure { break-inside: avoid; } }
"""


def write_html(directory: str | Path) -> Path:
    """Writes report.html into the directory of a run or a sweep. Raises ``UserError`` if there is nothing to read."""
    folder = Path(directory)
    if is_run(folder):
        title, body = "Speculative decoding: one run", _run_body(load_run(folder))
    else:
        title, body = "Speculative decoding: a sweep", _sweep_body(load_sweep(folder))
    content = "\n".join(body)
    page = (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body>\n{content}\n</body></html>\n"
    )
    replace_text(folder / "report.html", page)
    return folder / "report.html"


def _run_body(run: Run) -> Iterator[str]:
    results = run.results
    yield from _headline(headline(results))
    yield from _figures(run_figures(run))
    yield "<h2>Tables</h2>"
    yield from map(_table, run_tables(results))
    yield from _generations(run)
    yield from _notes(results)
    yield _origin(results)


def _sweep_body(sweep: Sweep) -> Iterator[str]:
    jobs, found = sweep.all_jobs, points(sweep.runs)
    answer = verdict(found)
    yield from _headline(sweep_headline(jobs, name=sweep.directory.absolute().name))
    if answer is not None:
        yield f'<p class="verdict">{escape(answer.headline)}</p>'
    yield from _figures(sweep_figures(sweep))
    yield "<h2>Jobs</h2>"
    yield from map(_table, sweep_tables(jobs))
    if answer is not None:
        yield f"<h2>Run {escape(answer.best.label)} in full</h2>"
        yield '<p class="hint">Its speed-up here is over plain decoding in this run alone.</p>'
        yield from map(_table, run_tables(answer.best.run.results))
        yield from _notes(answer.best.run.results)
        yield _origin(answer.best.run.results)
        yield from _advice(answer)


def _headline(lines: Sequence[Line]) -> Iterator[str]:
    yield f"<h1>{escape(lines[0].text)}</h1>"
    for line in lines[1:]:
        yield f'<p class="{line.tone}">{escape(line.text)}</p>'


def _advice(answer: Verdict) -> Iterator[str]:
    yield "<h2>What to use</h2>"
    yield f'<p class="verdict">{escape(answer.headline)}</p>'
    yield "<p>Why:</p><ul>" + "".join(f"<li>{escape(reason)}</li>" for reason in answer.reasons) + "</ul>"
    yield (
        '<p class="hint">Speed-ups are measured, over plain decoding on the same engine and prompts. Their intervals '
        "cover the choice of prompts, not the machine's own noise. Acceptance travels between machines, speed does "
        "not: measure again where you will serve.</p>"
    )


def _figures(figures: Mapping[str, Figure]) -> Iterator[str]:
    if figures:
        yield "<h2>Figures</h2>"
    for name, figure in figures.items():
        title = escape(figure.axes[0].get_title(loc="left"), quote=True)
        yield f'<figure role="img" aria-label="{title}">{inline_svg(figure, name)}</figure>'


def inline_svg(figure: Figure, name: str) -> str:
    """The figure as an element of a page: without what only a file needs, its ids made its own by ``name``."""
    file = BytesIO()
    with styled():
        figure.savefig(file, format="svg", metadata=NO_METADATA)
    svg = file.getvalue().decode()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|\sxmlns(:xlink)?=\"[^\"]*\"", "", svg, flags=re.DOTALL)
    return re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{name}-", svg.replace("xlink:href", "href"))


def _table(table: Table) -> str:
    """Columns of figures are right-aligned."""
    kinds = ["", *(' class="number"' if holds_figures(column) else "" for column in table.columns)]
    head = "".join(
        f"<th{kind}>{escape(name)}</th>" for kind, name in zip(kinds, [table.title, *table.columns], strict=True)
    )
    rows = ["".join(f"<td{k}>{_cell(cell)}</td>" for k, cell in zip(kinds, row, strict=True)) for row in table.rows]
    hint = f'<p class="hint">{escape(table.hint)}</p>' if table.hint else ""
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{hint}</div>'


def _cell(cell: str | Bar | Line) -> str:
    if isinstance(cell, Bar):
        return f'<div class="bar" style="width:{8 * cell.share:.2f}rem"></div>'
    if isinstance(cell, Line):
        return f'<span class="{cell.tone}">{escape(cell.text)}</span>'
    return escape(cell)


def _generations(run: Run) -> Iterator[str]:
    """The outputs in which the draft was least often right, token by token."""
    texts, worst = run.token_texts(), by_acceptance(run)[:WORST]
    if not worst or texts is None:
        return
    yield f"<h2>Where the draft was least often right</h2>{legend_html()}"
    for row in worst:
        generation, kinds = generation_tokens(run, row["request_id"], row["turn"], row["sample"])
        rate, drafted = row["acceptance_rate"], row["draft_tokens"]
        title = f"{row['request_id']}: {rate:.0%} of {drafted:,} draft tokens accepted"
        colored = tokens_html(generation["token_ids"], kinds, texts)
        prompt = f'<pre style="white-space:pre-wrap;color:#555;margin:0 0 .4rem">{escape(generation["prompt"])}</pre>'
        yield f"<details open><summary>{escape(title)}</summary>{prompt}{colored}</details>"


def _notes(results: RunResults) -> Iterator[str]:
    if results.notes:
        yield "<h2>Notes</h2><ul>" + "".join(f"<li>{escape(note)}</li>" for note in results.notes) + "</ul>"


def _origin(results: RunResults) -> str:
    source = results.provenance
    started = source.started_at.strftime("%Y-%m-%d %H:%M")
    versions = f"spec_harness {source.versions.spec_harness}, torch {source.versions.torch}"
    threads = f"{source.threads} thread{'' if source.threads == 1 else 's'}"
    text = f"Started {started}, {source.duration_s:.0f} s on {source.device} ({threads}). {versions}."
    return f'<p class="hint">{escape(text)}</p>'
