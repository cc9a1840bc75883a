"""Confidences of interactions from raw weights and from their age."""

import math

import numpy as np
import torch
from torch import Tensor

from fewfold._check import positive_number
from fewfold.recommender.interactions import Interactions

__all__ = ["SCALES", "confidences", "days_old", "decayed", "span_in_days", "units_per_day"]

SCALES = ("linear", "log")
_MOST = 10.0  # times the median: larger weights count as much
_LEAST = 1e-6  # of a confidence, so that single precision never makes it 0
# From the largest time to the number of units in a day: seconds, milli-, micro- and nanoseconds
# since 1970, for times between the years 1973 and 5138.
_UNITS = ((1e8, 1e11, 86_400), (1e11, 1e14, 86_400e3), (1e14, 1e17, 86_400e6),
          (1e17, 1e20, 86_400e9))  # fmt: skip


def confidences(weights: Tensor, scale: str = "linear") -> Tensor:
    """Return confidences of mean 1 from raw weights, such as counts or ratings.

    With m the median of the weights and f the identity, or ``f(w) = log(1 + w / m)`` for the scale
    "log",

        c_p = min(f(w_p), 10 f(m)) / mean over q of min(f(w_q), 10 f(m)).

    The mean of 1 makes the settings of models mean the same as without weights, and units do not
    matter. The cap keeps a few huge counts from outweighing everything else.

    Args:
        weights: (pairs,) finite and above 0.
        scale: "linear" or "log".

    Returns:
        (pairs,) float32.

    Example:
        >>> import torch
        >>> from fewfold.recommender.weighting import confidences
        >>> confidences(torch.tensor([1.0, 2.0, 3.0]))
        tensor([0.5000, 1.0000, 1.5000])
        >>> confidences(torch.tensor([1.0, 1.0, 1.0, 1e9]))
        tensor([0.3077, 0.3077, 0.3077, 3.0769])
    """
    if scale not in SCALES:
        raise ValueError(f"weight_scale must be one of {', '.join(SCALES)}, got {scale!r}")
    if len(weights) == 0:
        return weights.float()
    given = weights.double()
    middle = float(np.median(given.numpy()))
    found = given / middle if scale == "linear" else torch.log1p(given / middle) / math.log(2)
    return _normalised(found.clamp(max=_MOST))


def decayed(log: Interactions, half_life: float) -> Interactions:
    """Return interactions whose weights halve with every `half_life` days of their age.

    Ages are relative to the newest interaction. Weights are scaled to a mean of 1.

    Args:
        log: with times, in seconds, milli-, micro- or nanoseconds since 1970.
        half_life: in days, above 0.

    Example:
        >>> from fewfold.recommender import Interactions
        >>> from fewfold.recommender.weighting import decayed
        >>> day = 86_400
        >>> times = [1_600_000_000, 1_600_000_000 - 10 * day]
        >>> decayed(Interactions.from_pairs([0, 0], [0, 1], times), half_life=10).weights
        tensor([1.3333, 0.6667])
    """
    positive_number(half_life, "half_life")
    factor = torch.exp2(-days_old(log) / half_life)
    given = factor if log.weights is None else factor * log.weights.double()
    return log.with_values(weights=_normalised(given))


def days_old(log: Interactions) -> Tensor:
    """Return the age of each pair in days, (pairs,) float64; ValueError if it is not known."""
    if log.times is None or log.pairs == 0:
        raise ValueError(
            "half_life (--half-life) needs times, and this log has none; name their column with "
            "time= (--time), or leave half_life out"
        )
    newest = float(log.times.max())
    day = units_per_day(newest)
    if day is None:
        raise ValueError(
            "half_life (--half-life) needs dates, or times since 1970 in seconds, milliseconds, "
            f"microseconds or nanoseconds; the newest time is {newest:g}; convert the times, or "
            "leave half_life out"
        )
    return (log.times.max() - log.times).double() / day


def units_per_day(newest: float) -> float | None:
    """Return how many units of time a day has, from the newest of the times since 1970.

    Units are seconds, milli-, micro- or nanoseconds; None if it is none of these.
    """
    return next((day for low, high, day in _UNITS if low <= newest < high), None)


def span_in_days(log: Interactions) -> float | None:
    """Return the days from the oldest to the newest pair; None if that is not known."""
    try:
        return float(days_old(log).max())
    except ValueError:
        return None


def _normalised(weights: Tensor) -> Tensor:
    """Divide the weights by their mean; returns float32."""
    return (weights / weights.mean()).clamp(min=_LEAST).float()
