"""95 % intervals by a bootstrap over requests: rounds of one request are not independent, so whole requests are drawn.

An expanded percentile interval (Hesterberg, "What teachers should know about the bootstrap", The American Statistician,
2015): the plain percentile interval is too narrow by about sqrt((n - 1) / n) and the missing t quantile; the
percentiles are moved out so far that a normal mean would get its t interval.
"""

from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit  # not scipy.stats: it takes a second to import

RESAMPLES = 2000
MIN_REQUESTS = 8  # fewer say too little: no interval
Interval = tuple[float, float]
Floats = NDArray[np.float64]
Numbers = Sequence[int | float] | Floats


class Bootstrap:
    """Draws of n requests with replacement, as weights: the same draws for every metric, so that metrics can be
    compared."""

    def __init__(self, num_requests: int, *, seed: int = 0) -> None:
        self.num_requests = num_requests
        self._weights = _weights(num_requests, seed)

    def sums(self, per_request: Numbers) -> Floats:
        """Resampled sums ``[RESAMPLES]`` of one number per request."""
        totals: Floats = self._weights @ np.asarray(per_request, dtype=np.float64)
        return totals

    def ratios(self, numerators: Numbers, denominators: Numbers) -> Floats:
        """Resampled ratios of two sums; NaN where the denominator's is zero."""
        below = self.sums(denominators)
        return np.divide(self.sums(numerators), below, out=np.full_like(below, np.nan), where=below != 0)

    def ratio(self, numerators: Numbers, denominators: Numbers, *, offset: float = 0.0) -> Interval | None:
        """Interval of offset + sum of numerators / sum of denominators; ``None`` with fewer than ``MIN_REQUESTS``
        requests whose denominator is not zero: the others say nothing."""
        informative = int(np.count_nonzero(denominators))
        return self.interval(offset + self.ratios(numerators, denominators), informative=informative)

    def interval(self, values: Floats, *, informative: int | None = None) -> Interval | None:
        """Interval of any statistic, from its values over the resamples (NaN: undefined there). ``informative`` of the
        requests say something about it; ``None``: all."""
        n = self.num_requests if informative is None else informative
        known = values[np.isfinite(values)]
        if n < MIN_REQUESTS or not len(known):
            return None
        low, high = np.quantile(known, _levels(n))
        return float(low), float(high)


@lru_cache(maxsize=1)  # 16 KB a request
def _weights(num_requests: int, seed: int) -> Floats:
    """How often each request is in each draw ``[RESAMPLES, num_requests]``."""
    if num_requests == 0:
        return np.empty((RESAMPLES, 0))
    even = np.full(num_requests, 1 / num_requests)
    weights = np.random.default_rng(seed).multinomial(num_requests, even, size=RESAMPLES).astype(np.float64)
    weights.flags.writeable = False
    return weights


def _levels(num_requests: int) -> Interval:
    """The percentiles that stand for 2.5 % and 97.5 %."""
    n = num_requests
    low = NormalDist().cdf(float(stdtrit(n - 1, 0.025)) * (n / (n - 1)) ** 0.5)
    return low, 1 - low
