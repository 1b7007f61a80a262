"""What a sweep recommends, and how sure it is."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from spec_harness.report.headline import headline
from spec_harness.report.html import write_html
from spec_harness.report.load import load_run
from spec_harness.report.pooled_baseline import FLOOR, PooledBaseline, pooled_baseline
from spec_harness.report.round_cost import round_cost
from spec_harness.report.sweep import Sweep, load_sweep
from spec_harness.report.sweep_summary import write_sweep_summary
from spec_harness.report.verdict import verdict
from spec_harness.results.schema import Estimate, ProposerIdentity, TimeShare, TimingResults
from tests.factories import config, provenance_of

Save = Callable[..., Path]


def timing(speedup: float | None, spread: float = 0.05, tokens_per_second: float | None = None) -> TimingResults:
    """Over plain decoding at 100 tokens/s, whose speed is not recorded."""
    speed = 100.0 * (speedup or 1.0) if tokens_per_second is None else tokens_per_second
    return TimingResults(
        speculative_tokens_per_second=Estimate(value=speed, ci95=(0.9 * speed, 1.1 * speed), n=10),
        baseline_tokens_per_second=Estimate(value=None, n=0),
        speedup=Estimate(value=speedup, ci95=None if speedup is None else (speedup - spread, speedup + spread), n=10),
    )


@pytest.fixture
def sweep(save_run: Save, tmp_path: Path) -> Callable[..., Sweep]:
    """A sweep of runs with these timings; ``kinds`` are their drafts'."""

    def make(
        *timings: TimingResults, kinds: tuple[str, ...] = (), folder: str = "sweep", **changes: list[Any]
    ) -> Sweep:
        for number, one in enumerate(timings):
            own = {key: values[number] for key, values in changes.items()}
            settings = config(draft__kind=kinds[number] if kinds else "hf", **own)
            save_run(tmp_path / folder / str(number), timing=one, config=settings)
        return load_sweep(tmp_path / folder)

    return make


def test_the_fastest_is_recommended_with_its_interval(sweep: Callable[..., Sweep]) -> None:
    found = sweep(timing(1.2), timing(1.5), timing(1.46), sampling__seed=[1, 2, 3])
    answer = verdict(found)
    assert answer is not None
    assert answer.run is found.runs[1]
    assert answer.headline == (
        "Use draft tiny-draft, proposal length 4, sampling.seed=2. Expect 1.50x (95 % interval 1.45 to 1.55) the speed "
        "of plain decoding. Not clearly slower here: seed=3."
    )
    assert "Slower than the choice of prompts explains: 1 of the 2 other candidates." in answer.reasons


def test_an_interval_around_1_is_no_promise(sweep: Callable[..., Sweep]) -> None:
    answer = verdict(sweep(timing(1.02)))
    assert answer is not None
    assert answer.headline.startswith("If at all, use ")
    assert "The interval contains 1" in answer.reasons[0]


def test_nothing_is_recommended_where_nothing_pays(sweep: Callable[..., Sweep]) -> None:
    answer = verdict(sweep(timing(0.7), timing(0.8)))
    assert answer is not None
    assert answer.headline.startswith("Do not use any of these drafts here. The best, ")
    assert "runs at 0.80x" in answer.headline


def test_the_target_itself_is_no_candidate(sweep: Callable[..., Sweep]) -> None:
    """It accepts everything, and costs what the target costs; it would win only by an accident of the machine."""
    found = sweep(timing(1.1), timing(1.9), kinds=("hf", "self"))
    answer = verdict(found)
    assert answer is not None
    assert answer.run is found.runs[0]
    assert answer.reasons[-1].startswith("No candidate")


def test_without_plain_decoding_speed_decides_and_says_so(sweep: Callable[..., Sweep]) -> None:
    found = sweep(timing(None, tokens_per_second=80.0), timing(None, tokens_per_second=90.0))
    answer = verdict(found)
    assert answer is not None
    assert answer.run is found.runs[1]
    assert answer.headline.startswith("The fastest is ")
    assert "baseline=off" in answer.reasons[0]


def test_runs_that_answer_different_questions_are_not_ranked(sweep: Callable[..., Sweep]) -> None:
    """The folder of all runs is no sweep: its fastest run says nothing about the others' prompts and models."""
    assert verdict(sweep(timing(1.2), timing(1.5), sampling__temperature=[0.0, 0.7])) is None


def test_a_round_s_cost_adds_up_to_its_speed_up(sweep: Callable[..., Sweep]) -> None:
    """Stage by stage, in plain steps."""
    share = TimeShare(prefill=0.2, propose=0.3, score=0.4, verify=0.05, commit=0.03, scheduler=0.02)
    found = sweep(*(timing(speedup).model_copy(update={"time_share": share}) for speedup in (1.2, 1.5, 1.4)))
    answer = verdict(found)
    assert answer is not None
    best = answer.run.results
    tokens, cost = best.proposal.tokens_per_target_pass.value, round_cost(best)
    assert answer.best["k"] == 4
    assert tokens is not None
    assert cost is not None
    # Of the run's time 0.8 are rounds, for which plain decoding takes 1.5 - 0.2: so many plain steps for each token.
    assert sum(cost.values()) == pytest.approx(tokens * 0.8 / 1.3)
    assert cost["proposing"] == pytest.approx(tokens * 0.3 / 1.3)
    text = " ".join(answer.reasons)
    assert f"for the time of {sum(cost.values()):.2f} plain steps (proposing {cost['proposing']:.2f}" in text
    assert f"{1.3 / 0.8:.2f}x in decoding alone. Prefill, which both pay, makes it 1.50x." in text


def test_a_run_that_step_times_contradict_is_left_out(sweep: Callable[..., Sweep]) -> None:
    """On a busy machine the interval of a speed-up stays narrow: it is about the prompts. What the prediction misses in
    every run alike, as the end of a short run, says nothing about one of them."""
    share = TimeShare(prefill=0.0, propose=0.3, score=0.6, verify=0.05, commit=0.03, scheduler=0.02)

    def run(speedup: float, predicted: float) -> TimingResults:
        return timing(speedup).model_copy(update={"time_share": share, "predicted_speedup": predicted})

    runs = run(1.0, 1.4), run(1.2, 1.7), run(1.1, 1.5), run(0.7, 1.6)
    answer = verdict(sweep(*runs, sampling__seed=[1, 2, 3, 4]))
    assert answer is not None
    assert answer.best["label"] == "seed=2"
    assert answer.reasons[-2:] == [
        "Slower than the choice of prompts explains: 2 of the 2 other candidates.",
        "Left out, measured other than acceptance and step times predict, so repeat: seed=4.",
    ]
    few = verdict(sweep(run(1.0, 1.0), run(1.7, 2.9), folder="few", sampling__seed=[1, 2]))
    assert few is not None
    assert few.best["label"] == "seed=1"
    alone = verdict(sweep(run(1.7, 2.9), folder="alone"))
    assert alone is not None
    assert alone.headline.startswith("If at all, use ")
    assert alone.reasons[0].startswith("Every run was measured other than")


def plain(speed: float, baseline: float) -> TimingResults:
    """A run's two speeds, and its own ratio of them."""
    base = Estimate(value=baseline, ci95=(0.9 * baseline, 1.1 * baseline), n=10)
    return timing(speed / baseline, tokens_per_second=speed).model_copy(update={"baseline_tokens_per_second": base})


def test_plain_decoding_of_all_runs_of_all_runs_is_pooled(sweep: Callable[..., Sweep]) -> None:
    """Every run decodes the same prompts plainly. One met a busy machine in it, and its speed-up was the best of
    the sweep, by 15 %; its draft was not faster than the others'."""
    found = sweep(plain(1190, 1000), plain(1217, 880), plain(1242, 1000), proposal__max_proposal_len=[2, 3, 4])
    pooled = found.pooled
    assert pooled is not None
    assert pooled.speed == 1000.0
    assert pooled.noise == FLOOR  # one of three: a hiccup
    answer = verdict(found)
    assert answer is not None
    assert answer.run is found.runs[2]
    assert "Expect 1.24x" in answer.headline
    assert answer.headline.endswith("None of the 2 other candidates is clearly slower.")
    assert any("ran at 880 to 1,000 tokens/s" in reason for reason in answer.reasons)
    assert any("Differences below 5%" in reason for reason in answer.reasons)
    assert answer.reasons[-1] == "Clearly slower: 0 of the 2 other candidates."


@pytest.mark.parametrize(
    ("speeds", "noise"),
    [
        ((100.0, 113.0), 1.13),  # of two nobody knows which was the hiccup
        ((1016.0, 1013.0, 678.0, 1025.0, 1036.0, 1061.0), FLOOR),
        ((929.0, 950.0, 986.0, 1120.0, 1164.0, 1180.0), 1180 / 929),  # a machine that changed its pace
        ((100.0, 100.0, 100.0), FLOOR),
    ],
)
def test_noise_is_the_spread_of_the_same_work_without_a_hiccup(speeds: tuple[float, ...], noise: float) -> None:
    assert PooledBaseline(speeds).noise == pytest.approx(noise, rel=0.01)


def test_other_code_or_prompts_are_other_work(sweep: Callable[..., Sweep]) -> None:
    """The average over two files of prompts under one name made speed-ups of 3.1 and 0.5 of 1.1 and 0.9."""
    runs = [run.results for run in sweep(plain(110, 100), plain(50, 55), sampling__seed=[1, 2]).runs]
    assert pooled_baseline(runs) is not None
    for change in ({"prompts_sha256": "other"}, {"git_commit": "other"}):
        source = runs[1].provenance.model_copy(update=change)
        assert pooled_baseline([runs[0], runs[1].model_copy(update={"provenance": source})]) is None


def test_a_run_without_plain_decoding_is_measured_by_the_others(sweep: Callable[..., Sweep]) -> None:
    alone = timing(None, tokens_per_second=300.0)
    answer = verdict(sweep(plain(150, 100), plain(160, 100), alone, proposal__max_proposal_len=[2, 3, 4]))
    assert answer is not None
    assert answer.run.results.config["proposal"] == {"kind": "draft_model", "max_proposal_len": 4}
    assert "Expect 3.00x" in answer.headline


def test_more_tokens_per_second_win_where_plain_decoding_differs(sweep: Callable[..., Sweep]) -> None:
    """A batch of one has the better speed-up over its own plain decoding, and a third of the speed."""
    found = sweep(plain(317, 200), plain(834, 700), sampling__seed=[1, 1])
    jobs = []
    for job, batch in zip(found.all_jobs, (1, 8), strict=True):
        assert job.results is not None
        settings = {**job.results.config, "max_num_seqs": batch}
        jobs.append(replace(job, results=job.results.model_copy(update={"config": settings})))
    found = Sweep(found.directory, jobs)
    answer = verdict(found)
    assert answer is not None
    assert answer.run is found.runs[1]
    assert answer.headline.startswith("Use draft tiny-draft, proposal length 4, max_num_seqs=8. Expect 1.19x")


def test_the_same_run_twice_is_not_clearly_slower(sweep: Callable[..., Sweep]) -> None:
    answer = verdict(sweep(plain(100, 100), plain(120, 100), plain(150, 101)))
    assert answer is not None
    assert answer.reasons[-1] == "Clearly slower: 0 of the 2 other candidates."


def test_drafts_of_one_name_are_told_apart(save_run: Save, tmp_path: Path) -> None:
    for job, size in enumerate((32, 64)):
        settings = config()
        settings["draft"] = {"kind": "random", "config": {"hidden_size": size}}
        save_run(tmp_path / "sweep" / str(job), config=settings)
    rows = load_sweep(tmp_path / "sweep").rows
    assert [row["label"] for row in rows] == ["hidden_size=32", "hidden_size=64"]
    assert len({row["series"] for row in rows}) == 2


@pytest.mark.parametrize(
    ("paths", "labels"),
    [
        (("mine.First", "mine.Second"), ["First, k=4", "Second, k=4"]),
        (("mine.First", "other.First"), ["_target_=mine.First", "_target_=other.First"]),
    ],
)
def test_classes_of_one_s_own_are_told_apart(
    paths: Sequence[str], labels: Sequence[str], save_run: Save, tmp_path: Path
) -> None:
    """Their paths stood in the tables where their labels were enough."""
    for job, path in enumerate(paths):
        settings = config(proposal__kind="custom")
        settings["proposal"]["_target_"] = path
        own = ProposerIdentity(name=path, label=path.rpartition(".")[2])
        source = provenance_of(drafted=False).model_copy(update={"proposer": own})
        save_run(tmp_path / "sweep" / str(job), config=settings, provenance=source)
    rows = load_sweep(tmp_path / "sweep").rows
    assert [row["label"] for row in rows] == labels


def test_plain_decoding_is_pooled_only_where_it_was_the_same_work(sweep: Callable[..., Sweep]) -> None:
    other_work = sweep(plain(100, 80), plain(100, 70), sampling__max_new_tokens=[8, 16])
    assert other_work.pooled is None
    assert pooled_baseline([other_work.runs[0].results]) is None


def test_a_speed_within_the_machine_s_noise_is_no_recommendation(sweep: Callable[..., Sweep]) -> None:
    """Half as fast again, it seems; but plain decoding varied by half."""
    runs = [plain(speed, baseline) for speed, baseline in ((131, 90), (130, 120), (132, 135))]
    settled = [
        run.model_copy(update={"speculative_tokens_per_second": Estimate(value=131, ci95=(128, 134), n=10)})
        for run in runs
    ]
    answer = verdict(sweep(*settled, proposal__max_proposal_len=[2, 3, 4]))
    assert answer is not None
    assert answer.headline.startswith("If at all, use ")
    assert "within what the machine varied (" in answer.reasons[0]


@pytest.mark.parametrize("kind", ["ngram", "draft_model"])
def test_a_configured_self_draft_counts_only_where_a_draft_proposes(kind: str, sweep: Callable[..., Sweep]) -> None:
    """With n-gram proposals the draft of the configuration is not even loaded."""
    kinds = {"proposal__kind": [kind, "draft_model"]}
    found = sweep(timing(1.6), timing(1.2), kinds=("self", "hf"), **kinds)
    answer = verdict(found)
    assert answer is not None
    assert answer.run is found.runs[0 if kind == "ngram" else 1]


def test_no_speed_no_verdict(sweep: Callable[..., Sweep]) -> None:
    nothing = Estimate(value=None, n=0)
    unknown = TimingResults(speculative_tokens_per_second=nothing, baseline_tokens_per_second=nothing, speedup=nothing)
    assert verdict(sweep(unknown)) is None
    assert verdict(Sweep(Path(), [])) is None


def test_labels_say_what_differs_and_no_more(sweep: Callable[..., Sweep]) -> None:
    found = sweep(timing(1.0), timing(1.0), sampling__max_new_tokens=[8, 16])
    assert [row["label"] for row in found.rows] == ["max_new_tokens=8", "max_new_tokens=16"]
    assert [row["series"] for row in found.rows] == ["tiny-draft, max_new_tokens=8", "tiny-draft, max_new_tokens=16"]


def test_a_single_run_is_named_by_draft_and_length(sweep: Callable[..., Sweep]) -> None:
    (row,) = sweep(timing(1.0)).rows
    assert row["label"] == "tiny-draft, k=4"


def test_a_proposer_of_one_s_own_is_called_by_its_label(save_run: Save, tmp_path: Path) -> None:
    """Who proposed was told by whether there was a draft model."""
    own = ProposerIdentity(name="my.module.Copycat", label="Copycat")
    source = provenance_of(drafted=False).model_copy(update={"proposer": own})
    settings = config(proposal__kind="custom")
    folder = save_run(tmp_path / "sweep" / "0", timing=timing(1.5), provenance=source, config=settings)
    sweep = load_sweep(tmp_path / "sweep")
    (row,) = sweep.rows
    assert (row["proposer"], row["proposer_name"], row["label"]) == ("Copycat", "my.module.Copycat", "Copycat, k=4")
    answer = verdict(sweep)
    assert answer is not None
    assert answer.headline.startswith("Use Copycat, proposal length 4.")
    assert headline(load_run(folder).results)[0].text.startswith("Copycat, target tiny-target, ")
    assert "Use Copycat" in write_html(tmp_path / "sweep").read_text()
    write_sweep_summary(tmp_path / "sweep")
    assert pd.read_parquet(tmp_path / "sweep" / "sweep_summary.parquet").proposer.tolist() == ["Copycat"]
    assert "Use Copycat" in (tmp_path / "sweep" / "sweep_summary.md").read_text()
