"""Specifications of tensors, checked against the header of a safetensors file before reading."""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

__all__ = [
    "DTYPES",
    "AtMost",
    "Found",
    "Header",
    "HeaderError",
    "Spec",
    "check_names",
    "extremes",
    "read_header",
    "strict_json",
]

Found = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]  # dtype and shape by name, from a header
_MOST = 100_000_000  # maximum size of a header in bytes, from the format
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8,
    "BOOL": torch.bool,
}  # fmt: skip


@dataclass(frozen=True)
class AtMost:
    """A bounded size of a dimension."""

    most: int
    least: int = 1

    def __contains__(self, size: int) -> bool:
        return self.least <= size <= self.most

    def __str__(self) -> str:
        return f"{self.least} to {self.most}"


@dataclass(frozen=True)
class Spec:
    """Specification of a tensor: dtype, shape and range of values.

    Floating-point values must always be finite.

    Attributes:
        shape: the size of each dimension: a number, `AtMost`, or None for any size.
        dtype: the dtype, or a tuple of allowed dtypes.
        least: the smallest allowed value.
        below: exclusive upper bound of the values.
        positive: whether all values must be positive.

    Example:
        >>> import torch
        >>> from fewfold._tensors import Spec
        >>> Spec((2, 3)).fault(torch.float32, (2, 4))
        'must be torch.float32 of shape (2, 3), got torch.float32 of shape (2, 4)'
        >>> Spec((2,), torch.int64, least=0, below=5).value_fault(4, 5)
        'must hold numbers below 5, got 5'
    """

    shape: tuple[int | AtMost | None, ...]
    dtype: torch.dtype | tuple[torch.dtype, ...] = torch.float32
    least: float | None = None
    below: int | None = None
    positive: bool = False

    def fault(self, dtype: torch.dtype, shape: tuple[int, ...]) -> str | None:
        """Return what is wrong with this dtype and shape, or None."""
        fits = len(shape) == len(self.shape) and all(
            given is None or (size in given if isinstance(given, AtMost) else size == given)
            for size, given in zip(shape, self.shape, strict=True)
        )
        dtypes = self.dtype if isinstance(self.dtype, tuple) else (self.dtype,)
        if fits and dtype in dtypes:
            return None
        sizes = ", ".join("any" if size is None else str(size) for size in self.shape)
        wanted = f"({sizes},)" if len(self.shape) == 1 else f"({sizes})"
        kinds = " or ".join(map(str, dtypes))
        return f"must be {kinds} of shape {wanted}, got {dtype} of shape {shape}"

    def value_fault(self, low: float, high: float) -> str | None:
        """Return what is wrong with values between `low` and `high`, or None."""
        if not (math.isfinite(low) and math.isfinite(high)):
            return "must be finite, got inf or nan"
        if self.positive and low <= 0:
            return f"must be positive, got {low:g}"
        if self.least is not None and low < self.least:
            return f"must hold numbers of at least {self.least}, got {low:g}"
        if self.below is not None and high >= self.below:
            return f"must hold numbers below {self.below}, got {high:g}"
        return None


def extremes(tensor: Tensor) -> tuple[float, float]:
    """Return the smallest and largest value; both NaN if any value is, zeros if empty."""
    if not tensor.numel():
        return 0, 0
    if tensor.dtype == torch.bool:
        tensor = tensor.view(torch.uint8)  # a file may contain bytes other than 0 and 1
    if tensor.dtype in (torch.uint16, torch.uint32, torch.uint64):
        tensor = tensor.to(torch.int64)
    low, high = tensor.detach().aminmax()
    return low.item(), high.item()


class HeaderError(ValueError):
    """The file is not a safetensors file, or its size does not match its header."""


@dataclass(frozen=True)
class Header:
    """Header of a safetensors file, consistent with the size of the file.

    Attributes:
        file: its path.
        tensors: dtype and shape of each tensor, by name.
        metadata: strings by name.
        places: first byte and end of each tensor in the file, by name.
    """

    file: Path
    tensors: Found
    metadata: Mapping[str, str]
    places: Mapping[str, tuple[int, int]]

    def numbers(self, name: str, dtype: np.dtype, *, last: bool = False) -> np.ndarray:
        """Read the values of one tensor, or its last value only."""
        begin, end = self.places[name]
        begin = max(begin, end - dtype.itemsize) if last else begin
        with self.file.open("rb") as stream:
            stream.seek(begin)
            return np.frombuffer(stream.read(end - begin), dtype)


def read_header(file: Path) -> Header:
    """Read the header of a safetensors file; raise HeaderError if it is invalid."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > min(_MOST, size - 8):
            raise HeaderError(f"its header should have {length} bytes, the file has {size}")
        found = _json_header(stream.read(length))
    if not isinstance(found, dict):
        raise HeaderError("its header is not a JSON object")
    metadata = found.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise HeaderError("its metadata values are not strings")
    tensors, places = {}, {}
    for name, entry in found.items():
        dtype, shape, begin, end = _entry(name, entry)
        tensors[name], places[name] = (dtype, shape), (8 + length + begin, 8 + length + end)
    at = 8 + length
    for begin, end in sorted(places.values()):
        if begin != at:
            raise HeaderError(f"its tensors overlap or leave a gap at byte {at}")
        at = end
    if at != size:
        raise HeaderError(f"its tensors end at byte {at}, the file has {size}")
    return Header(file, tensors, metadata, places)


def _json_header(data: bytes) -> Any:
    try:
        return strict_json(data)
    except ValueError as error:
        raise HeaderError(f"its header cannot be read: {error}") from error


def _entry(name: str, entry: Any) -> tuple[torch.dtype, tuple[int, ...], int, int]:
    keys = {"dtype", "shape", "data_offsets"}
    if not isinstance(entry, dict) or set(entry) != keys:
        raise HeaderError(f"{name} needs dtype, shape and data_offsets")
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(kind, str) or kind not in DTYPES:
        raise HeaderError(f"{name} has dtype {kind!r}, which is none of {', '.join(DTYPES)}")
    if not _is_sizes(shape) or not _is_sizes(offsets) or len(offsets) != 2:
        raise HeaderError(f"{name} has shape {shape!r} and offsets {offsets!r}")
    dtype, (begin, end) = DTYPES[kind], offsets
    if math.prod(shape) * dtype.itemsize != end - begin:
        raise HeaderError(f"{name} of shape {shape} does not fit {end - begin} bytes")
    return dtype, tuple(shape), begin, end


def _is_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)


def check_names(
    names: Iterable[str], layout: Iterable[tuple[str, Spec]], fail: Callable[[str, str], NoReturn]
) -> dict[str, Spec]:
    """Return the layout as a dict, after checking that `names` are exactly its names.

    `layout` may be infinite: it is read up to the first missing name. `fail` is called with a name
    and what is wrong with it, and raises.
    """
    left, wanted = set(names), {}
    for name, spec in layout:
        if name not in left:
            fail(name, "is missing")
        left.remove(name)
        wanted[name] = spec
    if left:
        fail(min(left), "does not belong there")
    return wanted


def strict_json(data: bytes, *, finite: bool = True) -> Any:
    """Parse JSON in UTF-8; raise for duplicate keys, invalid text and numbers that are not finite.

    With `finite=False` the constants NaN and Infinity, which Python writes, are allowed.

    Example:
        >>> from fewfold._tensors import strict_json
        >>> strict_json(b'{"a": [1, NaN]}')
        Traceback (most recent call last):
        ValueError: NaN is not valid JSON
    """
    try:
        found = json.loads(
            data.decode("utf-8"), parse_constant=_reject_constant if finite else None,
            parse_float=_finite_float, object_pairs_hook=_unique_keys, parse_int=_bounded_int,
        )  # fmt: skip
        json.dumps(found, ensure_ascii=False).encode("utf-8")  # raises for a lone surrogate
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return found


def _reject_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not valid JSON")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is too large a number")
    return value


def _bounded_int(text: str) -> int:
    if len(text) > 20:
        raise ValueError(f"{text[:40]} is too large a number")
    return int(text)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} is repeated")
    return found
