"""Negative log-likelihood of data under independent Bernoulli distributions, for pairs of a row."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fewfold._native import dispatch
from fewfold._torch import autocasts, linear

__all__ = ["bernoulli_cost", "linear_bernoulli_cost"]


def bernoulli_cost(logits: Tensor, target: Tensor, row: Tensor) -> Tensor:
    """Negative log-likelihood of binary data under independent Bernoulli distributions.

    Returns `sum_j log(1 + exp(l_ij)) - t_rj l_ij` for each pair i, where r = `row[i]`. This is
    `F.binary_cross_entropy_with_logits(logits, target[row], reduction="none")`, summed over all
    dimensions but the first. On the CPU a kernel computes it without a copy of the data for each
    pair and without other intermediate tensors.

    Args:
        logits: `(m, *event)`, such as those of a decoder of the atoms that `expect` passes to its
            cost.
        target: `(rows, *event)` data: zeros and ones, or numbers between them.
        row: (m,) int64; the row of the data that each pair is compared with.

    Returns:
        (m,) costs of the dtype of the logits.

    Example:
        >>> import torch, fewfold as ff
        >>> logits = torch.tensor([[0.0, 2.0], [0.0, -2.0], [1.0, 1.0]])
        >>> images = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
        >>> ff.expectation.bernoulli_cost(logits, images, torch.tensor([0, 0, 1]))
        tensor([0.8201, 2.8201, 1.6265])
    """
    _check(logits, target, row)
    target = target.to(logits.dtype)
    if not dispatch.ready(logits, target) or target.requires_grad or not logits.numel():
        return _plain(logits, target, row)
    costs: Tensor = _Costs.apply(logits, target, row)
    return costs


def linear_bernoulli_cost(
    inputs: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, row: Tensor
) -> Tensor:
    """Negative log-likelihood of binary data whose logits are the output of a linear layer.

    The same as `bernoulli_cost(F.linear(inputs, weight, bias), target, row)`. On the CPU the logits
    are overwritten by what the backward pass needs, so that a training step holds one tensor of
    their size and not two.

    Args:
        inputs: `(m, k)`, such as the last hidden layer of a decoder.
        weight: `(n, k)` of the layer, as in `torch.nn.Linear`.
        bias: `(n,)`, or None.
        target: `(rows, n)` data: zeros and ones, or numbers between them.
        row: (m,) int64; the row of the data that each pair is compared with.

    Returns:
        (m,) costs of the dtype of the logits.

    Example:
        >>> import torch, fewfold as ff
        >>> layer = torch.nn.Linear(2, 3)
        >>> inputs, row = torch.randn(4, 2), torch.tensor([0, 0, 1, 1])
        >>> images = torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
        >>> found = ff.expectation.linear_bernoulli_cost(
        ...     inputs, layer.weight, layer.bias, images, row)
        >>> torch.allclose(found, ff.expectation.bernoulli_cost(layer(inputs), images, row))
        True
    """
    given = (inputs, weight) if bias is None else (inputs, weight, bias)
    data = target.to(inputs.dtype) if isinstance(target, Tensor) else target
    if (
        inputs.dim() != 2
        or not dispatch.ready(*given, data)
        or autocasts(inputs)
        or target.requires_grad
        or not (len(inputs) and len(weight))
    ):
        return bernoulli_cost(F.linear(inputs, weight, bias), target, row)
    _check(inputs.new_empty(()).expand(len(inputs), len(weight)), target, row)
    costs: Tensor = _LinearCosts.apply(inputs, weight, bias, data, row)
    return costs


def _check(logits: Tensor, target: Tensor, row: Tensor) -> None:
    for name, given in (("logits", logits), ("target", target), ("row", row)):
        if not isinstance(given, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(given).__name__}")
    if not logits.is_floating_point():
        raise TypeError(f"logits must have a real floating-point dtype, got {logits.dtype}")
    if row.dtype != torch.int64:
        raise TypeError(f"row must be int64, got {row.dtype}; write row.long()")
    if logits.dim() == 0 or row.shape != logits.shape[:1]:
        raise ValueError(
            f"logits must be (m, *event) for the m={len(row) if row.dim() else 0} pairs of row "
            f"{tuple(row.shape)}, got {tuple(logits.shape)}"
        )
    if target.dim() == 0 or target.shape[1:] != logits.shape[1:]:
        raise ValueError(
            f"target must be (rows, *event) with the event {tuple(logits.shape[1:])} of the "
            f"logits, got {tuple(target.shape)}"
        )


def _plain(logits: Tensor, target: Tensor, row: Tensor) -> Tensor:
    # Not flattened to -1 columns, which would be ambiguous without pairs.
    losses = F.binary_cross_entropy_with_logits(
        logits, target.index_select(0, row), reduction="none"
    )
    return losses.sum(tuple(range(1, losses.dim()))) if losses.dim() > 1 else losses


class _Costs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, row: Tensor) -> Tensor:
        logits, target, row = logits.contiguous(), target.contiguous(), row.contiguous()
        ctx.save_for_backward(logits, target, row)
        costs = logits.new_empty(len(row))
        kernel = dispatch.kernel("bernoulli_costs", logits.dtype)
        kernel(logits, target, row, *_sizes(logits, target), costs, None, dispatch.threads())
        return costs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        logits, target, row = ctx.saved_tensors
        (grad,) = grads
        if torch.is_grad_enabled() or not dispatch.ready(logits, target, grad):
            by = grad.view(-1, *[1] * (logits.dim() - 1))
            return (logits.sigmoid() - target.index_select(0, row)) * by, None, None
        pulls = torch.empty_like(logits)
        kernel = dispatch.kernel("bernoulli_pulls", logits.dtype)
        sizes = _sizes(logits, target)
        kernel(logits, target, row, *sizes, grad.contiguous(), pulls, dispatch.threads())
        return pulls, None, None


class _LinearCosts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, row: Tensor
    ) -> Tensor:
        target, row = target.contiguous(), row.contiguous()
        slopes = linear(inputs, weight, bias)  # logits, until the kernel overwrites them
        costs = slopes.new_empty(len(row))
        kernel = dispatch.kernel("bernoulli_costs", slopes.dtype)
        learns = slopes if any(ctx.needs_input_grad) else None
        kernel(slopes, target, row, *_sizes(slopes, target), costs, learns, dispatch.threads())
        ctx.save_for_backward(inputs, weight, bias, target, row, learns)
        return costs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight, bias, target, row, slopes = ctx.saved_tensors
        wants = ctx.needs_input_grad[:3]
        (grad,) = grads
        if torch.is_grad_enabled():
            costs = _plain(F.linear(inputs, weight, bias), target, row)
            leaves = [
                leaf for leaf, want in zip((inputs, weight, bias), wants, strict=True) if want
            ]
            pulls = iter(torch.autograd.grad(costs, leaves, grad, create_graph=True))
            return *(next(pulls) if want else None for want in wants), None, None
        # The gradients of the pairs scale the small factor of each product, not the slopes.
        by = grad.unsqueeze(1)
        return (
            linear(slopes, weight.t()).mul_(by) if wants[0] else None,
            linear(slopes.t(), (inputs * by).t()) if wants[1] else None,
            grad @ slopes if wants[2] else None,
            *(None, None),
        )


def _sizes(logits: Tensor, target: Tensor) -> tuple[int, int, int]:
    """Return the sizes for the kernel: pairs, rows of data, and elements per row."""
    return len(logits), len(target), logits[0].numel()
