"""Notes: each appears where its figure calls for it, states that figure, and stays away otherwise."""

from collections.abc import Callable
from typing import Any

import pytest

from spec_harness.report.notes import notes, repeated_share
from spec_harness.results.schema import Estimate, RunResults, TimeShare, TimingResults

Make = Callable[..., Any]


def config(**sections: dict[str, Any]) -> dict[str, Any]:
    """A plain run's settings, with changes."""
    base: dict[str, dict[str, Any]] = {
        "draft": {"kind": "hf"},
        "proposal": {"kind": "draft_model", "draft_sampling": "same"},
        "sampling": {"temperature": 0.0, "top_k": None, "top_p": 1.0},
    }
    return {name: base[name] | sections.get(name, {}) for name in base}


def timing(speedup: float | None, **shares: float) -> TimingResults:
    share = dict.fromkeys(TimeShare.model_fields, 0.0) | shares
    return TimingResults(
        speculative_tokens_per_second=Estimate(value=100.0, n=9),
        baseline_tokens_per_second=Estimate(value=100.0, n=9),
        speedup=Estimate(value=speedup, n=9),
        time_share=TimeShare(**share),
    )


@pytest.fixture
def run(make_round: Make, make_request: Make, make_results: Make) -> Callable[..., tuple[RunResults, list[Any]]]:
    """A run of nine requests with the given rounds (l, a) each; nothing about it is worth a note by default."""

    def make(
        *rounds: tuple[int, int], requests: int = 9, token_ids: list[int] | None = None, **sections: Any
    ) -> tuple[RunResults, list[Any]]:
        records = []
        for i in range(requests):
            own = [make_round(length, accepted, request_id=f"r{i}") for length, accepted in rounds]
            changes = {} if token_ids is None else {"token_ids": token_ids}
            records.append(make_request(own, request_id=f"r{i}", **changes))
        values = {"config": config(), "timing": timing(1.5, score=1.0)} | sections
        return make_results(records, max_proposal_len=4, **values), records

    return make


def test_an_ordinary_run_needs_no_note(run: Make) -> None:
    assert notes(*run((4, 2), (4, 1))) == []


def test_low_coverage_comes_with_its_main_reason(run: Make) -> None:
    (note,) = notes(*run((4, 2), (0, 0), (0, 0)))
    assert note.startswith(
        "Coverage is 33.3 %: most rounds had no proposal (18 of 27 near the end of the token budget)"
    )
    assert notes(*run((4, 2), (0, 0))) == []  # half is enough


def test_without_any_proposal_there_is_nothing_to_warn_of(run: Make) -> None:
    results, records = run((0, 0), (0, 0), config=config(proposal={"kind": "none"}), timing=timing(None))
    assert notes(results, records) == []


@pytest.mark.parametrize(
    ("rounds", "words"),
    [
        ([(4, 0)] * 6 + [(4, 1)], "Acceptance is 3.6 %: draft and target hardly ever agree"),
        ([(4, 4)] * 3, "Acceptance is 100.0 %, suspiciously near 1"),
    ],
)
def test_acceptance_near_its_ends(rounds: list[tuple[int, int]], words: str, run: Make) -> None:
    (note,) = notes(*run(*rounds))
    assert note.startswith(words)


def test_a_target_that_drafts_for_itself_is_named_whatever_its_acceptance(run: Make) -> None:
    for rounds in ([(4, 4)], [(4, 2)]):
        (note,) = notes(*run(*rounds, config=config(draft={"kind": "self"})))
        assert note.startswith("The target drafts for itself (acceptance ")
    ngram = config(draft={"kind": "self"}, proposal={"kind": "ngram"})
    assert notes(*run((4, 2), config=ngram)) == []  # then no draft model runs


def test_repeated_n_grams() -> None:
    assert repeated_share(range(50)) == 0.0
    assert repeated_share([1, 2, 3]) == 0.0
    assert repeated_share([5] * 20) == 1 - 1 / 17  # 17 4-grams, all the same
    assert repeated_share([1, 2, 3, 4, 9, 1, 2, 3, 4]) == pytest.approx(1 / 6)


def test_outputs_that_loop_are_counted_and_their_acceptance_set_apart(
    run: Make, make_round: Make, make_request: Make
) -> None:
    results, _ = run((4, 2))
    loop = make_request([make_round(4, 4)], request_id="a", token_ids=[1, 2, 3] * 10)
    text = [make_request([make_round(4, 1)], request_id=f"t{i}", token_ids=list(range(30))) for i in range(8)]
    (note,) = notes(results, [loop, *text])
    assert note.startswith("1 of 9 outputs loop")
    assert note.endswith("Acceptance here: 100.0 % in them, 25.0 % in the others.")
    assert notes(results, [loop, *text, *text]) == []  # one in seventeen
    short = make_request([make_round(4, 4)], token_ids=[1] * 8)
    assert notes(results, [short]) == []  # too short to tell


def test_a_failed_speedup_names_the_term_to_blame(run: Make) -> None:
    """Half of the tokens per second, all rounds alike: two tokens a round cost the time of four plain steps, so a share
    of 0.25 is one plain step."""
    results, records = run((4, 1), timing=timing(0.5, propose=0.5, score=0.375, verify=0.0625, commit=0.0625))
    (note,) = notes(results, records)
    assert "(0.50x): a round yields 2.00 tokens and takes the time of 4.00 plain steps" in note
    assert "(proposing 2.00, scoring 1.50, verifying 0.25, the host 0.25)" in note
    assert note.endswith("proposing costs most.")
    for shares, blamed in (
        ({"propose": 0.2, "score": 0.8}, "scoring"),  # 3.2 steps, 2.2 of them more than the one pass
        ({"propose": 0.3, "score": 0.5, "verify": 0.2}, "proposing"),  # scoring is 2.0, but only 1.0 too much
        ({"score": 0.4, "verify": 0.5, "propose": 0.1}, "verifying"),
        ({"score": 0.3, "propose": 0.1, "commit": 0.1, "scheduler": 0.5}, "the host"),
    ):
        (note,) = notes(*run((4, 1), timing=timing(0.5, **shares)))
        assert note.endswith(f"{blamed} costs most.")


def test_prefill_that_both_sides_pay_is_not_blamed(run: Make) -> None:
    """Prefill takes half of the time. Without it 2 tokens cost 0.5 against 0.3 for plain decoding: 3.33 steps."""
    (note,) = notes(*run((4, 1), timing=timing(0.8, prefill=0.5, propose=0.3, score=0.2)))
    assert "takes the time of 3.33 plain steps (proposing 2.00, scoring 1.33," in note
    (note,) = notes(*run((4, 1), timing=timing(0.8, prefill=0.9, score=0.1)))
    assert "prefill takes 90.0 % of its time" in note


@pytest.mark.parametrize(
    ("proposal", "sampling", "words"),
    [
        (
            {"draft_sampling": "greedy"},
            {"temperature": 0.7},
            "The draft draws greedily, the target at temperature 0.7:",
        ),
        (
            {"draft_sampling": "custom", "draft_temperature": 0.5, "draft_top_k": 8},
            {"temperature": 1.0, "top_p": 0.9},
            "The draft draws at temperature 0.5, top-k 8, the target at temperature 1, top-p 0.9:",
        ),
        ({"draft_sampling": "greedy"}, {"temperature": 0.0}, None),
        ({"draft_sampling": "custom", "draft_temperature": 0.5}, {"temperature": 0.5}, None),
        ({"draft_sampling": "greedy", "kind": "ngram"}, {"temperature": 0.7}, None),
    ],
)
def test_draft_and_target_sampling_that_differ(
    proposal: dict[str, Any], sampling: dict[str, Any], words: str | None, run: Make
) -> None:
    found = notes(*run((4, 2), config=config(proposal=proposal, sampling=sampling)))
    assert [note[: len(words or "")] for note in found] == ([] if words is None else [words])


def test_few_requests(run: Make) -> None:
    (note,) = notes(*run((4, 2), requests=1))
    assert note.startswith("Only 1 request: no intervals, which need at least 8.")
    assert notes(*run((4, 2), requests=7))[0].startswith("Only 7 requests")
    assert notes(*run((4, 2), requests=8)) == []


def test_a_prediction_far_from_what_was_measured(run: Make) -> None:
    """The prediction is what acceptance and step times make of decoding: where it fails, something else decides."""
    for measured, predicted, warned in ((1.0, 1.2, False), (1.0, 1.3, True), (1.3, 1.0, True)):
        times = timing(measured, prefill=0.25, propose=0.75).model_copy(update={"predicted_speedup": predicted})
        results, records = run((4, 2), timing=times)
        found = [note for note in notes(results, records) if note.startswith("Acceptance and step times predict")]
        assert bool(found) == warned
        assert not warned or f"{predicted:.2f}x for decoding alone" in found[0]
        assert not warned or f"but {measured:.2f}x was measured" in found[0]
        assert not warned or f"{0.25 + 0.75 * predicted:.2f}x with the prefill" in found[0]


def test_intervals_of_times_say_what_they_cover(run: Make) -> None:
    speed = Estimate(value=100.0, ci95=(90.0, 110.0), n=9)
    with_interval = timing(1.5, score=1.0).model_copy(update={"speculative_tokens_per_second": speed})
    (note,) = notes(*run((4, 2), timing=with_interval))
    assert "cover the choice of prompts, not the machine's own noise" in note


def test_without_times_nothing_is_said_about_them(run: Make) -> None:
    assert notes(*run((4, 2), timing=None)) == []
