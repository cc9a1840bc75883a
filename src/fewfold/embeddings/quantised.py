"""Numbers in fewer bytes: floating point as it is, or one byte with a scale per anchor."""

import torch
from torch import Tensor

__all__ = ["DTYPES", "pack", "unpack"]

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int8)


def pack(
    values: Tensor, owner: Tensor, owners: int, dtype: torch.dtype, signed: bool, name: str
) -> tuple[Tensor, Tensor | None]:
    """Values (n, ...) in this dtype, and for one byte the scale of each owner, float32 (owners,).

    One byte is a whole number of scales, from -127 to 127, or to 255 where nothing is negative; the
    scale is such that the largest value of an owner is met, so that none is off by more than half
    of its owner's scale.

    Example:
        >>> packed, scales = pack(torch.tensor([0.5, 255.0]), torch.tensor([0, 0]), 1, torch.int8,
        ...                       False, "values")
        >>> packed, scales
        (tensor([  0, 255], dtype=torch.uint8), tensor([1.]))
    """
    if dtype not in DTYPES:
        known = ", ".join(str(one) for one in DTYPES)
        raise ValueError(f"{name} must be one of {known}, got {dtype}")
    if dtype.is_floating_point:
        packed = values.to(dtype)
        if not packed.isfinite().all():
            raise ValueError(
                f"{name} do not fit {dtype}: the largest is {float(values.abs().max()):g}; "
                f"write {name}=torch.float32"
            )
        return packed, None
    most = 127 if signed else 255
    size = values.abs().flatten(1).amax(1) if values.dim() > 1 else values.abs()
    largest = torch.zeros(owners, dtype=torch.float64).scatter_reduce_(
        0, owner, size.double(), "amax"
    )
    scales = (largest / most).float()
    by = scales[owner].double().clamp(min=torch.finfo(torch.float32).tiny)
    steps = (values.double() / by.view(-1, *[1] * (values.dim() - 1))).round()
    return steps.clamp(-most, most).to(torch.int8 if signed else torch.uint8), scales


def unpack(packed: Tensor, scales: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Back to floating point; `scales` has one for each row of `packed`."""
    if scales is None:
        return packed.to(dtype)
    return packed.to(dtype) * scales.to(dtype).view(-1, *[1] * (packed.dim() - 1))
