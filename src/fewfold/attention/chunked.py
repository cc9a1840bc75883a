"""Chunked attention: saves the support of each chunk, never the full matrix of scores."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fewfold._torch import untransformed
from fewfold.attention.chunks import Chunk, Plan, parameter_by_head
from fewfold.attention.shapes import Layout
from fewfold.attention.support_attention import ChunkSupport, backward_support, blend, find_support
from fewfold.maps.omega import Omega
from fewfold.structured.omega_tensors import tensors

__all__ = ["chunked", "differentiable"]

_SUMS = torch.float32  # minimum dtype for sums of gradients over chunks


def chunked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    omega: Omega,
    layout: Layout,
    dropout: float,
    generator: torch.Generator | None,
) -> Tensor:
    """Compute `sparse_attention` chunk by chunk, for many queries and keys."""
    source = None if generator is None else generator.device
    seed = int(torch.randint(2**31, (), generator=generator, device=source)) if dropout else 0
    out: Tensor = _Attend.apply(
        *layout.by_head(query, key, value),
        Plan(layout, omega, dropout, seed),
        *(parameter_by_head(learnt, layout) for learnt in tensors(omega).values()),
    )
    return out.view(*layout.batch, layout.queries, -1)


class _Attend(torch.autograd.Function):
    """Keeps the support of each chunk for the backward pass; recomputes chunks that are dense."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, plan: Plan, *parameters: Tensor
    ) -> Tensor:
        learns = any(ctx.needs_input_grad[4:])
        out = query.new_empty(*query.shape[:2], value.shape[-1])
        parts: list[Tensor | None] = []
        buffer = plan.score_buffer(query)
        for number, chunk in enumerate(plan.chunks()):
            own = plan.chunk_omega(chunk, list(parameters))
            at_key, at_value = plan.visible(key, chunk), plan.visible(value, chunk)
            scores = plan.scores(query[chunk.heads, chunk.rows], at_key, chunk, buffer)
            support = find_support(scores, own, learns)
            if support is None:
                parts += [None, None, None]
                found = _dense_output(own, scores, at_value, plan, number)
            else:
                parts += [support.weight, support.slot, support.first]
                used = _apply_dropout(support.weight, plan, number)
                found = blend(at_value, used, support).view(*scores.shape[:2], -1)
            out[chunk.heads, chunk.rows] = found
        # Saving the mask lets torch detect in-place changes before the backward pass.
        ctx.save_for_backward(query, key, value, plan.layout.mask, *parameters, *parts)
        ctx.plan, ctx.parameters = plan.with_mask(None), len(parameters)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        query, key, value, mask, *rest = ctx.saved_tensors
        parameters, parts = rest[: ctx.parameters], iter(rest[ctx.parameters :])
        triples = zip(parts, parts, parts)  # noqa: B905
        supports = [None if w is None else ChunkSupport(w, s, f) for w, s, f in triples]
        given, plan = [query, key, value, *parameters], ctx.plan.with_mask(mask)
        to: Sequence[Tensor | None]
        if torch.is_grad_enabled() or not untransformed(grad):
            to = differentiable(given, plan, supports, grad)
        else:
            to = _chunked_gradients(given, plan, supports, grad)
        wanted = [*ctx.needs_input_grad[:3], *ctx.needs_input_grad[4:]]
        needed = [one if wants else None for one, wants in zip(to, wanted, strict=True)]
        return (*needed[:3], None, *needed[3:])


def _dense_output(own: Omega, scores: Tensor, value: Tensor, plan: Plan, number: int) -> Tensor:
    """Output of a chunk from its dense matrix of weights."""
    return torch.bmm(_apply_dropout(own.argmax(scores), plan, number), value)


def _apply_dropout(weights: Tensor, plan: Plan, number: int) -> Tensor:
    drop = plan.dropout_mask(weights.shape, number, weights)
    return weights if drop is None else weights * drop


def _chunked_gradients(
    given: list[Tensor], plan: Plan, supports: list[ChunkSupport | None], grad: Tensor
) -> list[Tensor]:
    """Gradients of queries, keys, values and the tensor parameters of omega."""
    query, key, value, *parameters = given
    # Accumulating many small terms in 16 bits would lose them.
    to = [one.new_zeros(one.shape, dtype=torch.promote_types(one.dtype, _SUMS)) for one in given]
    for number, (chunk, part) in enumerate(zip(plan.chunks(), supports, strict=True)):
        at = grad[chunk.heads, chunk.rows].contiguous()
        own = (
            query[chunk.heads, chunk.rows],
            plan.visible(key, chunk),
            plan.visible(value, chunk),
        )
        if part is None:
            found = _recompute_gradients(own, plan, chunk, parameters, number, at)
            to[0][chunk.heads, chunk.rows] += found[0]
            _add_shared(to, found[1:3], plan, chunk)
            for whole, more in zip(to[3:], found[3:], strict=True):
                whole += more  # has all heads, and is zero outside the chunk
            continue
        drop = plan.dropout_mask(part.weight.shape, number, part.weight)
        omega, scale = plan.chunk_omega(chunk, parameters), plan.layout.scale
        into = to[1][chunk.heads, : chunk.keys], to[2][chunk.heads, : chunk.keys]
        direct = plan.layout.group == 1 and all(one.is_contiguous() for one in into)
        if not direct:
            into = own[1].new_zeros(own[1].shape), own[2].new_zeros(own[2].shape)
        to_query, to_alpha = backward_support(own, omega, part, drop, at, scale, into)
        to[0][chunk.heads, chunk.rows] += to_query
        if not direct:
            _add_shared(to, into, plan, chunk)
        if to_alpha is not None:
            rows = chunk.rows if to[3].shape[1] > 1 else slice(None)
            to[3][chunk.heads, rows] += to_alpha.sum_to_size(to[3][chunk.heads, rows].shape)
    return [whole.to(one.dtype) for whole, one in zip(to, given, strict=True)]


def _add_shared(to: list[Tensor], found: Sequence[Tensor], plan: Plan, chunk: Chunk) -> None:
    """Add the key and value gradients of a chunk to the totals."""
    for whole, part in zip(to[1:3], found, strict=True):
        if plan.layout.group == 1:
            whole[chunk.heads, : chunk.keys] += part
        else:
            whole[:, : chunk.keys].index_add_(0, plan.key_heads(chunk, part), part.to(whole.dtype))


def _recompute_gradients(
    given: tuple[Tensor, Tensor, Tensor],
    plan: Plan,
    chunk: Chunk,
    parameters: list[Tensor],
    number: int,
    grad: Tensor,
) -> list[Tensor]:
    """Gradients of a chunk by recomputation with autograd."""
    with torch.enable_grad():
        query, key, value = (tensor.detach().requires_grad_() for tensor in given)
        cut = [one.detach().requires_grad_(one.is_floating_point()) for one in parameters]
        scores = plan.scores(query, key, chunk)
        out = _dense_output(plan.chunk_omega(chunk, cut), scores, value, plan, number)
        inputs = [query, key, value, *(one for one in cut if one.requires_grad)]
        found = iter(torch.autograd.grad(out, inputs, grad, materialize_grads=True))
        some = [next(found) for _ in range(3)]
        return [
            *some, *(next(found) if one.requires_grad else torch.zeros_like(one) for one in cut)
        ]  # fmt: skip


def differentiable(
    given: list[Tensor], plan: Plan, supports: list[ChunkSupport | None], grad: Tensor
) -> list[Tensor | None]:
    """Gradients with a differentiable graph, from dense weights, for second derivatives."""
    query, key, value, *parameters = given
    rows: dict[int, list[Tensor]] = {}
    with torch.enable_grad():
        for number, (chunk, part) in enumerate(zip(plan.chunks(), supports, strict=True)):
            scores = plan.scores(query[chunk.heads, chunk.rows], plan.visible(key, chunk), chunk)
            probs = plan.chunk_omega(chunk, parameters).argmax(scores)
            atoms = probs if part is None else part.weight
            drop = plan.dropout_mask(atoms.shape, number, atoms)
            if drop is not None:
                probs = probs * (drop if part is None else part.dense(drop, scores.shape))
            found = torch.bmm(probs, plan.visible(value, chunk))
            rows.setdefault(chunk.heads.start, []).append(found)
        out = torch.cat([torch.cat(parts, 1) for parts in rows.values()])
    inputs = [one for one in given if one.requires_grad]
    graph = torch.is_grad_enabled()
    grads = iter(torch.autograd.grad(out, inputs, grad, create_graph=graph, allow_unused=True))
    return [next(grads) if one.requires_grad else None for one in given]
