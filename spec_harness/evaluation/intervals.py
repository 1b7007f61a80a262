"""95 % intervals by a bootstrap over requests: rounds of one request are not independent, so whole requests are drawn.

An expanded percentile interval (Hesterberg, "What teachers should know about the bootstrap", The American Statistician,
2015): the plain percentile interval is too narrow by about sqrt((n - 1) / n) and the missing t quantile; the
percentiles are moved out so far that a normal mean would get its t interval.
"""

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student_t

RESAMPLES = 2000
MIN_REQUESTS = 8  # fewer say too little: no interval
Interval = tuple[float, float]
Floats = NDArray[np.float64]


class Bootstrap:
    """Draws of n requests with replacement, as weights: the same draws for every metric, so that metrics can be
    compared."""

    def __init__(self, num_requests: int, *, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        even = np.full(num_requests, 1 / num_requests) if num_requests else np.empty(0)
        self._weights: Floats = rng.multinomial(num_requests, even, size=RESAMPLES).astype(np.float64)
        self._levels = _levels(num_requests) if num_requests >= MIN_REQUESTS else None

    def sums(self, per_request: Sequence[float] | Floats) -> Floats:
        """Resampled sums ``[RESAMPLES]`` of one number per request."""
        return self._weights @ np.asarray(per_request, dtype=np.float64)

    def ratio(
        self, numerators: Sequence[float] | Floats, denominators: Sequence[float] | Floats, *, offset: float = 0.0
    ) -> Interval | None:
        """Interval of offset + sum of numerators / sum of denominators; ``None`` with fewer than ``MIN_REQUESTS``
        requests whose denominator is not zero."""
        if np.count_nonzero(denominators) < MIN_REQUESTS:
            return None
        below = self.sums(denominators)
        return self.interval(offset + self.sums(numerators)[below > 0] / below[below > 0])

    def interval(self, values: Floats) -> Interval | None:
        """Interval of any statistic, from its values over the resamples."""
        if self._levels is None or not len(values):
            return None
        low, high = np.quantile(values, self._levels)
        return float(low), float(high)


def _levels(num_requests: int) -> Interval:
    """The percentiles that stand for 2.5 % and 97.5 %."""
    n = num_requests
    low = NormalDist().cdf(float(student_t.ppf(0.025, n - 1)) * (n / (n - 1)) ** 0.5)
    return low, 1 - low
