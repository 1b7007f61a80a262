"""The bootstrap's intervals: how often they hold the truth, and when there is none."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from spec_harness.metrics.bootstrap import MIN_REQUESTS, Bootstrap

K, REQUESTS, SAMPLES = 4, 64, 500
MOST_ROUNDS = 1200  # of one sample


@dataclass
class Pool:
    """Requests that differ in how well they are predicted and in how long they are, the two related: the rounds of one
    request are alike, so far from independent."""

    rates: Any  # chance that a draft token is accepted
    lengths: Any  # rounds

    @classmethod
    def of(cls, size: int, *, seed: int) -> "Pool":
        rng = np.random.default_rng(seed)
        rates = rng.beta(2, 1.5, size)
        return cls(rates, 1 + rng.negative_binomial(2, 0.12 + 0.2 * rates))

    @property
    def truth(self) -> tuple[float, float]:
        """Acceptance rate and mean acceptance length of all requests together, from the chances themselves."""
        accepted = self.lengths * sum(self.rates**i for i in range(1, K + 1))
        proposals = self.lengths.sum()
        return accepted.sum() / (K * proposals), 1 + accepted.sum() / proposals

    def sample(self, rng: np.random.Generator) -> list[list[int]]:
        """Accepted tokens of each round of some requests; K tokens are proposed in each."""
        chosen = rng.integers(0, len(self.rates), REQUESTS)
        passed = (rng.random((self.lengths[i], K)) < self.rates[i] for i in chosen)
        return [np.cumprod(tests, axis=1).sum(axis=1).tolist() for tests in passed]


def coverage(pool: Pool, units: Any, draws: Bootstrap, *, samples: int = SAMPLES) -> list[float]:
    """Share of the samples whose intervals of acceptance rate and mean acceptance length hold the truth; ``units``
    makes of a sample what is resampled: lists of rounds."""
    rng, hits = np.random.default_rng(7), np.zeros(2)
    for _ in range(samples):
        resampled: Sequence[list[int]] = units(pool.sample(rng))
        accepted, proposals = [sum(rounds) for rounds in resampled], [len(rounds) for rounds in resampled]
        found = draws.ratio(accepted, [K * n for n in proposals]), draws.ratio(accepted, proposals, offset=1.0)
        hits += [low <= truth <= high for (low, high), truth in zip(found, pool.truth, strict=True)]
    return (hits / samples).tolist()


def requests(sample: list[list[int]]) -> list[list[int]]:
    return sample


def single_rounds(sample: list[list[int]]) -> list[list[int]]:
    """Every round on its own, and empty ones up to a fixed number."""
    rounds = [[accepted] for request in sample for accepted in request]
    return rounds + [[]] * (MOST_ROUNDS - len(rounds))


@pytest.mark.parametrize("seed", [0, 1])
def test_the_interval_holds_the_truth_in_95_of_100_samples(seed: int) -> None:
    for share in coverage(Pool.of(20_000, seed=seed), requests, Bootstrap(REQUESTS)):
        assert 0.92 <= share <= 0.98


def test_resampling_rounds_instead_of_requests_would_be_found() -> None:
    """The usual mistake: it makes intervals far too narrow, since the rounds of a request are alike."""
    for share in coverage(Pool.of(20_000, seed=0), single_rounds, Bootstrap(MOST_ROUNDS), samples=200):
        assert share < 0.85


def test_fewer_than_eight_requests_that_say_something_give_no_interval() -> None:
    ones, draws = [1.0] * 20, Bootstrap(20)
    assert Bootstrap(MIN_REQUESTS - 1).ratio([1.0] * 7, [2.0] * 7) is None
    assert Bootstrap(MIN_REQUESTS).ratio([1.0] * 8, [2.0] * 8) == (0.5, 0.5)
    assert draws.ratio(ones, [1.0] * 7 + [0.0] * 13) is None
    assert draws.ratio(ones[:8] + [0.0] * 12, [1.0] * 8 + [0.0] * 12) == (1.0, 1.0)
    assert Bootstrap(0).ratio([], []) is None


def test_few_informative_requests_give_a_wider_interval() -> None:
    """Ten requests among fifty that propose nothing are ten requests."""
    accepted, proposed = [1, 5, 2, 9, 4, 4, 0, 7, 3, 6], [10] * 10
    alone, among = Bootstrap(10), Bootstrap(50)
    narrow, wide = alone.ratio(accepted, proposed), among.ratio(accepted + [0] * 40, proposed + [0] * 40)
    assert narrow is not None
    assert wide is not None
    assert wide[1] - wide[0] == pytest.approx(narrow[1] - narrow[0], rel=0.15)


def test_the_same_seed_gives_the_same_interval() -> None:
    rng = np.random.default_rng(3)
    above, below = rng.random(30), 1 + rng.random(30)
    first = Bootstrap(30).ratio(above, below)
    assert first == Bootstrap(30).ratio(above, below)
    assert first != Bootstrap(30, seed=1).ratio(above, below)
    assert first is not None
    assert first[0] < above.sum() / below.sum() < first[1]


def test_for_a_mean_it_is_the_interval_of_student_s_t() -> None:
    """The percentiles are moved out just so far; the plain ones would be 10 % too narrow with 12 requests."""
    values = np.random.default_rng(5).normal(size=12)
    found = Bootstrap(12).ratio(values, [1] * 12)
    assert found is not None
    half = 2.201 * values.std(ddof=1) / 12**0.5  # t of 11 degrees of freedom
    assert found == pytest.approx((values.mean() - half, values.mean() + half), abs=0.12 * half)


def test_draws_are_shared_so_that_metrics_can_be_paired() -> None:
    """A difference of two figures that differ by a constant has no spread at all."""
    values, draws = np.random.default_rng(1).random(16), Bootstrap(16)
    count = np.ones(16)
    assert draws.interval(draws.ratios(values + 2, count) - draws.ratios(values, count)) == pytest.approx((2, 2))
