"""Figures over the runs of a sweep. Each returns ``None`` where the sweep did not vary what it shows."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from spec_harness.report.formats import plural
from spec_harness.report.plots.run_plots import INTERVALS
from spec_harness.report.plots.style import (
    GRAY,
    PALETTE,
    error_bars,
    new_figure,
    readable_on,
    series_handle,
    series_style,
)
from spec_harness.report.sweep import Row, Sweep, estimate


def acceptance_length_curve(sweep: Sweep) -> Figure | None:
    """Tokens that a round with a proposal yields, over k."""
    series = _series(sweep)
    note = (
        f"{INTERVALS}. Accepted draft tokens of a proposal plus the target's own token; dotted: all accepted (k + 1)."
    )
    figure, axes = new_figure(height=3.6, note=note)
    if not _draw(axes, series, "mean_acceptance_length"):
        return None
    bottom, top = axes.get_ylim()
    longest = max(row["k"] for row in sweep.ranked)
    (ceiling,) = axes.plot([0, longest], [1, longest + 1], color=GRAY, linestyle=":", linewidth=1, label="all accepted")
    axes.set(title="Tokens that a round yields", ylabel="mean acceptance length (tokens)")
    axes.set_ylim(min(1, bottom), 1.05 * top)
    _over_k(axes, sweep, [*map(series_handle, range(len(series)), series), ceiling])
    return figure


def speedup_curve(sweep: Sweep) -> Figure | None:
    """Measured speed-up over k with its interval, beside what step times and acceptance predict."""
    series = _series(sweep)
    doubted = [row for row in sweep.ranked if row["disagrees_with_prediction"]]
    note = (
        f"{INTERVALS} (not the machine's own noise). Hollow, dashed: predicted from the run's acceptance and a "
        f"separate profile of single steps, with its prefill. {_over(sweep)}"
    )
    if doubted:
        note += " A question mark: measured other than acceptance and step times predict, so repeat that run."
    figure, axes = new_figure(height=3.8, note=note)
    if not _draw(axes, series, "pooled_speedup"):
        return None
    for row in doubted:
        place = (row["k"], row["pooled_speedup"])
        axes.annotate("?", place, (6, 4), textcoords="offset points", fontweight="bold")
    for i, own in enumerate(series.values()):
        known = [row for row in own if row["predicted_whole_speedup"] is not None]
        xs, ys = ([row[name] for row in known] for name in ("k", "predicted_whole_speedup"))
        axes.plot(xs, ys, "--", markerfacecolor="white", linewidth=1, **series_style(i))
    axes.axhline(1, color="black", linewidth=1)
    axes.set(title="Speed-up over plain decoding", ylabel="tokens per second / plain decoding's")
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0.9), max(high, 1.1))
    style = series_style(0) if len(series) == 1 else {"color": GRAY, "marker": "o"}
    predicted = Line2D([], [], linestyle="--", markerfacecolor="white", linewidth=1, label="predicted", **style)
    _over_k(axes, sweep, [*map(series_handle, range(len(series)), series), predicted])
    return figure


def speed_forest(sweep: Sweep) -> Figure | None:
    """One row a run, best on top: the speed-up, or where plain decoding was not run the tokens per second."""
    compared = any(row["pooled_speedup"] is not None for row in sweep.ranked)
    name = "pooled_speedup" if compared else "speculative_tokens_per_second"
    rows = sorted((row for row in sweep.ranked if row.get(name) is not None), key=lambda row: -row[name])
    if len(rows) < 2:
        return None
    note = f"{INTERVALS}: the choice of prompts, not the machine's own noise. Best on top."
    note += f" {_over(sweep)}" if compared else ""
    figure, axes = new_figure(height=1.5 + 0.28 * len(rows), note=note)
    values, bars = [row[name] for row in rows], error_bars([estimate(row, name) for row in rows])
    axes.errorbar(values, range(len(rows)), xerr=bars, color=PALETTE[0], marker="s", linestyle="none")
    axes.set_yticks(range(len(rows)), [row["label"] for row in rows])
    axes.set(ylim=(len(rows) - 0.4, -0.6), title="Speed-up of each run" if compared else "Speed of each run")
    axes.set_xlabel("tokens per second / plain decoding's" if compared else "output tokens per second")
    if compared:
        axes.axvline(1, color="black", linewidth=1)
    axes.margins(x=0.08)
    axes.grid(visible=False, axis="y")
    return figure


def kv_heat_map(sweep: Sweep) -> Figure | None:
    """Tokens per second by block size and pool; preemptions in each cell. Runs that share a cell are averaged."""
    name = "speculative_tokens_per_second"
    cells: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for row in sweep.ranked:
        if "num_blocks" in row and row.get(name) is not None:
            cells[row["num_blocks"], row["block_size"]].append(row)
    pools, sizes = sorted({pool for pool, _ in cells}), sorted({size for _, size in cells})
    if len(cells) < 2 or not any("kv_cache." in row["other_settings"] for row in sweep.ranked):
        return None
    speeds = np.array([[_mean(cells[pool, size], name) for size in sizes] for pool in pools])
    note = "Preemptions: times a sequence had to give its blocks back and come back later; mean of the runs in a cell."
    figure, axes = new_figure(height=1.7 + 0.55 * len(pools), note=note)
    image = axes.imshow(speeds, cmap="cividis", aspect="auto", origin="lower")
    figure.colorbar(image, ax=axes, label="output tokens per second", pad=0.02)
    for (i, j), speed in np.ndenumerate(speeds):
        if np.isnan(speed):
            continue
        preemptions = round(_mean(cells[pools[i], sizes[j]], "preemptions"))
        room = f"room for {pools[i] * sizes[j]:,} tokens"
        text = f"{speed:,.0f} tokens/s\n{plural(preemptions, 'preemption')}\n{room}"
        color = readable_on([float(x) for x in image.cmap(image.norm(speed))])
        axes.text(j, i, text, ha="center", va="center", color=color, fontsize=8)
    axes.set_xticks(range(len(sizes)), [str(size) for size in sizes])
    axes.set_yticks(range(len(pools)), [f"{pool:,}" for pool in pools])
    axes.set(title="KV cache: speed and preemptions", xlabel="block size (tokens)", ylabel="blocks in the pool")
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    return figure


def _over(sweep: Sweep) -> str:
    return f"Over plain decoding {'in the same run' if sweep.pooled is None else '(its median over the runs)'}."


def _series(sweep: Sweep) -> dict[str, list[Row]]:
    """Rows by series, each in the order of k."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in sweep.ranked:
        if row["proposer_name"] != "none":
            found[row["series"]].append(row)
    return {name: sorted(own, key=lambda row: row["k"]) for name, own in found.items()}


def _draw(axes: Axes, series: dict[str, list[Row]], figure: str) -> bool:
    """A line with intervals for each series. False where no series has two values of k: that is no curve."""
    curve = False
    for i, (name, own) in enumerate(series.items()):
        known = [row for row in own if row[figure] is not None]
        xs, ys = ([row[column] for row in known] for column in ("k", figure))
        curve = curve or len(set(xs)) > 1
        bars = error_bars([estimate(row, figure) for row in known])
        axes.errorbar(xs, ys, yerr=bars, label=name, **series_style(i))
    return curve


def _over_k(axes: Axes, sweep: Sweep, legend: Sequence[Line2D]) -> None:
    lengths = [row["k"] for row in sweep.ranked]
    axes.set_xlabel("proposal length k (draft tokens per round, at most)")
    axes.set_xlim(min(lengths) - 0.5, max(lengths) + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(handles=list(legend), loc="best")


def _mean(rows: Sequence[Row], figure: str) -> float:
    return float(np.mean([row.get(figure) or 0 for row in rows])) if rows else float("nan")
