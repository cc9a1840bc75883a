"""Callbacks of an anchor table: one before every read, and a record of the gradients of its rows.

A table imports nothing from `sparsify`. An optimiser that defers its penalty on rows without a
gradient registers a callback here, and the table calls it with the rows it is about to read.
"""

import weakref
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["TableHooks"]

BeforeRead = Callable[[Tensor | None], None]
"""Called with the ids (n,) about to be read, or None for all rows."""
Gather = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Map rows (n,) and gradients of their vectors (n, d) to those of all processes."""


class TableHooks:
    """Callbacks registered on one table; without any, every call does nothing."""

    def __init__(self) -> None:
        self._before_read: BeforeRead | None = None
        self._recorded: list[tuple[Tensor, Tensor]] | None = None
        self._gather: weakref.WeakMethod[Gather] | None = None

    def set_before_read(self, callback: BeforeRead | None) -> None:
        """Register the callback that brings rows up to date before they are read; None for none."""
        self.before_read(None)  # the previous callback applies its outstanding updates first
        self._before_read = callback

    def before_read(self, ids: Tensor | None) -> None:
        """Bring rows up to date: those of `ids`, or all of them if None."""
        if self._before_read is not None:
            self._before_read(ids)

    @property
    def watching(self) -> bool:
        """Whether gradients of vectors are being recorded."""
        return self._recorded is not None

    def start_recording(self) -> None:
        """Record the gradients of vectors from now on."""
        self._recorded = []

    def set_gather(self, gather: Gather) -> None:
        """Register a bound method that adds the gradients of other processes to the recorded ones.

        It is held weakly: it is called until its object is deleted or `clear_gather` is called.
        """
        self._gather = weakref.WeakMethod(gather)

    def clear_gather(self, gather: Gather) -> None:
        """Unregister this method; one that was registered after it stays."""
        if self._gather is not None and self._gather() == gather:
            self._gather = None

    def take_recorded(self, like: Tensor) -> tuple[Tensor, Tensor] | None:
        """Stop recording and return the rows (n,) and the gradients of their vectors (n, d).

        Args:
            like: (K, d), of the dtype and on the device of the vectors.
        """
        recorded, self._recorded = self._recorded, None
        rows = like.new_empty(0, dtype=torch.int64)
        gradients = like.detach()[:0]
        if recorded:
            each_rows, each_gradients = zip(*recorded, strict=True)
            rows, gradients = torch.cat(each_rows), torch.cat(each_gradients)
        gather = None if self._gather is None else self._gather()
        if gather is not None:  # a collective operation: call it even without recorded rows
            rows, gradients = gather(rows, gradients)
        return (rows, gradients) if len(rows) else None

    def record(self, rows: Tensor, gradients: Tensor) -> None:
        """Record rows (n,) and the gradients of their vectors (n, d), if recording."""
        if self._recorded is not None:
            self._recorded.append((rows, gradients))

    def record_vectors(self, ids: Tensor, vectors: Tensor) -> None:
        """Record the gradient of `vectors`, the rows of `ids`, in the backward pass."""
        recorded = self._recorded
        if recorded is None or not vectors.requires_grad:
            return
        rows = ids.flatten()

        def append(gradient: Tensor) -> None:
            recorded.append((rows, gradient.detach().reshape(-1, gradient.shape[-1])))

        vectors.register_hook(append)

    def record_scores(self, hidden: Tensor, scores: Tensor, threshold: float) -> None:
        """Record the gradients of the rows that an output layer scored.

        Args:
            hidden: (n, d) inputs of the layer.
            scores: (n, rows) its outputs.
            threshold: rows whose scores all have gradients of at most this size are left out.
        """
        recorded = self._recorded
        if recorded is None or not scores.requires_grad:
            return
        hidden = hidden.detach()

        def append(gradient: Tensor) -> None:
            rows = (gradient.detach().abs() > threshold).any(0).nonzero().squeeze(1)
            recorded.append((rows, gradient.detach()[:, rows].t() @ hidden))

        scores.register_hook(append)

    def __getstate__(self) -> dict[str, None]:
        # Optimisers and other processes are not part of a pickled table.
        return {"_before_read": None, "_recorded": None, "_gather": None}

    def __deepcopy__(self, memo: object) -> "TableHooks":
        return TableHooks()  # a copied table has no optimiser yet
