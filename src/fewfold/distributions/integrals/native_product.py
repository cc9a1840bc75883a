"""Expected products and Gaussian-sparsemax densities by native kernels, without gradients."""

import torch
from torch import Tensor

from fewfold._native import dispatch
from fewfold._torch import tracks_grad

__all__ = ["quick_densities", "quick_product"]


def quick_densities(y: Tensor, loc: Tensor, scale: Tensor) -> tuple[Tensor, Tensor] | None:
    """Compute `GaussianSparsemax(loc, scale).log_prob(y)` of most rows (rows, K), or return None.

    Returns:
        See `quick_product`.
    """
    if not _is_supported(y, loc, scale) or y.numel() == 0:
        return None
    logs = y.new_empty(len(y))
    rows = [part if part.stride(-1) == 1 else part.contiguous() for part in (y, loc, scale)]
    places = [number for part in rows for number in (part, part.stride(0))]
    run = dispatch.kernel("log_densities", y.dtype)
    count = run(*places, *y.shape, logs, dispatch.threads())
    return logs, _remaining_rows(logs, count)


def _is_supported(*tensors: Tensor) -> bool:
    """Whether the kernels support these tensors: one dtype, and no gradient required."""
    alike = all(part.dtype == tensors[0].dtype for part in tensors)
    return alike and not tracks_grad(*tensors) and dispatch.ready(*tensors)


def _remaining_rows(logs: Tensor, count: int) -> Tensor:
    """Indices of the rows that the kernel did not compute."""
    return (~logs.isfinite()).nonzero()[:, 0] if count else torch.arange(0)


def quick_product(shift: Tensor, slope: Tensor) -> tuple[Tensor, Tensor] | None:
    """Compute `log_expected_product` of most rows, or return None without a kernel.

    Returns:
        (rows,) the results, and the indices of rows not computed: with NaN, or very steep.
    """
    if not _is_supported(shift, slope):
        return None
    logs = shift.new_empty(len(shift))
    remaining = _run_kernel(shift.contiguous(), slope.contiguous(), logs)
    if len(remaining) == 0 or shift.dtype == torch.float64:
        return logs, remaining
    # slopes too steep for points in single precision
    wide = logs.new_empty(len(remaining), dtype=torch.float64)
    still = _run_kernel(shift[remaining].double(), slope[remaining].double(), wide)
    logs[remaining] = wide.float()
    return logs, remaining[still]


def _run_kernel(shift: Tensor, slope: Tensor, logs: Tensor) -> Tensor:
    """Write the results to `logs` and return the rows that were not computed."""
    rows, size = shift.shape
    count = dispatch.kernel("expected_products", shift.dtype)(
        shift, slope, rows, size, logs, dispatch.threads()
    )
    return _remaining_rows(logs, count)
