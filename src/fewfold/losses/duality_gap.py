"""Fenchel-Young duality gap, <p - y, s> - Omega(p) + Omega(y), with gradient p - y.

In eager mode one autograd function serves every Omega; it saves p and returns p - y in the backward
pass. Under transforms the gap is computed in plain torch operations.
"""

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from fewfold._torch import eager
from fewfold.losses.support_loss import support_losses
from fewfold.maps.omega import Omega
from fewfold.structured.omega_tensors import tensors, with_tensors

__all__ = ["against_index", "against_probs", "one_hot"]


def against_index(scores: Tensor, index: Tensor, valid: Tensor, omega: Omega, dim: int) -> Tensor:
    """Loss of every row against one class, in the shape of `index`.

    Rows where `valid` is false do not count and may contain any values.
    """
    losses = support_losses(scores, index, valid, omega)
    if losses is not None:
        return losses
    if _fused(scores, omega):
        losses = _Gap.apply(scores, index, None, valid, omega, dim, *tensors(omega).values())
    else:
        losses = _gap(torch.where(valid.unsqueeze(dim), scores, 0.0), index, None, omega, dim)
    if omega.zero_at_vertices:
        return losses
    return losses + omega.value(one_hot(scores, index, dim), dim=dim)


def against_probs(scores: Tensor, probs: Tensor, omega: Omega, dim: int) -> Tensor:
    """Loss of every row against a point of the polytope."""
    if _fused(scores, omega, probs):
        losses: Tensor = _Gap.apply(scores, None, probs, None, omega, dim, *tensors(omega).values())
    else:
        losses = _gap(scores, None, probs, omega, dim)
    return losses + omega.value(probs, dim=dim)


class _Gap(torch.autograd.Function):
    """<p - y, s> - Omega(p) of every row, with the target y given by `index` or `probs`."""

    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        index: Tensor | None,
        probs: Tensor | None,
        valid: Tensor | None,
        omega: Omega,
        dim: int,
        *learned: Tensor,
    ) -> Tensor:
        p = omega.argmax(scores, dim)
        shifted, live = omega.centred(scores, p, dim)
        losses = _product(p, index, probs, shifted, dim) - omega.value(p, dim=dim)
        # A fully masked row has loss +inf and, like an ignored row, zero gradient.
        losses.masked_fill_(~live.squeeze(dim), math.inf)
        live = live if valid is None else live & valid.unsqueeze(dim)
        ctx.save_for_backward(scores, index, probs, p, *learned)
        ctx.omega, ctx.dim = omega, dim
        ctx.dead = None if bool(live.all()) else ~live
        return losses

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        scores, index, probs, p, *learned = ctx.saved_tensors
        omega = with_tensors(ctx.omega, dict(zip(tensors(ctx.omega), learned, strict=True)))
        grad = grads[0].unsqueeze(ctx.dim)
        if torch.is_grad_enabled():  # a second derivative: p needs its graph
            p = omega.argmax(scores, ctx.dim)
        if ctx.dead is not None:
            p = p.masked_fill(ctx.dead, 1 / p.shape[ctx.dim])  # any finite values
            grad = grad.masked_fill(ctx.dead, 0.0)
        to_scores: Tensor | None = None
        to_probs: Tensor | None = None
        if ctx.needs_input_grad[0] and index is not None:
            to_scores = (p * grad).scatter_add_(ctx.dim, index.unsqueeze(ctx.dim), -grad)
        elif ctx.needs_input_grad[0]:
            to_scores = (p - probs) * grad
        if ctx.needs_input_grad[2]:
            shifted = omega.centred(scores, p.detach(), ctx.dim)[0]
            to_probs = -torch.where(shifted.isinf(), 0.0, shifted) * grad
        to_learned = _envelope(omega, p, grad.squeeze(ctx.dim), ctx.dim) if learned else ()
        return to_scores, None, to_probs, None, None, None, *to_learned


def _envelope(omega: Omega, p: Tensor, grad: Tensor, dim: int) -> tuple[Tensor | None, ...]:
    """Gradient of -Omega(p) with respect to the parameters of Omega, for fixed p."""
    higher = torch.is_grad_enabled()
    with torch.enable_grad():
        inputs = {
            # A copy, so that the path from the parameter through p is not differentiated.
            name: value.clone() if higher and value.requires_grad else value.detach().clone()
            for name, value in tensors(omega).items()
        }
        for value in inputs.values():
            if not value.requires_grad:
                value.requires_grad_()
        fixed = p if higher else p.detach()
        value = -with_tensors(omega, inputs).value(fixed, dim=dim)
        return torch.autograd.grad(
            value, list(inputs.values()), grad, create_graph=higher, allow_unused=True
        )


def _gap(
    scores: Tensor, index: Tensor | None, probs: Tensor | None, omega: Omega, dim: int
) -> Tensor:
    """`_Gap` in plain torch operations, with correct derivatives up to third order."""
    if _constant(omega):
        # By the envelope theorem p is a constant to first order: the gradient is exactly p - y.
        # The remainder is the integral of <p(s + t moved) - p(s), moved> over t from 0 to 1. As
        # `moved` is 0 and only its derivatives matter, Radau quadrature with the single free node
        # t = 2/3 gives the second and third derivatives exactly.
        finite = torch.where(scores.isinf(), 0.0, scores)
        moved = finite - finite.detach()
        p = omega.argmax(scores.detach() + 2 / 3 * moved, dim)
        held = p.detach()
        shifted, live = omega.centred(scores, held, dim)
        bent = ((p - held) * moved).sum(dim) * 3 / 4
        losses = _product(held, index, probs, shifted, dim) - omega.value(held, dim=dim) + bent
    else:
        p = omega.argmax(scores, dim)
        shifted, live = omega.centred(scores, p.detach(), dim)
        if omega.on_simplex:  # p sums to 1 only up to its second derivatives; this holds for all
            p = p / torch.where(live, p.sum(dim, keepdim=True), 1.0)
        # The curvature of Omega overflows at a subnormal p, whose contribution is negligible.
        held = torch.where(p < torch.finfo(p.dtype).tiny, 0.0, p)
        losses = _product(p, index, probs, shifted, dim) - omega.value(held, dim=dim)
    return torch.where(live.squeeze(dim), losses, math.inf)


def _product(
    p: Tensor, index: Tensor | None, probs: Tensor | None, scores: Tensor, dim: int
) -> Tensor:
    """<p - y, s>, with 0 times infinity defined as 0."""
    if probs is not None:
        p = p - probs
    absent = scores.isinf() & (p == 0)
    product = (p * torch.where(absent, 0.0, scores)).sum(dim)
    if index is None:
        return product
    return product - scores.gather(dim, index.unsqueeze(dim)).squeeze(dim)


def one_hot(scores: Tensor, index: Tensor, dim: int) -> Tensor:
    """Return zeros of the shape of the scores with ones at `index` along `dim`."""
    return torch.zeros_like(scores).scatter(dim, index.unsqueeze(dim), 1.0)


def _constant(omega: Omega) -> bool:
    """Return whether the regulariser has no tensor fields."""
    return dataclasses.is_dataclass(omega) and not tensors(omega)


def _fused(scores: Tensor, omega: Omega, *others: Tensor) -> bool:
    """Return whether `_Gap` applies: eager, and tensor fields enter through `value` alone."""
    return eager(scores, *others, *tensors(omega).values()) and (
        _constant(omega) or omega.learns_through_value
    )
