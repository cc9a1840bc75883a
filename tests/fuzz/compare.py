"""Comparison of kernel results with plain torch in double precision."""

from collections.abc import Callable

import torch
from torch import Tensor

from fewfold import _native

__all__ = ["close", "doubled", "native", "plain", "same", "similar"]


def native(function: Callable[..., object], *given: object):
    """The answer of the kernels; an error if they are not there."""
    if not _native.enabled():
        raise RuntimeError(
            "the kernels are not built or switched off; build them, unset FEWFOLD_NATIVE"
        )
    return function(*given)


def plain(function: Callable[..., object], *given: object):
    """The answer of plain torch for the same inputs, widened to double precision."""
    with _native.disabled():
        return function(*(doubled(one) for one in given))


def doubled(value: object) -> object:
    """A floating-point tensor in double precision, without its graph; anything else as it is."""
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.detach().double()
    return value


def close(
    got: Tensor, want: Tensor, allowed: float | Tensor, what: str = "values", relative: float = 0.0
) -> None:
    """Raise where `got` is further from `want` than allowed, with the worst place."""
    if got.shape != want.shape:
        raise AssertionError(f"{what}: shape {tuple(got.shape)} instead of {tuple(want.shape)}")
    got, want = got.detach().double(), want.detach().double()
    limit = allowed + relative * want.abs()
    away = torch.where(got == want, 0.0, (got - want).abs())  # equal infinities are equal
    wrong = ~(away <= limit) & ~(got.isnan() & want.isnan())
    if bool(wrong.any()):
        excess = torch.where(wrong, (away - limit).nan_to_num(torch.inf), -torch.inf)
        at = tuple(int(i) for i in torch.unravel_index(excess.argmax(), got.shape))
        raise AssertionError(
            f"{what}: {int(wrong.sum())} of {wrong.numel()} differ, most at {at}: "
            f"{float(got[at])!r} instead of {float(want[at])!r}"
        )


def same(got: Tensor, want: Tensor, what: str) -> None:
    """Raise unless both are equal to the last bit."""
    close(got, want, 0.0, what)


def similar(got: list[Tensor], want: list[Tensor], tight: float, names: tuple[str, ...]) -> None:
    """Raise where a tensor is off by more than `tight` times the size of what is wanted."""
    for one, other, name in zip(got, want, names, strict=True):
        size = 1 + float(other.detach().abs().max()) if other.numel() else 1.0
        close(one, other, tight * size, name)
