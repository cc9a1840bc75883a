"""Goodness of fit of counts."""

from collections.abc import Sequence

import numpy as np
from scipy.stats import chi2


def p_value(seen: Sequence[float], expected: Sequence[float]) -> float:
    """p-value of the chi-square test; the sums need only be about the same."""
    counts, means = np.asarray(seen, float), np.asarray(expected, float)
    return float(chi2.sf(((counts - means) ** 2 / means).sum(), len(means) - 1))
