"""Figures over the runs of a sweep. Each returns ``None`` where the sweep did not vary what it shows."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from spec_harness.report.plots.run_plots import INTERVALS
from spec_harness.report.points import NOBODY, Point
from spec_harness.report.pooled_baseline import PooledBaseline, disagrees_with_prediction, pooled_baseline, speedup_over
from spec_harness.report.round_cost import whole_prediction
from spec_harness.report.style import (
    GRAY,
    PALETTE,
    errors,
    new_figure,
    readable_on,
    series_handle,
    series_style,
)
from spec_harness.results.schema import Estimate, KVResults


def acceptance_length_curve(points: Sequence[Point]) -> Figure | None:
    """Tokens that a round with a proposal yields, over k."""
    series = {
        name: [(p.k, p.run.results.proposal.mean_acceptance_length) for p in own] for name, own in _series(points)
    }
    note = (
        f"{INTERVALS}. Accepted draft tokens of a proposal plus the target's own token; dotted: all accepted (k + 1)."
    )
    figure, axes = new_figure(height=3.6, note=note)
    if not _draw(axes, series):
        return None
    bottom, top = axes.get_ylim()
    longest = max(point.k for point in points)
    (ceiling,) = axes.plot([0, longest], [1, longest + 1], color=GRAY, linestyle=":", linewidth=1, label="all accepted")
    axes.set(
        title="Tokens that a round yields", ylabel="mean acceptance length (tokens)", ylim=(min(1, bottom), 1.05 * top)
    )
    _over_k(axes, points, [*map(series_handle, range(len(series)), series), ceiling])
    return figure


def speedup_curve(points: Sequence[Point]) -> Figure | None:
    """Measured speed-up over k with its interval, beside what step times and acceptance predict."""
    timed = {name: [(p.k, timing) for p in own if (timing := p.run.results.timing)] for name, own in _series(points)}
    pooled = pooled_baseline([point.run.results for point in points])
    measured = {name: [(p.k, speedup_over(pooled, p.run.results)) for p in own] for name, own in _series(points)}
    note = (
        f"{INTERVALS} (not the machine's own noise). Hollow, dashed: predicted from the run's acceptance and a "
        f"separate profile of single steps, with its prefill. {_over(pooled)}{_doubt(points, pooled)}"
    )
    figure, axes = new_figure(height=3.8, note=note)
    if not _draw(axes, measured):
        return None
    _mark_doubtful(axes, points, pooled)
    for i, own in enumerate(timed.values()):
        known = [(k, value) for k, timing in own if (value := whole_prediction(timing)) is not None]
        xs, ys = [k for k, _ in known], [y for _, y in known]
        axes.plot(xs, ys, "--", markerfacecolor="white", linewidth=1, **series_style(i))
    axes.axhline(1, color="black", linewidth=1)
    axes.set(title="Speed-up over plain decoding", ylabel="tokens per second / plain decoding's")
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0.9), max(high, 1.1))
    style = series_style(0) if len(timed) == 1 else {"color": GRAY, "marker": "o"}
    predicted = Line2D([], [], linestyle="--", markerfacecolor="white", linewidth=1, label="predicted", **style)
    _over_k(axes, points, [*map(series_handle, range(len(timed)), timed), predicted])
    return figure


def speed_forest(points: Sequence[Point]) -> Figure | None:
    """One row a run, best on top: the speed-up, or where plain decoding was not run the tokens per second."""
    pooled = pooled_baseline([point.run.results for point in points])
    pairs = [(p, speedup_over(pooled, p.run.results)) for p in points]
    rows = [(p, e, e.value) for p, e in pairs if e.value is not None]
    compared = bool(rows)
    if not compared:
        speeds = [(p, timing.speculative_tokens_per_second) for p in points if (timing := p.run.results.timing)]
        rows = [(p, e, e.value) for p, e in speeds if e.value is not None]
    if len(rows) < 2:
        return None
    rows.sort(key=lambda row: -row[2])
    note = f"{INTERVALS}: the choice of prompts, not the machine's own noise. Best on top."
    note += f" {_over(pooled)}" if compared else ""
    figure, axes = new_figure(height=1.5 + 0.28 * len(rows), note=note)
    values = [value for _, _, value in rows]
    axes.errorbar(
        values,
        range(len(rows)),
        xerr=errors(values, [estimate.ci95 for _, estimate, _ in rows]),
        color=PALETTE[0],
        marker="s",
        linestyle="none",
    )
    axes.set_yticks(range(len(rows)), [point.label for point, _, _ in rows])
    axes.set(ylim=(len(rows) - 0.4, -0.6), title="Speed-up of each run" if compared else "Speed of each run")
    axes.set_xlabel("tokens per second / plain decoding's" if compared else "output tokens per second")
    if compared:
        axes.axvline(1, color="black", linewidth=1)
    axes.margins(x=0.08)
    axes.grid(visible=False, axis="y")
    return figure


def kv_heat_map(points: Sequence[Point]) -> Figure | None:
    """Tokens per second by block size and pool; preemptions in each cell. Runs that share a cell are averaged."""
    cells: dict[tuple[int, int], list[tuple[float, KVResults]]] = defaultdict(list)
    for point in points:
        kv, timing = point.run.results.kv, point.run.results.timing
        speed = timing.speculative_tokens_per_second.value if timing else None
        if kv is not None and speed is not None:
            cells[kv.num_blocks, kv.block_size].append((speed, kv))
    pools, sizes = sorted({pool for pool, _ in cells}), sorted({size for _, size in cells})
    if len(cells) < 2 or not any("kv_cache." in key for point in points for key in point.others):
        return None
    speeds = np.array([[_mean([s for s, _ in cells[pool, size]]) for size in sizes] for pool in pools])
    note = "Preemptions: times a sequence had to give its blocks back and come back later; mean of the runs in a cell."
    figure, axes = new_figure(height=1.7 + 0.55 * len(pools), note=note)
    image = axes.imshow(speeds, cmap="cividis", aspect="auto", origin="lower")
    figure.colorbar(image, ax=axes, label="output tokens per second", pad=0.02)
    for (row, column), speed in np.ndenumerate(speeds):
        found = [kv for _, kv in cells[pools[row], sizes[column]]]
        if found:
            preemptions = _mean([kv.preemptions or 0 for kv in found])
            times = f"{preemptions:,.0f} preemption" + ("" if preemptions == 1 else "s")
            text = f"{speed:,.0f} tokens/s\n{times}\nroom for {pools[row] * sizes[column]:,} tokens"
            color = readable_on([float(x) for x in image.cmap(image.norm(speed))])
            axes.text(column, row, text, ha="center", va="center", color=color, fontsize=8)
    axes.set_xticks(range(len(sizes)), [str(size) for size in sizes])
    axes.set_yticks(range(len(pools)), [f"{pool:,}" for pool in pools])
    axes.set(title="KV cache: speed and preemptions", xlabel="block size (tokens)", ylabel="blocks in the pool")
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    return figure


def _doubt(points: Sequence[Point], pooled: PooledBaseline | None) -> str:
    text = " A question mark: measured other than acceptance and step times predict, so repeat that run."
    return text * any(disagrees_with_prediction([point.run.results for point in points], pooled))


def _over(pooled: PooledBaseline | None) -> str:
    return f"Over plain decoding {'in the same run' if pooled is None else '(its median over the runs)'}."


def _mark_doubtful(axes: Axes, points: Sequence[Point], pooled: PooledBaseline | None) -> None:
    for point, doubt in zip(
        points, disagrees_with_prediction([point.run.results for point in points], pooled), strict=True
    ):
        value = speedup_over(pooled, point.run.results).value
        if doubt and value is not None:
            axes.annotate("?", (point.k, value), (6, 4), textcoords="offset points", fontweight="bold")


def _series(points: Sequence[Point]) -> list[tuple[str, list[Point]]]:
    """Points by series, each in the order of k."""
    found: dict[str, list[Point]] = defaultdict(list)
    for point in sorted(points, key=lambda point: point.k):
        if point.draft != NOBODY:
            found[point.series].append(point)
    return sorted(found.items(), key=lambda item: points.index(item[1][0]))


def _draw(axes: Axes, series: dict[str, list[tuple[int, Estimate]]]) -> bool:
    """A line with intervals for each series. False where no series has two values of k: that is no curve."""
    curve = False
    for i, (name, own) in enumerate(series.items()):
        known = [(k, e.value, e.ci95) for k, e in own if e.value is not None]
        curve = curve or len({k for k, _, _ in known}) > 1
        ys = [value for _, value, _ in known]
        bars = errors(ys, [interval for _, _, interval in known])
        axes.errorbar([k for k, _, _ in known], ys, yerr=bars, label=name, **series_style(i))
    return curve


def _over_k(axes: Axes, points: Sequence[Point], legend: Sequence[Line2D]) -> None:
    axes.set_xlabel("proposal length k (draft tokens per round, at most)")
    axes.set_xlim(min(point.k for point in points) - 0.5, max(point.k for point in points) + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(handles=list(legend), loc="best")


def _mean(values: Sequence[int | float]) -> float:
    return float(np.mean(values)) if values else float("nan")
