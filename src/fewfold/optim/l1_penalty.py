"""An L1 penalty as a proximal step: what a parameter is charged, and how its rows pay."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fewfold._check import non_negative_number

__all__ = ["Penalty", "shrink_"]


@dataclass(frozen=True)
class Penalty:
    """`l1` times the sum of absolute values, of numbers that stay at or above zero unless `signed`.

    Right after its move a number `w` that moved by step size `rate` becomes `max(w - l1 rate, 0)`,
    or `sign(w) max(|w| - l1 rate, 0)` if signed: the proximal step in the metric of the rule.

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
        """Raise unless the penalty is a number at or above zero."""
        non_negative_number(self.l1, "l1")


def shrink_(weight: Tensor, by: Tensor, *, signed: bool) -> None:
    """Bring `weight` closer to zero by `by`, in place, and to zero from below if not signed.

    Where `by` is zero nothing changes.
    """
    off = torch.minimum(torch.maximum(weight, -by), by) if signed else torch.minimum(weight, by)
    weight.sub_(torch.where(by > 0, off, 0))
