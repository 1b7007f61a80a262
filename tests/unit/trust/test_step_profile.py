"""The micro-profile, on a clock that only the models' passes move: each figure is what its passes cost."""

import time
from collections.abc import Sequence
from typing import Any

import pytest

from spec_harness.engine import EngineSettings
from spec_harness.models.load import LoadedModel
from spec_harness.proposers.ngram import NgramLookup, NgramProposer
from spec_harness.results.schema import StepTimeResults
from spec_harness.trust.step_profile import draft_cost_ratio, measure_steps, predicted_speedup
from spec_harness.worker.model_runner import ModelRunner, QueryRow
from tests.helpers import noisy_copy, prompts, spec_of, tiny_loaded

K = 3
TARGET, DRAFT, PER_TOKEN, LOOK_UP = 10.0, 2.0, 0.25, 0.75  # seconds on the clock


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, target: LoadedModel) -> Clock:
    """A pass costs its model's price, and a price for every token that it is fed."""
    made, run, look_up = Clock(), ModelRunner.run, NgramProposer.propose

    def timed_run(self: ModelRunner, rows: Sequence[QueryRow], *arguments: Any) -> Any:
        price = TARGET if self.model is target.model else DRAFT
        made.now += price + PER_TOKEN * sum(row.num_tokens for row in rows)
        return run(self, rows, *arguments)

    def timed_look_up(self: NgramProposer, *arguments: Any) -> Any:
        made.now += LOOK_UP
        return look_up(self, *arguments)

    monkeypatch.setattr(ModelRunner, "run", timed_run)
    monkeypatch.setattr(NgramProposer, "propose", timed_look_up)
    monkeypatch.setattr(time, "perf_counter", made)
    return made


def measured(
    target: LoadedModel, draft: LoadedModel | NgramLookup, *, batch: int = 2, **settings: Any
) -> StepTimeResults | None:
    engine = EngineSettings(block_size=4, num_blocks=1, max_num_seqs=8, max_proposal_len=K, **settings)
    proposer = spec_of(draft)
    assert proposer is not None
    return measure_steps(target, proposer, engine, prompts(3), batch=batch)


@pytest.mark.usefixtures("clock")
def test_each_figure_is_what_its_passes_cost(target: LoadedModel) -> None:
    """Every proposal of the target's own copy is accepted, so that its catch-up feeds one token more each round."""
    steps = measured(target, noisy_copy(target, scale=0.0))
    assert steps is not None
    assert steps.batch == 2
    assert steps.target_forward_s == steps.target_step_s == TARGET + 2 * PER_TOKEN
    assert steps.score_s == [TARGET + 2 * PER_TOKEN * (length + 1) for length in range(K + 1)]
    assert steps.draft_step_s == pytest.approx(DRAFT + 2 * PER_TOKEN)
    assert steps.host_s == pytest.approx(2 * PER_TOKEN)
    assert draft_cost_ratio(steps) == pytest.approx(2.5 / 10.5)
    a_round = K * (DRAFT + 2 * PER_TOKEN) + 2 * PER_TOKEN + TARGET + 2 * PER_TOKEN * (K + 1)
    assert predicted_speedup(steps, K + 1.0, float(K)) == pytest.approx((K + 1) * (TARGET + 2 * PER_TOKEN) / a_round)


@pytest.mark.usefixtures("clock")
def test_one_look_up_serves_all_rows_of_a_round(target: LoadedModel) -> None:
    """The random model's outputs repeat themselves: rounds with a match propose, so that the look-up is shared out."""
    steps = measured(target, NgramLookup(max_window=1, min_window=1))
    assert steps is not None
    assert 0 < steps.draft_step_s <= LOOK_UP
    assert steps.target_step_s == TARGET + 2 * PER_TOKEN  # the baseline looks nothing up


@pytest.mark.usefixtures("clock")
def test_a_target_without_room_is_not_profiled(target: LoadedModel) -> None:
    short = tiny_loaded(max_model_len=80)
    assert measured(short, short) is None


@pytest.mark.usefixtures("clock")
def test_a_draft_without_room_for_a_step_has_no_cost(target: LoadedModel) -> None:
    """The time of an empty proposal was taken for a draft step's, and called the draft 20 times too cheap."""
    assert measured(target, noisy_copy(target, scale=0.0, max_model_len=20)) is None


def test_prediction_lies_on_a_line_between_two_lengths() -> None:
    steps = StepTimeResults(
        batch=1,
        context_len=9,
        target_step_s=3.0,
        target_forward_s=2.0,
        draft_step_s=1.0,
        score_s=[2.0, 4.0, 6.0],
        host_s=0.5,
    )
    assert predicted_speedup(steps, 2.0, 1.5) == pytest.approx(2 * 3 / (1.5 * 1 + 5 + 0.5))
    assert predicted_speedup(steps, 3.0, 2.0) == pytest.approx(3 * 3 / (2 * 1 + 6 + 0.5))
    assert predicted_speedup(steps, 1.0, 0.0) == pytest.approx(1 * 3 / (2 + 0.5))
