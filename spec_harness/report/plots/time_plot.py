"""Where the time of an output token goes, beside plain decoding: of one run, or of the jobs of a sweep."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from spec_harness.report.comparable import speed
from spec_harness.report.points import Point
from spec_harness.report.pooled_baseline import plain_speed, pooled_baseline
from spec_harness.report.style import HATCHES, STAGES, new_figure

_NARROW = 0.06  # of the axis: no number fits into a segment below


def time_per_token(points: Sequence[Point]) -> Figure | None:
    """One bar a run: milliseconds of wall time per output token, by stage; a mark where plain decoding stands."""
    timings = [(point, speed(point.run.results).value, point.run.results.timing) for point in points]
    timed = [(point, own, timing.time_share) for point, own, timing in timings if own and timing and timing.time_share]
    if not timed:
        return None
    pooled = pooled_baseline([point.run.results for point in points])
    speeds = [plain_speed(pooled, point.run.results) for point, _, _ in timed]
    plain = [1000 / own if own else None for own in speeds]
    note = "Wall time of the speculative run / its output tokens, prefills included; the numbers are shares of the bar."
    if any(ms is not None for ms in plain):
        note += (
            " A bar that ends left of the black mark beats plain decoding (the target alone, same prompts and engine"
            f"{'' if pooled is None else '; its median over the runs'})."
        )
    figure, axes = new_figure(height=1.9 + 0.32 * len(timed), note=note)
    widest = max([1000 / own for _, own, _ in timed] + [ms for ms in plain if ms is not None])
    rows = range(len(timed))
    left = [0.0] * len(timed)
    for stage, color in STAGES.items():
        shares = [float(getattr(share, stage)) for _, _, share in timed]
        widths = [share * 1000 / own for share, (_, own, _) in zip(shares, timed, strict=True)]
        bars = axes.barh(
            rows,
            widths,
            left=left,
            color=color,
            height=0.62,
            label=stage,
            edgecolor="white",
            linewidth=0.5,
            hatch=HATCHES.get(stage),
        )
        texts = [f"{s:.0%}" if w > _NARROW * widest else "" for s, w in zip(shares, widths, strict=True)]
        dark = stage in ("score", "scheduler")
        shares_shown = axes.bar_label(bars, texts, label_type="center", fontsize=8, color="white" if dark else "black")
        for text in shares_shown:
            text.set_path_effects([withStroke(linewidth=2.5, foreground=color)])  # off the hatching
        left = [start + width for start, width in zip(left, widths, strict=True)]
    marks = [(ms, row) for row, ms in zip(rows, plain, strict=True) if ms is not None]
    for i, (ms, row) in enumerate(marks):
        label = "plain decoding" if i == 0 else None
        edge = [withStroke(linewidth=5, foreground="white")]  # over the dark bars too
        axes.plot(
            [ms, ms], [row - 0.42, row + 0.42], color="black", linewidth=2.5, label=label, path_effects=edge, zorder=4
        )
    axes.set_yticks(rows, [point.label for point, _, _ in timed])
    axes.set_title("Where the time of an output token goes", pad=26)
    axes.set(xlabel="milliseconds per output token")
    axes.set(xlim=(0, 1.04 * widest), ylim=(len(timed) - 0.4, -0.6))
    axes.grid(visible=False, axis="y")
    # Between title and bars, its right end at theirs: long labels on the left leave it no room there.
    axes.legend(loc="lower right", bbox_to_anchor=(1.01, 1.0), ncols=7, handlelength=1, columnspacing=1, fontsize=8)
    return figure
