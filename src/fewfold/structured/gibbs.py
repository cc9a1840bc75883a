"""Marginals of the Gibbs distribution, in which every structure has a share: exp(its score)."""

from typing import Protocol

import torch
from torch import Tensor

__all__ = ["Summable", "gibbs_marginals"]


class Summable(Protocol):
    """A structure that can sum over all of its members."""

    def log_partition(self, scores: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Log of the sum of exp(score) over all structures."""


def gibbs_marginals(scores: Tensor, structure: Summable, *, mask: Tensor | None = None) -> Tensor:
    """How probable each part is where structures are drawn in proportion to exp(score).

    The dense counterpart of `sparsemap`: for one part of many it is softmax.

    Args:
        scores: `(..., *event)`.
        structure: one that has `log_partition`.
        mask: as in `sparsemap`.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.gibbs_marginals(torch.tensor([0.5, -0.2, 1.0]), ff.structures.KSubset(1))
        tensor([0.3179, 0.1579, 0.5242])
    """
    tracked = torch.is_grad_enabled() and scores.requires_grad
    with torch.enable_grad():
        own = scores if scores.requires_grad else scores.detach().requires_grad_()
        total = structure.log_partition(own, mask=mask).sum()
        (found,) = torch.autograd.grad(total, own, create_graph=tracked)
    return found
