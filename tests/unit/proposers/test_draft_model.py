import pytest
import torch

from spec_harness.models.load import LoadedModel
from spec_harness.proposers.base import ProposalContext
from spec_harness.proposers.draft_model import DraftModelTop1Proposer
from spec_harness.requests import SequenceMetadata
from tests.helpers import forwards, metadata, prompts, proposer_env, shuffled_tables, worker

K, VOCAB = 4, 128
PROMPTS = prompts(5, seed=2, low=3, high=15)


def proposer(draft: LoadedModel, *, temperature: float = 0.0) -> DraftModelTop1Proposer:
    engine = worker(draft, num_blocks=60, vocab_size=VOCAB, temperature=temperature)
    return DraftModelTop1Proposer(proposer_env(draft, k=K, temperature=temperature), engine)


def batch() -> list[SequenceMetadata]:
    tables = shuffled_tables([len(p) + K for p in PROMPTS], 4, num_blocks=60)
    return [metadata(i, prompt, table) for i, (prompt, table) in enumerate(zip(PROMPTS, tables, strict=True))]


@torch.inference_mode()
def test_mixed_rows_keep_their_places(draft: LoadedModel) -> None:
    lens = [3, 0, 4, 0, 1]
    proposals = proposer(draft, temperature=0.7).propose(ProposalContext(batch(), lens))
    whole = proposer(draft, temperature=0.7).propose(ProposalContext(batch(), [K] * 5))
    assert proposals.probs is not None
    assert proposals.token_ids.shape == (5, K)
    assert proposals.probs.shape == (5, K, VOCAB)
    assert proposals.lens == lens
    for b, n in enumerate(lens):
        assert proposals.token_ids[b].tolist() == whole.token_ids[b, :n].tolist() + [-1] * (K - n)
        torch.testing.assert_close(proposals.probs[b].sum(-1), torch.tensor([1.0] * n + [0.0] * (K - n)))


@torch.inference_mode()
def test_skipped_and_stopped_rows_are_not_in_the_forwards(draft: LoadedModel) -> None:
    with forwards(draft.model) as seen:
        proposer(draft).propose(ProposalContext(batch(), [3, 0, 4, 0, 1]))
    assert [ids.numel() for ids in seen] == [sum(len(PROMPTS[b]) for b in (0, 2, 4)), 2, 2, 1]


@torch.inference_mode()
def test_a_batch_of_skipped_rows_never_runs_the_draft(draft: LoadedModel) -> None:
    """The origin returned (0, k) tensors with (B,) lengths here."""
    with forwards(draft.model) as seen:
        proposals = proposer(draft).propose(ProposalContext(batch(), [0] * 5))
    assert not seen
    assert proposals.token_ids.tolist() == [[-1] * K] * 5
    assert proposals.lens == [0] * 5


@torch.inference_mode()
def test_a_greedy_draft_builds_no_distribution_but_keeps_its_logits(draft: LoadedModel) -> None:
    proposals = proposer(draft).propose(ProposalContext(batch(), [K] * 5))
    assert proposals.probs is None
    assert proposals.logits is not None
    assert torch.equal(proposals.logits.argmax(-1), proposals.token_ids)


@torch.inference_mode()
def test_a_skipped_row_catches_up_when_it_proposes_again(draft: LoadedModel) -> None:
    first, second = proposer(draft), proposer(draft)
    first.propose(ProposalContext(batch(), [2, 0, 2, 2, 2]))
    for m in batch():
        first.rewind(m.seq_id, len(m.data))
    assert torch.equal(
        first.propose(ProposalContext(batch(), [K] * 5)).token_ids,
        second.propose(ProposalContext(batch(), [K] * 5)).token_ids,
    )


@torch.inference_mode()
def test_the_batch_is_not_changed(draft: LoadedModel) -> None:
    rows = batch()
    before = [(list(m.data.token_ids), list(m.block_table)) for m in rows]
    proposer(draft).propose(ProposalContext(rows, [3, 0, 4, 0, 1]))
    assert [(list(m.data.token_ids), list(m.block_table)) for m in rows] == before


@pytest.mark.parametrize("lens", [[K + 1, 0, 0, 0, 0], [0, 0, 5, 0, 0]])
def test_a_proposal_beyond_max_proposal_len_is_refused(draft: LoadedModel, lens: list[int]) -> None:
    with forwards(draft.model) as seen, pytest.raises(ValueError, match=r"request r\d: 5 draft tokens"):
        proposer(draft).propose(ProposalContext(batch(), lens))
    assert not seen


@torch.inference_mode()
def test_a_proposal_beyond_the_drafts_positions_is_refused(draft: LoadedModel) -> None:
    short = proposer(draft)
    short.max_model_len = len(PROMPTS[0]) + 2
    one = batch()[:1]
    with pytest.raises(
        ValueError, match=f"request r0: 4 draft tokens from {len(PROMPTS[0])} tokens on pass the draft's"
    ):
        short.propose(ProposalContext(one, [4]))
    assert short.propose(ProposalContext(one, [3])).lens == [3]  # fed up to the last position
