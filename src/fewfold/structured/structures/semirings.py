"""Semirings: one dynamic program computes the best, the k best, a log-sum and a sample.

A program combines the values of sub-structures and reduces over alternative derivations. The
gradient of its result with respect to the scores is the indicator of the parts of the best
structure, of the j-th best or of a sample, and for the log-sum the marginals. Infeasible
sub-structures have the value -inf, and gradients through them are zero.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fewfold._random import multinomial
from fewfold.structured.structures.lattice import safe_logsumexp

__all__ = [
    "BEST",
    "LOG_SUM",
    "KBestRing",
    "Reduce",
    "SampleRing",
    "Semiring",
    "best_of",
    "log_sum_of",
    "sample_of",
]  # fmt: skip

Reduce = Callable[[Tensor], Tensor]
"""reduces the values of alternative derivations, in the last dimension"""


def best_of(values: Tensor) -> Tensor:
    """Maximum over the last dimension; the gradient goes to one maximiser."""
    return values.max(-1).values


def log_sum_of(values: Tensor) -> Tensor:
    """Log-sum-exp over the last dimension; the gradient is softmax."""
    return safe_logsumexp(values, -1)


def sample_of(generator: torch.Generator | None) -> Reduce:
    """Log-sum-exp over the last dimension, with a gradient that goes to one softmax sample."""

    def reduce(values: Tensor) -> Tensor:
        result: Tensor = _Sample.apply(values, generator)
        return result

    return reduce


class _Sample(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, generator: torch.Generator | None) -> Tensor:
        ctx.save_for_backward(values)
        ctx.generator = generator
        return values.logsumexp(-1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (values,) = ctx.saved_tensors
        infeasible = (values == -math.inf).all(-1, keepdim=True)  # never part of a sample
        probs = values.masked_fill(infeasible, 0.0).softmax(-1).flatten(0, -2)
        chosen = multinomial(probs, 1, generator=ctx.generator).view(*values.shape[:-1], 1)
        return torch.zeros_like(values).scatter_(-1, chosen, grads[0].unsqueeze(-1)), None


class Semiring:
    """Semiring on tensors (..., *cells) with addition as its product.

    Args:
        reduce: sum of the semiring, over the last dimension.
    """

    def __init__(self, reduce: Reduce) -> None:
        self.reduce = reduce

    def lift(self, scores: Tensor) -> Tensor:
        """Values of single parts with these scores."""
        return scores

    def join(self, one: Tensor, other: Tensor) -> Tensor:
        """Values of pairs of sub-structures, to be reduced by `pick`."""
        return one + other

    def combine(self, one: Tensor, other: Tensor) -> Tensor:
        """Values of pairs of sub-structures, already reduced."""
        return one + other

    def pick(self, values: Tensor) -> Tensor:
        """Reduce over the last dimension."""
        return self.reduce(values)


BEST = Semiring(best_of)
LOG_SUM = Semiring(log_sum_of)


class SampleRing(Semiring):
    """Log-sums whose gradient is one structure, sampled with probability prop. to exp(score)."""

    def __init__(self, generator: torch.Generator | None) -> None:
        super().__init__(sample_of(generator))


class KBestRing(Semiring):
    """The k largest values, (k, ..., *cells), largest first; -inf where there are fewer."""

    def __init__(self, k: int) -> None:
        super().__init__(best_of)
        self.k = k

    def lift(self, scores: Tensor) -> Tensor:
        none = torch.full_like(scores, -math.inf).expand(self.k - 1, *scores.shape)
        return torch.cat([scores.unsqueeze(0), none])

    def join(self, one: Tensor, other: Tensor) -> Tensor:
        return (one.unsqueeze(1) + other.unsqueeze(0)).flatten(0, 1)

    def combine(self, one: Tensor, other: Tensor) -> Tensor:
        return self.pick(self.join(one, other).unsqueeze(-1))

    def pick(self, values: Tensor) -> Tensor:
        wide = values.movedim(0, -1).flatten(-2)
        return wide.topk(self.k, -1).values.movedim(-1, 0)
