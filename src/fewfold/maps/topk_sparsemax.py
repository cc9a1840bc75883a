"""Top-k sparsemax, with a certificate of equality with sparsemax."""

import math
import operator
from dataclasses import dataclass

import torch
from torch import Tensor

from fewfold._check import normal_dim
from fewfold._torch import eager, exporting
from fewfold.maps.entmax import sparsemax
from fewfold.maps.rows import centre, finalize, from_rows, to_rows

__all__ = ["TopK", "topk_sparsemax", "topk_sparsemax_certified"]


@dataclass(frozen=True)
class TopK:
    """Probabilities with at most k non-zeros per row, and whether each row equals sparsemax."""

    probs: Tensor
    certified: Tensor


def topk_sparsemax(scores: Tensor, k: int, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
    """Sparse probabilities with at most k non-zeros.

    Solves `argmin_p ||p - scores||^2` over the vectors of the simplex with at most k non-zeros:
    sparsemax on the k largest scores, zero elsewhere. Ties at rank k are broken by position, first
    entries first. If k is at least the size of the row, the result is sparsemax.

    Args:
        scores: (..., n) along `dim`.
        k: at least 1.
        mask: boolean, True = keep; broadcasts to the scores.

    Returns:
        Probabilities with the shape and dtype of the scores.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.topk_sparsemax(torch.tensor([0.3, 0.1, 0.2, 0.4]), k=2)
        tensor([0.4500, 0.0000, 0.0000, 0.5500])

    Reference: Correia, Niculae, Aziz and Martins, "Efficient marginalization of discrete and
    structured latent variables via sparsity", NeurIPS 2020.
    """
    return topk_sparsemax_certified(scores, k, dim, mask=mask).probs


def topk_sparsemax_certified(
    scores: Tensor, k: int, dim: int = -1, *, mask: Tensor | None = None
) -> TopK:
    """Top-k sparsemax, and for each row whether it equals sparsemax.

    A row equals sparsemax if and only if the threshold over its k largest scores is at least the
    next score, or it has at most k entries. A row with NaN is never certified; a fully masked row
    always is.

    Args:
        scores: (..., n) along `dim`.
        k: at least 1.
        mask: boolean, True = keep; broadcasts to the scores.

    Returns:
        `TopK(probs, certified)`: probabilities with the shape and dtype of the scores, and a
        boolean tensor with `dim` removed.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.maps.topk_sparsemax_certified(torch.tensor([[0.3, 0.1, 0.2], [0.9, -2.0, 0.1]]), k=2)
        TopK(probs=tensor([[0.5500, 0.0000, 0.4500],
                [0.9000, 0.0000, 0.1000]]), certified=tensor([False,  True]))
    """
    rows = to_rows(scores, dim, mask)
    k = _check_k(k)
    axis = normal_dim(dim, scores.dim())
    if rows.shape[-1] == 0:
        return TopK(
            from_rows(rows, axis, scores.dtype),
            torch.ones(rows.shape[:-1], dtype=torch.bool, device=rows.device),
        )
    probs, certified = _topk_torch(rows, k)
    return TopK(from_rows(probs, axis, scores.dtype), certified)


def _check_k(k: int) -> int:
    if isinstance(k, (bool, Tensor)) or not hasattr(k, "__index__"):
        raise TypeError(f"k must be an int, got {type(k).__name__}; write int(k)")
    if operator.index(k) < 1:
        raise ValueError(f"k must be at least 1, got {k}; for no limit write fewfold.sparsemax")
    return operator.index(k)


def _topk_torch(rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Top-k sparsemax along the last dimension and its certificate, in torch operations."""
    values, top = centre(rows)
    fixed = values.detach()
    chosen = _first_largest(fixed, k)
    probs = sparsemax(torch.where(chosen, values, -math.inf))
    # tau >= missed, with tau = (sum over the support - 1) / count, in float64 if available
    support = probs.detach() > 0
    total = torch.where(support, fixed, 0.0).sum(-1, dtype=_widest_dtype(fixed))
    missed = torch.where(chosen, -math.inf, fixed).amax(-1).to(total.dtype)
    exact = total - 1 >= missed * support.sum(-1)
    top_row = top.squeeze(-1)
    return finalize(probs, top), (exact & ~top_row.isnan()) | (top_row == -math.inf)


def _widest_dtype(values: Tensor) -> torch.dtype:
    return values.dtype if values.device.type == "mps" else torch.float64


def _first_largest(values: Tensor, k: int) -> Tensor:
    """Return a mask of the k largest unmasked entries; the first of equal ones, without a sort."""
    unmasked = values > -math.inf
    if exporting():
        # The length may be symbolic: pad so that topk(k) is valid for any length.
        largest = torch.nn.functional.pad(values, (0, k), value=-math.inf).topk(k)[0]
    elif k < values.shape[-1]:
        largest = values.topk(k, sorted=False)[0]
    else:
        return unmasked
    last = largest.amin(-1, keepdim=True)
    reached = values >= last
    if eager(values) and bool((reached.sum(-1) <= k).all()):
        return reached & unmasked
    level = values == last
    remaining = k - (values > last).sum(-1, keepdim=True)
    return unmasked & reached & (~level | (level.cumsum(-1) <= remaining))
