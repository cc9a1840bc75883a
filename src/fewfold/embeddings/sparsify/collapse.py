"""Warn when the rows of an anchor table become zero vectors."""

import warnings

import torch
from torch import Tensor

from fewfold.embeddings.table.embedding import AnchorEmbedding

__all__ = ["CollapseCheck"]

_ROWS, _ENTRIES = 4096, 2**18  # looked at, at most
_LEAST = 32  # rows of a table that is worth a word
_EVERY = 64  # steps, after the first few
_MOST = 0.5  # share of zero rows that is too much
_RISE = 0.25  # by how much it must have grown since the optimiser was made


class CollapseCheck:
    """Looks at a sample of a table's rows now and then, and warns once if most are zero.

    A row whose weights are all zero is the zero vector, whatever the anchors are, and with
    non-negative weights it gets no gradient that would bring it back.
    """

    def __init__(self, table: AnchorEmbedding) -> None:
        self._table = table
        self._warned = False
        self._at_first = self._zero_share()

    def due(self, step: int) -> bool:
        """Whether to look after this step, counted from 0; often in the beginning."""
        if self._warned or self._table.num_embeddings < _LEAST:
            return False
        made = step + 1
        return made % _EVERY == 0 or (made < _EVERY and made & step == 0)

    def rows(self) -> Tensor:
        """(n,) the rows to look at, evenly spaced."""
        count = len(self._table.transform)
        most = max(1, min(_ROWS, _ENTRIES // self._table.transform.shape[1]))
        rows = torch.arange(0, count, -(-count // most), device=self._table.transform.device)
        padding = self._table.padding_idx
        return rows if padding is None else rows[rows != padding]

    def look(self, l1: float) -> None:
        """Warn if most rows have become zero; they must be up to date."""
        share = self._zero_share()
        if self._warned or share <= _MOST or share - self._at_first <= _RISE:
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
        some = self._table.transform[self.rows(), : self._table.active]
        return float((some == 0).all(1).double().mean()) if len(some) >= _LEAST else 0.0
