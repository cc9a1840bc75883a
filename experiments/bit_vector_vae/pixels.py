"""Negative log-likelihood of grey images whose pixels are categorical with low-rank logits.

The logits of one image are (784, 256), those of a batch of pairs half a gigabyte. Here they exist
for a few pixels at a time, in the cache of one core, and what is kept of them are gradients. That
is what pixels.cpp does; where it cannot be compiled, torch does it an image at a time.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from experiments.bit_vector_vae.native import Kernel, kernel

# Sums of exponentials that float32 keeps all digits of; beyond them the largest logit is taken off.
LEAST, MOST = 1e-25, 1e30


def pixel_nll(
    features: Tensor, weight: Tensor, bias: Tensor, pixels: Tensor, row: Tensor
) -> Tensor:
    """Sum over the pixels of logsumexp(W h + b) - (W h + b) at the pixel's value, `(m,)`.

    Args:
        features: h, `(m, rank, pixels)`.
        weight: W, `(values, rank)`.
        bias: b, `(values,)`.
        pixels: values `(rows, pixels)` of the images; bytes are the fastest.
        row: `(m,)`, the image that each of the features is meant to give.

    Example:
        >>> h, W, b = torch.zeros(1, 5, 784), torch.zeros(256, 5), torch.zeros(256)
        >>> nll = pixel_nll(h, W, b, torch.zeros(3, 784).long(), torch.tensor([2]))
        >>> round(nll.item() / 784, 4)  # log 256
        5.5452
    """
    # Asked here: the function itself runs without a tape, and cannot tell whether there is one.
    wanted = any(x.requires_grad for x in (features, weight, bias))
    differentiate = wanted and torch.is_grad_enabled()
    nll: Tensor = _PixelNLL.apply(features, weight, bias, pixels, row, differentiate)
    return nll


class _PixelNLL(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        bias: Tensor,
        pixels: Tensor,
        row: Tensor,
        differentiate: bool,
    ) -> Tensor:
        call = kernel()
        if call is not None and _fits(features, weight, bias, pixels, row):
            nll, slopes, outer = _native(call, features, weight, bias, pixels, row, differentiate)
        else:
            nll, slopes, outer = _plain(features, weight, bias, pixels, row, differentiate)
        ctx.save_for_backward(slopes, outer)
        return nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        slopes, outer = ctx.saved_tensors
        columns = (gradient @ outer.flatten(1)).view(outer.shape[1:])
        return slopes * gradient.view(-1, 1, 1), columns[:-1].t(), columns[-1], None, None, None


def _fits(features: Tensor, weight: Tensor, bias: Tensor, pixels: Tensor, row: Tensor) -> bool:
    """Whether the kernel supports these tensors; pixel values are bytes and need no check."""
    m, _, size = features.shape
    shapes = (m, 5, size), (256, 5), (256,), (len(pixels), size), (m,)
    dtypes = (torch.float32,) * 3 + (torch.uint8, torch.int64)
    return all(
        x.shape == shape and x.dtype == dtype and x.is_cpu
        for x, shape, dtype in zip(
            (features, weight, bias, pixels, row), shapes, dtypes, strict=True
        )
    )


def _native(
    call: Kernel,
    features: Tensor,
    weight: Tensor,
    bias: Tensor,
    pixels: Tensor,
    row: Tensor,
    differentiate: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Compute `_plain` by the kernel."""
    given = [x.contiguous() for x in (features, weight, bias, pixels, row)]
    m, rank, size = features.shape
    nll = features.new_empty(m)
    slopes = torch.empty_like(given[0]) if differentiate else None
    outer = features.new_empty(m, rank + 1, len(weight)) if differentiate else None
    made = [None if x is None else x.data_ptr() for x in (nll, slopes, outer)]
    wrong = call(*[x.data_ptr() for x in given], m, len(pixels), size, *made)
    if wrong >= 0:
        raise IndexError(f"row must be below {len(pixels)}, got {int(row[wrong])} at {wrong}")
    return nll, slopes, outer


def _plain(
    features: Tensor,
    weight: Tensor,
    bias: Tensor,
    pixels: Tensor,
    row: Tensor,
    differentiate: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return values `(m,)`, gradients in the features, and in W and b `(m, rank + 1, values)`."""
    m, rank, size = features.shape
    lifted = torch.cat([features, features.new_ones(m, 1, size)], 1)
    columns = torch.cat([weight.t(), bias.unsqueeze(0)])  # the bias is one weight more
    wanted = columns.index_select(1, pixels.long().flatten()).view(rank + 1, -1, size)
    wanted = wanted.transpose(0, 1).index_select(0, row)
    log_sums, slopes, outer = _log_sums(lifted, columns, differentiate)
    if slopes is not None and outer is not None:
        slopes -= wanted[:, :rank]
        outer.scatter_add_(2, pixels[row].long().unsqueeze(1).expand_as(lifted), -lifted)
    return (
        log_sums.sum(1) - torch.linalg.vecdot(lifted.flatten(1), wanted.flatten(1)),
        slopes,
        outer,
    )


def _log_sums(
    lifted: Tensor, columns: Tensor, differentiate: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return log-sums `(m, pixels)`, their gradients in h `(m, rank, pixels)`, and in W and b.

    With E = exp(W h + b), the sums are E 1, the slopes E W / sums and E' (h / sums): two products
    with E as it is, which is never divided nor read in any other way.
    """
    m, channels, size = lifted.shape
    values = columns.shape[1]
    sides = columns.clone()
    sides[-1] = 1  # E W and E 1 at once
    powers = lifted.new_empty(size, values)
    sums = lifted.new_empty(m, channels if differentiate else 1, size)
    outer = lifted.new_empty(m, channels, values) if differentiate else None
    top = lifted.new_zeros(m, size)

    def add_up(image: Tensor, of_image: Tensor, of_table: Tensor | None) -> None:
        torch.exp(powers, out=powers)
        if of_table is None:
            torch.sum(powers, 1, out=of_image[0])
        else:
            torch.mm(sides, powers.t(), out=of_image)
            torch.mm(image / of_image[-1], powers, out=of_table)

    held = list(zip(lifted, sums, [None] * m if outer is None else outer, strict=True))
    for image, of_image, of_table in held:
        torch.mm(image.t(), columns, out=powers)
        add_up(image, of_image, of_table)
    least, most = sums[:, -1].amin(1), sums[:, -1].amax(1)
    for i in (~((least > LEAST) & (most < MOST))).nonzero().flatten().tolist():
        torch.mm(lifted[i].t(), columns, out=powers)
        top[i] = powers.amax(1)
        powers -= top[i].unsqueeze(1)
        add_up(*held[i])
    log_sums = sums[:, -1].log() + top
    return log_sums, sums[:, :-1].div_(sums[:, -1:]) if differentiate else None, outer
