"""Attention piece by piece: the matrix of scores never exists, only the keys in a support stay."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fewfold._torch import untransformed
from fewfold.attention.chunks import Piece, Plan, by_head
from fewfold.attention.shapes import Layout
from fewfold.attention.support_attention import Few, blend, few_of, pull_few
from fewfold.maps.omega import Omega
from fewfold.structured.omega_tensors import tensors

__all__ = [
    "chunked",
]

_SUMS = torch.float32  # at least: of gradients, over pieces


def chunked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    omega: Omega,
    layout: Layout,
    dropout: float,
    generator: torch.Generator | None,
) -> Tensor:
    """`sparse_attention` of many queries and keys."""
    source = None if generator is None else generator.device
    seed = int(torch.randint(2**31, (), generator=generator, device=source)) if dropout else 0
    out: Tensor = _Attend.apply(
        *layout.by_head(query, key, value),
        Plan(layout, omega, dropout, seed),
        *(by_head(learnt, layout) for learnt in tensors(omega).values()),
    )
    return out.view(*layout.batch, layout.queries, -1)


class _Attend(torch.autograd.Function):
    """What is kept for the backward pass are supports; a piece without a few is computed again."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, plan: Plan, *parameters: Tensor
    ) -> Tensor:
        learns = any(ctx.needs_input_grad[4:])
        out = query.new_empty(*query.shape[:2], value.shape[-1])
        parts: list[Tensor | None] = []
        room = plan.room(query)
        for number, piece in enumerate(plan.pieces()):
            own = plan.own(piece, list(parameters))
            at_key, at_value = plan.shared(key, piece), plan.shared(value, piece)
            scores = plan.scores(query[piece.heads, piece.rows], at_key, piece, room)
            few = few_of(scores, own, learns)
            if few is None:
                parts += [None, None, None]
                found = _mixed(own, scores, at_value, plan, number)
            else:
                parts += [few.weight, few.slot, few.first]
                used = _kept(few.weight, plan, number)
                found = blend(at_value, used, few).view(*scores.shape[:2], -1)
            out[piece.heads, piece.rows] = found
        # the mask too, so that torch tells if it has changed before it is read again
        ctx.save_for_backward(query, key, value, plan.layout.mask, *parameters, *parts)
        ctx.plan, ctx.parameters = plan.masked(None), len(parameters)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        query, key, value, mask, *rest = ctx.saved_tensors
        parameters, parts = rest[: ctx.parameters], iter(rest[ctx.parameters :])
        few = [None if w is None else Few(w, s, f) for w, s, f in zip(parts, parts, parts)]  # noqa: B905
        given, plan = [query, key, value, *parameters], ctx.plan.masked(mask)
        to: Sequence[Tensor | None]
        if torch.is_grad_enabled() or not untransformed(grad):
            to = _differentiable(given, plan, few, grad)
        else:
            to = _by_pieces(given, plan, few, grad)
        wanted = [*ctx.needs_input_grad[:3], *ctx.needs_input_grad[4:]]
        asked = [one if wants else None for one, wants in zip(to, wanted, strict=True)]
        return (*asked[:3], None, *asked[3:])


def _mixed(own: Omega, scores: Tensor, value: Tensor, plan: Plan, number: int) -> Tensor:
    """The output of a piece by all of its weights."""
    return torch.bmm(_kept(own.argmax(scores), plan, number), value)


def _kept(weights: Tensor, plan: Plan, number: int) -> Tensor:
    kept = plan.kept(weights.shape, number, weights)
    return weights if kept is None else weights * kept


def _by_pieces(
    given: list[Tensor], plan: Plan, few: list[Few | None], grad: Tensor
) -> list[Tensor]:
    """Gradients of queries, keys, values and the tensors of omega."""
    query, key, value, *parameters = given
    # many small parts of a sum would be lost in 16 bits
    to = [one.new_zeros(one.shape, dtype=torch.promote_types(one.dtype, _SUMS)) for one in given]
    for number, (piece, part) in enumerate(zip(plan.pieces(), few, strict=True)):
        at = grad[piece.heads, piece.rows].contiguous()
        own = (
            query[piece.heads, piece.rows],
            plan.shared(key, piece),
            plan.shared(value, piece),
        )
        if part is None:
            found = _again(own, plan, piece, parameters, number, at)
            to[0][piece.heads, piece.rows] += found[0]
            _add_shared(to, found[1:3], plan, piece)
            for whole, more in zip(to[3:], found[3:], strict=True):
                whole += more  # of all heads, zero outside of the piece
            continue
        kept = plan.kept(part.weight.shape, number, part.weight)
        omega, scale = plan.own(piece, parameters), plan.layout.scale
        into = to[1][piece.heads, : piece.keys], to[2][piece.heads, : piece.keys]
        direct = plan.layout.group == 1 and all(one.is_contiguous() for one in into)
        if not direct:
            into = own[1].new_zeros(own[1].shape), own[2].new_zeros(own[2].shape)
        to_query, to_alpha = pull_few(own, omega, part, kept, at, scale, into)
        to[0][piece.heads, piece.rows] += to_query
        if not direct:
            _add_shared(to, into, plan, piece)
        if to_alpha is not None:
            rows = piece.rows if to[3].shape[1] > 1 else slice(None)
            to[3][piece.heads, rows] += to_alpha.sum_to_size(to[3][piece.heads, rows].shape)
    return [whole.to(one.dtype) for whole, one in zip(to, given, strict=True)]


def _add_shared(to: list[Tensor], found: Sequence[Tensor], plan: Plan, piece: Piece) -> None:
    """Add a piece's gradients of keys and values to those of the whole."""
    for whole, part in zip(to[1:3], found, strict=True):
        if plan.layout.group == 1:
            whole[piece.heads, : piece.keys] += part
        else:
            whole[:, : piece.keys].index_add_(0, plan.owners(piece, part), part.to(whole.dtype))


def _again(
    given: tuple[Tensor, Tensor, Tensor],
    plan: Plan,
    piece: Piece,
    parameters: list[Tensor],
    number: int,
    grad: Tensor,
) -> list[Tensor]:
    """Gradients of a piece by computing it again."""
    with torch.enable_grad():
        query, key, value = (tensor.detach().requires_grad_() for tensor in given)
        cut = [one.detach().requires_grad_(one.is_floating_point()) for one in parameters]
        scores = plan.scores(query, key, piece)
        out = _mixed(plan.own(piece, cut), scores, value, plan, number)
        asked = [query, key, value, *(one for one in cut if one.requires_grad)]
        found = iter(torch.autograd.grad(out, asked, grad, materialize_grads=True))
        some = [next(found) for _ in range(3)]
        return [
            *some, *(next(found) if one.requires_grad else torch.zeros_like(one) for one in cut)
        ]  # fmt: skip


def _differentiable(
    given: list[Tensor], plan: Plan, few: list[Few | None], grad: Tensor
) -> list[Tensor | None]:
    """The same with a graph of its own, for second derivatives: all weights at once."""
    query, key, value, *parameters = given
    rows: dict[int, list[Tensor]] = {}
    with torch.enable_grad():
        for number, (piece, part) in enumerate(zip(plan.pieces(), few, strict=True)):
            scores = plan.scores(query[piece.heads, piece.rows], plan.shared(key, piece), piece)
            probs = plan.own(piece, parameters).argmax(scores)
            atoms = probs if part is None else part.weight
            kept = plan.kept(atoms.shape, number, atoms)
            if kept is not None:
                probs = probs * (kept if part is None else part.dense(kept, scores.shape))
            found = torch.bmm(probs, plan.shared(value, piece))
            rows.setdefault(piece.heads.start, []).append(found)
        out = torch.cat([torch.cat(parts, 1) for parts in rows.values()])
    asked = [one for one in given if one.requires_grad]
    graph = torch.is_grad_enabled()
    grads = iter(torch.autograd.grad(out, asked, grad, create_graph=graph, allow_unused=True))
    return [next(grads) if one.requires_grad else None for one in given]
