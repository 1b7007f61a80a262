"""KV settings, batch size and order change times and KV counters, never a token or an acceptance count.

Float32. A decision within rounding could fall either way, so the fixtures are first shown to have none.
"""

from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from spec_harness.engine.native import NativeEngine
from spec_harness.models.load import LoadedModel
from spec_harness.proposers.ngram import NgramLookup
from spec_harness.requests import Request, RequestRecord
from spec_harness.worker.model_runner import ModelRunner
from tests.helpers import acceptance_rate, noisy_copy, pool_for, prompts, request, run, scheduler
from tests.inspection import drawn, shapes_unchecked

SAMPLINGS = {"greedy": {}, "sampled": {"temperature": 0.8, "top_k": 40, "top_p": 0.95}}
TEXT = prompts(1, seed=9, low=60, high=61)[0]
NGRAM = NgramLookup(max_window=3, min_window=1)


@dataclass(frozen=True)
class Case:
    """One proposer under one sampling, and what each request gives in a roomy engine, one at a time."""

    target: LoadedModel
    draft: LoadedModel | NgramLookup
    sampling: dict[str, Any]

    def requests(self) -> list[Request]:
        """One request goes on until its output loops, for prompt lookup to be right there; one is capped."""
        texts = [*prompts(6, seed=11), TEXT[6:10] * 4]
        return [
            request(i, text, max_new_tokens=60 if text is texts[-1] else 14 + i, max_proposal_len=2 if i == 3 else None)
            for i, text in enumerate(texts)
        ]

    def play(
        self, requests: list[Request] | None = None, **options: Any
    ) -> tuple[dict[str, RequestRecord], NativeEngine]:
        engine = scheduler(self.target, self.draft, **self.sampling, **options)
        return run(engine, self.requests() if requests is None else requests), engine


@pytest.fixture(scope="module", params=["greedy", "sampled"])
def sampling(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(SAMPLINGS[request.param])


@pytest.fixture(scope="module", params=["draft model", "n-gram"])
def case(request: pytest.FixtureRequest, target: LoadedModel, sampling: dict[str, Any]) -> Case:
    draft = NGRAM if request.param == "n-gram" else noisy_copy(target, scale=0.03 if sampling else 0.02)
    return Case(target, draft, sampling)


@pytest.fixture(scope="module")
def expected(case: Case) -> dict[str, Any]:
    with shapes_unchecked():
        records, _ = case.play(batch=1)
    assert acceptance_rate(records.values()) > 0
    assert any(r.num_accepted < r.proposal_len for record in records.values() for r in record.rounds)
    return {i: drawn(r) for i, r in records.items()}


def test_no_decision_of_the_fixture_hangs_on_rounding(
    case: Case, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits moved at random by several tie tolerances draw the same."""
    run_forward, generator = ModelRunner.run, torch.Generator().manual_seed(0)

    def perturbed(self: ModelRunner, *args: object) -> Tensor:
        logits = run_forward(self, *args)
        return logits + 4 * case.target.check.tie_tolerance * (2 * torch.rand(logits.shape, generator=generator) - 1)

    monkeypatch.setattr(ModelRunner, "run", perturbed)
    records, _ = case.play(batch=8)
    assert {i: drawn(r) for i, r in records.items()} == expected


@pytest.mark.parametrize("batch", [1, 4, 32])
@pytest.mark.parametrize("block_size", [1, 8, 16, 64])
def test_block_and_batch_size_change_nothing(case: Case, expected: dict[str, Any], block_size: int, batch: int) -> None:
    records, engine = case.play(block_size=block_size, batch=batch)
    assert {i: drawn(r) for i, r in records.items()} == expected
    assert engine.stats.preemptions == 0


def test_the_order_of_the_prompts_changes_nothing(case: Case, expected: dict[str, Any]) -> None:
    for seed in range(3):
        requests = case.requests()
        Random(seed).shuffle(requests)
        records, _ = case.play(requests, batch=3)
        assert {i: drawn(r) for i, r in records.items()} == expected


@pytest.mark.parametrize("block_size", [1, 8, 16])
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_a_small_pool_costs_preemptions_and_nothing_else(
    case: Case, expected: dict[str, Any], preemption: str, block_size: int
) -> None:
    num_blocks = pool_for(1.5, case.requests(), block_size=block_size)
    records, engine = case.play(
        block_size=block_size, batch=6, num_blocks=num_blocks, num_host_blocks=400, preemption=preemption
    )
    assert {i: drawn(r) for i, r in records.items()} == expected
    assert sum(r.preemptions for r in records.values()) == engine.stats.preemptions > 0
    assert engine.stats.swaps == (engine.stats.preemptions if preemption == "swap" else 0)
    assert engine.scheduler.blocks.peak_allocated <= num_blocks
