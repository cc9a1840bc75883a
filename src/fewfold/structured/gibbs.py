"""Marginals of the Gibbs distribution, in which every structure has a share: exp(its score)."""

import torch
from torch import Tensor

from fewfold._check import check_temperature
from fewfold._torch import under_transform
from fewfold.structured.structures.structure import Structure, cooled, kept

__all__ = ["gibbs_marginals"]


def gibbs_marginals(
    scores: Tensor,
    structure: Structure,
    *,
    mask: Tensor | None = None,
    temperature: float = 1.0,
) -> Tensor:
    """Marginals of the distribution in proportion to exp(score): how probable each part is.

    The dense counterpart of `sparsemap`: for one part of many it is softmax.

    Args:
        scores: `(..., *event)`.
        structure: one that has `log_partition`.
        mask: as in `sparsemap`.
        temperature: what scores, additional ones too, are divided by.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.structured.gibbs_marginals(torch.tensor([0.5, -0.2, 1.0]), ff.structures.KSubset(1))
        tensor([0.3179, 0.1579, 0.5242])
    """
    check_temperature(temperature)
    dtype = scores.dtype
    scores, structure = cooled(scores, structure, temperature)
    if under_transform():
        slope = torch.func.grad(lambda own: structure.log_partition(own, mask=mask).sum())
        found: Tensor = slope(scores)
        return found.to(dtype)
    given = (scores, *structure.additional)
    tracked = torch.is_grad_enabled() and any(value.requires_grad for value in given)
    with torch.inference_mode(False), torch.enable_grad():
        own = scores if scores.requires_grad else kept(scores).detach().requires_grad_()
        allowed = None if mask is None else kept(mask)
        total = structure.log_partition(own, mask=allowed).sum()
        (found,) = torch.autograd.grad(total, own, create_graph=tracked)
    return (found if tracked else found.detach()).to(dtype)
