"""The linear layer with its loss as one operator of compiled graphs.

How many classes are in a support depends on the data, so that there is nothing of a known size to
hand from a forward to a backward operator. As the loss is one number, the forward operator finds
the gradients too, and the backward operator multiplies them by the gradient of that number.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fewfold.maps.operators import autograd_enabled

__all__ = ["linear_operator"]

Loss = Callable[..., Tensor]


def linear_operator(loss: Loss) -> Loss:
    """The same function as an operator; its reduction must be "mean" or "sum".

    Args:
        loss: called with hidden, weight, target, alpha, and by name with bias, class weights,
            ignore_index, reduction, label_smoothing and chunk_size.
    """

    def forward(
        hidden: Tensor, linear: Tensor, bias: Tensor | None, alpha: Tensor | None, order: float,
        target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str,
        label_smoothing: float, chunk_size: int | None, wants: list[bool],
    ) -> list[Tensor]:  # fmt: skip
        with autograd_enabled(), torch.set_grad_enabled(any(wants)):
            given = [
                None if one is None else one.detach().requires_grad_(want)
                for one, want in zip((hidden, linear, bias, alpha), wants, strict=True)
            ]
            value = loss(
                given[0],
                given[1],
                target,
                order if given[3] is None else given[3],
                linear_bias=given[2],
                weight=weight,
                ignore_index=ignore_index,
                reduction=reduction,
                label_smoothing=label_smoothing,
                chunk_size=chunk_size,
            )
            asked = [one for one in given if one is not None and one.requires_grad]
            found = torch.autograd.grad(value, asked, materialize_grads=True) if asked else ()
        return [value.detach(), *(one.contiguous() for one in found)]

    def fake(
        hidden: Tensor, linear: Tensor, bias: Tensor | None, alpha: Tensor | None, order: float,
        target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str,
        label_smoothing: float, chunk_size: int | None, wants: list[bool],
    ) -> list[Tensor]:  # fmt: skip
        given = zip((hidden, linear, bias, alpha), wants, strict=True)
        asked = [one for one, want in given if one is not None and want]
        return [linear.new_empty(()), *(one.new_empty(one.shape) for one in asked)]

    def backward(grad: Tensor, found: list[Tensor]) -> list[Tensor]:
        return [one * grad.to(one.dtype) for one in found]

    def fake_backward(grad: Tensor, found: list[Tensor]) -> list[Tensor]:
        return [torch.empty_like(one) for one in found]

    name = "fewfold::linear_entmax_loss"
    operator = torch.library.custom_op(name, forward, mutates_args=(), device_types="cpu")
    operator.register_fake(fake)
    backward_operator = torch.library.custom_op(f"{name}_backward", backward, mutates_args=())
    backward_operator.register_fake(fake_backward)

    def save(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
        ctx.wants = inputs[-1]
        ctx.save_for_backward(*output[1:])

    def pull(ctx: Any, grads: list[Tensor]) -> tuple[Any, ...]:
        found = iter(backward_operator(grads[0], list(ctx.saved_tensors)))
        return *(next(found) if want else None for want in ctx.wants), *[None] * 8

    operator.register_autograd(pull, setup_context=save)

    def call(
        hidden: Tensor, linear: Tensor, target: Tensor, alpha: float | Tensor, *,
        linear_bias: Tensor | None, weight: Tensor | None, ignore_index: int, reduction: str,
        label_smoothing: float, chunk_size: int | None,
    ) -> Tensor:  # fmt: skip
        tensor, order = (alpha, 0.0) if isinstance(alpha, Tensor) else (None, alpha)
        given = (hidden, linear, linear_bias, tensor)
        tracked = torch.is_grad_enabled()
        wants = [tracked and one is not None and one.requires_grad for one in given]
        found: list[Tensor] = operator(
            *given, order, target, weight, ignore_index, reduction, float(label_smoothing),
            chunk_size, wants,
        )  # fmt: skip
        return found[0]

    return call
