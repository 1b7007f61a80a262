"""How every figure looks: one palette that color-blind people and gray printers can read, one size, one footnote.

Figures are made without pyplot, so nothing global remembers them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from spec_harness.results.schema import Estimate

# Okabe and Ito's colors, the best to tell apart first; a series also has a marker and a line of its own.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GRAY, LIGHT = "#5f5f5f", "#d9d9d9"
STAGES = {  # of the engine, from light to dark within the draft's and the target's work
    "prefill": "#999999",
    "propose": "#E69F00",
    "score": "#0072B2",
    "verify": "#56B4E9",
    "commit": "#CC79A7",
    "scheduler": "#444444",
}
HATCHES = {"propose": "///", "verify": "...", "commit": "xx"}  # what would be the same gray in print
WIDTH = 6.4  # inches: the width of a page's text
_SETTINGS: dict[str, Any] = {
    "font.size": 9,
    "font.family": "DejaVu Sans",  # comes with matplotlib: a figure looks the same everywhere
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GRAY,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LIGHT,
    "grid.linewidth": 0.6,
    "xtick.color": GRAY,
    "ytick.color": GRAY,
    "xtick.labelcolor": "black",
    "ytick.labelcolor": "black",
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.6,
    "lines.markersize": 5.5,
    "errorbar.capsize": 3,
    "text.parse_math": False,  # names and paths are no formulas
    "savefig.facecolor": "white",
    "hatch.linewidth": 0.5,
    "svg.fonttype": "path",  # text does not depend on the reader's fonts
    "svg.hashsalt": "spec_harness",  # the same figure gives the same file
}
NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}


@contextmanager
def styled() -> Iterator[None]:
    """Figures made, and saved, inside the block look alike."""
    with mpl.rc_context(_SETTINGS):  # type: ignore[arg-type]  # its stubs want literal keys
        yield


def new_figure(*, height: float, note: str = "") -> tuple[Figure, Axes]:
    """An empty figure of ``height`` inches with one pair of axes, and below them what a reader must know."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    if note:
        figure.supxlabel(fill(note, 112), x=0.01, ha="left", fontsize=7.5, color=GRAY)
    return figure, figure.add_subplot()


def save(figure: Figure, stem: Path) -> list[Path]:
    """Writes ``stem``.png and ``stem``.svg."""
    paths = [stem.with_name(f"{stem.name}.png"), stem.with_name(f"{stem.name}.svg")]
    with styled():
        figure.savefig(paths[0], dpi=160)
        figure.savefig(paths[1], metadata=NO_METADATA)
    return paths


def error_bars(estimates: Sequence[Estimate]) -> list[list[float]]:
    """Distances below and above each (known) value for ``Axes.errorbar``; none where there is no interval."""
    known = [(one.value, *(one.ci95 or (one.value, one.value))) for one in estimates if one.value is not None]
    return [[max(0.0, value - low) for value, low, _ in known], [max(0.0, high - value) for value, _, high in known]]


def series_style(i: int) -> dict[str, Any]:
    """Color and marker of the i-th series."""
    return {"color": PALETTE[i % len(PALETTE)], "marker": MARKERS[i % len(MARKERS)]}


def series_handle(i: int, name: str) -> Line2D:
    """Its entry in a legend."""
    return Line2D([], [], label=name, **series_style(i))


def readable_on(color: Sequence[float]) -> str:
    """Black or white, whichever can be read on ``color`` (red, green, blue, opacity; 0 to 1)."""
    red, green, blue, _ = color
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
