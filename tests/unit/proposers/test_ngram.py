"""Prompt lookup by hand cases: what it finds, in which order it looks, and what it must never find."""

from functools import cache

import pytest
import torch

from spec_harness.models.load import LoadedModel
from spec_harness.proposers.base import ProposalContext, Proposals
from spec_harness.proposers.ngram import NgramProposer
from tests.helpers import metadata, proposer_env, tiny_loaded


@cache
def target() -> LoadedModel:
    """Of it, a look-up only asks the vocabulary and the device."""
    return tiny_loaded(vocab_size=40)


def proposer(*, k: int = 4, max_window: int = 3, min_window: int = 1) -> NgramProposer:
    return NgramProposer(proposer_env(target(), k=k), max_window=max_window, min_window=min_window)


def proposed(tokens: list[int], *, limit: int = 4, prompt_len: int | None = None, **options: int) -> list[int]:
    """What is proposed behind ``tokens``, the first ``prompt_len`` of which are the prompt."""
    at = len(tokens) if prompt_len is None else prompt_len
    found = proposer(**options).propose(ProposalContext([metadata(0, tokens[:at], [], tokens[at:])], [limit]))
    (length,) = found.lens
    return found.token_ids[0, :length].tolist()


def test_it_keeps_no_kv_and_says_why_it_proposes_nothing() -> None:
    assert proposer().skip_reason == "no_match"
    assert proposer().num_computed_tokens(0) is None


def test_what_followed_the_last_tokens_is_proposed() -> None:
    assert proposed([1, 2, 3, 4, 5, 6, 9, 1, 2, 3]) == [4, 5, 6, 9]


def test_the_longest_window_goes_first_even_if_a_shorter_one_matches_more_recently() -> None:
    tokens = [1, 2, 3, 10, 11, 8, 3, 20, 21, 1, 2, 3]
    assert proposed(tokens, limit=2) == [10, 11]
    assert proposed(tokens, limit=2, max_window=1) == [20, 21]


def test_the_windows_get_shorter_one_by_one_down_to_the_shortest() -> None:
    tokens = [7, 2, 3, 10, 5, 3, 20, 1, 2, 3]
    assert proposed(tokens, limit=1) == [10]  # 1 2 3 is nowhere, 2 3 is
    assert proposed([5, 3, 20, 1, 2, 3], limit=1) == [20]
    assert proposed([5, 3, 20, 1, 2, 3], limit=1, min_window=2) == []


def test_the_most_recent_match_wins() -> None:
    assert proposed([1, 2, 10, 1, 2, 20, 1, 2], limit=1) == [20]


def test_the_last_tokens_never_match_themselves() -> None:
    assert proposed([1, 2, 3]) == []
    assert proposed([5]) == []
    assert proposed([9, 8, 1, 2, 3]) == []


def test_a_match_may_overlap_the_last_tokens() -> None:
    assert proposed([4, 4, 4], limit=4) == [4]  # the window 4 4 stands one token before itself
    assert proposed([1, 2, 1, 2, 1], limit=4) == [2, 1]


def test_a_continuation_that_runs_into_the_end_is_short() -> None:
    assert proposed([1, 2, 3, 30, 1, 2, 3], limit=4) == [30, 1, 2, 3]
    assert proposed([1, 2, 3, 1, 2, 3], limit=4) == [1, 2, 3]
    assert proposed([7, 9, 7], limit=4) == [9, 7]


def test_prompt_and_output_are_one_text() -> None:
    tokens = [1, 2, 3, 30, 31, 1, 2, 3]
    for prompt_len in range(1, len(tokens) + 1):
        assert proposed(tokens, prompt_len=prompt_len, limit=2) == [30, 31]


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_proposal_is_not_longer_than_it_may_be(limit: int) -> None:
    assert proposed([1, 2, 3, 4, 5, 6, 1, 2, 3], limit=limit) == [4, 5, 6][:limit]


def batch_of(k: int = 3) -> Proposals:
    texts = [[1, 2, 9, 8, 1, 2], [1, 2, 3], [6, 5, 6], [1, 2, 9, 8, 1, 2]]
    rows = [metadata(i, text, []) for i, text in enumerate(texts)]
    return proposer(k=k).propose(ProposalContext(rows, [3, 3, 3, 0]))


def test_rows_keep_their_places_and_are_padded() -> None:
    found = batch_of()
    assert found.lens == [3, 0, 2, 0]
    assert found.token_ids.tolist() == [[9, 8, 1], [-1] * 3, [5, 6, -1], [-1] * 3]
    assert found.token_ids.dtype == torch.int64


def test_its_distribution_is_one_hot_at_what_it_proposes() -> None:
    found = batch_of()
    assert found.probs is None
    assert found.logits is None


def test_no_proposals_at_k_0() -> None:
    """The tensors of an empty proposal were once built from empty lists: of the wrong type, and of no shape."""
    found = proposer(k=0).propose(ProposalContext([metadata(i, [1, 1], []) for i in range(2)], [0, 0]))
    assert found.token_ids.shape == (2, 0)
    assert found.lens == [0, 0]


@pytest.mark.parametrize(("max_window", "min_window"), [(1, 2), (0, 0), (3, 0)])
def test_impossible_windows_are_refused(max_window: int, min_window: int) -> None:
    with pytest.raises(ValueError, match="1 <= min_window <= max_window"):
        proposer(max_window=max_window, min_window=min_window)
