"""Linear output layer with its loss as an operator for compiled graphs.

The outputs of an operator have sizes known in advance, but the number of candidate classes depends
on the data. The forward operator therefore packs the candidates of all rows into a buffer for
`CANDIDATES_PER_ROW` on average. The backward operator recomputes the loss of these candidates with
a graph, which is cheap compared with the matrix product that found them. If the candidates do not
fit into the buffer, the backward pass searches them again.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fewfold._torch import autograd_enabled
from fewfold.losses.linear.candidates import Candidates, widen
from fewfold.maps.compiled_operators import registered

__all__ = ["CANDIDATES_PER_ROW", "linear_operator"]

CANDIDATES_PER_ROW = 256  # average capacity of the buffer of candidates

Losses = Callable[..., tuple[Tensor, Candidates | None]]


def linear_operator(losses: Losses) -> Callable[..., Tensor]:
    """Register the loss of every row as an operator with gradients of hidden, weight, bias, alpha.

    Args:
        losses: called with hidden, weight, bias, target, alpha, ignore_index, label_smoothing,
            chunk_size and candidates (None to search); returns a loss per row and the candidates.
    """

    def forward(
        hidden: Tensor, linear: Tensor, bias: Tensor | None, alpha: Tensor | None, order: float,
        target: Tensor, ignore_index: int, label_smoothing: float, chunk_size: int | None,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        value, found = losses(
            hidden.detach(), linear.detach(), None if bias is None else bias.detach(), target,
            order if alpha is None else alpha.detach(), ignore_index, label_smoothing, chunk_size,
            None,
        )  # fmt: skip
        return value, *_pack(found, value)

    def fake(
        hidden: Tensor, linear: Tensor, bias: Tensor | None, alpha: Tensor | None, order: float,
        target: Tensor, ignore_index: int, label_smoothing: float, chunk_size: int | None,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        rows = target.numel()
        value = widen(linear.new_empty(0)).new_empty(rows)
        packed = target.new_empty(rows * (CANDIDATES_PER_ROW + 1) + 1, dtype=torch.int32)
        return value, packed, value.new_empty(rows * CANDIDATES_PER_ROW)

    def backward(
        grad: Tensor, packed: Tensor, scores: Tensor, hidden: Tensor, linear: Tensor,
        bias: Tensor | None, alpha: Tensor | None, order: float, target: Tensor, ignore_index: int,
        label_smoothing: float, chunk_size: int | None, wants: list[bool],
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        given = (hidden, linear, bias, alpha)
        with autograd_enabled():
            leaves = [
                None if one is None else one.detach().requires_grad_(want)
                for one, want in zip(given, wants, strict=True)
            ]
            order_or_alpha = order if leaves[3] is None else leaves[3]
            value, _ = losses(
                *leaves[:3], target, order_or_alpha, ignore_index, label_smoothing, chunk_size,
                _unpack(packed, scores, target.numel()),
            )  # fmt: skip
            wanted = [one for one in leaves if one is not None and one.requires_grad]
            found = iter(torch.autograd.grad(value, wanted, grad, materialize_grads=True))
        first, second, third, fourth = (
            next(found).contiguous() if want else grad.new_empty(0) for want in wants
        )
        return first, second, third, fourth

    def fake_backward(
        grad: Tensor, packed: Tensor, scores: Tensor, hidden: Tensor, linear: Tensor,
        bias: Tensor | None, alpha: Tensor | None, order: float, target: Tensor, ignore_index: int,
        label_smoothing: float, chunk_size: int | None, wants: list[bool],
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        given = zip((hidden, linear, bias, alpha), wants, strict=True)
        first, second, third, fourth = (
            one.new_empty(one.shape) if one is not None and want else grad.new_empty(0)
            for one, want in given
        )
        return first, second, third, fourth

    backward_operator = registered("linear_entmax_loss_backward", backward, fake_backward)

    def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        hidden, linear, bias, alpha, ctx.order, target, *ctx.options = inputs
        ctx.save_for_backward(*output[1:], hidden, linear, bias, alpha, target)

    def pull(ctx: Any, wants: tuple[bool, ...], grad: Tensor, *_: Tensor | None) -> Any:
        *saved, target = ctx.saved_tensors
        found = backward_operator(grad, *saved, ctx.order, target, *ctx.options, list(wants[:4]))
        learnt = (one if want else None for one, want in zip(found, wants, strict=False))
        return *learnt, *[None] * 5

    operator = registered("linear_entmax_loss", forward, fake, save, pull)

    def call(
        hidden: Tensor, linear: Tensor, bias: Tensor | None, target: Tensor,
        alpha: float | Tensor, ignore_index: int, label_smoothing: float, chunk_size: int | None,
    ) -> Tensor:  # fmt: skip
        tensor, order = (alpha, 0.0) if isinstance(alpha, Tensor) else (None, alpha)
        options = (ignore_index, float(label_smoothing), chunk_size)
        value: Tensor = operator(hidden, linear, bias, tensor, order, target, *options)[0]
        return value

    return call


def _pack(found: Candidates | None, value: Tensor) -> tuple[Tensor, Tensor]:
    """Pack candidates into buffers of fixed size.

    The first holds the number of valid rows (0 if the candidates do not fit), the number of
    candidates of each (-1 if crowded) and their columns; the second holds their scores.
    """
    rows = len(value)
    packed = torch.zeros(rows * (CANDIDATES_PER_ROW + 1) + 1, dtype=torch.int32)
    scores = value.new_empty(rows * CANDIDATES_PER_ROW)
    if found is not None and len(found.row) <= len(scores):
        size, counted = len(found.row), len(found.crowded)
        packed[0] = counted
        counts = torch.bincount(found.row, minlength=counted)
        packed[1 : counted + 1] = torch.where(found.crowded, -1, counts)
        packed[rows + 1 : rows + 1 + size] = found.column
        scores[:size] = found.score
    return packed, scores


def _unpack(packed: Tensor, scores: Tensor, rows: int) -> Candidates | None:
    """Return the candidates that `_pack` stored, or None if they did not fit."""
    counted = int(packed[0])
    if counted == 0:
        return None
    counts = packed[1 : counted + 1].long()
    row = torch.repeat_interleave(counts.clamp(min=0))
    column = packed[rows + 1 : rows + 1 + len(row)].long()
    return Candidates(row, column, scores[: len(row)], counts < 0)
