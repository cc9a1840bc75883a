"""Bootstrap interval of the difference of two models on the same users."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fewfold._check import whole_number

__all__ = ["PairedInterval", "paired_interval"]


@dataclass(frozen=True)
class PairedInterval:
    """Mean difference of a metric between two models, with a confidence interval.

    Attributes:
        mean: mean over users of the first model's score minus the second's.
        low, high: ends of the interval.
        level: its confidence level.
    """

    mean: float
    low: float
    high: float
    level: float = 0.95

    @property
    def contains_zero(self) -> bool:
        """Whether the models are statistically equal at this level."""
        return self.low <= 0 <= self.high

    def __str__(self) -> str:
        return (
            f"{self.mean:+.4f}, {100 * self.level:g} % interval {self.low:+.4f} to {self.high:+.4f}"
        )


def paired_interval(
    first: Tensor,
    second: Tensor,
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> PairedInterval:
    """Estimate the mean difference of two models by the bootstrap over users.

    Both models rank for the same users, so that users are resampled and each contributes the
    difference of its two scores: what makes a user hard for both cancels.

    Args:
        first, second: (users,) scores of each user, as in `Score.per_user`.
        level: confidence level.
        resamples: number of bootstrap samples.
        seed: of the resampling.

    Example:
        >>> import torch
        >>> from fewfold.recommender.evaluation.paired_interval import paired_interval
        >>> scores = torch.linspace(0, 1, 100)
        >>> print(paired_interval(scores + 0.01, scores))
        +0.0100, 95 % interval +0.0100 to +0.0100
    """
    if first.shape != second.shape or first.ndim != 1 or len(first) == 0:
        raise ValueError(
            "first and second must be scores of the same users, (users,), got shapes "
            f"{tuple(first.shape)} and {tuple(second.shape)}"
        )
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}; write 0.95 for 95 %")
    whole_number(resamples, "resamples")
    difference = (first - second).numpy()
    rng, users = np.random.default_rng(seed), len(difference)
    means = [difference[rng.integers(0, users, users)].mean() for _ in range(resamples)]
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return PairedInterval(float(difference.mean()), float(low), float(high), level)
