"""Semirings: a dynamic program written once gives the best, the k best, a log-sum and a draw.

A program combines the values of sub-structures and reduces over the ways to make one. The gradient
of its result in the scores tells which parts the result has: those of the best structure, of the
j-th best or of a draw, and for the log-sum the marginals. What cannot be made has the value -inf,
and gradients through it are zero.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fewfold.structured.structures.lattice import safe_logsumexp

__all__ = [
    "BEST", "LOG_SUM", "Drawn", "KBestRing", "Reduce", "Semiring", "best_of", "drawn_of",
    "log_sum_of",
]  # fmt: skip

Reduce = Callable[[Tensor], Tensor]
"""what the values of the ways to make something, in the last dimension, come to"""


def best_of(values: Tensor) -> Tensor:
    """The largest; its gradient goes to one of them."""
    return values.max(-1).values


def log_sum_of(values: Tensor) -> Tensor:
    """Their sum, all in logs; its gradient goes to each in its proportion."""
    return safe_logsumexp(values, -1)


def drawn_of(generator: torch.Generator | None) -> Reduce:
    """Their sum, all in logs, with a gradient that goes to one drawn in proportion."""

    def reduce(values: Tensor) -> Tensor:
        found: Tensor = _Draw.apply(values, generator)
        return found

    return reduce


class _Draw(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, generator: torch.Generator | None) -> Tensor:
        ctx.save_for_backward(values)
        ctx.generator = generator
        return values.logsumexp(-1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (values,) = ctx.saved_tensors
        nothing = (values == -math.inf).all(-1, keepdim=True)  # of which no draw has a part
        law = values.masked_fill(nothing, 0.0).softmax(-1).flatten(0, -2)
        chosen = torch.multinomial(law, 1, generator=ctx.generator).view(*values.shape[:-1], 1)
        return torch.zeros_like(values).scatter_(-1, chosen, grads[0].unsqueeze(-1)), None


class Semiring:
    """Values are tensors (..., *cells), combined by addition.

    Args:
        reduce: of the last dimension.
    """

    def __init__(self, reduce: Reduce) -> None:
        self.reduce = reduce

    def lift(self, scores: Tensor) -> Tensor:
        """The values of single parts with these scores."""
        return scores

    def join(self, one: Tensor, other: Tensor) -> Tensor:
        """The values of pairs of sub-structures, to be reduced at once."""
        return one + other

    def combine(self, one: Tensor, other: Tensor) -> Tensor:
        """The same, reduced already."""
        return one + other

    def pick(self, values: Tensor) -> Tensor:
        """What the ways in the last dimension come to."""
        return self.reduce(values)


BEST = Semiring(best_of)
LOG_SUM = Semiring(log_sum_of)


class Drawn(Semiring):
    """Log-sums whose gradient is one structure, drawn in proportion to exp(score)."""

    def __init__(self, generator: torch.Generator | None) -> None:
        super().__init__(drawn_of(generator))


class KBestRing(Semiring):
    """The k largest values, (k, ..., *cells) the largest first; -inf where there are fewer."""

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
