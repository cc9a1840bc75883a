"""Validated, memory-mapped contents of an anchor file.

    anchors        (K, d)   and anchor_scales (K,) if they are one byte each
    slots, values  (nonzeros,) or (rows, width), and value_scales (K,) if values are one byte each
    lengths        (rows,)  entries per row, and starts (ceil(rows / 64),): offset of every 64th
                            row. Neither exists if all rows have one width.
    No slots: values belong to the first anchors in order; without lengths to all, (rows, K).

Values of fewer than eight bits are packed along their last dimension, and `zero` is the code of
zero; such files have version 2, and their metadata has the layout and the number of values
including zeros. All others have version 1.

Metadata: format, version, rows, dim, anchors, nonzeros, signed, padding_idx; bits, zero, values,
layout (full, one width, rows, first few).
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fewfold._optional import optional_import
from fewfold._tensors import Header, HeaderError, read_header
from fewfold.embeddings.files.file_schema import (
    BLOCK,
    FORMAT,
    INTEGERS,
    VERSION,
    layout_of,
    usable,
    whole,
)
from fewfold.embeddings.files.quantised import DTYPES, bits_at, from_bits, unpack, zero_code
from fewfold.embeddings.table.sparse_rows import SparseRows, small_integer

__all__ = ["Stored", "safetensors"]


def safetensors() -> Any:
    with optional_import("safetensors", "recommender", "a file of anchors"):
        import safetensors
        import safetensors.torch
    return safetensors


@dataclass(frozen=True, eq=False)
class Stored:
    """Tensors of a file, mapped into memory, and its metadata."""

    path: Path
    tensors: dict[str, Tensor]
    rows: int
    dim: int
    anchors: int
    nonzeros: int
    signed: bool
    padding_idx: int | None
    bits: int = 8
    zero: int = 0
    values: int | None = None
    """number of values including zeros; None if it is the length of their tensor"""

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "Stored":
        """Map a file; raise ValueError if it is no valid anchor file."""
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {path}; `save_anchors` writes one")
        library = safetensors()
        try:
            header = read_header(path)  # also checks the length of the file
            cls.of(_shapes(header), header.metadata, path)  # before anything large is mapped
            with library.safe_open(path, "pt") as file:
                about = file.metadata() or {}
                names = set(file.keys())
                tensors = {name: file.get_tensor(name) for name in sorted(names & _NAMES)}
        except (library.SafetensorError, HeaderError) as error:
            raise ValueError(f"{path} is not a safetensors file, or is damaged: {error}") from error
        return cls.of(tensors, about, path)

    @classmethod
    def of(cls, tensors: dict[str, Tensor], about: Mapping[str, str], path: Path) -> "Stored":
        """Build from tensors and metadata read from `path`; raise ValueError if inconsistent."""
        if about.get("format") != FORMAT:
            raise ValueError(f"{path} does not hold anchors of fewfold; `save_anchors` writes them")
        if about.get("version") not in ("1", "2"):
            raise ValueError(
                f"{path} has format version {about.get('version')}, and this fewfold reads up to "
                f"{VERSION}; upgrade fewfold"
            )
        try:
            numbers = {n: whole(about[n]) for n in ("rows", "dim", "anchors", "nonzeros")}
            padding = whole(about["padding_idx"]) if "padding_idx" in about else None
            if about["version"] != "1":
                numbers |= {n: whole(about[n]) for n in ("bits", "zero", "values")}
            layout = about["layout"] if about["version"] != "1" else layout_of(tensors)
            stored = cls(path, tensors, **numbers, signed=about["signed"] == "1",
                         padding_idx=padding)  # fmt: skip
            if about["signed"] not in ("0", "1"):
                raise ValueError(f"signed must be 0 or 1, got {about['signed']!r}")
        except KeyError as error:
            raise ValueError(f"{path} is damaged: its metadata lacks {error}") from None
        except ValueError as error:
            raise ValueError(f"{path} is damaged: its metadata cannot be used: {error}") from error
        if layout != layout_of(tensors):
            raise ValueError(
                f"{path} is damaged: it has missing or unexpected tensors for {layout!r}"
            )
        stored._check_shapes()
        return stored

    @classmethod
    def bare(cls, tensors: dict[str, Tensor], *, bits: int, signed: bool) -> "Stored":
        """Build from tensors without metadata; raise ValueError if inconsistent."""
        unexpected = [name for name, part in tensors.items() if not part.dim()]
        if unexpected or tensors["anchors"].dim() != 2:
            raise ValueError(
                f"the table is damaged: {', '.join(unexpected) or 'anchors'} have no rows"
            )
        count, dim = tensors["anchors"].shape
        lengths, values = tensors.get("lengths"), tensors["values"]
        rows = len(values if lengths is None else lengths)
        zero = zero_code(bits, signed) if bits < 8 else 0
        made = cls(Path("the table"), tensors, rows, dim, count, 0, signed, None, bits, zero)
        many = rows * (made.width or 0) if lengths is None else int(lengths.sum())
        made = replace(made, values=many, nonzeros=many if "slots" in tensors else 0)
        made._check_shapes()
        each = made.width if lengths is None else many
        return replace(made, nonzeros=int(made._numbers(values, each or 0).count_nonzero()))

    @property
    def width(self) -> int | None:
        """Number of stored entries per row; None if rows have different lengths."""
        if "lengths" in self.tensors:
            return None
        return self.tensors["slots"].shape[1] if "slots" in self.tensors else self.anchors

    def _every_slot(self) -> Tensor:
        """Return the slots of all values."""
        if "slots" in self.tensors:
            return self.tensors["slots"]
        if "lengths" not in self.tensors:
            return self._all_slots(self.rows)
        lengths = self.tensors["lengths"].long()
        begin = (lengths.cumsum(0) - lengths).repeat_interleave(lengths)
        return torch.arange(len(begin)) - begin

    def _all_slots(self, rows: int) -> Tensor:
        """Return the slots of rows that store all anchors, (rows, K)."""
        return torch.arange(self.anchors).expand(rows, self.anchors)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of vectors: float64 if anchors or values are, otherwise float32."""
        stored = {self.tensors["anchors"].dtype, self.tensors["values"].dtype}
        return torch.float64 if torch.float64 in stored else torch.float32

    def all_anchors(self) -> Tensor:
        """Return the dequantised anchors (K, d)."""
        found = unpack(self.tensors["anchors"], self.tensors.get("anchor_scales"), self.dtype)
        return self._finite(found, "anchors")

    def entries(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights and slots of rows (n,), both (n, width); zeros pad short rows."""
        if self.width is not None:
            packed = self._numbers(self.tensors["values"][rows], self.width)
            whole = "slots" not in self.tensors
            slots = self._all_slots(len(rows)) if whole else self.tensors["slots"][rows]
            valid = torch.ones_like(slots, dtype=torch.bool)
        else:
            begin, length = self._where(rows)
            column = torch.arange(max(int(length.max()), 1) if len(length) else 1)
            valid = column < length[:, None]
            place = torch.where(valid, begin[:, None] + column, 0)
            if not self.nonzeros:
                return torch.zeros(place.shape, dtype=self.dtype), torch.zeros_like(place)
            packed = self._numbers_at(place)
            first = torch.where(valid, column, 0)
            slots = self.tensors["slots"][place] if "slots" in self.tensors else first
        slots = self._slots(slots)
        return torch.where(valid, self._values(packed, slots), 0.0), slots

    def all(self) -> SparseRows:
        """Return the non-zeros of all rows after checking them."""
        self._check_lengths()
        slots = self._slots(self._every_slot().flatten())
        packed, count = self.tensors["values"], self.width or len(slots)
        if packed.shape[-1] != -(-count * self.bits // 8):
            raise ValueError(f"{self.path} is damaged: lengths do not add up")
        numbers = self._numbers(packed, count).flatten()
        values = self._values(numbers, slots)
        if int(numbers.count_nonzero()) != self.nonzeros:
            raise ValueError(f"{self.path} is damaged: there are not {self.nonzeros} non-zeros")
        if self.width is None:
            lengths = self.tensors["lengths"].long()
            offsets = F.pad(lengths.cumsum(0), (1, 0))
            if not torch.equal(offsets[:-1:BLOCK], self.tensors["starts"]):
                raise ValueError(f"{self.path} is damaged: lengths do not fit starts")
        else:
            offsets = torch.arange(self.rows + 1) * self.width
        if int(offsets[-1]) != len(slots) or int(offsets.diff().min()) < 0:
            raise ValueError(f"{self.path} is damaged: lengths do not add up")
        row = torch.arange(self.rows).repeat_interleave(offsets.diff())
        if not ((row * self.anchors + slots).diff() > 0).all():
            raise ValueError(f"{self.path} is damaged: the slots of a row do not rise")
        return SparseRows(offsets, slots, values)

    def _check_lengths(self) -> None:
        """Raise unless lengths are in range and sum to the number of values."""
        lengths = self.tensors.get("lengths")
        if lengths is None:
            return
        if not 0 <= int(lengths.min()) <= int(lengths.max()) <= self.anchors:
            raise ValueError(f"{self.path} is damaged: lengths are not from 0 to {self.anchors}")
        count = len(self.tensors["values"]) if self.values is None else self.values
        if int(lengths.sum()) != count:
            raise ValueError(f"{self.path} is damaged: lengths do not add up to {count}")

    def _where(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the offset and the length of each row."""
        lengths = self.tensors["lengths"]
        first = rows - rows % BLOCK
        near = first[:, None] + torch.arange(BLOCK)
        before = lengths[near.clamp(max=self.rows - 1)].long()
        begin = self.tensors["starts"][rows // BLOCK] + (before * (near < rows[:, None])).sum(1)
        length = lengths[rows].long()
        count = len(self.tensors["values"]) if self.values is None else self.values
        if len(rows) and not 0 <= int(begin.min()) <= int((begin + length).max()) <= count:
            raise ValueError(f"{self.path} is damaged: rows lie outside of it")
        if len(rows) and int(length.max()) > self.anchors:
            raise ValueError(f"{self.path} is damaged: a row is longer than there are anchors")
        return begin, length

    def _slots(self, slots: Tensor) -> Tensor:
        slots = slots.long()
        if slots.numel() and not 0 <= int(slots.min()) <= int(slots.max()) < self.anchors:
            raise ValueError(f"{self.path} is damaged: slots name anchors that do not exist")
        return slots

    def _numbers(self, packed: Tensor, count: int) -> Tensor:
        """Return integer values, `count` in the last dimension, unpacked if necessary."""
        if self.bits == 8:
            return packed
        return self._centred(from_bits(packed, self.bits, count))

    def _numbers_at(self, places: Tensor) -> Tensor:
        """Return integer values at these places of a one-dimensional tensor."""
        packed = self.tensors["values"]
        if self.bits == 8:
            return packed[places]
        return self._centred(bits_at(packed, self.bits, places))

    def _centred(self, codes: Tensor) -> Tensor:
        if self.zero and bool((codes > 2 * self.zero).any()):
            raise ValueError(f"{self.path} is damaged: values are beyond their range")
        return codes.to(torch.int16) - self.zero

    def _values(self, packed: Tensor, slots: Tensor) -> Tensor:
        values = packed.to(self.dtype)
        if (scales := self.tensors.get("value_scales")) is not None:
            values = values * scales.to(self.dtype)[slots]
        return self._finite(values, "values")

    def _finite(self, found: Tensor, name: str) -> Tensor:
        if not usable(found):
            raise ValueError(f"{self.path} is damaged: {name} are not finite, or too large")
        return found

    def _check_shapes(self) -> None:
        """Raise unless names, shapes and dtypes of the tensors match the metadata."""
        if min(self.rows, self.dim, self.anchors) < 1 or self.nonzeros < 0:
            raise ValueError(f"{self.path} is damaged: it cannot have {self.rows} rows")
        if self.padding_idx is not None and not 0 <= self.padding_idx < self.rows:
            raise ValueError(f"{self.path} is damaged: padding_idx {self.padding_idx} is not a row")
        zeros = {0} if self.bits == 8 else {zero_code(self.bits, True)}
        if not self.signed:  # an unsigned table may still be stored with either code of zero
            zeros.add(0)
        if not 2 <= self.bits <= 8 or self.zero not in zeros:
            raise ValueError(
                f"{self.path} is damaged: zero cannot be {self.zero} of {self.bits} bits"
            )
        one_width = "lengths" not in self.tensors
        whole = "slots" not in self.tensors
        each = self.anchors if whole else (*self.tensors["slots"].shape, 0, 0)[1]
        many = (self.rows, each) if one_width else (self.nonzeros,)
        if whole and not one_width:  # the sum of the lengths, which are not read here
            there = self.tensors.get("values", torch.empty(0)).numel()
            many = (there if self.values is None else self.values,)
        packed = (*many[:-1], -(-many[-1] * self.bits // 8))
        if self.values not in (None, math.prod(many)) or self.nonzeros > math.prod(many):
            raise ValueError(f"{self.path} is damaged: it cannot have {self.values} values")
        blocks = -(-self.rows // BLOCK)
        numbers = {*DTYPES, torch.uint8}
        expected: dict[str, tuple[tuple[int, ...], set[torch.dtype]]] = {
            "anchors": ((self.anchors, self.dim), numbers),
            "values": (packed, numbers if self.bits == 8 else {torch.uint8}),
        }
        if not whole:
            expected["slots"] = (many, {small_integer(self.anchors)})
        if not one_width:
            expected["lengths"] = ((self.rows,), set(INTEGERS))
            expected["starts"] = ((blocks,), {torch.int64})
        for name, scales in (("anchors", "anchor_scales"), ("values", "value_scales")):
            if name in self.tensors and not self.tensors[name].is_floating_point():
                expected[scales] = ((self.anchors,), {torch.float32})
        if set(self.tensors) != set(expected):
            unexpected = ", ".join(sorted(set(self.tensors) ^ set(expected)))
            raise ValueError(
                f"{self.path} is damaged: it has missing or unexpected tensors: {unexpected}"
            )
        for name, (shape, dtypes) in expected.items():
            found = self.tensors[name]
            if tuple(found.shape) != shape or found.dtype not in dtypes:
                raise ValueError(
                    f"{self.path} is damaged: {name} should be {shape}, "
                    f"got {tuple(found.shape)} of {found.dtype}"
                )


def _shapes(header: Header) -> dict[str, Tensor]:
    """Return the tensors of a file on the meta device, without data."""
    return {
        name: torch.empty(shape, dtype=dtype, device="meta")
        for name, (dtype, shape) in header.tensors.items()
        if name in _NAMES
    }


_NAMES = {
    *("anchors", "anchor_scales", "slots", "values", "value_scales", "lengths", "starts"),
}
