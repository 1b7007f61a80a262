import pytest
import torch

from spec_harness.models.load import LoadedModel
from spec_harness.models.paged_check import dense_logits
from tests.helpers import forwards, metadata, worker

PROMPT = [5, 9, 33, 70, 12]


@torch.inference_mode()
def test_only_what_is_not_computed_is_fed(target: LoadedModel) -> None:
    engine = worker(target)
    with forwards(target.model) as seen:
        engine.execute_model([metadata(0, PROMPT, [4, 2, 9])])
        assert engine.num_computed_tokens(0) == 5
        engine.execute_model([metadata(0, PROMPT, [4, 2, 9], [7, 8])])  # two tokens behind: a bonus token came on top
        engine.rewind(0, 6)
        assert engine.num_computed_tokens(0) == 5
        engine.execute_model([metadata(0, PROMPT, [4, 2, 9], [7, 8, 6])])
    assert [ids.tolist() for ids in seen] == [[PROMPT], [[7, 8]], [[7, 8, 6]]]


@torch.inference_mode()
def test_a_rewind_never_goes_forward(target: LoadedModel) -> None:
    engine = worker(target)
    engine.rewind(0, 9)
    assert engine.num_computed_tokens(0) == 0
    engine.execute_model([metadata(0, PROMPT, [4, 2, 9])])
    engine.rewind(0, 50)
    assert engine.num_computed_tokens(0) == 5
    engine.rewind(0, 5)
    assert engine.num_computed_tokens(0) == 4


@torch.inference_mode()
def test_a_forgotten_sequence_is_computed_from_its_first_token(target: LoadedModel) -> None:
    engine = worker(target)
    before = engine.execute_model([metadata(0, PROMPT, [4, 2])])
    engine.forget(0)
    engine.forget(1)  # never seen: nothing to forget
    with forwards(target.model) as seen:
        after = engine.execute_model([metadata(0, PROMPT, [7, 3])])
    assert seen[0].tolist() == [PROMPT]
    assert torch.equal(after.logits, before.logits)


@torch.inference_mode()
def test_what_a_rewound_sequence_had_cached_leaves_no_trace(target: LoadedModel) -> None:
    """Rejected draft tokens stay in the cache past ``num_computed_tokens``, and are overwritten by what follows."""
    engine = worker(target)
    sequence = metadata(0, PROMPT, [4, 2, 9])
    engine.compute_logits([sequence], torch.tensor([99, 98, 97]), [3], score=True)
    assert engine.num_computed_tokens(0) == 8
    engine.rewind(0, 6)
    grown = metadata(0, PROMPT, [4, 2, 9], [50])
    logits = engine.compute_logits([grown], torch.tensor([51, 52]), [2], score=True)
    expected = dense_logits(target.model, [*PROMPT, 50, 51, 52])[-3:]
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)


@torch.inference_mode()
def test_scoring_gives_logits_at_the_last_token_and_at_every_pending_one(target: LoadedModel) -> None:
    engine = worker(target)
    rows = [metadata(0, PROMPT, [4, 2]), metadata(1, PROMPT[:2], [5]), metadata(2, PROMPT[:4], [6, 1])]
    logits = engine.compute_logits(rows, torch.tensor([60, 61, 62]), [2, 0, 1], score=True)
    expected = [
        dense_logits(target.model, [*PROMPT, 60, 61])[-3:],
        dense_logits(target.model, PROMPT[:2])[-1:],
        dense_logits(target.model, [*PROMPT[:4], 62])[-2:],
    ]
    torch.testing.assert_close(logits, torch.cat(expected), rtol=0, atol=1e-4)


@torch.inference_mode()
def test_scoring_k_tokens_needs_a_slot_for_each(target: LoadedModel) -> None:
    engine = worker(target)
    pending = torch.tensor([60, 61, 62, 63])
    with (
        forwards(target.model) as seen,
        pytest.raises(ValueError, match=r"request r0, sequence 0: .* need 9 KV slots, .* has 8"),
    ):
        engine.compute_logits([metadata(0, PROMPT, [4, 2])], pending, [4], score=True)
    assert not seen
    engine.compute_logits([metadata(0, PROMPT, [4, 2])], pending[:3], [3], score=True)
