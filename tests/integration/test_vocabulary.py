"""Drafts whose vocabulary is wider or narrower than their target's. (What the tokens mean is compared at load.)"""

import pytest
import torch
from torch.nn.functional import pad

from spec_harness.models.load import LoadedModel
from spec_harness.models.paged_check import dense_logits
from spec_harness.proposers.ngram import NgramLookup
from spec_harness.requests import RequestRecord
from tests.helpers import prompts, request, run, scheduler, tiny_loaded

VOCAB = 128
REQUESTS = [request(i, prompt, max_new_tokens=12) for i, prompt in enumerate(prompts(3, seed=5))]


def drafted_logits(draft: LoadedModel, record: RequestRecord) -> torch.Tensor:
    """The draft's dense logits at every position that it drafted; ids that it lacks are fed as its last one."""
    text = record.prompt_token_ids + record.token_ids
    rows = []
    for r in record.rounds:
        if r.proposal_len:
            fed = [min(token, draft.vocab_size - 1) for token in text[: r.context_len] + r.draft_token_ids]
            rows.append(dense_logits(draft.model, fed)[r.context_len - 1 : -1])
    return torch.cat(rows)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_mass_that_a_wider_draft_gives_to_foreign_ids_is_told(target: LoadedModel, temperature: float) -> None:
    wider = tiny_loaded(vocab_size=150, seed=1)
    engine = scheduler(target, wider, temperature=temperature)
    records = list(run(engine, REQUESTS).values())
    probs = torch.cat([drafted_logits(wider, record) for record in records]).softmax(-1)
    assert sum(r.proposal_len for record in records for r in record.rounds) == len(probs)
    expected = float(probs[:, VOCAB:].sum(-1).mean())
    assert expected > 0.01
    (note,) = engine.worker.proposer.notes()
    assert f"The draft gave {expected:.2%} of its probability to token ids that the target lacks" in note


def test_what_is_left_of_a_wider_draft_is_renormalized(target: LoadedModel) -> None:
    wider = tiny_loaded(vocab_size=150, seed=1)
    for record in run(scheduler(target, wider, temperature=0.9), REQUESTS).values():
        probs = (drafted_logits(wider, record)[:, :VOCAB] / 0.9).softmax(-1)
        drafted = torch.tensor([token for r in record.rounds for token in r.draft_token_ids])
        told = torch.tensor([p for r in record.rounds for p in r.draft_probs])
        assert int(drafted.max()) < VOCAB
        torch.testing.assert_close(told, probs[torch.arange(len(drafted)), drafted], rtol=0, atol=1e-4)


def test_a_narrower_draft_never_proposes_what_it_lacks_and_loses_no_mass(target: LoadedModel) -> None:
    narrower = tiny_loaded(vocab_size=100, seed=1)
    engine = scheduler(target, narrower, temperature=0.9)
    records = list(run(engine, REQUESTS).values())
    assert not engine.worker.proposer.notes()
    assert max(token for record in records for token in record.token_ids) >= 100
    for record in records:
        probs = pad((drafted_logits(narrower, record) / 0.9).softmax(-1), (0, VOCAB - 100))
        drafted = torch.tensor([token for r in record.rounds for token in r.draft_token_ids])
        told = torch.tensor([p for r in record.rounds for p in r.draft_probs])
        assert int(drafted.max()) < 100
        torch.testing.assert_close(told, probs[torch.arange(len(drafted)), drafted], rtol=0, atol=1e-4)


@pytest.mark.parametrize("draft", [None, NgramLookup(max_window=2, min_window=1), "equal"])
def test_without_foreign_ids_there_is_no_mass_to_tell(target: LoadedModel, draft: object) -> None:
    engine = scheduler(target, target if draft == "equal" else draft)
    run(engine, REQUESTS)
    assert not engine.worker.proposer.notes()
