import torch

from spec_harness.engine.scorer import score_proposals
from spec_harness.models.load import LoadedModel
from spec_harness.models.paged_check import dense_logits
from spec_harness.proposers.base import Proposals
from tests.helpers import forwards, metadata, prompts, shuffled_tables, worker

K = 3
PROMPTS = prompts(4, seed=3, low=3, high=12)


@torch.inference_mode()
def test_scores_are_the_targets_distributions_at_every_position(target: LoadedModel) -> None:
    for lens in ([3, 0, 2, 1], [3, 3, 3, 3], [0, 0, 0, 0]):
        tokens = torch.full((4, K), -1)
        for b, n in enumerate(lens):
            tokens[b, :n] = torch.arange(n) + 10 * (b + 1)
        proposals = Proposals(tokens, lens)
        tables = shuffled_tables([len(p) + K for p in PROMPTS], 4, num_blocks=60)
        rows = [metadata(i, prompt, table) for i, (prompt, table) in enumerate(zip(PROMPTS, tables, strict=True))]
        with forwards(target.model) as seen:
            probs = score_proposals(worker(target, num_blocks=60, temperature=0.7), rows, proposals).probs
        assert len(seen) == 1
        assert probs.shape == (4, K + 1, 128)
        for b, n in enumerate(lens):
            logits = dense_logits(target.model, [*PROMPTS[b], *tokens[b, :n].tolist()])[-n - 1 :]
            torch.testing.assert_close(probs[b, : n + 1], (logits / 0.7).softmax(-1), rtol=0, atol=1e-4)
            assert not probs[b, n + 1 :].any()


@torch.inference_mode()
def test_with_no_proposer_each_row_has_one_position(target: LoadedModel) -> None:
    proposals = Proposals(torch.empty(1, 0, dtype=torch.int64), [0])
    probs = score_proposals(worker(target), [metadata(0, [3, 4, 5], [1])], proposals).probs
    assert probs.shape == (1, 1, 128)
    assert int(probs.argmax()) == int(dense_logits(target.model, [3, 4, 5])[-1].argmax())
