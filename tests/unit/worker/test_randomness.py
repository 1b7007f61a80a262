"""The hash against its definition in Python integers, and the numbers against what random numbers should be."""

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, kstest
from torch import Tensor

from spec_harness.worker.randomness import Stream, _mix, _signed, request_keys, sample_race, uniform
from tests.helpers import CPU

MASK, GOLDEN = (1 << 64) - 1, 0x9E3779B97F4A7C15


def mix(x: int) -> int:
    """The finalizer of SplitMix64 on unsigned 64-bit integers."""
    x &= MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def position_key(seed: int, sample: int, position: int, stream: int) -> int:
    key = mix(mix(seed + GOLDEN) + sample * GOLDEN)
    return mix(mix(key + position * GOLDEN) + stream)


def expected_uniform(seed: int, sample: int, position: int, stream: int) -> float:
    return (mix(position_key(seed, sample, position, stream)) >> 11) * 2.0**-53


def draw(seeds: list[int], samples: list[int], positions: list[int], stream: Stream) -> Tensor:
    return uniform(request_keys(seeds, samples, device=CPU), torch.tensor(positions), stream)


def grid(stream: Stream, *, seeds: int = 200, positions: int = 200) -> Tensor:
    keys = request_keys(range(seeds), [0] * seeds, device=CPU)
    return uniform(
        keys[:, None].expand(seeds, positions), torch.arange(positions)[None].expand(seeds, positions), stream
    )


def test_the_mixer_is_that_of_splitmix64() -> None:
    """The first outputs of the published generator from state 0."""
    state = torch.tensor([_signed(i * GOLDEN) for i in (1, 2, 3)])
    assert [x & MASK for x in _mix(state).tolist()] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


@pytest.mark.parametrize("stream", list(Stream))
@pytest.mark.parametrize(
    ("seed", "sample", "position"), [(0, 0, 0), (1, 0, 7), (-3, 2, 100), (2**63 + 5, 1, 4095), (2**64 + 1, 0, 10**6)]
)
def test_numbers_are_those_of_the_definition(seed: int, sample: int, position: int, stream: Stream) -> None:
    assert draw([seed], [sample], [position], stream).item() == expected_uniform(seed, sample, position, stream)


def test_a_known_value_stays() -> None:
    """Changing it would change the output of every sampled run ever recorded."""
    assert draw([1234], [0], [56], Stream.TARGET_TOKEN).item() == 0.2263639681513182


def test_a_race_is_that_of_the_definition() -> None:
    probs = torch.rand(1, 40, generator=torch.Generator().manual_seed(0))
    for position in range(50):
        key = position_key(9, 1, position, Stream.DRAFT_TOKEN)
        units = np.array([(mix(key + (v + 1) * GOLDEN) >> 11) * 2.0**-53 for v in range(40)])
        winner = int(np.argmin(-np.log1p(-units) / probs[0].double().numpy()))
        keys = request_keys([9], [1], device=CPU)
        assert sample_race(probs, keys, torch.tensor([position]), Stream.DRAFT_TOKEN).item() == winner


@pytest.mark.parametrize("stream", list(Stream))
def test_numbers_are_uniform(stream: Stream) -> None:
    values = grid(stream).numpy()
    assert values.min() >= 0
    assert values.max() < 1
    assert kstest(values.ravel(), "uniform").pvalue > 0.001
    assert len(np.unique(values)) == values.size


def test_neighboring_seeds_samples_positions_and_streams_are_uncorrelated() -> None:
    n = 40_000
    bound = 4.5 / n**0.5
    draft, accept, token = (grid(stream) for stream in Stream)
    samples = [uniform(request_keys([3] * n, [s] * n, device=CPU), torch.arange(n), Stream.ACCEPTANCE) for s in (0, 1)]
    pairs = {
        "draft token and acceptance": (draft, accept),
        "acceptance and target token": (accept, token),
        "draft and target token": (draft, token),
        "positions": (accept[:, 1:], accept[:, :-1]),
        "seeds": (accept[1:], accept[:-1]),
        "samples": tuple(samples),
        "acceptance and the next target token": (accept[:, :-1], token[:, 1:]),
    }
    for name, (a, b) in pairs.items():
        correlation = float(np.corrcoef(a.numpy().ravel(), b.numpy().ravel())[0, 1])
        assert abs(correlation) < bound, name


@pytest.mark.parametrize("stream", list(Stream))
def test_a_race_draws_from_the_distribution(stream: Stream) -> None:
    n = 40_000
    probs = torch.tensor([0.5, 0.0, 0.3, 0.15, 0.05])
    tokens = sample_race(probs.expand(n, 5), request_keys(range(n), [0] * n, device=CPU), torch.full((n,), 12), stream)
    counts = torch.bincount(tokens, minlength=5).numpy()
    assert counts[1] == 0
    keep = probs.numpy() > 0
    expected = probs.double().numpy()[keep]
    assert chisquare(counts[keep], expected / expected.sum() * n).pvalue > 0.001


def test_a_race_needs_no_normalized_probabilities_and_one_hot_rows_are_certain() -> None:
    keys, positions = request_keys(range(500), [0] * 500, device=CPU), torch.arange(500)
    probs = torch.rand(500, 9, generator=torch.Generator().manual_seed(0))
    a = sample_race(probs, keys, positions, Stream.TARGET_TOKEN)
    assert torch.equal(a, sample_race(probs / 4, keys, positions, Stream.TARGET_TOKEN))
    one_hot = torch.nn.functional.one_hot(torch.arange(500) % 9, 9).float()
    assert torch.equal(sample_race(one_hot, keys, positions, Stream.TARGET_TOKEN), torch.arange(500) % 9)


def test_a_rounding_step_in_one_probability_moves_no_other_draw() -> None:
    keys, positions = request_keys(range(5000), [0] * 5000, device=CPU), torch.zeros(5000, dtype=torch.int64)
    probs = torch.full((5000, 6), 1 / 6)
    nudged = probs.clone()
    nudged[:, 2] += 1e-6
    a, b = (sample_race(p, keys, positions, Stream.TARGET_TOKEN) for p in (probs, nudged))
    assert ((a == b) | (b == 2)).all()


def test_numbers_do_not_depend_on_the_batch() -> None:
    together = draw([1, 2, 3], [0, 0, 1], [5, 6, 7], Stream.ACCEPTANCE)
    alone = [draw([s], [n], [p], Stream.ACCEPTANCE).item() for s, n, p in [(1, 0, 5), (2, 0, 6), (3, 1, 7)]]
    assert together.tolist() == alone
