"""Save and load anchor tables: the anchors and the non-zeros of every row."""

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fewfold._check import whole_number
from fewfold._files import new_file
from fewfold.embeddings.files.file_schema import BLOCK, FORMAT, layout_of, usable, version_of
from fewfold.embeddings.files.quantised import pack, to_bits, zero_code
from fewfold.embeddings.files.stored_anchors import Stored, safetensors
from fewfold.embeddings.table.embedding import AnchorEmbedding
from fewfold.embeddings.table.sparse_rows import SparseRows, small_integer

__all__ = ["Sizes", "load_anchors", "packed_anchors", "save_anchors", "unpacked_anchors"]


@dataclass(frozen=True)
class Sizes:
    """Sizes of a stored table.

    Example:
        >>> print(Sizes(1000, 64, 8, 3000, 7000))
        3,512 parameters (8 anchors of 64 and 3,000 non-zeros) for 64,000: 18.2 times fewer
        7,000 bytes for 256,000 in single precision: 36.6 times fewer
    """

    rows: int
    dim: int
    anchors: int
    """anchors in use"""
    nonzeros: int
    """non-zeros of the transform"""
    bytes: int
    """size of the file"""

    @property
    def parameters(self) -> int:
        """anchors * dim + nonzeros, as in the literature; indices are not counted."""
        return self.anchors * self.dim + self.nonzeros

    @property
    def dense(self) -> int:
        """Number of parameters of the dense table."""
        return self.rows * self.dim

    def __str__(self) -> str:
        return (
            f"{self.parameters:,} parameters ({self.anchors:,} anchors of {self.dim} and "
            f"{self.nonzeros:,} non-zeros) for {self.dense:,}: "
            f"{self.dense / self.parameters:.1f} times fewer\n"
            f"{self.bytes:,} bytes for {4 * self.dense:,} in single precision: "
            f"{4 * self.dense / self.bytes:.1f} times fewer"
        )


@torch.no_grad()
def save_anchors(
    embedding: AnchorEmbedding,
    path: str | os.PathLike[str],
    *,
    anchors: torch.dtype = torch.float32,
    values: torch.dtype = torch.float32,
    bits: int = 8,
) -> Sizes:
    """Write a table to a safetensors file, atomically.

    Unused anchors are left out and the others renumbered. The anchor index of a non-zero takes one
    byte up to 256 anchors and two up to 32,768. Of four layouts the smallest is written: rows of
    one width, all anchors of every row, the first anchors of every row (both without indices), or
    rows of different lengths.

    Args:
        embedding: of either storage.
        path: of the file; an existing one is replaced once the new one is complete.
        anchors: float64, float32, float16, bfloat16, or int8 with one scale per anchor.
        values: dtype of the transform, likewise; int8 has 255 steps if nothing is negative.
            Values that round to zero are left out.
        bits: bits of an int8 value, from 2 to 8; 6 bits are 63 steps, or 31 to either side.

    Returns:
        The sizes of the stored table.

    Example:
        >>> import tempfile, torch, fewfold as ff
        >>> table = ff.AnchorEmbedding(1000, 64, anchors=16, width=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     sizes = save_anchors(table, folder + "/table.safetensors", values=torch.float16)
        ...     same = load_anchors(folder + "/table.safetensors")
        >>> sizes.parameters, sizes.dense
        (3024, 64000)
        >>> torch.allclose(same.weight, table.weight, rtol=1e-2, atol=1e-2)
        True
    """
    tensors, about = packed_anchors(embedding, anchors=anchors, values=values, bits=bits)
    path = Path(path)
    _write(path, tensors, about)
    rows, dim, used, nonzeros = (int(about[n]) for n in ("rows", "dim", "anchors", "nonzeros"))
    return Sizes(rows, dim, used, nonzeros, path.stat().st_size)


@torch.no_grad()
def packed_anchors(
    embedding: AnchorEmbedding,
    *,
    anchors: torch.dtype = torch.float32,
    values: torch.dtype = torch.float32,
    bits: int = 8,
    scales: Tensor | None = None,
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the metadata that `save_anchors` writes.

    With `scales` (K,) values are rounded to integer multiples of the scale of their anchor.
    """
    count, bits = embedding.num_embeddings, whole_number(bits, "bits")
    row, slots, numbers = _entries(embedding)
    below = bool((numbers < 0).any()) or (bits < 8 and embedding.signed)
    packed, scales = pack(
        numbers, slots, len(embedding.anchors), values, below, "values", bits=bits, scales=scales
    )
    present = packed != 0
    row, slots, packed = row[present], slots[present], packed[present]
    in_use = torch.bincount(slots, minlength=len(embedding.anchors)) > 0
    in_use[0] |= not in_use.any()  # a table has at least one anchor
    used, slots = in_use.nonzero()[:, 0], (in_use.cumsum(0) - 1)[slots]
    vectors = embedding.anchors.detach().cpu()[used]
    number = torch.arange(len(used))
    shrunk, by = pack(vectors, number, len(used), anchors, True, "anchors")
    tensors = {"anchors": shrunk, **_laid_out(row, slots, packed, count, len(used), bits)}
    if by is not None:
        tensors["anchor_scales"] = by
    if scales is not None:
        tensors["value_scales"] = scales[used]
    about = {
        "format": FORMAT, "version": version_of(bits), "rows": count,
        "dim": embedding.embedding_dim, "anchors": len(used), "nonzeros": len(packed),
        "signed": int(embedding.signed),
    }  # fmt: skip
    if bits < 8:
        zero = zero_code(bits, below)
        about |= {
            "bits": bits, "zero": zero, "values": tensors["values"].numel(),
            "layout": layout_of(tensors),
        }  # fmt: skip
        tensors["values"] = to_bits(tensors["values"].to(torch.int16) + zero, bits)
    if embedding.padding_idx is not None:
        about["padding_idx"] = embedding.padding_idx
    return tensors, {name: str(value) for name, value in about.items()}


def load_anchors(path: str | os.PathLike[str]) -> AnchorEmbedding:
    """Load a table written by `save_anchors`, for use or further training.

    The contents of the file are checked. The table has a fixed width, or full storage where that is
    not larger.
    """
    return unpacked_anchors(Stored.open(path))


def unpacked_anchors(stored: Stored) -> AnchorEmbedding:
    """Build the table of stored tensors."""
    anchors, found = stored.all_anchors(), stored.all()
    width = max(int(found.offsets.diff().max()), 1)
    bytes_of = stored.dtype.itemsize
    full = width * (bytes_of + small_integer(stored.anchors).itemsize) >= stored.anchors * bytes_of
    made = AnchorEmbedding(
        stored.rows, stored.dim, stored.padding_idx, anchors=stored.anchors,
        width=None if full else width, signed=stored.signed, dtype=stored.dtype,
    )  # fmt: skip
    transform, slots = _padded(found, width)
    with torch.no_grad():
        made.anchors.copy_(anchors)
        if made.slots is None:
            made.transform.zero_().scatter_(1, slots, transform)
        else:
            made.transform.copy_(transform)
            made.slots.copy_(slots)
    return made


def _entries(embedding: AnchorEmbedding) -> tuple[Tensor, Tensor, Tensor]:
    """Return row, slot and value of every non-zero; duplicate slots of a row are summed."""
    offsets, slots, values = (part.cpu() for part in embedding.rows())
    row = torch.arange(embedding.num_embeddings).repeat_interleave(offsets.diff())
    for name, part in (("values", values), ("anchors", embedding.anchors.detach())):
        if not usable(part):
            raise ValueError(
                f"the {name} of the table are not finite, or too large; has training diverged?"
            )
    keys, first = (row * len(embedding.anchors) + slots).unique_consecutive(return_inverse=True)
    total = values.new_zeros(len(keys)).index_add_(0, first, values)
    return keys // len(embedding.anchors), keys % len(embedding.anchors), total


def _laid_out(
    row: Tensor, slots: Tensor, packed: Tensor, rows: int, anchors: int, bits: int
) -> dict[str, Tensor]:
    """Return the non-zeros in the layout that takes the fewest bytes."""
    lengths = torch.bincount(row, minlength=rows)
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    width = int(lengths.max())
    small = slots.to(small_integer(anchors))
    own = packed.element_size() * bits / 8
    each = own + small.element_size()
    counted = small_integer(width + 1)
    starts = offsets[:-1:BLOCK].clone()
    overhead = rows * counted.itemsize + 8 * len(starts)
    fewest = min(len(packed) * each + overhead, rows * width * each)
    last = torch.zeros(rows, dtype=torch.int64).scatter_reduce_(0, row, slots + 1, "amax")
    all_of_them = rows * -(-anchors * own // 1)  # rows are padded to whole bytes
    if int(last.sum()) * own + overhead < min(fewest, all_of_them):
        # Each row stores its first anchors in order: no indices needed
        ends = torch.cat([last.new_zeros(1), last.cumsum(0)])
        values = packed.new_zeros(int(ends[-1]))
        values[ends[row] + slots] = packed
        lengths = last.to(small_integer(int(last.max()) + 1))
        return {"values": values, "lengths": lengths, "starts": ends[:-1:BLOCK].clone()}
    if width and all_of_them < fewest:  # every anchor of every row: no indices needed
        values = packed.new_zeros(rows, anchors)
        values[row, slots] = packed
        return {"values": values}
    if not width or (rows * width - len(packed)) * each > overhead:
        return {
            "slots": small, "values": packed, "lengths": lengths.to(counted), "starts": starts,
        }  # fmt: skip
    values, slots = _padded(SparseRows(offsets, slots, packed), width)
    slots, order = slots.sort(1)
    return {"slots": slots.to(small.dtype), "values": values.gather(1, order)}


def _padded(rows: SparseRows, width: int) -> tuple[Tensor, Tensor]:
    """Return values and slots (rows, width); short rows are padded by zeros at unused slots."""
    lengths = rows.offsets.diff()
    row = torch.arange(len(lengths)).repeat_interleave(lengths)
    place = torch.arange(len(row)) - rows.offsets[row]
    values = rows.values.new_zeros(len(lengths), width)
    slots = torch.zeros(len(lengths), width, dtype=torch.int64)
    values[row, place], slots[row, place] = rows.values, rows.slots
    # Of the first `width` anchors a row that has `length` of them lacks at least width - length.
    low = rows.slots < width
    has = torch.zeros(len(lengths), width, dtype=torch.bool)
    has[row[low], rows.slots[low]] = True
    lacks = has.int().argsort(dim=1, stable=True)
    free = torch.arange(width) >= lengths[:, None]
    spare = lacks.gather(1, (torch.arange(width) - lengths[:, None]).clamp(min=0))
    return values, torch.where(free, spare, slots)


def _write(path: Path, tensors: dict[str, Tensor], about: dict[str, str]) -> None:
    save = safetensors().torch.save_file
    with new_file(path) as partial:
        save({name: part.contiguous() for name, part in tensors.items()}, partial, about)
