"""Attention by Triton kernels, for sparsemax and entmax with 1.1 <= alpha <= 2 on a GPU."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fewfold._native import dispatch
from fewfold._triton.attention_inputs import AttentionInputs, AttentionStats
from fewfold.attention.chunked import differentiable
from fewfold.attention.chunks import Plan, parameter_by_head
from fewfold.attention.shapes import Layout
from fewfold.attention.support_attention import entmax_alpha
from fewfold.maps import native_threshold
from fewfold.maps.omega import Omega
from fewfold.structured.omega_tensors import tensors

__all__ = ["fused_attention"]


def fused_attention(
    query: Tensor, key: Tensor, value: Tensor, omega: Omega, layout: Layout
) -> Tensor | None:
    """Return the output of `sparse_attention`, or None if the kernels do not support the call."""
    mask = layout.mask
    optional = () if mask is None else (mask,)
    learnt = list(tensors(omega).values())
    run = dispatch.triton_kernel("sparse_attention", query, key, value, *optional, *learnt)
    if run is None or (mask is not None and mask.requires_grad):
        return None
    alpha = entmax_alpha(omega)
    if alpha is None or not _supported(alpha):
        return None
    parameters = [parameter_by_head(one, layout) for one in learnt]
    if any(one.shape[2] > 1 for one in parameters):
        return None
    plan = Plan(layout, omega)
    vectors = layout.by_head(query, key, value)
    if not _inputs(vectors, parameters, plan).covered:
        return None
    out: Tensor = _FusedAttention.apply(plan, *vectors, *parameters)
    return out.view(*layout.batch, layout.queries, -1)


def _supported(alpha: float | Tensor) -> bool:
    """Return whether the kernels are accurate for this alpha; a tensor is read."""
    if isinstance(alpha, Tensor):
        return native_threshold.within(alpha, alpha.requires_grad)
    return native_threshold.has_kernel(alpha)


def _inputs(vectors: Sequence[Tensor], parameters: list[Tensor], plan: Plan) -> AttentionInputs:
    """Return the arguments of the kernels."""
    layout, mask = plan.layout, plan.layout.mask
    if mask is not None:
        heads = layout.batch[-1:].numel()
        mask = mask.expand(layout.shape).reshape(-1, heads, layout.queries, layout.keys)
    alpha = parameters[0].detach().squeeze(2) if parameters else entmax_alpha(plan.omega)
    if alpha is None:
        raise TypeError(f"omega must be entmax or sparsemax, got {plan.omega!r}")
    query, key, value = (one.detach() for one in vectors)
    return AttentionInputs(query, key, value, mask, layout.causal, layout.scale, alpha)


class _FusedAttention(torch.autograd.Function):
    """Autograd function of the kernels; saves three numbers per query, and the active blocks."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, *given: Tensor) -> Tensor:
        vectors, parameters = given[:3], list(given[3:])
        run: Any = dispatch.triton_kernel("sparse_attention", *vectors)
        out, stats = run(_inputs(vectors, parameters, plan))
        ctx.save_for_backward(
            plan.layout.mask, stats.top, stats.tau, stats.total, stats.active, *given
        )
        ctx.plan = plan.with_mask(None)
        found: Tensor = out
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        mask, *kept = ctx.saved_tensors
        stats, given = AttentionStats(*kept[:4]), kept[4:]
        plan, wanted = ctx.plan.with_mask(mask), ctx.needs_input_grad[1:]
        to: Sequence[Tensor | None]
        run = dispatch.triton_kernel("sparse_attention_backward", grad, *given[:3])
        if run is None or torch.is_grad_enabled():
            to = differentiable(given, plan, [None] * len(list(plan.chunks())), grad)
        else:
            learns = len(wanted) > 3 and wanted[3]
            *to, to_alpha = run(_inputs(given[:3], given[3:], plan), stats, grad, learns)
            if to_alpha is not None:
                alpha = given[3]
                to = [*to, to_alpha.unsqueeze(2).sum_to_size(alpha.shape).to(alpha.dtype)]
            else:
                to = [*to, *(None for _ in given[3:])]
        needed = [one if wants else None for one, wants in zip(to, wanted, strict=True)]
        return None, *needed
