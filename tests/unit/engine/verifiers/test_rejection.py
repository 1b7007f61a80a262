"""Hand cases of verification; that it is unbiased is oracle 5's business."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from spec_harness.engine.verifiers.rejection import RejectionSampler, Verification
from spec_harness.proposers.base import Proposals
from spec_harness.worker.randomness import request_keys
from tests.helpers import CPU

V, K = 6, 3


def hot(*ids: int) -> Tensor:
    """One-hot distributions, as greedy sampling has them."""
    return one_hot(torch.tensor(ids), V).float()


def verify(target: list[Tensor], drafted: list[list[int]], draft: list[Tensor] | None = None) -> Verification:
    """``target[b]`` and ``draft[b]`` hold a distribution per position (the draft's default: one-hot)."""
    rows = len(drafted)
    tokens, probs = torch.full((rows, K), -1), torch.zeros(rows, K, V)
    scored = torch.zeros(rows, K + 1, V)
    for b, ids in enumerate(drafted):
        tokens[b, : len(ids)] = torch.tensor(ids, dtype=torch.int64)
        probs[b, : len(ids)] = hot(*ids) if ids and draft is None else (draft[b] if draft else probs[b, :0])
        scored[b, : len(target[b])] = target[b]
    lens = [len(ids) for ids in drafted]
    keys = request_keys(range(rows), [0] * rows, device=CPU)
    return RejectionSampler().verify(scored, Proposals(tokens, lens, probs), keys, torch.full((rows,), 10))


@pytest.mark.parametrize("greedy", [True, False])
def test_no_distribution_is_the_same_as_one_hot_ones(greedy: bool) -> None:
    """Token for token and figure for figure, bit by bit, for proposals of every length."""
    rows, generator = 400, torch.Generator().manual_seed(0)
    target = torch.randn(rows, K + 1, V, generator=generator).mul(3).softmax(-1)
    if greedy:
        target = one_hot(target.argmax(-1), V).float()
    lens = torch.randint(0, K + 1, (rows,), generator=generator)
    inside = torch.arange(K) < lens[:, None]
    tokens = torch.where(inside, torch.randint(0, V, (rows, K), generator=generator), -1)
    explicit = one_hot(tokens.clamp_min(0), V) * inside[..., None].float()
    keys, first = request_keys(range(rows), [0] * rows, device=CPU), torch.full((rows,), 10)
    told, implied = (
        RejectionSampler(greedy=greedy).verify(target, Proposals(tokens, lens.tolist(), probs), keys, first)
        for probs in (explicit, None)
    )
    for name, figure in vars(told).items():
        assert torch.equal(figure, getattr(implied, name)), name
    raced = RejectionSampler().verify(target, Proposals(tokens, lens.tolist()), keys, first)
    assert torch.equal(raced.output_token_ids, implied.output_token_ids)  # a greedy target needs no draw
    assert 0 < int((told.num_accepted == lens).sum()) < rows


def test_full_acceptance_emits_a_bonus_token() -> None:
    verified = verify([hot(1, 2, 3, 4)], [[1, 2, 3]])
    assert verified.output_token_ids.tolist() == [[1, 2, 3, 4]]
    assert verified.num_accepted.tolist() == [3]
    assert verified.passed.tolist() == [[True] * 3]


def test_later_accepts_after_a_rejection_never_leak() -> None:
    verified = verify([hot(1, 5, 3, 4)], [[1, 2, 3]])
    assert verified.output_token_ids.tolist() == [[1, 5, -1, -1]]
    assert verified.num_accepted.tolist() == [1]
    assert verified.passed.tolist() == [[True, False, True]]  # aligned, yet not accepted


def test_a_first_token_rejected_emits_the_recovered_one_only() -> None:
    verified = verify([hot(0, 2, 3, 4)], [[1, 2, 3]])
    assert verified.output_token_ids.tolist() == [[0, -1, -1, -1]]
    assert verified.num_accepted.tolist() == [0]


def test_skipped_short_and_full_rows_share_a_batch() -> None:
    verified = verify([hot(5), hot(1, 2), hot(1, 2, 3, 4), hot(3, 3, 3)], [[], [1], [1, 2, 3], [3, 1]])
    assert verified.output_token_ids.tolist() == [[5, -1, -1, -1], [1, 2, -1, -1], [1, 2, 3, 4], [3, 3, -1, -1]]
    assert verified.num_accepted.tolist() == [0, 1, 3, 1]
    assert verified.passed.tolist() == [[False] * 3, [True, False, False], [True] * 3, [True, False, False]]
    assert verified.draft_probs.tolist() == [[0] * 3, [1, 0, 0], [1] * 3, [1, 1, 0]]
    assert verified.target_probs.tolist() == [[0] * 3, [1, 0, 0], [1] * 3, [1, 0, 0]]
    assert verified.finite.all()


def test_no_proposer_draws_from_the_target() -> None:
    proposals = Proposals(torch.empty(2, 0, dtype=torch.int64), [0, 0])
    keys = request_keys([0, 1], [0, 0], device=CPU)
    verified = RejectionSampler().verify(hot(3, 4)[:, None], proposals, keys, torch.tensor([5, 6]))
    assert verified.output_token_ids.tolist() == [[3], [4]]
    assert verified.num_accepted.tolist() == [0, 0]


def test_a_token_the_target_excludes_is_always_rejected_and_never_recovered() -> None:
    target = torch.tensor([0.0, 0.5, 0.5, 0, 0, 0]).repeat(2, 1)
    draft = torch.tensor([[0.9, 0.1, 0, 0, 0, 0]])
    verified = verify([target] * 300, [[0]] * 300, [draft] * 300)
    assert not verified.num_accepted.any()
    assert set(verified.output_token_ids[:, 0].tolist()) == {1, 2}


def test_a_token_that_the_target_likes_more_than_the_draft_is_always_accepted() -> None:
    target = torch.tensor([0.6, 0.4, 0, 0, 0, 0]).repeat(2, 1)
    draft = torch.tensor([[0.6, 0.1, 0.3, 0, 0, 0]])
    for token in (0, 1):
        assert verify([target] * 300, [[token]] * 300, [draft] * 300).num_accepted.all()


def test_expected_acceptance_is_the_overlap() -> None:
    target = torch.tensor([[0.5, 0.3, 0.2, 0, 0, 0], [1, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0]])
    draft = torch.tensor([[0.1, 0.3, 0.2, 0.4, 0, 0], [0, 1, 0, 0, 0, 0]])
    verified = verify([target], [[0, 1]], [draft])
    torch.testing.assert_close(verified.expected_acceptance, torch.tensor([[0.6, 0.0, 0.0]]))


def test_nan_in_target_or_draft_is_told_per_row() -> None:
    target = [hot(1, 2, 3, 4) for _ in range(3)]
    target[0] = target[0].clone()
    target[0][2, 3] = float("nan")
    draft = [hot(1, 2, 3) for _ in range(3)]
    draft[1] = draft[1].clone()
    draft[1][1, 0] = float("nan")
    assert verify(target, [[1, 2, 3]] * 3, draft).finite.tolist() == [False, False, True]
