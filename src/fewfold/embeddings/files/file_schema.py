"""The form of a file of anchors: its versions, its layouts, and what its tensors must be."""

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
BLOCK = 64  # rows whose lengths are added up to find one of them
INTEGERS = (torch.uint8, torch.int16, torch.int32)


def version_of(bits: int) -> int:
    """The first version of the format that has values of so many bits."""
    return 1 if bits == 8 else 2


def layout_of(tensors: Mapping[str, Tensor]) -> str:
    """By which tensors there are."""
    if "lengths" in tensors:
        return "rows" if "slots" in tensors else "first few"
    return "one width" if "slots" in tensors else "full"


def table_layout(
    found: Found, prefix: str = "", *, rows: int, dim: int, most: int
) -> Iterator[tuple[str, Spec]]:
    """What a table of rows of few bits may consist of: names, and what each tensor must be.

    Sizes that depend on values are bounded here, and compared with these by `Stored`.

    Args:
        found: what there is.
        prefix: of its names.
        rows: of the table.
        dim: of a row.
        most: anchors there may be.
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
    """Whether they are finite, and so are sums of products of two of them."""
    most = torch.finfo(numbers.dtype).max ** 0.5 / 100
    return not numbers.numel() or bool((numbers.abs() <= most).all())


def whole(text: str) -> int:
    """A whole number as it is written, of at most 64 bits."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 19 or str(int(text)) != text:
        raise ValueError(f"{text[:40]!r} is no whole number")
    return int(text)
