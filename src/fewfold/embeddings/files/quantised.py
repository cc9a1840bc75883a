"""Quantisation: floating-point dtypes, or 2 to 8 bits with a scale per anchor."""

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["DTYPES", "bits_at", "from_bits", "pack", "to_bits", "unpack", "zero_code"]

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int8)


def pack(
    values: Tensor,
    owner: Tensor,
    owners: int,
    dtype: torch.dtype,
    signed: bool,
    name: str,
    *,
    bits: int = 8,
    scales: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Convert values (n, ...) to a dtype; for int8 also return a scale per owner, (owners,).

    A byte is an integer multiple of the scale, from -127 to 127 if signed and from 0 to 255 if not.
    The largest value of an owner is represented exactly, and no error exceeds half of the scale.
    Fewer bits have a smaller range: with six bits to 31, or to 63. Given scales are used unchanged,
    and values outside their range are clamped.

    Example:
        >>> packed, scales = pack(torch.tensor([0.5, 255.0]), torch.tensor([0, 0]), 1, torch.int8,
        ...                       False, "values")
        >>> packed, scales
        (tensor([  0, 255], dtype=torch.uint8), tensor([1.]))
    """
    if dtype not in DTYPES:
        known = ", ".join(str(one) for one in DTYPES)
        raise ValueError(f"{name} must be one of {known}, got {dtype}")
    if not 2 <= bits <= 8 or (dtype.is_floating_point and bits < 8):
        raise ValueError(
            f"bits must be between 2 and 8, and 8 where {name} are not torch.int8, "
            f"got {bits} and {dtype}"
        )
    if dtype.is_floating_point:
        packed = values.to(dtype)
        if not packed.isfinite().all():
            raise ValueError(
                f"{name} do not fit {dtype}: the largest is {float(values.abs().max()):g}; "
                f"write {name}=torch.float32"
            )
        return packed, None
    most = (1 << bits - int(signed)) - 1
    if scales is None:
        size = values.abs().flatten(1).amax(1) if values.dim() > 1 else values.abs()
        largest = torch.zeros(owners, dtype=torch.float64).scatter_reduce_(
            0, owner, size.double(), "amax"
        )
        scales = (largest / most).float()
    by = scales[owner].double().clamp(min=torch.finfo(torch.float32).tiny)
    steps = (values.double() / by.view(-1, *[1] * (values.dim() - 1))).round()
    return steps.clamp(-most, most).to(torch.int8 if signed else torch.uint8), scales


def unpack(packed: Tensor, scales: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Convert back to floating point; `scales` has one entry for each row of `packed`."""
    if scales is None:
        return packed.to(dtype)
    return packed.to(dtype) * scales.to(dtype).view(-1, *[1] * (packed.dim() - 1))


def zero_code(bits: int, signed: bool) -> int:
    """Return the code of zero among codes of `bits` bits; codes below it are negative."""
    return (1 << bits - 1) - 1 if signed else 0


def to_bits(codes: Tensor, bits: int) -> Tensor:
    """Pack codes (..., n) of `bits` bits into (..., ceil(n bits / 8)) bytes, lowest bits first.

    Example:
        >>> to_bits(torch.tensor([1, 2, 3]), 4)
        tensor([33,  3], dtype=torch.uint8)
    """
    count = codes.shape[-1]
    eight = F.pad(codes, (0, -count % 8)).unflatten(-1, (-1, 8))  # eight codes take `bits` bytes
    word = torch.zeros(eight.shape[:-1], dtype=torch.int64)
    for place in range(8):
        word |= eight[..., place].long() << bits * place
    parts = [(word >> 8 * place & 255).to(torch.uint8) for place in range(bits)]
    return torch.stack(parts, -1).flatten(-2)[..., : -(-count * bits // 8)].contiguous()


def from_bits(packed: Tensor, bits: int, count: int) -> Tensor:
    """Unpack codes of `bits` bits, (..., count) of uint8."""
    parts = F.pad(packed, (0, -packed.shape[-1] % bits)).unflatten(-1, (-1, bits))
    word = torch.zeros(parts.shape[:-1], dtype=torch.int64)
    for place in range(bits):
        word |= parts[..., place].long() << 8 * place
    codes = [(word >> bits * place & (1 << bits) - 1).to(torch.uint8) for place in range(8)]
    return torch.stack(codes, -1).flatten(-2)[..., :count]


def bits_at(packed: Tensor, bits: int, places: Tensor) -> Tensor:
    """Unpack the codes at these places, of any shape, reading only their bytes."""
    first = places * bits
    byte = first // 8
    word = packed[byte].long() | packed[(byte + 1).clamp(max=len(packed) - 1)].long() << 8
    return (word >> first % 8 & (1 << bits) - 1).to(torch.uint8)
