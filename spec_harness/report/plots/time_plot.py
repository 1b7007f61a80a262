"""Where the time of an output token goes, beside plain decoding: of one run, or of the jobs of a sweep."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from spec_harness.report.plots.style import HATCHES, STAGES, new_figure
from spec_harness.report.sweep import Row

_NARROW = 0.06  # of the axis: no number fits into a segment below


def time_per_token(rows: Sequence[Row], *, pooled: bool) -> Figure | None:
    """One bar a run: milliseconds of wall time per output token, by stage; a mark where plain decoding stands.
    ``pooled``: that is the median of the runs."""
    timed = [row for row in rows if row["tokens_per_second"] and "time_share_prefill" in row]
    if not timed:
        return None
    own = [1000 / row["tokens_per_second"] for row in timed]  # milliseconds a token
    plain = [(1000 / row["baseline"], place) for place, row in enumerate(timed) if row["baseline"]]
    note = "Wall time of the speculative run / its output tokens, prefills included; the numbers are shares of the bar."
    if plain:
        note += (
            " A bar that ends left of the black mark beats plain decoding (the target alone, same prompts and engine"
            f"{'; its median over the runs' if pooled else ''})."
        )
    figure, axes = new_figure(height=1.9 + 0.32 * len(timed), note=note)
    widest = max(own + [ms for ms, _ in plain])
    left = [0.0] * len(timed)
    for stage, color in STAGES.items():
        shares = [row[f"time_share_{stage}"] for row in timed]
        widths = [share * ms for share, ms in zip(shares, own, strict=True)]
        look: dict[str, Any] = {"color": color, "hatch": HATCHES.get(stage), "edgecolor": "white", "linewidth": 0.5}
        bars = axes.barh(range(len(timed)), widths, left=left, height=0.62, label=stage, **look)
        texts = [f"{s:.0%}" if w > _NARROW * widest else "" for s, w in zip(shares, widths, strict=True)]
        dark = stage in ("score", "scheduler")
        shown = axes.bar_label(bars, texts, label_type="center", fontsize=8, color="white" if dark else "black")
        for text in shown:
            text.set_path_effects([withStroke(linewidth=2.5, foreground=color)])  # off the hatching
        left = [start + width for start, width in zip(left, widths, strict=True)]
    edge = [withStroke(linewidth=5, foreground="white")]  # over the dark bars too
    for i, (ms, place) in enumerate(plain):
        look = {"color": "black", "linewidth": 2.5, "path_effects": edge, "zorder": 4}
        axes.plot([ms, ms], [place - 0.42, place + 0.42], label=None if i else "plain decoding", **look)
    axes.set_yticks(range(len(timed)), [row["label"] for row in timed])
    axes.set_title("Where the time of an output token goes", pad=26)
    axes.set(xlabel="milliseconds per output token")
    axes.set(xlim=(0, 1.04 * widest), ylim=(len(timed) - 0.4, -0.6))
    axes.grid(visible=False, axis="y")
    # Between title and bars, its right end at theirs: long labels on the left leave it no room there.
    axes.legend(loc="lower right", bbox_to_anchor=(1.01, 1.0), ncols=7, handlelength=1, columnspacing=1, fontsize=8)
    return figure
