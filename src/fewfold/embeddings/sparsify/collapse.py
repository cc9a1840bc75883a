"""Warn when the rows of an anchor table become zero vectors."""

import warnings

import torch
from torch import Tensor

from fewfold.embeddings.table.embedding import AnchorEmbedding

__all__ = ["CollapseCheck"]

_ROWS, _ENTRIES = 4096, 2**18  # maximum size of the sample
_LEAST = 32  # smaller tables are not checked
_EVERY = 64  # steps between checks; in the beginning at steps 1, 2, 4, 8, ...
_MOST = 0.5  # share of zero rows above which to warn
_RISE = 0.25  # minimum increase of that share since the optimiser was created


class CollapseCheck:
    """Checks a sample of a table's rows at intervals, and warns once if most of them are zero.

    A row whose weights are all zero is the zero vector for any anchors, and with non-negative
    weights it seldom gets a gradient larger than the penalty that would make it non-zero again.
    """

    def __init__(self, table: AnchorEmbedding) -> None:
        self._table = table
        self._warned = False
        self._initial_share = self._zero_share()

    def due(self, step: int) -> bool:
        """Whether to check after this step, counted from 0."""
        if self._warned or self._table.num_embeddings < _LEAST:
            return False
        count = step + 1
        return count % _EVERY == 0 or (count < _EVERY and count & step == 0)

    def rows(self) -> Tensor:
        """Return the rows of the sample, (n,), evenly spaced."""
        count = len(self._table.transform)
        most = max(1, min(_ROWS, _ENTRIES // self._table.transform.shape[1]))
        rows = torch.arange(0, count, -(-count // most), device=self._table.transform.device)
        padding = self._table.padding_idx
        return rows if padding is None else rows[rows != padding]

    def look(self, l1: float) -> None:
        """Warn if most rows have become zero; the rows of the sample must be up to date."""
        share = self._zero_share()
        if self._warned or share <= _MOST or share - self._initial_share <= _RISE:
            return
        self._warned = True
        table = self._table
        left, entries = table.nonzeros(), table.transform[:, : table.active].numel()
        cause = f"the penalty l1={l1:g} is" if l1 else "the gradients, or what `keep` leaves, are"
        advice = (
            "use a smaller l1, or let it rise late: l1=Warmup(l1, after=..., over=...)"
            if l1
            else "use a smaller learning rate, more non-zeros per row (keep), or signed=True"
        )
        warnings.warn(
            f"an anchor table collapses: about {share:.0%} of the {table.num_embeddings:,} rows "
            f"have become zero vectors, and {left:,} of {entries:,} weights are not zero; {cause} "
            f"too strong for this table; {advice}",
            stacklevel=2,
        )

    @torch.no_grad()
    def _zero_share(self) -> float:
        """Share of the sampled rows that are zero."""
        sample = self._table.transform[self.rows(), : self._table.active]
        return float((sample == 0).all(1).double().mean()) if len(sample) >= _LEAST else 0.0
