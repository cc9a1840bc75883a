"""Lookup of vectors in a memory-mapped anchor file."""

import os
from typing import Any

import torch
from torch import Tensor

from fewfold._check import int64_vector
from fewfold.embeddings.files.save_load import Sizes
from fewfold.embeddings.files.stored_anchors import Stored

__all__ = ["MappedAnchors"]

_BLOCK_SIZE = 2**22  # numbers in memory at once


class MappedAnchors:
    """Memory-mapped anchor table: a lookup reads only the rows it needs.

    The anchors are read on opening. Processes that open the same file share its memory.

    Args:
        path: a file written by `save_anchors`.

    Example:
        >>> import tempfile, torch, fewfold as ff
        >>> from fewfold.embeddings.files.save_load import save_anchors
        >>> table = ff.AnchorEmbedding(1000, 64, anchors=16, width=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = save_anchors(table, folder + "/table.safetensors")
        ...     mapped = MappedAnchors(folder + "/table.safetensors")
        >>> ids = torch.tensor([[3, 999], [0, 3]])
        >>> torch.allclose(mapped[ids], table(ids)), mapped.shape
        (True, (1000, 64))
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._stored = Stored.open(path)
        self._anchors = self._stored.all_anchors()

    def __getitem__(self, ids: Any) -> Tensor:
        """Return vectors (*ids, d); ids are an int, a list, an array or a tensor."""
        given = torch.as_tensor(ids)
        flat = int64_vector(given.flatten(), "ids")
        if len(flat) and not 0 <= int(flat.min()) <= int(flat.max()) < self.shape[0]:
            raise IndexError(f"ids must be between 0 and {self.shape[0] - 1}")
        out = self._anchors.new_empty(len(flat), self.shape[1])
        for part, rows in zip(out.split(self._block), flat.split(self._block), strict=True):
            weights, slots = self._stored.entries(rows)
            torch.bmm(weights[:, None], self._anchors[slots], out=part[:, None])
        return out.view(*given.shape, self.shape[1]).to(given.device)

    def __len__(self) -> int:
        return self._stored.rows

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, d)."""
        return self._stored.rows, self._stored.dim

    @property
    def sizes(self) -> Sizes:
        """Sizes of the table and of the file."""
        it = self._stored
        return Sizes(it.rows, it.dim, it.anchors, it.nonzeros, it.path.stat().st_size)

    def dense(self) -> Tensor:
        """Return the whole table (rows, d)."""
        return self[torch.arange(len(self))]

    def __repr__(self) -> str:
        return f"MappedAnchors({str(self._stored.path)!r}, shape={self.shape})"

    @property
    def _block(self) -> int:
        width = self._stored.width or min(self._stored.anchors, 64)
        return max(_BLOCK_SIZE // (width * self.shape[1]), 1)
