"""Oracle 6: what a request draws depends on no other request: not on batch size, order or neighbors."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from spec_harness.models.load import LoadedModel
from spec_harness.requests import Request, RequestRecord
from spec_harness.worker.model_runner import ModelRunner
from tests.helpers import acceptance_rate, noisy_copy, prompts, request, run, scheduler

SAMPLING = {"temperature": 0.8, "top_k": 40, "top_p": 0.95}
PROMPTS = prompts(8, seed=7)


@pytest.fixture(scope="module")
def close_draft(target: LoadedModel) -> LoadedModel:
    return noisy_copy(target, scale=0.03)


def requests() -> list[Request]:
    return [request(i, prompt, max_new_tokens=18 + i) for i, prompt in enumerate(PROMPTS)]


def speculate(
    target: LoadedModel, draft: LoadedModel, chosen: Sequence[Request], *, batch: int
) -> dict[str, RequestRecord]:
    return run(scheduler(target, draft, k=4, batch=batch, **SAMPLING), chosen)


def drawn(record: RequestRecord) -> tuple[list[int], list[tuple[list[int], int, int, list[int]]]]:
    """All that a request's randomness decides."""
    rounds = [(r.draft_token_ids, r.num_accepted, r.num_aligned, r.output_token_ids) for r in record.rounds]
    return record.token_ids, rounds


@pytest.fixture(scope="module")
def alone(target: LoadedModel, close_draft: LoadedModel) -> dict[str, RequestRecord]:
    return speculate(target, close_draft, requests(), batch=1)


def assert_equal(records: dict[str, RequestRecord], expected: dict[str, RequestRecord]) -> None:
    for request_id, record in records.items():
        if request_id in expected:
            assert drawn(record) == drawn(expected[request_id])


def test_the_fixture_accepts_rejects_and_is_not_decided_by_rounding(
    target: LoadedModel, close_draft: LoadedModel, alone: dict[str, RequestRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits moved at random by several tie tolerances draw the same: the margins of its decisions are wider."""
    assert 0.2 < acceptance_rate(alone.values()) < 0.9
    run_forward, generator = ModelRunner.run, torch.Generator().manual_seed(0)

    def perturbed(self: ModelRunner, *args: object) -> Tensor:
        logits = run_forward(self, *args)
        return logits + 4 * target.check.tie_tolerance * (2 * torch.rand(logits.shape, generator=generator) - 1)

    monkeypatch.setattr(ModelRunner, "run", perturbed)
    assert_equal(speculate(target, close_draft, requests(), batch=8), alone)


@pytest.mark.parametrize("batch", [3, 8])
def test_output_does_not_depend_on_the_batch_size(
    target: LoadedModel, close_draft: LoadedModel, alone: dict[str, RequestRecord], batch: int
) -> None:
    assert_equal(speculate(target, close_draft, requests(), batch=batch), alone)


def test_output_does_not_depend_on_the_order(
    target: LoadedModel, close_draft: LoadedModel, alone: dict[str, RequestRecord]
) -> None:
    assert_equal(speculate(target, close_draft, requests()[::-1], batch=3), alone)


def test_output_does_not_depend_on_the_neighbors(
    target: LoadedModel, close_draft: LoadedModel, alone: dict[str, RequestRecord]
) -> None:
    others = [request(100 + i, prompt, max_new_tokens=9) for i, prompt in enumerate(prompts(6, seed=8))]
    mixed = [r for pair in zip(others, requests(), strict=False) for r in pair]
    records = speculate(target, close_draft, mixed, batch=5)
    assert_equal(records, alone)
    assert sum(request_id in alone for request_id in records) == len(others)


def test_output_depends_on_the_seed(target: LoadedModel, close_draft: LoadedModel) -> None:
    same = [request(i, PROMPTS[0], seed=5) for i in range(2)]
    other = [request(2, PROMPTS[0], seed=6)]
    records = speculate(target, close_draft, [*same, *other], batch=3)
    assert drawn(records["r0"]) == drawn(records["r1"])
    assert records["r0"].token_ids != records["r2"].token_ids
