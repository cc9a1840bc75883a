"""Expected products and densities that have one, by kernels, where there is no gradient."""

import torch
from torch import Tensor

from fewfold._native import dispatch
from fewfold._torch import tracks_grad

__all__ = ["quick_densities", "quick_product"]


def quick_densities(y: Tensor, loc: Tensor, scale: Tensor) -> tuple[Tensor, Tensor] | None:
    """`GaussianSparsemax(loc, scale).log_prob(y)` of most rows (rows, K), or None.

    Returns:
        As `quick_product`.
    """
    if not _ready(y, loc, scale) or y.numel() == 0:
        return None
    found = y.new_empty(len(y))
    rows = [part if part.stride(-1) == 1 else part.contiguous() for part in (y, loc, scale)]
    places = [number for part in rows for number in (part, part.stride(0))]
    run = dispatch.kernel("log_densities", y.dtype)
    left = run(*places, *y.shape, found, dispatch.threads())
    return found, _left(found, left)


def _ready(*given: Tensor) -> bool:
    """Whether the kernels may work on these: all of one dtype, and no gradient is wanted."""
    alike = all(part.dtype == given[0].dtype for part in given)
    return alike and not tracks_grad(*given) and dispatch.ready(*given)


def _left(found: Tensor, many: int) -> Tensor:
    return (~found.isfinite()).nonzero()[:, 0] if many else torch.arange(0)


def quick_product(shift: Tensor, slope: Tensor) -> tuple[Tensor, Tensor] | None:
    """`log_expected_product` of most rows, or None if the kernels cannot take them.

    Returns:
        (rows,) the answers, and the places of rows that are left: with a NaN, or very steep.
    """
    if not _ready(shift, slope):
        return None
    found = shift.new_empty(len(shift))
    left = _run(shift.contiguous(), slope.contiguous(), found)
    if len(left) == 0 or shift.dtype == torch.float64:
        return found, left
    # steeper than single precision can place its points
    wide = found.new_empty(len(left), dtype=torch.float64)
    still = _run(shift[left].double(), slope[left].double(), wide)
    found[left] = wide.float()
    return found, left[still]


def _run(shift: Tensor, slope: Tensor, found: Tensor) -> Tensor:
    rows, size = shift.shape
    left = dispatch.kernel("expected_products", shift.dtype)(
        shift, slope, rows, size, found, dispatch.threads()
    )
    return _left(found, left)
