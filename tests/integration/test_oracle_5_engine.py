"""Oracle 5 through the whole engine where proposals are shortened or looked up: the output still follows the target.

On stub models, so that 20,000 requests take seconds and the exact joint distribution is a table.
"""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from spec_harness.proposers.multi_step_worker import MultiStepWorker
from spec_harness.requests import RequestRecord
from spec_harness.worker.sampler import SamplerOutput
from tests.chi_square import p_value
from tests.helpers import acceptance_rate, request, run
from tests.inspection import shapes_unchecked
from tests.stub_engine import VOCAB, Setup, hashed, logits_table, stub_engine

LOOKED_UP = [1, 2, 3, 1, 2]
DOUBT = 0.6  # about the median of the stub draft's largest probabilities
DRAWS_BY_ENGINE = pytest.mark.parametrize("draws", [5_000, pytest.param(20_000, marks=pytest.mark.slow)])


def exact_stub_joint() -> np.ndarray:
    """Probability of each first three output tokens of the stub target."""
    table = logits_table("target").double().softmax(-1).numpy()
    joint = np.zeros((VOCAB,) * 3)
    for a, b in itertools.product(range(VOCAB), repeat=2):
        first, second = table[hashed(LOOKED_UP)][a], table[hashed([*LOOKED_UP, a])][b]
        joint[a, b] = first * second * table[hashed([*LOOKED_UP, a, b])]
    return joint


def stub_counts(setup: Setup, draws: int) -> tuple[np.ndarray, list[RequestRecord]]:
    """Of the first three tokens that many requests drew; five are asked for, so that proposals reach three."""
    requests = [request(i, LOOKED_UP, seed=i, max_new_tokens=5) for i in range(draws)]
    with shapes_unchecked():
        records = list(run(stub_engine(setup), requests).values())
    counts = np.zeros((VOCAB,) * 3)
    for record in records:
        counts[tuple(record.token_ids[:3])] += 1
    return counts, records


SAMPLED = Setup(temperature=1.0, batch=2000, num_blocks=12_000, k=3)


@DRAWS_BY_ENGINE
def test_proposals_ended_by_doubt_leave_the_distribution_as_it_is(draws: int) -> None:
    counts, records = stub_counts(replace(SAMPLED, min_draft_prob=DOUBT), draws)
    rounds = [r for record in records for r in record.rounds]
    assert sum(r.skip_reason == "low_confidence" for r in rounds) > 0.1 * len(rounds)
    assert sum(0 < r.proposal_len < 3 for r in rounds) > 0.1 * len(rounds)
    assert 0.2 < acceptance_rate(records) < 0.95
    assert p_value(counts, exact_stub_joint()) > 0.001


def test_doubt_about_the_drawn_token_itself_would_be_a_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    """It drops what the draft finds improbable after having drawn it: such tokens would then come from the target
    alone, the others twice over."""
    whole = MultiStepWorker.execute_model_multi_step

    def by_own_probability(self: MultiStepWorker, *args: Any, **options: Any) -> list[SamplerOutput]:
        dropped, outputs = torch.tensor(False), []
        for output in whole(self, *args, **options):
            own = output.probs.gather(-1, output.token_ids.clamp_min(0)[:, None]).squeeze(-1)
            dropped = dropped | (own < self.min_prob)
            keep = ~dropped[:, None]
            outputs.append(
                SamplerOutput(output.token_ids.where(~dropped, -1), output.probs * keep, output.logits * keep)
            )
        return outputs

    monkeypatch.setattr(MultiStepWorker, "_confident", lambda self, logits, active: (logits, active))
    monkeypatch.setattr(MultiStepWorker, "execute_model_multi_step", by_own_probability)
    counts, _ = stub_counts(replace(SAMPLED, min_draft_prob=DOUBT), 5_000)
    assert p_value(counts, exact_stub_joint()) < 1e-6


@DRAWS_BY_ENGINE
def test_prompt_lookup_leaves_the_distribution_as_it_is(draws: int) -> None:
    counts, records = stub_counts(replace(SAMPLED, proposer="ngram"), draws)
    rounds = [r for record in records for r in record.rounds]
    assert sum(r.skip_reason == "no_match" for r in rounds) > 100
    assert 0.05 < acceptance_rate(records) < 0.95
    assert p_value(counts, exact_stub_joint()) > 0.001


@pytest.mark.slow
def test_the_stub_engine_without_either_follows_its_target_too() -> None:
    counts, records = stub_counts(SAMPLED, 20_000)
    assert 0.2 < acceptance_rate(records) < 0.95
    assert p_value(counts, exact_stub_joint()) > 0.001
    assert p_value(counts, exact_stub_joint().transpose(1, 0, 2)) < 1e-6  # the test can fail
