"""Marginals of the Gibbs distribution over structures, p proportional to exp(score)."""

import torch
from torch import Tensor

from fewfold._check import check_temperature
from fewfold._torch import under_transform
from fewfold.structured.structures.batch_rows import clone_if_inference, divide_by_temperature
from fewfold.structured.structures.structure import Structure

__all__ = ["gibbs_marginals"]


def gibbs_marginals(
    scores: Tensor,
    structure: Structure,
    *,
    mask: Tensor | None = None,
    temperature: float = 1.0,
) -> Tensor:
    """Marginals of the Gibbs distribution over structures: the probability of each part.

    The probability of a structure is proportional to exp(score / temperature). This is the dense
    counterpart of `sparsemap`; over single parts, `KSubset(1)`, it is softmax.

    Args:
        scores: `(..., *event)`.
        structure: a structure that implements `log_partition`.
        mask: as in `sparsemap`.
        temperature: divisor of the scores and of the additional scores.

    Returns:
        Marginals of the shape and dtype of the scores.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.structured.gibbs_marginals(torch.tensor([0.5, -0.2, 1.0]), ff.structures.KSubset(1))
        tensor([0.3179, 0.1579, 0.5242])
    """
    check_temperature(temperature)
    dtype = scores.dtype
    scores, structure = divide_by_temperature(scores, structure, temperature)
    if under_transform():
        grad = torch.func.grad(lambda own: structure.log_partition(own, mask=mask).sum())
        marginals: Tensor = grad(scores)
        return marginals.to(dtype)
    given = (scores, *structure.additional)
    tracked = torch.is_grad_enabled() and any(value.requires_grad for value in given)
    with torch.inference_mode(False), torch.enable_grad():
        own = (
            scores if scores.requires_grad else clone_if_inference(scores).detach().requires_grad_()
        )
        allowed = None if mask is None else clone_if_inference(mask)
        total = structure.log_partition(own, mask=allowed).sum()
        (marginals,) = torch.autograd.grad(total, own, create_graph=tracked)
    return (marginals if tracked else marginals.detach()).to(dtype)
