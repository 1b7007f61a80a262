"""Two runs compared: figures by hand, what is noise and what is not, and which runs are no answer to one question."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from spec_harness.errors import UserError
from spec_harness.report.comparable import incomparable_keys
from spec_harness.report.compare import Difference, changed_settings, compare, per_request
from spec_harness.report.compare_tables import compare_headline, compare_notes
from spec_harness.report.load import load_run
from spec_harness.requests import RequestRecord
from spec_harness.results.schema import Estimate, ModelIdentity, TimingResults
from tests.factories import config, request_of, results_of, round_of

Save = Callable[..., Path]
K = 4


def requests(
    accepted: Sequence[Sequence[int]], *, seconds: Sequence[float] | None = None, **changes: Any
) -> list[RequestRecord]:
    """One request for each list of accepted lengths; every round proposes four tokens."""
    made = []
    for i, lengths in enumerate(accepted):
        rounds = [round_of(K, a, request_id=f"r{i}", round=j) for j, a in enumerate(lengths)]
        spent = 1.0 if seconds is None else seconds[i]
        made.append(request_of(rounds, request_id=f"r{i}", engine_s=spent, **changes))
    return made


def varied(seed: int, *, shift: int = 0, count: int = 20) -> list[list[int]]:
    """Requests that differ a lot among themselves; with ``shift`` every round accepts so much more."""
    rng = random.Random(seed)
    return [[rng.randint(0, 1) + (i % 3) + shift for _ in range(5 + i % 7)] for i in range(count)]


def timing(tokens_per_second: float) -> TimingResults:
    unknown = Estimate(value=None, n=0)
    speed = Estimate(value=tokens_per_second, n=20)
    return TimingResults(speculative_tokens_per_second=speed, baseline_tokens_per_second=unknown, speedup=unknown)


@pytest.fixture
def compared(save_run: Save, tmp_path: Path) -> Callable[..., dict[str, Difference]]:
    def run(
        a: list[RequestRecord],
        b: list[RequestRecord],
        *,
        timing_of_a: TimingResults | None = None,
        **sections_of_b: Any,
    ) -> dict[str, Difference]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        first = load_run(save_run(folder / "a", a, timing=timing_of_a or timing(100.0)))
        second = load_run(save_run(folder / "b", b, **{"timing": timing(100.0), **sections_of_b}))
        return {difference.name: difference for difference in compare(first, second)}

    return run


def test_a_run_equals_itself(compared: Any) -> None:
    found = compared(requests(varied(0)), requests(varied(0)))
    assert list(found) == [
        "coverage",
        "acceptance_rate",
        "mean_acceptance_length",
        "tokens_per_target_pass",
        "tokens_per_second",
    ]
    for difference in found.values():
        nothing = 1.0 if difference.is_ratio else 0.0
        assert (difference.change, difference.ci95) == (nothing, (nothing, nothing))
        assert difference.verdict == "equal"


def test_a_difference_that_all_requests_share_is_seen_however_much_they_differ(compared: Any) -> None:
    """One more token accepted in every round; unpaired, the requests' own spread would hide it."""
    a, b = varied(0, count=9), varied(0, shift=1, count=9)
    found = compared(requests(a), requests(b))
    for name in ("mean_acceptance_length", "tokens_per_target_pass"):
        assert found[name].change == pytest.approx(1.0)
        assert found[name].ci95 == pytest.approx((1.0, 1.0))
        assert found[name].verdict == "B higher"
    assert found["acceptance_rate"].change == pytest.approx(1 / K)
    assert found["coverage"].verdict == "equal"
    own = results_of(requests(a), max_proposal_len=K).proposal.mean_acceptance_length.ci95
    assert own is not None
    assert own[1] - own[0] > 1.0  # wider than the difference


def test_the_other_way_round_it_is_a_that_is_higher(compared: Any) -> None:
    found = compared(requests(varied(0, shift=1)), requests(varied(0)))
    assert found["acceptance_rate"].verdict == "A higher"
    assert found["acceptance_rate"].change == pytest.approx(-1 / K)


def test_another_draw_of_the_same_is_within_noise(compared: Any) -> None:
    found = compared(requests(varied(0)), requests(varied(1)), config=config(sampling__seed=1))
    difference = found["acceptance_rate"]
    assert difference.change != 0
    assert difference.verdict == "within noise"
    assert difference.ci95 is not None
    assert difference.ci95[0] < 0 < difference.ci95[1]


def test_speed_is_a_ratio(compared: Any) -> None:
    """Twice as fast in every request."""
    lengths = varied(0)
    spent = [0.1 * len(own) for own in lengths]
    a, b = requests(lengths, seconds=spent), requests(lengths, seconds=[s / 2 for s in spent])
    speed = compared(a, b, timing=timing(200.0), config=config(draft__path="models/faster"))["tokens_per_second"]
    assert (speed.a, speed.b, speed.change) == (100.0, 200.0, 2.0)
    assert speed.ci95 == pytest.approx((2.0, 2.0))
    assert speed.verdict == "B higher"


def test_fewer_than_eight_requests_say_too_little(compared: Any) -> None:
    found = compared(requests(varied(0, count=7)), requests(varied(0, shift=1, count=7)))
    assert {difference.ci95 for difference in found.values()} == {None}
    assert found["acceptance_rate"].verdict == "too few requests"


def test_a_run_that_proposes_nothing_has_no_rates_to_compare(compared: Any) -> None:
    plain = [request_of([round_of(0, 0, request_id=f"r{i}")] * 4, request_id=f"r{i}", engine_s=1.0) for i in range(9)]
    unknown = Estimate(value=None, n=0)
    alone = TimingResults(
        speculative_tokens_per_second=unknown, baseline_tokens_per_second=Estimate(value=50.0, n=9), speedup=unknown
    )
    found = compared(requests(varied(0, count=9)), plain, timing=alone, config=config(proposal__kind="none"))
    assert found["acceptance_rate"].verdict == "unknown"
    assert (found["coverage"].change, found["coverage"].verdict) == (-1.0, "A higher")
    assert found["tokens_per_target_pass"].verdict == "A higher"
    assert (found["tokens_per_second"].b, found["tokens_per_second"].change) == (50.0, 0.5)


def test_turns_and_samples_of_a_request_are_one_unit_and_some_have_no_round(save_run: Save, tmp_path: Path) -> None:
    records = [
        request_of([round_of(4, 1, request_id="a"), round_of(0, 0, request_id="a")], request_id="a", engine_s=1.0),
        request_of([round_of(4, 3, request_id="a", turn=1)], request_id="a", turn=1, engine_s=0.5),
        request_of([], request_id="b", engine_s=0.25),
    ]
    sums = per_request(load_run(save_run(tmp_path / "run", records)))
    a, b = sums["a"], sums["b"]
    assert (a.counts.num_rounds, a.counts.num_drafts, a.counts.num_draft_tokens) == (3, 2, 8)
    assert (a.counts.num_accepted_tokens, a.counts.num_emitted_tokens) == (4, 2 + 1 + 4)
    assert (a.tokens, a.seconds) == (2 + 7, 1.5)
    assert (b.counts.num_rounds, b.tokens, b.seconds) == (0, 1, 0.25)


def hashed(name: str, sha: str | None, dtype: str = "float32") -> ModelIdentity:
    return ModelIdentity(name=name, dtype=dtype, weights_sha256=sha)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"config": config(target__path="models/other")}, "target.path is models/target in one and models/other"),
    ({"config": config(target__max_model_len=99)}, "target.max_model_len is None in one and 99 in the other"),
    ({"target": hashed("t", None, "bfloat16")}, "target.dtype is float32 in one and bfloat16 in the other"),
    ({"config": config(sampling__temperature=1.0)}, "sampling.temperature is 0.7 in one and 1.0 in the other"),
    ({"config": config(sampling__top_k=5)}, "sampling.top_k is None in one and 5 in the other"),
    ({"config": config(sampling__max_new_tokens=9)}, "sampling.max_new_tokens is 64 in one and 9 in the other"),
    ({"prompt_token_ids": [1, 2, 4]}, "prompts: 9 of 9 differ, the first is 'r0'"),
    ({"count": 8}, "prompts: 9 requests against 8, 'r8' is in one run only"),
]


def save_pair(save_run: Save, folder: Path, changes: dict[str, Any], **of_both: Any) -> tuple[Any, Any]:
    """Two runs that differ in ``changes``."""
    runs = []
    for name, own in (("a", of_both), ("b", of_both | changes)):
        own = dict(own)
        records = requests(
            varied(0, count=own.pop("count", 9)), prompt_token_ids=own.pop("prompt_token_ids", [1, 2, 3])
        )
        target = own.pop("target", hashed("t", None))
        provenance = results_of([], max_proposal_len=0).provenance.model_copy(update={"target": target})
        runs.append(load_run(save_run(folder / name, records, provenance=provenance, **own)))
    return runs[0], runs[1]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_runs_that_answer_different_questions_are_refused(
    changes: dict[str, Any], message: str, save_run: Save, tmp_path: Path
) -> None:
    a, b = save_pair(save_run, tmp_path, changes)
    with pytest.raises(UserError) as caught:
        compare(a, b)
    assert message in str(caught.value)
    assert "cannot be compared" in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"config": config(sampling__seed=3)},
        {"config": config(target__trust_remote_code=True)},
        {"config": config(draft__path="models/other")},
        {"config": config(proposal__max_proposal_len=2)},
    ],
    ids=["seed", "how the target is loaded", "draft", "proposal length"],
)
def test_what_may_differ(changes: dict[str, Any], save_run: Save, tmp_path: Path) -> None:
    assert compare(*save_pair(save_run, tmp_path, changes))


def test_weights_count_where_they_are_known_not_the_folder(save_run: Save, tmp_path: Path) -> None:
    elsewhere = {"config": config(target__path="/copies/target"), "target": hashed("/copies/target", "abc")}
    assert compare(*save_pair(save_run, tmp_path / "same", elsewhere, target=hashed("t", "abc")))
    with pytest.raises(UserError, match="weights_sha256"):
        compare(*save_pair(save_run, tmp_path / "other", {"target": hashed("t", "xyz")}, target=hashed("t", "abc")))


def test_prompts_of_later_turns_may_differ(save_run: Save, tmp_path: Path) -> None:
    """They hold what the model said before."""
    runs = []
    for name, said in (("a", 7), ("b", 8)):
        first = requests(varied(0, count=9))
        second = requests(varied(1, count=9), turn=1, prompt_token_ids=[1, 2, 3, said])
        runs.append(load_run(save_run(tmp_path / name, first + second)))
    assert compare(*runs)


def test_settings_that_differ() -> None:
    a, b = (results_of([], max_proposal_len=0, config=c) for c in (config(), config(proposal__max_proposal_len=2)))
    assert changed_settings(a, b) == {"proposal.max_proposal_len": (4, 2)}
    logged = results_of([], max_proposal_len=0, config=config(logger__kinds=["csv"]))
    assert changed_settings(a, logged) == {}


def test_the_same_work_twice_shows_the_machine_and_nothing_else(compared: Any) -> None:
    """A tight interval around 0.9 looked like a finding; the prompts were the same, and so was everything else."""
    lengths = varied(0)
    spent = [0.1 * len(own) for own in lengths]
    a, b = requests(lengths, seconds=spent), requests(lengths, seconds=[1.1 * s for s in spent])
    speed = compared(a, b, timing=timing(100 / 1.1))["tokens_per_second"]
    assert speed.ci95 == pytest.approx((1 / 1.1, 1 / 1.1))
    assert speed.verdict == "within noise"


def test_a_baseline_that_changed_as_much_explains_a_change_in_speed(compared: Any) -> None:
    lengths = varied(0)
    spent = [0.1 * len(own) for own in lengths]
    a, b = requests(lengths, seconds=spent), requests(lengths, seconds=[s / 1.2 for s in spent])
    for baseline, verdict in ((60.0, "within noise"), (52.0, "B higher")):
        ours, theirs = timing(100.0), timing(120.0)
        ours = ours.model_copy(update={"baseline_tokens_per_second": Estimate(value=50.0, n=20)})
        theirs = theirs.model_copy(update={"baseline_tokens_per_second": Estimate(value=baseline, n=20)})
        other = {"timing": theirs, "config": config(draft__path=f"models/{baseline}")}
        speed = compared(a, b, timing_of_a=ours, **other)["tokens_per_second"]
        assert speed.change == pytest.approx(1.2)
        assert speed.verdict == verdict


def test_later_turns_and_limits_of_rows_are_prompts_too(save_run: Save, tmp_path: Path) -> None:
    """They are in no file of the run; its results hold their hash."""
    runs = []
    for name in "ab":
        run = load_run(save_run(tmp_path / name))
        source = run.results.provenance.model_copy(update={"prompts_sha256": name})
        runs.append(type(run)(run.directory, run.results.model_copy(update={"provenance": source})))
    with pytest.raises(UserError, match="later turns or the limits of single rows differ"):
        compare(*runs)
    assert incomparable_keys([run.results for run in runs]) == ["prompts"]


def test_speeds_of_two_machines_are_not_compared(save_run: Save, tmp_path: Path) -> None:
    a = load_run(save_run(tmp_path / "a", timing=timing(100.0)))
    b = load_run(save_run(tmp_path / "b", timing=timing(900.0), config=config(draft__path="models/other")))
    source = b.results.provenance.model_copy(update={"device": "another"})
    b = type(b)(b.directory, b.results.model_copy(update={"provenance": source}))
    differences = compare(a, b)
    assert differences[-1].verdict == "within noise"
    assert "Speed: not compared" in " ".join(line.text for line in compare_headline(a, b, differences))
    assert any("different machines" in note for note in compare_notes(a, b))


def test_a_run_that_was_interrupted_is_marked(save_run: Save, tmp_path: Path) -> None:
    a = load_run(save_run(tmp_path / "a", timing=timing(100.0)))
    b = load_run(save_run(tmp_path / "b", timing=timing(900.0), status="interrupted"))
    texts = [line.text for line in compare_headline(a, b, compare(a, b))]
    assert [text for text in texts if "INTERRUPTED" in text] == [text for text in texts if text.startswith("B: ")]
    assert any(text.startswith("B: INTERRUPTED") for text in texts)


def test_other_code_is_no_repeat(save_run: Save, tmp_path: Path) -> None:
    """With equal settings any difference in speed was called the machine's, whatever had changed in the code."""
    a, b = (load_run(save_run(tmp_path / name, timing=timing(100.0))) for name in "ab")
    assert any("same settings and code" in note for note in compare_notes(a, b))
    source = b.results.provenance.model_copy(update={"git_commit": "another"})
    b = type(b)(b.directory, b.results.model_copy(update={"provenance": source}))
    assert not any("same settings" in note for note in compare_notes(a, b))
