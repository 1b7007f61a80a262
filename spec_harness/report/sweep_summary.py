"""sweep_summary.parquet and sweep_summary.md, beside the jobs of a sweep: one row each, failed ones with the reason.

No torch: it is written by the process that started the sweep, which may never have loaded it.
"""

from pathlib import Path

import pandas as pd

from spec_harness.report.load import load_sweep
from spec_harness.report.markdown import escaped, table_text
from spec_harness.report.points import points
from spec_harness.report.sweep_tables import sweep_headline, sweep_tables
from spec_harness.report.verdict import verdict
from spec_harness.results.schema import replace_text

PARQUET, MARKDOWN = "sweep_summary.parquet", "sweep_summary.md"


def write_sweep_summary(directory: Path) -> None:
    """Of all jobs in ``directory``. Raises ``UserError`` if there is none."""
    sweep = load_sweep(directory)
    temporary = directory / f"{PARQUET}.tmp"
    storable(sweep.jobs).to_parquet(temporary, index=False)
    temporary.replace(directory / PARQUET)
    jobs = sweep.all_jobs
    title, *answers = sweep_headline(jobs, name=directory.absolute().name)
    parts = [f"# Sweep {escaped(title.text)}", *(f"**{escaped(line.text)}**" for line in answers)]
    for block in sweep_tables(jobs):
        parts += [table_text(block), block.hint] if block.hint else [table_text(block)]
    answer = verdict(points(sweep.runs))
    if answer is not None:
        parts += [f"## {escaped(answer.headline)}", "\n".join(f"- {escaped(reason)}" for reason in answer.reasons)]
    parts.append("Figures and tables to mail: `spec-report html` with this directory.")
    replace_text(directory / MARKDOWN, "\n\n".join(parts) + "\n")


def storable(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with one type a column. A key's value is a number where its job has results, and text where it failed:
    numbers where all are."""
    columns = {}
    for name, column in frame.items():
        known = column.dropna()
        if column.dtype != object or known.map(type).nunique() <= 1:
            columns[name] = column
            continue
        numbers = pd.to_numeric(column, errors="coerce")
        columns[name] = numbers if numbers.notna().sum() == len(known) else column.where(column.isna(), column.map(str))
    return pd.DataFrame(columns)
