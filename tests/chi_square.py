"""Whether counts may have been drawn from probabilities."""

import numpy as np
from scipy.stats import chisquare


def p_value(counts: np.ndarray, probs: np.ndarray) -> float:
    """Chi-square of ``counts`` against ``probs``; cells with fewer than 5 expected draws are pooled, and a draw where
    the probability is 0 fails at once."""
    counts, expected = counts.ravel(), probs.ravel() / probs.sum() * counts.sum()
    assert counts[expected == 0].sum() == 0
    rare = expected < 5
    if rare.any():
        counts = np.append(counts[~rare], counts[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    keep = expected > 0
    return float(chisquare(counts[keep], expected[keep]).pvalue)
