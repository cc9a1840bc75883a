"""Anchors in a file: what it holds, checked, and read only where it is touched.

    anchors        (K, d)   and anchor_scales (K,) if they are one byte each
    slots, values  (nonzeros,) or (rows, width), and value_scales (K,) if values are one byte each
    lengths        (rows,)  how many each row has, and starts (ceil(rows / 64),): where those of
                            every 64th row begin. Neither exists where all rows have one width.
    No slots: values are of the first anchors in their order; without lengths of all, (rows, K).

Metadata: format, version, rows, dim, anchors, nonzeros, signed, padding_idx.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fewfold.embeddings.layout import SparseRows, small_integer
from fewfold.embeddings.quantised import DTYPES, unpack

__all__ = ["BLOCK", "FORMAT", "VERSION", "Stored", "safetensors"]

FORMAT, VERSION = "fewfold anchors", 1
BLOCK = 64  # rows whose lengths are added up to find one of them
_INTEGERS = (torch.uint8, torch.int16, torch.int32)


def safetensors() -> Any:
    try:
        import safetensors
        import safetensors.torch
    except ImportError as error:
        raise ImportError(
            "anchors are kept as safetensors: pip install 'fewfold[recommender]'"
        ) from error
    return safetensors


@dataclass(frozen=True, eq=False)
class Stored:
    """The tensors of a file, mapped into memory, and what its metadata says."""

    path: Path
    tensors: dict[str, Tensor]
    rows: int
    dim: int
    anchors: int
    nonzeros: int
    signed: bool
    padding_idx: int | None

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "Stored":
        """Map a file; raises if it is not one of anchors, or its parts do not fit."""
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {path}; `save_anchors` writes one")
        library = safetensors()
        try:
            with library.safe_open(path, "pt") as file:
                about = file.metadata() or {}
                names = set(file.keys())
                tensors = {name: file.get_tensor(name) for name in sorted(names & _NAMES)}
        except (library.SafetensorError, ValueError) as error:
            raise ValueError(f"{path} is no safetensors file, or a damaged one: {error}") from error
        return cls.of(tensors, about, path)

    @classmethod
    def of(cls, tensors: dict[str, Tensor], about: Mapping[str, str], path: Path) -> "Stored":
        """These tensors, told to come from there; raises if they do not fit."""
        if about.get("format") != FORMAT:
            raise ValueError(f"{path} does not hold anchors of fewfold; `save_anchors` writes them")
        if about.get("version") != str(VERSION):
            raise ValueError(
                f"{path} has format version {about.get('version')}, and this fewfold reads "
                f"{VERSION}; upgrade fewfold"
            )
        try:
            numbers = {name: int(about[name]) for name in ("rows", "dim", "anchors", "nonzeros")}
            padding = int(about["padding_idx"]) if "padding_idx" in about else None
            stored = cls(path, tensors, **numbers, signed=about["signed"] == "1",
                         padding_idx=padding)  # fmt: skip
        except (KeyError, ValueError) as error:
            raise ValueError(f"{path} is damaged: its metadata lacks {error}") from error
        stored._check_shapes()
        return stored

    @property
    def width(self) -> int | None:
        """Non-zeros that every row has room for; None if each has its own number."""
        return None if "lengths" in self.tensors else self.tensors["values"].shape[1]

    def _every_slot(self) -> Tensor:
        """The slots of all values."""
        if "slots" in self.tensors:
            return self.tensors["slots"]
        if "lengths" not in self.tensors:
            return self._all_slots(self.rows)
        lengths = self.tensors["lengths"].long()
        begin = (lengths.cumsum(0) - lengths).repeat_interleave(lengths)
        return torch.arange(len(begin)) - begin

    def _all_slots(self, rows: int) -> Tensor:
        """The slots of so many rows that have all of them."""
        return torch.arange(self.anchors).expand(rows, self.anchors)

    @property
    def dtype(self) -> torch.dtype:
        """Of vectors that are read: double where anything is kept so, otherwise single."""
        kept = {self.tensors["anchors"].dtype, self.tensors["values"].dtype}
        return torch.float64 if torch.float64 in kept else torch.float32

    def all_anchors(self) -> Tensor:
        """(K, d), as numbers."""
        found = unpack(self.tensors["anchors"], self.tensors.get("anchor_scales"), self.dtype)
        return self._finite(found, "anchors")

    def few(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and slots of these rows (n,), both (n, most of them): zeros fill short rows."""
        if self.width is not None:
            packed = self.tensors["values"][rows]
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
            packed = self.tensors["values"][place]
            first = torch.where(valid, column, 0)
            slots = self.tensors["slots"][place] if "slots" in self.tensors else first
        slots = self._slots(slots)
        return torch.where(valid, self._values(packed, slots), 0.0), slots

    def all(self) -> SparseRows:
        """The non-zeros of every row, after a look at all of them."""
        slots = self._slots(self._every_slot().flatten())
        values = self._values(self.tensors["values"].flatten(), slots)
        if int(self.tensors["values"].count_nonzero()) != self.nonzeros:
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

    def _where(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Where the non-zeros of each row begin, and how many there are."""
        lengths = self.tensors["lengths"]
        first = rows - rows % BLOCK
        near = first[:, None] + torch.arange(BLOCK)
        before = lengths[near.clamp(max=self.rows - 1)].long()
        begin = self.tensors["starts"][rows // BLOCK] + (before * (near < rows[:, None])).sum(1)
        length = lengths[rows].long()
        if len(rows) and not 0 <= int(begin.min()) <= int((begin + length).max()) <= len(
            self.tensors["values"]
        ):
            raise ValueError(f"{self.path} is damaged: rows lie outside of it")
        return begin, length

    def _slots(self, slots: Tensor) -> Tensor:
        slots = slots.long()
        if slots.numel() and not 0 <= int(slots.min()) <= int(slots.max()) < self.anchors:
            raise ValueError(f"{self.path} is damaged: slots name anchors that do not exist")
        return slots

    def _values(self, packed: Tensor, slots: Tensor) -> Tensor:
        values = packed.to(self.dtype)
        if (scales := self.tensors.get("value_scales")) is not None:
            values = values * scales.to(self.dtype)[slots]
        return self._finite(values, "values")

    def _finite(self, found: Tensor, name: str) -> Tensor:
        if not found.isfinite().all():
            raise ValueError(f"{self.path} is damaged: {name} are not finite")
        return found

    def _check_shapes(self) -> None:
        """Raise unless the tensors are those that the metadata promises."""
        if min(self.rows, self.dim, self.anchors) < 1 or self.nonzeros < 0:
            raise ValueError(f"{self.path} is damaged: it cannot have {self.rows} rows")
        if self.padding_idx is not None and not 0 <= self.padding_idx < self.rows:
            raise ValueError(f"{self.path} is damaged: padding_idx {self.padding_idx} is no row")
        values = self.tensors.get("values", torch.empty(0))
        one_width = "lengths" not in self.tensors
        whole = "slots" not in self.tensors
        each = self.anchors if whole else values.shape[-1]
        many = (self.rows, each) if one_width else (len(values) if whole else self.nonzeros,)
        blocks = -(-self.rows // BLOCK)
        numbers = {*DTYPES, torch.uint8}
        expected: dict[str, tuple[tuple[int, ...], set[torch.dtype]]] = {
            "anchors": ((self.anchors, self.dim), numbers),
            "values": (many, numbers),
        }
        if not whole:
            expected["slots"] = (many, {small_integer(self.anchors)})
        if not one_width:
            expected["lengths"] = ((self.rows,), set(_INTEGERS))
            expected["starts"] = ((blocks,), {torch.int64})
        for name, scales in (("anchors", "anchor_scales"), ("values", "value_scales")):
            if name in self.tensors and not self.tensors[name].is_floating_point():
                expected[scales] = ((self.anchors,), {torch.float32})
        if set(self.tensors) != set(expected):
            odd = ", ".join(sorted(set(self.tensors) ^ set(expected)))
            raise ValueError(f"{self.path} is damaged: it lacks or should not have {odd}")
        for name, (shape, dtypes) in expected.items():
            found = self.tensors[name]
            if tuple(found.shape) != shape or found.dtype not in dtypes:
                raise ValueError(
                    f"{self.path} is damaged: {name} should be {shape}, "
                    f"got {tuple(found.shape)} of {found.dtype}"
                )


_NAMES = {
    *("anchors", "anchor_scales", "slots", "values", "value_scales", "lengths", "starts"),
}
