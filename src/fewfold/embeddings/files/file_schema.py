"""Schema of anchor files: versions, layouts and the shapes and dtypes of their tensors."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from fewfold._tensors import AtMost, Found, Spec
from fewfold.embeddings.table.sparse_rows import small_integer

__all__ = [
    *("BLOCK", "FORMAT", "INTEGERS", "VERSION"),
    *("layout_of", "table_layout", "usable", "version_of", "whole"),
]

FORMAT, VERSION = "fewfold anchors", 2
BLOCK = 64  # rows per entry of `starts`
INTEGERS = (torch.uint8, torch.int16, torch.int32)


def version_of(bits: int) -> int:
    """Return the first format version with values of this many bits."""
    return 1 if bits == 8 else 2


def layout_of(tensors: Mapping[str, Tensor]) -> str:
    """Return the name of the layout with these tensors."""
    if "lengths" in tensors:
        return "rows" if "slots" in tensors else "first few"
    return "one width" if "slots" in tensors else "full"


def table_layout(
    found: Found, prefix: str = "", *, rows: int, dim: int, most: int
) -> Iterator[tuple[str, Spec]]:
    """Yield the names and specifications of the tensors of a quantised table.

    Sizes that depend on values are bounded here; `Stored` checks them against the values.

    Args:
        found: dtypes and shapes of the tensors in the file.
        prefix: prefix of the names.
        rows: number of rows.
        dim: length of a vector.
        most: maximum number of anchors.
    """
    shape = found.get(f"{prefix}anchors", (None, (0,)))[1]
    count = min(shape[0], most) if shape else 0
    yield f"{prefix}anchors", Spec((AtMost(most), dim), torch.int8)
    yield f"{prefix}anchor_scales", Spec((count,), least=0)
    yield f"{prefix}value_scales", Spec((count,), least=0)
    by_row = f"{prefix}lengths" in found
    if by_row:
        yield f"{prefix}lengths", Spec((rows,), INTEGERS, least=0, below=count + 1)
        yield f"{prefix}starts", Spec((-(-rows // BLOCK),), torch.int64, least=0)
    each: tuple[int | AtMost, ...] = (AtMost(rows * count, 0),) if by_row else (rows, AtMost(count))
    if f"{prefix}slots" in found:
        yield f"{prefix}slots", Spec(each, small_integer(count), least=0, below=count)
    yield f"{prefix}values", Spec(each, (torch.int8, torch.uint8))


def usable(numbers: Tensor) -> bool:
    """Whether all numbers are finite, and so are sums of products of two of them."""
    most = torch.finfo(numbers.dtype).max ** 0.5 / 100
    return not numbers.numel() or bool((numbers.abs() <= most).all())


def whole(text: str) -> int:
    """Parse an integer of at most 19 digits in canonical form."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 19 or str(int(text)) != text:
        raise ValueError(f"{text[:40]!r} is not a whole number")
    return int(text)
