"""Factors of one structure, to be added to the factor graph of the kernels."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fewfold._native import dispatch

__all__ = ["LinearConstraint", "NativeFactors"]


class LinearConstraint(NamedTuple):
    """One linear constraint on bits: <costs, z> <= bound, or == bound if `equal`."""

    costs: Tensor
    bound: float
    equal: bool


@dataclass(frozen=True, eq=False)
class NativeFactors:
    """Factors of one structure.

    Attributes:
        graph: the factor graph of the kernels.
        bits: (factors, parts) int64, indices of bits of the graph.
        negated: (factors, parts) bool, whether a factor reads a bit negated.
        event: the shape of one factor.
    """

    graph: Any
    bits: Tensor
    negated: Tensor
    event: torch.Size

    def uses(self, negated: Tensor | None = None) -> Any:
        """The bits and their signs as the kernels take them; `negated` replaces the own flags."""
        negated = self.negated if negated is None else negated
        sign = torch.where(negated, -1.0, 1.0).to(torch.float64).contiguous()
        return dispatch.kernel("Uses")(*self.bits.shape, self.bits, sign)

    def add_linear(self, constraint: LinearConstraint) -> None:
        """Add factors that are a linear constraint."""
        costs = constraint.costs
        # <c, 1 - z> <= b is <-c, z> <= b - <c, 1>
        signed = torch.where(self.negated, -costs, costs).contiguous()
        bounds = constraint.bound - torch.where(self.negated, costs, 0.0).sum(1)
        uses = self.uses(torch.zeros_like(self.negated))
        self.graph.add_linear(uses, signed, bounds, constraint.equal)
