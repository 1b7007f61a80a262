import pytest
import torch
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from spec_harness.worker.randomness import Stream
from spec_harness.worker.sampler import Sampler, keys_of
from tests.helpers import CPU, metadata


def sampler(temperature: float = 1.0, **options: object) -> Sampler:
    return Sampler(temperature=temperature, stream=Stream.TARGET_TOKEN, **options)


def logits(rows: int = 200, vocab: int = 50, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


@pytest.mark.parametrize("top_p", [1.0, 0.95, 0.5, 0.01])
@pytest.mark.parametrize("top_k", [0, 1, 7, 50, 80])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_processed_distribution_equals_that_of_transformers(temperature: float, top_k: int, top_p: float) -> None:
    chain = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k:
        chain.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        chain.append(TopPLogitsWarper(top_p))
    expected = chain(torch.zeros(200, 1, dtype=torch.int64), logits()).softmax(-1)
    probs = sampler(temperature, top_k=top_k, top_p=top_p).probs(logits())
    torch.testing.assert_close(probs, expected)
    assert torch.equal(probs > 0, expected > 0)


def test_top_k_keeps_all_logits_equal_to_the_last_kept() -> None:
    probs = sampler(top_k=2).probs(torch.tensor([[1.0, 3.0, 1.0, 0.0]]))
    assert (probs > 0).tolist() == [[True, True, True, False]]


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    row = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    for top_p, kept in [(0.4, 1), (0.6, 2), (0.79, 2), (0.81, 3), (0.96, 4)]:
        assert int((sampler(top_p=top_p).probs(row) > 0).sum()) == kept


def test_greedy_is_one_hot_at_the_largest_logit() -> None:
    probs = sampler(0.0).probs(logits())
    assert torch.equal(probs, torch.nn.functional.one_hot(logits().argmax(-1), 50).float())


def test_low_temperatures_approach_greedy() -> None:
    torch.testing.assert_close(sampler(1e-5).probs(logits()), sampler(0.0).probs(logits()), atol=1e-3, rtol=0)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_and_infinite_logits_show_up_in_their_row_only(temperature: float, bad: float) -> None:
    rows = logits(3)
    rows[1, 4] = bad
    probs = sampler(temperature).probs(rows)
    assert probs.sum(-1).isfinite().tolist() == [True, False, True]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_minus_infinity_is_a_masked_token_and_no_fault(temperature: float) -> None:
    rows = logits(3)
    rows[:, :20] = float("-inf")
    probs = sampler(temperature).probs(rows)
    torch.testing.assert_close(probs.sum(-1), torch.ones(3))
    assert not probs[:, :20].any()


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_ids_beyond_the_vocabulary_are_cut_off_and_the_rest_renormalized(temperature: float) -> None:
    probs = sampler(temperature, vocab_size=30).probs(logits())
    torch.testing.assert_close(probs, sampler(temperature).probs(logits()[:, :30]))
    torch.testing.assert_close(probs.sum(-1), torch.ones(200))


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": 0.7, "top_k": 5, "top_p": 0.9}])
def test_ids_that_the_model_lacks_get_probability_0(options: dict[str, float]) -> None:
    probs = sampler(**options, vocab_size=60).probs(logits())
    torch.testing.assert_close(probs[:, :50], sampler(**options).probs(logits()))
    assert probs.shape == (200, 60)
    assert not probs[:, 50:].any()


def test_half_precision_logits_give_float32_probabilities() -> None:
    assert sampler(0.7).probs(logits().bfloat16()).dtype == torch.float32
    assert sampler(0.0).probs(logits().half()).dtype == torch.float32


def test_a_token_is_drawn_for_its_absolute_position() -> None:
    """Three steps on from two tokens, and one step on from four, decide the same position."""
    row = logits(1)
    short, long = metadata(0, [3, 4], [1]), metadata(0, [3, 4, 5, 6], [1])
    for temperature in (0.0, 2.0):
        chosen = sampler(temperature)
        assert chosen.sample(row, [short], 3).token_ids == chosen.sample(row, [long], 1).token_ids
    draws = {int(sampler(2.0).sample(row, [short], offset).token_ids) for offset in range(40)}
    assert len(draws) > 3


def test_the_key_of_a_sequence_is_that_of_its_seed_and_sample() -> None:
    keys = keys_of([metadata(0, [1], [1], seed=5), metadata(1, [1], [1], seed=5), metadata(2, [1], [1], seed=6)], CPU)
    assert keys[0] == keys[1] != keys[2]
