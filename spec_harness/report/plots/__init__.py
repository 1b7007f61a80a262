"""The figures of a run or a sweep, by name, and as files."""

from pathlib import Path

from matplotlib.figure import Figure

from spec_harness.errors import UserError
from spec_harness.report.jobs import is_run
from spec_harness.report.load import Run, load_run
from spec_harness.report.plots import run_plots, sweep_plots
from spec_harness.report.plots.style import save, styled
from spec_harness.report.plots.time_plot import time_per_token
from spec_harness.report.plots.token_plot import token_view
from spec_harness.report.sweep import Sweep, load_sweep, table_rows

FOLDER = "figures"


def plot(directory: str | Path) -> list[Path]:
    """Writes the figures of the run or sweep in ``directory`` into its ``figures/``, as PNG and SVG. Raises
    ``UserError`` where there is nothing to read or nothing to show."""
    folder = Path(directory)
    figures = run_figures(load_run(folder)) if is_run(folder) else sweep_figures(load_sweep(folder))
    if not figures:
        raise UserError(f"{folder}: no run with figures to draw")
    (folder / FOLDER).mkdir(exist_ok=True)
    return [path for name, figure in figures.items() for path in save(figure, folder / FOLDER / name)]


def run_figures(run: Run) -> dict[str, Figure]:
    """By file name, in the order in which one reads them; what a run cannot show is left out."""
    with styled():
        figures = {
            "acceptance_by_position": run_plots.acceptance_by_position(run),
            "accepted_lengths": run_plots.accepted_lengths(run),
            "time_per_token": time_per_token(table_rows([run.results]), pooled=False),
            "categories": run_plots.categories(run),
            "confidence": run_plots.confidence(run),
            "tokens": token_view(run),
        }
    return {name: figure for name, figure in figures.items() if figure is not None}


def sweep_figures(sweep: Sweep) -> dict[str, Figure]:
    """The same for a sweep."""
    with styled():
        figures = {
            "speedup_over_length": sweep_plots.speedup_curve(sweep),
            "acceptance_length_over_length": sweep_plots.acceptance_length_curve(sweep),
            "speed_by_run": sweep_plots.speed_forest(sweep),
            "kv_cache": sweep_plots.kv_heat_map(sweep),
            "time_per_token": time_per_token(sweep.ranked, pooled=sweep.pooled is not None),
        }
    return {name: figure for name, figure in figures.items() if figure is not None}
