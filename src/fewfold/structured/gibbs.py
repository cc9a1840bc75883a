"""Marginals of the Gibbs distribution, in which every structure has a share: exp(its score)."""

from typing import Protocol

import torch
from torch import Tensor

__all__ = ["Summable", "gibbs_marginals", "kept"]


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
    given = (scores, *getattr(structure, "additional", ()))
    tracked = torch.is_grad_enabled() and any(value.requires_grad for value in given)
    with torch.inference_mode(False), torch.enable_grad():
        own = scores if scores.requires_grad else kept(scores).detach().requires_grad_()
        allowed = None if mask is None else kept(mask)
        total = structure.log_partition(own, mask=allowed).sum()
        (found,) = torch.autograd.grad(total, own, create_graph=tracked)
    return found if tracked else found.detach()


def kept(value: Tensor) -> Tensor:
    """A tensor that autograd may keep, whether or not it was made in `torch.inference_mode`."""
    return value.clone() if value.is_inference() else value
