"""The native kernels as torch operators, for `torch.compile`.

`torch.compile` cannot trace a kernel, which reads memory by address. It can call an operator that
has a fake implementation (for shapes) and a backward formula. An operator runs on real tensors and
can therefore choose at run time: for values that the kernel does not support (an alpha outside its
range, for example), it computes the map in plain torch.

Eager calls do not use operators, whose call overhead exceeds the time of a small kernel. Neither do
export, other devices, `torch.func` and forward mode, because these operators have no second and no
forward derivatives. `traceable` tests for this. The backward operators have no backward formula, so
that a second derivative raises an error.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fewfold._native import dispatch
from fewfold._torch import (
    autograd_enabled,
    compiled,
    forward_mode,
    operator_schema,
    tracks_grad,
    under_transform,
)
from fewfold.maps import native_ksubset, native_threshold

__all__ = [
    "budget_operator",
    "registered",
    "threshold_operator",
    "traceable",
]

_PLAIN = (Tensor, torch.nn.Parameter)
_LIBRARY = torch.library.Library("fewfold", "FRAGMENT")

Map = Callable[[Tensor, float | Tensor], Tensor]


def traceable(*values: object) -> bool:
    """Whether Dynamo is tracing a call on these that an operator can serve.

    That is float32 or float64 on the CPU, outside `torch.func` and forward mode, and with kernels.
    """
    if not compiled() or not dispatch.enabled() or under_transform() or forward_mode():
        return False
    return all(
        type(value) in _PLAIN and value.is_cpu and value.dtype in (torch.float32, torch.float64)
        for value in values
        if isinstance(value, Tensor)
    )


def threshold_operator(name: str, norm: bool, plain: Map) -> Map:
    """Register entmax (normmax if `norm`) of rows as the operator `fewfold::name`.

    Args:
        name: of the operator; its backward pass is `fewfold::name_backward`.
        norm: whether the regulariser is the norm.
        plain: the map of rows and alpha in plain torch, for values the kernel does not support.
    """

    # A tensor is passed as `alpha`; a number as `order`, with `alpha` None.
    def infer(rows: Tensor, alpha: Tensor | None, order: float) -> Tensor:
        rows = rows.contiguous()
        value = order if alpha is None else alpha
        if _covered(rows, alpha, False):
            return native_threshold.forward(rows, value, norm)[0]
        return plain(rows, value)

    def fake_infer(rows: Tensor, alpha: Tensor | None, order: float) -> Tensor:
        return rows.new_empty(rows.shape)

    # The second output holds a flag per row, followed by the saved supports of long rows. It is one
    # tensor because each output costs microseconds. The flag is 1 for a row with a score of +inf,
    # which has zero gradient, and -1 if plain torch computed the row and saved no support.
    def forward(
        rows: Tensor, alpha: Tensor | None, order: float, learns: bool
    ) -> tuple[Tensor, Tensor]:
        rows = rows.contiguous()
        value = order if alpha is None else alpha
        count, capacity = _row_count(rows), native_threshold.saved_support_size(rows.shape[-1])
        extra = rows.new_empty(count * (capacity + 1), dtype=torch.int32)
        places = extra[count:].view(count, capacity) if capacity else None
        if not _covered(rows, alpha, learns):
            extra[:count] = -1
            return plain(rows, value), extra
        probs, infinite = native_threshold.forward(rows, value, norm, places)
        extra[:count] = rows.isposinf().any(-1).view(-1) if infinite else 0
        return probs, extra

    def fake(
        rows: Tensor, alpha: Tensor | None, order: float, learns: bool
    ) -> tuple[Tensor, Tensor]:
        capacity = native_threshold.saved_support_size(rows.shape[-1])
        extra = rows.new_empty(_row_count(rows) * (capacity + 1), dtype=torch.int32)
        return rows.new_empty(rows.shape), extra

    def backward(
        grad: Tensor, probs: Tensor, extra: Tensor, rows: Tensor | None,
        alpha: Tensor | None, order: float, wants_rows: bool, wants_alpha: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        covered = _covered(probs, alpha, wants_alpha)
        if not covered and alpha is not None:
            return _plain_backward(plain, grad, rows, alpha, (wants_rows, wants_alpha))
        count = _row_count(probs)
        flags, stored = extra[:count], len(extra) > count
        if flags.any():
            grad = grad.masked_fill(flags.view(*probs.shape[:-1], 1) > 0, 0.0)
            stored = stored and not bool((flags < 0).any())
        to_rows, to_alpha = _empty(probs), _empty(probs)
        if not covered:
            to_rows = native_threshold.pull(probs, grad, order, norm)
        elif wants_rows:
            places = extra[count:].view(count, -1) if stored else None
            value = order if alpha is None else alpha
            to_rows = native_threshold.backward(probs, grad, value, norm, places)
        if wants_alpha and alpha is not None:
            to_alpha = native_threshold.backward_alpha(probs, grad, alpha, norm).contiguous()
        return to_rows, to_alpha

    def fake_backward(
        grad: Tensor, probs: Tensor, extra: Tensor, rows: Tensor | None,
        alpha: Tensor | None, order: float, wants_rows: bool, wants_alpha: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        value = probs if alpha is None else alpha
        return _empty_grad(probs, wants_rows), _empty_grad(value, wants_alpha)

    backward_operator = registered(f"{name}_backward", backward, fake_backward)

    def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        rows, alpha, ctx.order, _ = inputs
        # The kernels support every number that gets here, and their backward needs no rows.
        ctx.save_for_backward(*output, None if alpha is None else rows, alpha)

    def pull(ctx: Any, wants: tuple[bool, ...], grad: Tensor, *_: Tensor | None) -> Any:
        found = backward_operator(grad, *ctx.saved_tensors, ctx.order, *wants[:2])
        return *_mask_grads(found, wants), None, None

    infer_operator = registered(f"{name}_infer", infer, fake_infer)
    operator = registered(name, forward, fake, save, pull)

    def call(rows: Tensor, alpha: float | Tensor) -> Tensor:
        value, order = (alpha, 0.0) if isinstance(alpha, Tensor) else (None, alpha)
        if tracks_grad(rows, alpha):
            learns = value is not None and value.requires_grad
            probs: Tensor = operator(rows, value, order, learns)[0]
        else:
            probs = infer_operator(rows, value, order)
        return probs

    return call


def budget_operator(name: str, plain: Map) -> Map:
    """Register the k-subset map of rows as the operator `fewfold::name`."""

    def forward(rows: Tensor, k: Tensor | None, number: float) -> tuple[Tensor, Tensor]:
        rows = rows.contiguous()
        budget: float | Tensor = number if k is None else k.detach()
        probs = native_ksubset.budget_map(rows.detach(), budget)
        if probs is not None:
            return probs, _no_rows(rows)
        # If more than k entries are +inf they share k, and the row has zero gradient.
        still = rows.isposinf().sum(-1, keepdim=True) > budget
        return plain(rows, budget), still

    def fake(rows: Tensor, k: Tensor | None, number: float) -> tuple[Tensor, Tensor]:
        return rows.new_empty(rows.shape), _no_rows(rows)

    def backward(
        grad: Tensor, probs: Tensor, still: Tensor, rows: Tensor | None, k: Tensor | None,
        wants_rows: bool, wants_k: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        stuck = bool(still.any())
        if stuck and k is not None:
            return _plain_backward(plain, grad, rows, k, (wants_rows, wants_k))
        if stuck:
            grad = grad.masked_fill(still, 0.0)
        to_rows, to_k = native_ksubset.pull(probs, grad, k if wants_k else None)
        return (to_rows if wants_rows else _empty(probs)), (
            _empty(probs) if to_k is None else to_k.contiguous()
        )

    def fake_backward(
        grad: Tensor, probs: Tensor, still: Tensor, rows: Tensor | None, k: Tensor | None,
        wants_rows: bool, wants_k: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        return _empty_grad(probs, wants_rows), _empty_grad(probs if k is None else k, wants_k)

    backward_operator = registered(f"{name}_backward", backward, fake_backward)

    def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        rows, k, *_ = inputs
        ctx.save_for_backward(*output, None if k is None else rows, k)

    def pull(ctx: Any, wants: tuple[bool, ...], grad: Tensor, *_: Tensor | None) -> Any:
        found = backward_operator(grad, *ctx.saved_tensors, *wants[:2])
        return *_mask_grads(found, wants), None

    operator = registered(name, forward, fake, save, pull)

    def call(rows: Tensor, k: float | Tensor) -> Tensor:
        given = (k, 0.0) if isinstance(k, Tensor) else (None, k)
        probs: Tensor = operator(rows, *given)[0]
        return probs

    return call


def registered(
    name: str,
    run: Callable[..., Any],
    fake: Callable[..., Any],
    save: Callable[..., None] | None = None,
    pull: Callable[..., Any] | None = None,
) -> Any:
    """Register `run` as the operator `fewfold::name` on the CPU and return it.

    Like `torch.library.custom_op`, but with fewer Python calls per invocation, each of which costs
    tens of microseconds when the caches are cold.

    Args:
        run: the implementation on tensors with storage; must not return its inputs.
        fake: returns outputs of the right shapes without computing them.
        save: like `setup_context` of `torch.library.register_autograd`.
        pull: the backward formula. Without one, differentiating the operator raises.
    """
    _LIBRARY.define(name + operator_schema(run))
    operator = getattr(torch.ops.fewfold, name).default

    class Formula(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, keys: Any, *given: Any) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                found = operator.redispatch(keys & torch._C._after_autograd_keyset, *given)
            if save is not None:
                save(ctx, given, found)
            return found

        @staticmethod
        def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
            if pull is None:
                raise RuntimeError(
                    f"fewfold::{name} of a compiled graph has no autograd formula: take second "
                    "derivatives in eager mode, or with torch.func inside the compiled function"
                )
            return None, *pull(ctx, ctx.needs_input_grad[1:], *grads)

    def choose(keys: Any, *given: Any) -> Any:
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*given):
            return Formula.apply(keys, *given)
        if dispatch.ready(given[0]):  # real storage and no active dispatch mode
            return run(*given)
        with torch._C._AutoDispatchBelowAutograd():
            return operator.redispatch(keys & torch._C._after_autograd_keyset, *given)

    _LIBRARY.impl(name, run, "CPU")
    _LIBRARY.impl(name, choose, "Autograd", with_keyset=True)
    torch.library.register_fake(f"fewfold::{name}", fake, lib=_LIBRARY)
    return operator


def _covered(rows: Tensor, alpha: Tensor | None, learns: bool) -> bool:
    """Return whether the kernel supports these inputs; the caller has checked a number alpha."""
    if rows.numel() == 0 or not dispatch.ready(rows):
        return False
    return alpha is None or (dispatch.ready(alpha) and native_threshold.within(alpha, learns))


def _plain_backward(
    plain: Map, grad: Tensor, rows: Tensor | None, value: Tensor, wants: tuple[bool, bool]
) -> tuple[Tensor, Tensor]:
    """Gradients with respect to rows and parameter by differentiating the plain torch map."""
    if rows is None:
        raise RuntimeError("the operator has not saved its rows for the backward pass")
    with autograd_enabled():
        leaves = rows.detach().requires_grad_(wants[0]), value.detach().requires_grad_(wants[1])
        selected = [leaf for leaf, want in zip(leaves, wants, strict=True) if want]
        found = iter(torch.autograd.grad(plain(*leaves), selected, grad, materialize_grads=True))
    first, second = (next(found).contiguous() if want else _empty(grad) for want in wants)
    return first, second


def _mask_grads(found: tuple[Tensor, Tensor], wants: tuple[bool, ...]) -> list[Tensor | None]:
    return [one if want else None for one, want in zip(found, wants[:2], strict=True)]


def _row_count(rows: Tensor) -> int:
    return math.prod(rows.shape[:-1])


def _no_rows(rows: Tensor) -> Tensor:
    return rows.new_zeros((*rows.shape[:-1], 1), dtype=torch.bool)


def _empty(like: Tensor) -> Tensor:
    return like.new_empty(0)


def _empty_grad(value: Tensor, wanted: bool) -> Tensor:
    return value.new_empty(value.shape if wanted else 0)
