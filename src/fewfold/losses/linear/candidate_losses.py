"""Loss of each row from its candidate classes, with a gradient that touches only these."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fewfold.losses.fenchel_young import fenchel_young_loss
from fewfold.losses.linear.candidates import Candidates, Layer, widen
from fewfold.losses.linear.dense_rows import crowded_losses
from fewfold.maps.entropies import Tsallis

__all__ = ["row_losses", "smoothing_term"]


def row_losses(
    rows: Tensor,
    layer: Layer,
    index: Tensor,
    alpha: float | Tensor,
    sparse_grad: bool,
    chunk_size: int | None,
    found: Candidates | None,
) -> Tensor:
    """Loss of every row from its candidates, or by `crowded_losses` if it is crowded."""
    if found is None:  # no rows; the parameters still receive zero gradients
        return crowded_losses(rows, layer, index, alpha, sparse_grad, chunk_size)
    crowded = found.crowded.nonzero().squeeze(1)
    if len(crowded) == len(rows):
        return crowded_losses(rows, layer, index, alpha, sparse_grad, chunk_size)
    if len(crowded) and sparse_grad:
        layer = Layer(_Coalesced.apply(layer.weight), layer.bias)
    losses = _candidate_losses(rows, layer, index, found, alpha, sparse_grad)
    if len(crowded):
        solved = crowded_losses(
            rows[crowded], layer, index[crowded], alpha, sparse_grad, chunk_size
        )
        losses = losses.index_copy(0, crowded, solved)
    return losses


def _candidate_losses(
    rows: Tensor,
    layer: Layer,
    index: Tensor,
    found: Candidates,
    alpha: float | Tensor,
    sparse_grad: bool,
) -> Tensor:
    """Fenchel-Young loss on the candidates of each row, with the target class in column 0."""
    other = found.column != index[found.row]
    row, column, score = found.row[other], found.column[other], found.score[other]
    counts = torch.bincount(row, minlength=len(rows))
    first = (counts + 1).cumsum(0) - (counts + 1)
    # The target of each row precedes its candidates.
    place = torch.arange(len(row), device=row.device) + row + 1
    size = len(row) + len(rows)
    owner = torch.repeat_interleave(counts + 1)
    classes = index.new_empty(size).index_copy(0, first, index).index_copy(0, place, column)
    given = layer.detach().at(rows.detach(), index)
    scores = score.new_empty(size).index_copy(0, first, given).index_copy(0, place, score)
    scores = _Scores.apply(rows, layer.weight, layer.bias, scores, owner, classes, sparse_grad)
    slot = torch.arange(size, device=row.device) - first[owner]
    matrix = scores.new_full((len(rows), int(counts.max()) + 1), -math.inf)
    matrix = matrix.index_put((owner, slot), scores)
    return fenchel_young_loss(
        matrix, torch.zeros_like(index), Tsallis(alpha), reduction="none", ignore_index=-1
    )


class _Scores(torch.autograd.Function):
    """Attach a gradient to computed scores of (row, class) pairs; it touches only these."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        scores: Tensor,
        owner: Tensor,
        classes: Tensor,
        sparse_grad: bool,
    ) -> Tensor:
        ctx.save_for_backward(rows, weight, owner, classes)
        ctx.sparse_grad = sparse_grad
        return scores.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight, owner, classes = ctx.saved_tensors
        grad = grads[0]
        to_rows: Tensor | None = None
        to_weight: Tensor | None = None
        to_bias: Tensor | None = None
        if ctx.needs_input_grad[0]:
            to_rows = _sums(weight, classes, grad, torch.bincount(owner, minlength=len(rows)))
            to_rows = to_rows.to(rows.dtype)
        if ctx.needs_input_grad[1]:
            order = classes.argsort(stable=True)
            touched, counts = classes[order].unique_consecutive(return_counts=True)
            values = _sums(rows, owner[order], grad[order], counts).to(weight.dtype)
            if ctx.sparse_grad:
                to_weight = torch.sparse_coo_tensor(
                    touched.unsqueeze(0),
                    values,
                    weight.shape,
                    is_coalesced=True,
                    check_invariants=False,
                )
            else:
                to_weight = weight.new_zeros(weight.shape).index_copy_(0, touched, values)
        if ctx.needs_input_grad[2]:
            to_bias = grad.new_zeros(len(weight)).index_add(0, classes, grad).to(weight.dtype)
        return to_rows, to_weight, to_bias, None, None, None, None


def _sums(table: Tensor, index: Tensor, factors: Tensor, counts: Tensor) -> Tensor:
    """Weighted sums of table rows over consecutive groups of the given sizes."""
    if table.dtype != factors.dtype:  # half precision: sum in float32
        used, index = index.unique(return_inverse=True)
        table = table[used].to(factors.dtype)
    starts = counts.cumsum(0) - counts
    return F.embedding_bag(index, table, starts, mode="sum", per_sample_weights=factors)


class _Coalesced(torch.autograd.Function):
    """Identity whose backward coalesces a sparse gradient."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0].coalesce() if grads[0].is_sparse else grads[0]


def smoothing_term(
    rows: Tensor, layer: Layer, index: Tensor, alpha: float | Tensor, amount: float
) -> Tensor:
    """Return the term of label smoothing, amount * (s_y - mean s) + Omega(y), unmasked classes."""
    given = layer.at(rows, index)
    if layer.bias is not None and bool((layer.bias == -math.inf).any()):
        possible = layer.bias > -math.inf
        layer = Layer(layer.weight[possible], layer.bias[possible])
    classes = max(len(layer.weight), 1)
    wide = given.dtype
    mean = (widen(rows) * (layer.weight.sum(0, dtype=wide) / classes)).sum(-1)
    if layer.bias is not None:
        mean = mean + layer.bias.sum(dtype=wide) / classes
    moved = torch.where(given == -math.inf, 0.0, given - mean)  # that loss is infinite anyway
    rest = amount / classes
    omega = Tsallis(alpha)
    # Omega is a sum over classes, and all classes but the target have the same probability.
    own = omega.value(moved.new_tensor([1 - amount + rest]))
    others = omega.value(moved.new_tensor([rest])) * (classes - 1)
    return amount * moved + own + others
