"""sweep_summary.parquet and sweep_summary.md, beside the jobs of a sweep: one row each, failed ones with the reason.

No torch: it is written by the process that started the sweep, which may never have loaded it.
"""

from pathlib import Path
from typing import Any

import pandas as pd

from spec_harness.report.markdown import bullets, headline_text, table_text
from spec_harness.report.sweep import load_sweep
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
    lines = sweep_headline(sweep, name=directory.absolute().name)
    parts = [headline_text("Sweep", lines), *map(table_text, sweep_tables(sweep))]
    answer = verdict(sweep)
    if answer is not None:
        parts.append(bullets(answer.headline, answer.reasons))
    parts.append("Figures and tables to mail: `spec-report html` with this directory.")
    replace_text(directory / MARKDOWN, "\n\n".join(parts) + "\n")


def storable(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with one type a column. A key's value is a number where its job has results, and text where it failed:
    numbers where all are."""
    return pd.DataFrame({name: _of_one_type(column) for name, column in frame.items()})


def _of_one_type(column: "pd.Series[Any]") -> "pd.Series[Any]":
    known = column.dropna()
    if known.map(type).nunique() <= 1:
        return column
    numbers = pd.to_numeric(column, errors="coerce")
    return numbers if numbers.notna().sum() == len(known) else column.map(str, na_action="ignore")
