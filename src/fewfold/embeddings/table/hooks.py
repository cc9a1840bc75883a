"""What an optimiser may attach to a table: a word before every read, and gradients to look at."""

import weakref
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["Attached"]

Gather = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""from rows (n,) and gradients of their vectors (n, d) to those of all processes"""


class Attached:
    """By itself it does nothing."""

    def __init__(self) -> None:
        self._settle: Callable[[Tensor | None], None] | None = None
        self._seen: list[tuple[Tensor, Tensor]] | None = None
        self._gather: weakref.WeakMethod[Gather] | None = None

    def settle_with(self, settle: Callable[[Tensor | None], None]) -> None:
        """Call this with the rows about to be read, or None for all of them."""
        self.before_read(None)  # whoever was asked before has the last word on what is owed to it
        self._settle = settle

    def before_read(self, ids: Tensor | None) -> None:
        """Bring these rows up to date."""
        if self._settle is not None:
            self._settle(ids)

    @property
    def watching(self) -> bool:
        """Whether gradients of vectors are being collected."""
        return self._seen is not None

    def start(self) -> None:
        """Collect the gradients of vectors from now on."""
        self._seen = []

    def gather_with(self, gather: Gather) -> None:
        """Call this method with what was collected, to add what other processes have.

        It is called for as long as its object is alive, and until `gather_without` it.
        """
        self._gather = weakref.WeakMethod(gather)

    def gather_without(self, gather: Gather) -> None:
        """Call this method no longer; another that has come since stays."""
        if self._gather is not None and self._gather() == gather:
            self._gather = None

    def take(self, like: Tensor) -> tuple[Tensor, Tensor] | None:
        """Rows (n,) and the gradients of their vectors (n, d) since the start; and stop.

        Args:
            like: (K, d), of the dtype and on the device of the vectors.
        """
        seen, self._seen = self._seen, None
        rows = like.new_empty(0, dtype=torch.int64)
        gradients = like.detach()[:0]
        if seen:
            some, their = zip(*seen, strict=True)
            rows, gradients = torch.cat(some), torch.cat(their)
        gather = None if self._gather is None else self._gather()
        if gather is not None:  # also with nothing: the others wait for it
            rows, gradients = gather(rows, gradients)
        return (rows, gradients) if len(rows) else None

    def keep(self, rows: Tensor, gradients: Tensor) -> None:
        """Collect these: rows (n,) and the gradients of their vectors (n, d)."""
        if self._seen is not None:
            self._seen.append((rows, gradients))

    def watch(self, ids: Tensor, vectors: Tensor) -> None:
        """Collect the gradient of these vectors, once it is there."""
        seen = self._seen
        if seen is None or not vectors.requires_grad:
            return
        rows = ids.flatten()

        def keep(gradient: Tensor) -> None:
            seen.append((rows, gradient.detach().reshape(-1, gradient.shape[-1])))

        vectors.register_hook(keep)

    def watch_scores(self, hidden: Tensor, scores: Tensor, threshold: float) -> None:
        """The same from the scores (n, rows) of an output layer; few rows have a gradient."""
        seen = self._seen
        if seen is None or not scores.requires_grad:
            return
        hidden = hidden.detach()

        def keep(gradient: Tensor) -> None:
            rows = (gradient.detach().abs() > threshold).any(0).nonzero().squeeze(1)
            seen.append((rows, gradient.detach()[:, rows].t() @ hidden))

        scores.register_hook(keep)

    def __getstate__(self) -> dict[str, None]:
        # Neither an optimiser nor other processes are part of a table.
        return {"_settle": None, "_seen": None, "_gather": None}

    def __deepcopy__(self, memo: object) -> "Attached":
        return Attached()  # a copy of a table is nobody's
