"""Entmax loss of a linear output layer, without storing the scores of all classes."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fewfold._check import check_scores, per_row, positive_number
from fewfold._native import dispatch
from fewfold._torch import autocasts, eager, loss_dtype, without_autocast
from fewfold.losses.linear.candidate_losses import row_losses, smoothing_term
from fewfold.losses.linear.candidates import Candidates, Layer, find_candidates, widen
from fewfold.losses.linear.linear_operator import linear_operator
from fewfold.losses.named import entmax_loss
from fewfold.losses.targets import INTEGERS, Reduction, check_indices, check_options, check_weight
from fewfold.maps.compiled_operators import traceable
from fewfold.maps.rows import flat_rows

__all__ = ["linear_entmax_loss"]


def linear_entmax_loss(
    hidden: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    alpha: float | Tensor = 1.5,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    sparse_grad: bool = False,
    chunk_size: int | None = None,
) -> Tensor:
    """`entmax_loss` of ``hidden @ linear_weight.T + linear_bias`` without storing these scores.

    The scores are computed in chunks of classes, of which only the candidates for the support are
    stored. The backward pass touches only the rows of `linear_weight` that are in a support or a
    target, so that for large vocabularies the cost is one matrix product, compared with three for
    softmax. Rows whose support is a large part of all classes (nearly equal scores, alpha near 1)
    are solved iteratively with recomputed scores: slower, in the same memory.

    Args:
        hidden: (..., d).
        linear_weight: (V, d).
        target: (...) class indices; or (..., V) probabilities, for which all scores are stored.
        alpha: a number above 0 or a learnable tensor, 0-dimensional or of shape (..., 1) with one
            alpha per row. All scores are stored unless one alpha of at least 1 holds for all rows.
        linear_bias: (V,).
        weight: (V,) weight of each class; with label smoothing all scores are stored.
        ignore_index, reduction, label_smoothing: as in `fenchel_young_loss`. No scores are computed
            for ignored rows.
        sparse_grad: return a sparse, coalesced gradient of `linear_weight` with the rows in a
            support or a target. Requires class indices, no label smoothing, and a weight that is a
            leaf. Under a transform (compile, export, torch.func) gradients are dense, and all
            scores are stored, except in a compiled model on the CPU with one alpha for all rows.
        chunk_size: number of classes per chunk; by default what fits into the cache.

    Returns:
        A scalar, or the shape of the class indices for reduction="none"; dtype of `linear_weight`,
        and under autocast float32 at least.

    Example:
        >>> import torch
        >>> from fewfold.losses import linear_entmax_loss
        >>> hidden = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> words = torch.tensor([[3.0, 0.0], [0.0, 3.0], [0.0, 2.5], [-1.0, -1.0]])
        >>> loss = linear_entmax_loss(hidden, words.requires_grad_(), torch.tensor([0, 1]))
        >>> loss.backward()
        >>> words.grad
        tensor([[ 0.0000,  0.0000],
                [ 0.0000, -0.1630],
                [ 0.0000,  0.1630],
                [ 0.0000,  0.0000]])
    """
    _check_layer(hidden, linear_weight, linear_bias, target)
    hidden = hidden.to(linear_weight.dtype)  # autocast may have made it narrower
    check_options(reduction, label_smoothing)
    check_weight(weight, linear_weight.shape[0])
    order = alpha if isinstance(alpha, Tensor) else positive_number(alpha, "alpha")
    probabilities = target.dtype not in INTEGERS
    if sparse_grad and (probabilities or label_smoothing > 0):
        raise ValueError(
            "sparse_grad=True needs class indices and label_smoothing=0: otherwise every row of "
            "linear_weight has a gradient; write sparse_grad=False"
        )
    if chunk_size is not None and (not isinstance(chunk_size, int) or chunk_size < 1):
        raise ValueError(
            f"chunk_size must be an int of at least 1, got {chunk_size}; None chooses one"
        )
    layer = Layer(linear_weight, linear_bias)
    # Class weights with label smoothing, and probabilities, need the scores of all classes.
    separable = not probabilities and (weight is None or label_smoothing == 0)
    fusable = separable and (
        eager(hidden, linear_weight, linear_bias, target, order) or _has_gpu_kernel(layer, hidden)
    )
    if fusable and sparse_grad and linear_weight.grad_fn is not None:
        raise ValueError(
            "sparse_grad=True needs a linear_weight that is a leaf, such as a parameter: torch "
            f"cannot take a sparse gradient through {linear_weight.grad_fn.name()}; "
            "write sparse_grad=False"
        )
    dtype = loss_dtype(hidden)
    given = (hidden, linear_weight, linear_bias, target, order, ignore_index, label_smoothing)
    if fusable and _one_alpha(order):
        losses, _ = _fused_losses(*given, chunk_size, None, sparse_grad)
    elif separable and _traceable(layer, order):
        losses = _operator(*given, chunk_size)
    else:
        options: dict[str, Any] = {
            "weight": weight,
            "ignore_index": ignore_index,
            "reduction": reduction,
            "label_smoothing": label_smoothing,
        }
        with without_autocast(hidden):
            return _composed(hidden, layer, target, order, **options).to(dtype)
    index, valid = check_indices(target.reshape(-1), linear_weight.shape[0], ignore_index)
    factor = None if weight is None else torch.where(valid, weight.to(losses)[index], 0.0)
    reduced = Reduction(reduction, valid, factor, factor)(losses)
    reduced = reduced.view(target.shape) if reduction == "none" else reduced
    return reduced.to(dtype)


def _fused_losses(
    hidden: Tensor,
    linear_weight: Tensor,
    linear_bias: Tensor | None,
    target: Tensor,
    alpha: float | Tensor,
    ignore_index: int,
    label_smoothing: float,
    chunk_size: int | None,
    found: Candidates | None,
    sparse_grad: bool = False,
) -> tuple[Tensor, Candidates | None]:
    """Loss of every row, 0 if it is ignored, and the candidates of the valid rows.

    Args:
        found: the candidates, if already known.
    """
    layer = Layer(linear_weight, linear_bias)
    if not _one_alpha(alpha):
        options: dict[str, Any] = {
            "ignore_index": ignore_index,
            "reduction": "none",
            "label_smoothing": label_smoothing,
        }
        return _composed(hidden, layer, target, alpha, **options).reshape(-1), None
    index, valid = check_indices(target.reshape(-1), linear_weight.shape[0], ignore_index)
    rows = hidden.reshape(len(valid), hidden.shape[-1])
    counted = valid.nonzero().squeeze(1)
    if len(counted) < len(valid):
        rows, index = rows[counted], index[counted]
    if found is None and len(rows):
        number = float(alpha.detach()) if isinstance(alpha, Tensor) else alpha
        found = find_candidates(rows.detach(), layer.detach(), number, chunk_size)
    losses = row_losses(rows, layer, index, alpha, sparse_grad, chunk_size, found)
    if label_smoothing > 0:
        losses = losses + smoothing_term(rows, layer, index, alpha, label_smoothing)
    return losses.new_zeros(len(valid)).index_copy(0, counted, losses), found


_operator = linear_operator(_fused_losses)


def _traceable(layer: Layer, alpha: float | Tensor) -> bool:
    """Return whether a compiled graph can call the operator: one alpha, and supported dtypes."""
    if isinstance(alpha, Tensor) and alpha.dim() > 0:
        return False
    wide = [None if one is None else widen(one) for one in (layer.weight, layer.bias)]
    return traceable(*wide, alpha)


def _composed(
    hidden: Tensor,
    layer: Layer,
    target: Tensor,
    alpha: float | Tensor,
    **options: Any,
) -> Tensor:
    """The loss of stored scores, in operations that every transform supports."""
    bias = None if layer.bias is None else widen(layer.bias)
    scores = F.linear(widen(hidden), widen(layer.weight), bias)
    if isinstance(alpha, Tensor):
        alpha = flat_rows(per_row(alpha, scores, scores.dim() - 1, "alpha"), scores)
    scores = scores.reshape(-1, layer.weight.shape[0])
    flat = target.reshape(-1, *target.shape[hidden.dim() - 1 :])
    losses = entmax_loss(scores, flat, alpha, **options)
    return losses.view(hidden.shape[:-1]) if options["reduction"] == "none" else losses


def _has_gpu_kernel(layer: Layer, hidden: Tensor) -> bool:
    """Return whether a GPU kernel finds the candidates."""
    bias = () if layer.bias is None else (layer.bias,)
    run = dispatch.triton_kernel("candidate_streams", hidden, layer.weight, *bias)
    return run is not None and layer.weight.is_cuda and hidden.numel() > 0


def _one_alpha(alpha: float | Tensor) -> bool:
    """Return whether one alpha of at least 1 holds for all rows."""
    if isinstance(alpha, Tensor):
        return alpha.dim() == 0 and float(alpha.detach()) >= 1
    return alpha >= 1


def _check_layer(hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor) -> None:
    """Raise unless hidden, weight, bias and target have matching shapes and dtypes."""
    check_scores(hidden, "hidden")
    check_scores(weight, "linear_weight")
    if weight.dim() != 2 or weight.shape[1] != hidden.shape[-1] or weight.shape[0] == 0:
        raise ValueError(
            f"linear_weight must have shape (classes, {hidden.shape[-1]}) for hidden of shape "
            f"{tuple(hidden.shape)}, got {tuple(weight.shape)}"
        )
    if weight.dtype != hidden.dtype and not autocasts(hidden):
        raise TypeError(
            f"hidden and linear_weight must have the same dtype, got {hidden.dtype} and "
            f"{weight.dtype}"
        )
    if bias is not None:
        check_scores(bias, "linear_bias")
        if widen(bias).dtype != widen(weight).dtype:
            raise TypeError(
                f"linear_bias and linear_weight must have the same dtype, got {bias.dtype} and "
                f"{weight.dtype}; write linear_bias.to(linear_weight.dtype)"
            )
        if bias.shape != weight.shape[:1]:
            raise ValueError(
                f"linear_bias must have shape ({weight.shape[0]},), got {tuple(bias.shape)}"
            )
    if not isinstance(target, Tensor):
        raise TypeError(
            f"target must be a torch.Tensor, got {type(target).__name__}; "
            "write torch.as_tensor(target)"
        )
    expected = hidden.shape[:-1]
    if target.dtype not in INTEGERS:
        expected = expected + weight.shape[:1]
    if target.shape != expected:
        raise ValueError(
            f"target must have shape {tuple(expected)} for hidden of shape "
            f"{tuple(hidden.shape)}, got {tuple(target.shape)} of dtype {target.dtype}"
        )
