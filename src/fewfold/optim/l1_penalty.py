"""L1 penalty on the rows of a parameter, applied by soft thresholding."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fewfold._check import non_negative_number

__all__ = ["Penalty", "shrink_"]


@dataclass(frozen=True)
class Penalty:
    """Penalty `l1` times the sum of absolute values; entries are non-negative unless `signed`.

    After an update with step size `rate` an entry `w` becomes `max(w - l1 rate, 0)`, or
    `sign(w) max(|w| - l1 rate, 0)` if signed: the proximal step in the metric of the update rule.

    Example:
        >>> import torch, fewfold as ff
        >>> weight = torch.nn.Parameter(torch.tensor([[0.5, 0.05]]))
        >>> optimizer = ff.optim.SGD([weight], lr=0.1)
        >>> optimizer.penalties[weight] = Penalty(l1=1.0, signed=False)
        >>> weight.grad = torch.zeros(1, 2)
        >>> optimizer.step()
        >>> weight.detach()
        tensor([[0.4000, 0.0000]])

    Reference: Duchi, Hazan, Singer (2011), "Adaptive subgradient methods for online learning and
    stochastic optimization".
    """

    l1: float
    signed: bool

    def __post_init__(self) -> None:
        """Raise unless `l1` is a non-negative number."""
        non_negative_number(self.l1, "l1")


def shrink_(weight: Tensor, by: Tensor, *, signed: bool) -> None:
    """Soft-threshold `weight` by `by` in place; negative entries become zero if not signed.

    Entries with a threshold of zero do not change.
    """
    off = torch.minimum(torch.maximum(weight, -by), by) if signed else torch.minimum(weight, by)
    weight.sub_(torch.where(by > 0, off, 0))
