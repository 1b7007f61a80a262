"""Figures of one run. Each returns ``None`` where the run has nothing to show."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from spec_harness.metrics.bootstrap import MIN_REQUESTS, Bootstrap
from spec_harness.report.formats import number, together
from spec_harness.report.load import Run
from spec_harness.report.plots.style import GRAY, MARKERS, PALETTE, error_bars, new_figure
from spec_harness.results.schema import Estimate

INTERVALS = "Bars: 95 % intervals, bootstrap over requests"
CONFIDENCE_BINS = 8


def acceptance_by_position(run: Run) -> Figure | None:
    p = run.results.proposal
    if p.num_drafts == 0:
        return None
    note = (
        f"{INTERVALS} (none below {MIN_REQUESTS} requests). Accepted: share of the proposals at least this long in "
        "which this token was kept. If reached: of those in which every token before it was kept."
    )
    figure, axes = new_figure(height=3.5, note=note)
    series = {
        "accepted": p.acceptance_rate_per_position,
        "accepted, if reached": p.conditional_acceptance_per_position,
    }
    for i, (name, estimates) in enumerate(series.items()):
        known = [(place, e) for place, e in enumerate(estimates, start=1) if e.value is not None]
        xs, ys = [place + 0.12 * i - 0.06 for place, _ in known], [_value(e) for _, e in known]
        look: dict[str, Any] = {"color": PALETTE[i], "marker": MARKERS[i], "linestyle": ("-", "--")[i], "label": name}
        axes.errorbar(xs, ys, yerr=error_bars([e for _, e in known]), **look)
    axes.set(title="How far into a proposal does the target agree?", xlabel="place in the proposal (draft token no.)")
    axes.set(ylabel="share of draft tokens", ylim=(0, 1.04), xlim=(0.5, len(p.acceptance_rate_per_position) + 0.5))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="best")
    return figure


def accepted_lengths(run: Run) -> Figure | None:
    p = run.results.proposal
    if p.num_drafts == 0:
        return None
    mean = together(*number(p.mean_acceptance_length, unit=" tokens"))
    note = f"{p.num_drafts:,} rounds with a proposal. Mean acceptance length {mean}: the accepted tokens plus the one "
    note += "that the target adds to each round. In brackets: 95 % interval."
    figure, axes = new_figure(height=3.3, note=note)
    counts = p.accepted_length_histogram
    bars = axes.bar(range(len(counts)), counts, color=PALETTE[0], width=0.75)
    axes.bar_label(bars, [f"{count / p.num_drafts:.0%}" for count in counts], padding=2, fontsize=8.5)
    axes.set(title="Draft tokens accepted in a round", xlabel="accepted draft tokens", ylabel="rounds")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(visible=False, axis="x")
    axes.margins(y=0.12)
    return figure


def categories(run: Run) -> Figure | None:
    """A forest plot: one row a category, worst at the bottom, beside the pooled rate."""
    groups = {name: section.acceptance_rate for name, section in run.results.breakdowns.category.items()}
    sections = {name: rate for name, rate in groups.items() if rate.value is not None}
    pooled = run.results.proposal.acceptance_rate
    if len(sections) < 2 or pooled.value is None:
        return None
    ordered = sorted(sections.items(), key=lambda item: _value(item[1]))
    few = any(estimate.ci95 is None for estimate in sections.values())
    note = f"{INTERVALS} of that category." + f" Hollow: fewer than {MIN_REQUESTS} requests, no interval." * few
    figure, axes = new_figure(height=1.6 + 0.3 * len(ordered), note=note)
    if pooled.ci95 is not None:
        axes.axvspan(*pooled.ci95, color=PALETTE[0], alpha=0.12, linewidth=0)
    axes.axvline(pooled.value, color=PALETTE[0], linewidth=1.2, label=f"all requests: {pooled.value:.0%}")
    for row, (_, estimate) in enumerate(ordered):
        bars, fill = error_bars([estimate]), "white" if estimate.ci95 is None else "black"
        axes.errorbar([_value(estimate)], [row], xerr=bars, color="black", marker="s", markerfacecolor=fill)
    axes.set_yticks(range(len(ordered)), [f"{name} ({estimate.n})" for name, estimate in ordered])
    axes.set(title="Acceptance rate by category", xlabel="accepted / proposed draft tokens", xlim=(0, 1))
    axes.set(ylabel="category (requests)", ylim=(-0.6, len(ordered) - 0.4))
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.grid(visible=False, axis="y")
    axes.legend(loc="lower right", bbox_to_anchor=(1.01, 1.0))  # above the rows, which may reach anywhere
    return figure


def confidence(run: Run) -> Figure | None:
    """Is the draft right where it is sure? By its probability of the drafted token; where it drew greedily, and that is
    always 1, by the entropy of its distribution."""
    judged = judged_tokens(run.rounds)
    greedy = judged.draft_prob.nunique() <= 1
    column = "draft_entropy" if greedy else "draft_prob"
    judged = judged.dropna(subset=[column])
    if judged[column].nunique() < 2:
        return None
    edges = np.unique(np.quantile(judged[column], np.linspace(0, 1, CONFIDENCE_BINS + 1)))
    if not greedy:
        edges = np.linspace(0, 1, CONFIDENCE_BINS + 1)
    place = np.clip(np.searchsorted(edges, judged[column], side="right") - 1, 0, len(edges) - 2)
    bins = [part for _, part in judged.groupby(place)]
    centers = [float(part[column].mean()) for part in bins]
    rates = [_rate(part, judged) for part in bins]
    note = f"{INTERVALS}. {len(judged):,} draft tokens that the target judged: the accepted and the first rejected one "
    note += f"of each round{f', in {len(bins)} groups of equal size' if greedy else ''}."
    figure, axes = new_figure(height=3.5, note=note)
    look: dict[str, Any] = {"color": PALETTE[0], "marker": "o", "label": "measured"}
    axes.errorbar(centers, [_value(rate) for rate in rates], yerr=error_bars(rates), **look)
    if greedy:
        axes.set(xlabel="entropy of the draft's distribution (nats; 0: certain)", xlim=(0, None))
    else:
        axes.plot([0, 1], [0, 1], color=GRAY, linestyle=":", label="accepted as often as confident")
        axes.set(xlabel="draft's probability of its token", xlim=(0, 1.02))
        axes.xaxis.set_major_formatter(PercentFormatter(1))
        axes.legend(loc="best")
    axes.set(title="Is the draft right where it is sure?", ylabel="accepted draft tokens", ylim=(0, 1.04))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    return figure


def judged_tokens(rounds: pd.DataFrame) -> pd.DataFrame:
    """One row for each draft token that was accepted or the first to be rejected: what became of the others says
    nothing. Columns request_id, accepted, draft_prob, draft_entropy (nats; missing where the proposer has none)."""
    rows = []
    columns = ["request_id", "proposal_len", "num_accepted", "draft_probs", "draft_entropy"]
    for request_id, proposed, accepted, probs, entropy in rounds[columns].itertuples(index=False):
        for i in range(min(accepted + 1, proposed)):
            rows.append((request_id, i < accepted, probs[i], entropy[i] if i < len(entropy) else np.nan))
    return pd.DataFrame(rows, columns=["request_id", "accepted", "draft_prob", "draft_entropy"])


def _rate(part: pd.DataFrame, judged: pd.DataFrame) -> Estimate:
    """Accepted / judged tokens of one group."""
    ids = judged.request_id.unique()
    by_request = part.groupby("request_id").accepted.agg(["sum", "count"]).reindex(ids, fill_value=0)
    interval = Bootstrap(len(ids)).ratio(by_request["sum"].tolist(), by_request["count"].tolist())
    return Estimate(value=float(part.accepted.mean()), ci95=interval, n=part.request_id.nunique())


def _value(estimate: Estimate) -> float:
    assert estimate.value is not None
    return estimate.value
