"""Oracle 1: a draft that is its target is always accepted, so every round emits its whole proposal and one more."""

import pytest
import torch

from spec_harness.models.load import LoadedModel
from spec_harness.proposers.multi_step_worker import MultiStepWorker
from spec_harness.requests import RequestRecord
from tests.helpers import acceptance_rate, prompts, request, run, scheduler, smallest_margin

pytestmark = pytest.mark.shapes

NEW_TOKENS = 25


def run_self_draft(target: LoadedModel, *, k: int, block_size: int, batch: int) -> dict[str, RequestRecord]:
    engine = scheduler(target, target, k=k, block_size=block_size, batch=batch)
    count = 5 if batch > 1 else 2
    return run(engine, [request(i, p, max_new_tokens=NEW_TOKENS) for i, p in enumerate(prompts(count))])


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("block_size", [1, 8, 16])
@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_self_draft_is_always_accepted(target: LoadedModel, k: int, block_size: int, batch: int) -> None:
    records = run_self_draft(target, k=k, block_size=block_size, batch=batch).values()
    for record in records:
        assert smallest_margin(target, record.prompt_token_ids, record.token_ids) > target.check.tie_tolerance
        assert len(record.token_ids) == NEW_TOKENS
        for r in record.rounds:
            left = NEW_TOKENS - (r.context_len - len(record.prompt_token_ids))
            assert r.proposal_len == min(k, left - 1)
            assert r.num_accepted == r.num_aligned == r.proposal_len
            assert r.num_emitted == r.proposal_len + 1
            assert r.draft_probs == r.target_probs == [1.0] * r.proposal_len
    assert acceptance_rate(records) == 1.0


@pytest.mark.parametrize("temperature", [0.7, 1.5])
def test_self_draft_is_nearly_always_accepted_when_sampled(target: LoadedModel, temperature: float) -> None:
    """Equal distributions accept whatever is drawn; only rounding of the probabilities can reject."""
    engine = scheduler(target, target, k=4, batch=5, temperature=temperature, top_p=0.95)
    records = run(engine, [request(i, p, max_new_tokens=NEW_TOKENS) for i, p in enumerate(prompts(5))]).values()
    assert acceptance_rate(records) > 0.99
    expected = torch.tensor([x for record in records for r in record.rounds for x in r.expected_acceptance])
    torch.testing.assert_close(expected, torch.ones_like(expected), rtol=0, atol=1e-3)


class LastTokenOnlyWorker(MultiStepWorker):
    """Feeds only the last token after a fully accepted proposal, as its ancestors did."""

    def rewind(self, seq_id: int, length: int) -> None:
        if self.num_computed_tokens(seq_id):
            self._num_computed_tokens[seq_id] = length - 1


@pytest.mark.parametrize("k", [1, 2, 4])
def test_oracle_catches_a_draft_that_feeds_only_its_last_token(
    target: LoadedModel, monkeypatch: pytest.MonkeyPatch, k: int
) -> None:
    """The story of the bug: to propose k tokens the draft is fed positions len - 1 ... len + k - 2, so the KV of the
    last proposed token is never written. If all k are accepted and a bonus token follows, the next proposal must feed
    two tokens. A worker that feeds only the last one leaves a hole in the draft's KV for ever. Every output is still
    right, since the target verifies it; only the acceptance drops, silently: 1.95, 2.84 and 4.53 tokens a round for
    k = 1, 2 and 4 were seen in place of 2, 3 and 5.
    """
    sound = run_self_draft(target, k=k, block_size=8, batch=5)
    monkeypatch.setattr("spec_harness.proposers.draft_model.MultiStepWorker", LastTokenOnlyWorker)
    faulty = run_self_draft(target, k=k, block_size=8, batch=5)
    assert {i: r.token_ids for i, r in faulty.items()} == {i: r.token_ids for i, r in sound.items()}
    assert acceptance_rate(sound.values()) == 1.0
    assert acceptance_rate(faulty.values()) < 0.97
    assert sum(len(r.rounds) for r in faulty.values()) > sum(len(r.rounds) for r in sound.values())
