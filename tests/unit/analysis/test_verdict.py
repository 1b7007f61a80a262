"""What a sweep recommends, and how sure it is."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spec_harness.analysis.load import load_run, load_sweep
from spec_harness.analysis.points import NGRAM, Point, points
from spec_harness.analysis.verdict import verdict
from spec_harness.evaluation.results import Estimate, TimeShare, TimingResults
from spec_harness.evaluation.round_cost import round_cost
from tests.unit.analysis.conftest import config

Save = Callable[..., Path]


def timing(speedup: float | None, spread: float = 0.05, tokens_per_second: float = 100.0) -> TimingResults:
    return TimingResults(
        speculative_tokens_per_second=Estimate(value=tokens_per_second, ci95=(90.0, 110.0), n=10),
        baseline_tokens_per_second=Estimate(value=None, n=0),
        speedup=Estimate(value=speedup, ci95=None if speedup is None else (speedup - spread, speedup + spread), n=10),
    )


@pytest.fixture
def sweep(save_run: Save, tmp_path: Path) -> Callable[..., list[Point]]:
    """The points of runs with these timings; ``kinds`` are their drafts'."""

    def make(*timings: TimingResults, kinds: tuple[str, ...] = (), **changes: list[Any]) -> list[Point]:
        for number, one in enumerate(timings):
            own = {key: values[number] for key, values in changes.items()}
            settings = config(draft__kind=kinds[number] if kinds else "hf", **own)
            save_run(tmp_path / "sweep" / str(number), timing=one, config=settings)
        return points(load_sweep(tmp_path / "sweep").runs)

    return make


def test_the_fastest_is_recommended_with_its_interval(sweep: Callable[..., list[Point]]) -> None:
    found = sweep(timing(1.2), timing(1.5), timing(1.46), sampling__seed=[1, 2, 3])
    answer = verdict(found)
    assert answer is not None
    assert answer.best is found[1]
    assert answer.headline == (
        "Use draft tiny-draft, proposal length 4, sampling.seed=2. Expect 1.50x (95 % interval 1.45 to 1.55) the speed "
        "of plain decoding."
    )
    assert "Not clearly slower than it: seed=3." in answer.reasons
    assert "Clearly slower: 1 of the 2 other runs." in answer.reasons


def test_an_interval_around_1_is_no_promise(sweep: Callable[..., list[Point]]) -> None:
    answer = verdict(sweep(timing(1.02)))
    assert answer is not None
    assert answer.headline.startswith("If at all, use ")
    assert "The interval contains 1" in answer.reasons[0]


def test_nothing_is_recommended_where_nothing_pays(sweep: Callable[..., list[Point]]) -> None:
    answer = verdict(sweep(timing(0.7), timing(0.8)))
    assert answer is not None
    assert answer.headline.startswith("Do not use any of these drafts here. The best, ")
    assert "runs at 0.80x" in answer.headline


def test_the_target_itself_is_no_candidate(sweep: Callable[..., list[Point]]) -> None:
    """It accepts everything, and costs what the target costs; it would win only by an accident of the machine."""
    found = sweep(timing(1.1), timing(1.9), kinds=("hf", "self"))
    answer = verdict(found)
    assert answer is not None
    assert answer.best is found[0]
    assert answer.reasons[-1].startswith("No candidate")


def test_without_plain_decoding_speed_decides_and_says_so(sweep: Callable[..., list[Point]]) -> None:
    found = sweep(timing(None, tokens_per_second=80.0), timing(None, tokens_per_second=90.0))
    answer = verdict(found)
    assert answer is not None
    assert answer.best is found[1]
    assert answer.headline.startswith("The fastest is ")
    assert "baseline=off" in answer.reasons[0]


def test_runs_that_answer_different_questions_are_not_ranked(sweep: Callable[..., list[Point]]) -> None:
    """The folder of all runs is no sweep: its fastest run says nothing about the others' prompts and models."""
    assert verdict(sweep(timing(1.2), timing(1.5), sampling__temperature=[0.0, 0.7])) is None


def test_a_round_s_cost_adds_up_to_its_speed_up(sweep: Callable[..., list[Point]]) -> None:
    """Per stage, in plain steps; what a shorter or longer proposal would change comes beside it."""
    share = TimeShare(prefill=0.2, propose=0.3, score=0.4, verify=0.05, commit=0.03, scheduler=0.02)
    found = sweep(*(timing(speedup).model_copy(update={"time_share": share}) for speedup in (1.2, 1.5, 1.4)))
    found = [replace(point, k=k, others={}) for point, k in zip(found, (2, 4, 8), strict=True)]
    answer = verdict(found)
    assert answer is not None
    best = answer.best.run.results
    tokens, cost = best.proposal.tokens_per_target_pass.value, round_cost(best)
    assert answer.best.k == 4
    assert tokens is not None
    assert cost is not None
    # Of the run's time 0.8 are rounds, for which plain decoding takes 1.5 - 0.2: so many plain steps for each token.
    assert sum(cost.values()) == pytest.approx(tokens * 0.8 / 1.3)
    assert cost["proposing"] == pytest.approx(tokens * 0.3 / 1.3)
    text = " ".join(answer.reasons)
    assert f"takes the time of {sum(cost.values()):.2f} plain steps (proposing {cost['proposing']:.2f}" in text
    slower = tokens * 0.8 / 1.0 - tokens * 0.8 / 1.3
    assert f"With proposals of 2 a round yields 0.00 more tokens and costs {slower:.2f} more plain steps." in text
    assert "With proposals of 8 a round yields" in text


def test_measurements_that_step_times_contradict_are_to_be_repeated(sweep: Callable[..., list[Point]]) -> None:
    """On a busy machine the interval of a speed-up stays narrow: it is about the prompts."""
    predicted = [timing(speedup).model_copy(update={"predicted_speedup": 1.3}) for speedup in (1.0, 1.3)]
    answer = verdict(sweep(*predicted, sampling__seed=[1, 2]))
    assert answer is not None
    assert "Repeat these, measured far from what acceptance and step times predict: seed=1." in answer.reasons


def test_no_speed_no_verdict(sweep: Callable[..., list[Point]]) -> None:
    nothing = Estimate(value=None, n=0)
    unknown = TimingResults(speculative_tokens_per_second=nothing, baseline_tokens_per_second=nothing, speedup=nothing)
    assert verdict(sweep(unknown)) is None
    assert verdict([]) is None


def test_labels_say_what_differs_and_no_more(sweep: Callable[..., list[Point]]) -> None:
    found = sweep(timing(1.0), timing(1.0), sampling__max_new_tokens=[8, 16])
    assert [point.label for point in found] == ["max_new_tokens=8", "max_new_tokens=16"]
    assert [point.series for point in found] == ["tiny-draft, max_new_tokens=8", "tiny-draft, max_new_tokens=16"]


def test_a_single_run_is_named_by_draft_and_length(sweep: Callable[..., list[Point]]) -> None:
    (point,) = sweep(timing(1.0))
    assert point.label == "tiny-draft, k=4"


def test_a_proposer_without_a_model_has_a_name(save_run: Save, tmp_path: Path) -> None:
    run = load_run(save_run(tmp_path / "run"))
    source = run.results.provenance.model_copy(update={"draft": None})
    bare = run.results.model_copy(update={"provenance": source})
    run = type(run)(run.directory, bare)
    assert points([run])[0].draft == NGRAM
