"""The figures of a really run sweep, compared with its results by what is drawn, not by pixels."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure

from spec_harness.errors import UserError
from spec_harness.report.load import Run, load_run
from spec_harness.report.plots import plot, run_figures, sweep_figures
from spec_harness.report.plots.run_plots import judged_tokens
from spec_harness.report.plots.style import PALETTE, STAGES, readable_on
from spec_harness.report.plots.token_plot import by_acceptance, generation_tokens, token_view
from spec_harness.report.pooled_baseline import speedup_over
from spec_harness.report.round_cost import whole_prediction
from spec_harness.report.sweep import Sweep
from spec_harness.results.schema import Estimate
from tests.factories import random_requests

RUN_FIGURES = ["acceptance_by_position", "accepted_lengths", "time_per_token", "categories", "confidence", "tokens"]
SWEEP_FIGURES = ["speedup_over_length", "acceptance_length_over_length", "speed_by_run", "kv_cache", "time_per_token"]


@pytest.fixture(scope="module")
def of_run(real_run: Run) -> dict[str, Figure]:
    return run_figures(real_run)


@pytest.fixture(scope="module")
def of_sweep(real_sweep: Sweep) -> dict[str, Figure]:
    return sweep_figures(real_sweep)


def drawn(container: ErrorbarContainer) -> tuple[list[float], list[float], list[tuple[float, float]]]:
    """x, y and the ends of the bars of an errorbar plot, along the axis that has them."""
    line, _, (bars,) = container
    ends = [(segment[0], segment[1]) for segment in bars.get_segments()]
    axis = 1 if container.has_yerr else 0
    return list(line.get_xdata()), list(line.get_ydata()), [(low[axis], high[axis]) for low, high in ends]


def interval_of(estimate: Estimate) -> tuple[float, float]:
    """The ends of its bar: none where there is no interval. An interval of few requests may leave its value out."""
    assert estimate.value is not None
    low, high = estimate.ci95 or (estimate.value, estimate.value)
    return min(low, estimate.value), max(high, estimate.value)


def assert_shows(container: ErrorbarContainer, estimates: list[Estimate], *, horizontal: bool = False) -> None:
    xs, ys, ends = drawn(container)
    assert (xs if horizontal else ys) == [estimate.value for estimate in estimates]
    np.testing.assert_allclose(ends, [interval_of(estimate) for estimate in estimates])


def test_every_figure_is_drawn(of_run: dict[str, Figure], of_sweep: dict[str, Figure]) -> None:
    assert list(of_run) == RUN_FIGURES
    assert list(of_sweep) == SWEEP_FIGURES


@pytest.mark.parametrize("name", [*RUN_FIGURES, *SWEEP_FIGURES])
def test_every_figure_has_a_title_and_named_axes(
    name: str, of_run: dict[str, Figure], of_sweep: dict[str, Figure]
) -> None:
    axes = (of_run | of_sweep)[name].axes[0]
    assert axes.get_title(loc="left")
    if name != "tokens":  # has no axes
        assert axes.get_xlabel()
    if name in ("acceptance_by_position", "speedup_over_length", "confidence", "accepted_lengths"):
        assert axes.get_ylabel()


def test_acceptance_by_position(of_run: dict[str, Figure], real_run: Run) -> None:
    proposal = real_run.results.proposal
    accepted, reached = of_run["acceptance_by_position"].axes[0].containers
    assert_shows(accepted, proposal.acceptance_rate_per_position)
    assert_shows(reached, proposal.conditional_acceptance_per_position)
    assert [round(x) for x in drawn(accepted)[0]] == [1, 2, 3]


def test_accepted_lengths(of_run: dict[str, Figure], real_run: Run) -> None:
    (bars,) = of_run["accepted_lengths"].axes[0].containers
    assert isinstance(bars, BarContainer)
    assert [bar.get_height() for bar in bars] == real_run.results.proposal.accepted_length_histogram


def test_categories_stand_in_order_beside_the_pooled_rate(of_run: dict[str, Figure], real_run: Run) -> None:
    axes = of_run["categories"].axes[0]
    sections = real_run.results.breakdowns.category
    rates = sorted(float(section.acceptance_rate.value or 0) for section in sections.values())
    assert [drawn(container)[0][0] for container in axes.containers] == rates
    names = [label.get_text().split(" (")[0] for label in axes.get_yticklabels()]
    assert sorted(names) == sorted(sections)
    pooled = real_run.results.proposal.acceptance_rate.value
    assert [line.get_xdata()[0] for line in axes.lines if line.get_label().startswith("all requests")] == [pooled]


def stacked(axes: Axes) -> dict[str, list[float]]:
    return {str(c.get_label()): [bar.get_width() for bar in c] for c in axes.containers}


def test_time_shares_add_up_to_the_time_of_a_token(of_sweep: dict[str, Figure], real_sweep: Sweep) -> None:
    axes = of_sweep["time_per_token"].axes[0]
    widths = stacked(axes)
    assert list(widths) == list(STAGES)
    timings = [run.results.timing for run in real_sweep.runs]
    for row, timing in enumerate(timings):
        assert timing is not None
        assert timing.time_share is not None
        total = 1000 / float(timing.speculative_tokens_per_second.value or 0)
        assert sum(stage[row] for stage in widths.values()) == pytest.approx(total)
        assert widths["score"][row] == pytest.approx(total * timing.time_share.score)
    pooled = real_sweep.pooled  # none: plain decoding depends on the block size
    plain = [line.get_xdata()[0] for line in axes.lines]
    assert pooled is None
    assert plain == [1000 / float(t.baseline_tokens_per_second.value or 0) for t in timings if t]


def test_confidence_counts_each_judged_token_once(of_run: dict[str, Figure], real_run: Run) -> None:
    judged = judged_tokens(real_run.rounds)
    proposal = real_run.results.proposal
    assert judged.accepted.sum() == proposal.num_accepted_tokens
    rejected = sum(proposal.accepted_length_histogram) - int(
        (
            real_run.rounds.query("proposal_len > 0").num_accepted
            == real_run.rounds.query("proposal_len > 0").proposal_len
        ).sum()
    )
    assert (~judged.accepted).sum() == rejected
    (container,) = of_run["confidence"].axes[0].containers
    entropies, rates, ends = drawn(container)
    assert entropies == sorted(entropies)
    assert all(low <= rate <= high for rate, (low, high) in zip(rates, ends, strict=True))


def test_confidence_is_the_draft_s_probability_where_it_draws(save_run: Callable[..., Path], tmp_path: Path) -> None:
    """Under greedy drafting the processed probability is always 1, and entropy stands in for it."""
    records = random_requests(1, max_proposal_len=4, num_requests=12)
    for record in records:
        for number, round_ in enumerate(record.rounds):
            probs = [(number + i) % 10 / 10 + 0.05 for i in range(round_.proposal_len)]
            record.rounds[number] = type(round_)(**{**vars(round_), "draft_probs": probs})
    axes = run_figures(load_run(save_run(tmp_path / "run", records)))["confidence"].axes[0]
    assert axes.get_xlabel() == "draft's probability of its token"
    assert all(0 <= x <= 1 for x in drawn(axes.containers[0])[0])


def test_curves_over_length(of_sweep: dict[str, Figure], real_sweep: Sweep) -> None:
    found = list(zip(real_sweep.ranked, [run.results for run in real_sweep.runs], strict=True))
    series = list(dict.fromkeys(row["series"] for row, _ in found))
    assert len(series) == 2
    pooled = real_sweep.pooled
    lengths, speedups = (of_sweep[f"{name}_over_length"].axes[0] for name in ("acceptance_length", "speedup"))
    for i, name in enumerate(series):
        own = [results for row, results in found if row["series"] == name]
        assert drawn(lengths.containers[i])[0] == [1, 3]
        assert_shows(lengths.containers[i], [results.proposal.mean_acceptance_length for results in own])
        assert_shows(speedups.containers[i], [speedup_over(pooled, results) for results in own])
    predicted = [
        list(line.get_ydata()) for line in speedups.lines if line.get_linestyle() == "--" and len(line.get_xdata()) == 2
    ]
    expected = [
        [whole_prediction(one.timing) for row, one in found if row["series"] == name and one.timing] for name in series
    ]
    assert predicted == expected


def test_the_forest_has_the_best_run_on_top(of_sweep: dict[str, Figure], real_sweep: Sweep) -> None:
    axes = of_sweep["speed_by_run"].axes[0]
    pooled = real_sweep.pooled
    speedups = [speedup_over(pooled, run.results) for run in real_sweep.runs]
    ordered = sorted(speedups, key=lambda estimate: -(estimate.value or 0))
    assert_shows(axes.containers[0], ordered, horizontal=True)
    assert axes.yaxis_inverted()


def test_the_heat_map_shows_speed_and_preemptions(of_sweep: dict[str, Figure], real_sweep: Sweep) -> None:
    axes = of_sweep["kv_cache"].axes[0]
    values = axes.images[0].get_array()
    assert values is not None
    assert [label.get_text() for label in axes.get_xticklabels()] == ["8", "16"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["24"]
    cell = [
        r.results
        for r in real_sweep.runs
        if r.results.kv and (r.results.kv.num_blocks, r.results.kv.block_size) == (24, 8)
    ]
    speeds = [results.timing.speculative_tokens_per_second.value for results in cell if results.timing]
    assert values[0, 0] == pytest.approx(np.mean([float(speed or 0) for speed in speeds]))
    preemptions = np.mean([results.kv.preemptions or 0 for results in cell if results.kv])
    assert f"{preemptions:,.0f} preemption" in axes.texts[0].get_text()


def test_the_token_view_spells_the_output(real_run: Run) -> None:
    row = by_acceptance(real_run)[-1]
    generation, kinds = generation_tokens(real_run, row["request_id"], row["turn"], row["sample"])
    assert kinds.count("accepted") == row["accepted_tokens"] > 0
    assert len(kinds) == len(generation["token_ids"]) == row["output_tokens"]
    figure = token_view(real_run, row["request_id"])
    assert figure is not None
    texts = "".join(text.get_text() for text in figure.axes[0].texts)
    spelled = texts.replace("\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}", "\n")
    saved = json.loads((real_run.directory / "token_texts.json").read_text())
    assert spelled == "".join(saved[str(token)] for token in generation["token_ids"])


def test_files_of_a_run_and_of_a_sweep(real_run: Run, real_sweep: Sweep) -> None:
    for directory, names in ((real_run.directory, RUN_FIGURES), (real_sweep.directory, SWEEP_FIGURES)):
        written = plot(directory)
        assert written == [directory / "figures" / f"{name}.{kind}" for name in names for kind in ("png", "svg")]
        assert all(path.stat().st_size > 2_000 for path in written)


def test_what_a_run_cannot_show_is_left_out(save_run: Callable[..., Path], tmp_path: Path) -> None:
    figures = run_figures(load_run(save_run(tmp_path / "run", [], proposal=_nothing(), timing=None)))
    assert figures == {}


def _nothing() -> Any:
    from tests.factories import results_of

    return results_of([], max_proposal_len=0).proposal


def test_a_directory_without_a_result_is_refused(save_run: Callable[..., Path], tmp_path: Path) -> None:
    save_run(tmp_path / "sweep" / "0", error="out of memory")
    with pytest.raises(UserError, match="no run with figures to draw"):
        plot(tmp_path / "sweep")


def test_text_on_a_color_can_be_read() -> None:
    assert [readable_on(color) for color in ((1.0, 1.0, 0.2, 1.0), (0.1, 0.1, 0.3, 1.0))] == ["black", "white"]
    assert len(set(PALETTE)) == len(PALETTE)


def test_drawing_needs_neither_torch_nor_lightning() -> None:
    heavy = ("torch", "lightning", "transformers", "wandb", "matplotlib.pyplot")
    script = f"import spec_harness.report.html, sys; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
