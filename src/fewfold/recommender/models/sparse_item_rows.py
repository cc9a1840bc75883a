"""Models whose scores are sums of rows of a sparse item-to-item matrix."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fewfold._native import dispatch
from fewfold.recommender.interactions import Jagged
from fewfold.recommender.models.baseline import Baseline
from fewfold.recommender.models.model import relative
from fewfold.recommender.ranking.exact_ranking import Ranking

__all__ = ["SparseRows", "SparseRowsBaseline"]

_KERNELS = {torch.int32: "rank_rows_i32", torch.int64: "rank_rows_i64"}


@dataclass(frozen=True, eq=False)
class SparseRows:
    """A sparse (items, items) matrix by rows.

    Attributes:
        offsets: (items + 1,) int64; row i holds entries ``offsets[i]`` to ``offsets[i + 1]``.
        ids: (entries,) int32 or int64, the column of each entry.
        weights: (entries,) float32.
    """

    offsets: Tensor
    ids: Tensor
    weights: Tensor

    @property
    def items(self) -> int:
        """Number of rows, and of columns."""
        return len(self.offsets) - 1

    def sums(self, history: Jagged) -> Tensor:
        """(rows, items): for each row of the history, the sum of the matrix rows of its items."""
        lengths, (_, places) = (
            self.offsets.diff(),
            Jagged(self.ids, self.offsets).positions(history.values),
        )
        rows = len(history.offsets) - 1
        start = torch.repeat_interleave(history.row * self.items, lengths[history.values])
        total = torch.zeros(rows * self.items)
        total.index_add_(0, start + self.ids[places], self.weights[places])
        return total.view(rows, self.items)

    def entries(self, items: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        """Look up the positive entries of rows (n,) in columns (n, m).

        Returns:
            (n, m) entries, 0 where there is none that is positive, and (n, 1) the largest of each
            whole row.
        """
        found, largest = torch.zeros(others.shape), torch.zeros(len(items), 1)
        row = torch.zeros(self.items)  # one for all: a row may be as long as the catalogue
        edges = self.offsets[items].tolist(), self.offsets[items + 1].tolist()
        for number, (start, stop) in enumerate(zip(*edges, strict=True)):
            weights, columns = self.weights[start:stop], self.ids[start:stop].long()
            some = weights > 0  # empty places have weight 0, whichever item they name
            weights, columns = weights[some], columns[some]
            if len(weights):
                row[columns] = weights
                found[number], largest[number] = row[others[number]], weights.max()
                row[columns] = 0.0
        return found, largest

    def best(
        self, history: Jagged, k: int, exclude: Jagged, allowed: Tensor | None
    ) -> tuple[Ranking, Tensor]:
        """Rank by positive sums, in time proportional to the entries of the rows.

        Returns:
            The ranking, and a (rows,) mask of the rows that have k items with a positive sum; the
            others are not ranked.
        """
        rows = len(history.offsets) - 1
        ids, scores = torch.empty(rows, k, dtype=torch.int64), torch.empty(rows, k)
        done = torch.empty(rows, dtype=torch.bool)
        dispatch.kernel(_KERNELS[self.ids.dtype])(
            self.offsets, self.ids, self.weights, self.items, *history, *exclude, allowed, k,
            ids, scores, done, dispatch.threads(),
        )  # fmt: skip
        return Ranking(ids, scores), done


class SparseRowsBaseline(Baseline):
    """A model whose scores are sums of the rows of a sparse matrix; a subclass defines `rows`."""

    @property
    def rows(self) -> SparseRows:
        """The item-to-item matrix; row i holds what item i of a history adds to scores."""
        raise NotImplementedError(f"{type(self).__name__} must define rows")

    def scores(self, history: Jagged, items: slice) -> Tensor:
        """(rows, items in the slice)."""
        return self.rows.sums(history)[:, items]

    def similarity_to(self, others: Tensor) -> Callable[[Tensor], Tensor]:
        """Return a function from (rows,) items to their weights for `others`, (rows, n).

        They are relative to the largest weight of the item; negative ones count as 0.
        """
        rows = self.rows
        return lambda items: relative(*rows.entries(items, others))

    def block_sizes(self) -> dict[str, int]:
        """All items at once: `scores` sums whole rows, whichever slice is returned."""
        items = max(self.items, 1)
        return {"items_at_once": items, "users_at_once": max(1, min(256, 10**8 // items))}

    def rank(
        self,
        history: Jagged,
        k: int,
        *,
        exclude: Jagged | None = None,
        allowed: Tensor | None = None,
    ) -> Ranking:
        """Rank the best k items for each row by `scores`.

        Rows with k items of positive score are ranked without looking at the other items.
        """
        if self.items == 0 or not dispatch.enabled() or not 0 < k <= self.items:
            return super().rank(history, k, exclude=exclude, allowed=allowed)
        nothing = torch.zeros(len(history.offsets), dtype=torch.int64)
        out = Jagged(nothing[:0], nothing) if exclude is None else exclude
        found, done = self.rows.best(history, k, out, allowed)
        if not bool(done.all()):
            rest = (~done).nonzero().squeeze(1)
            other = super().rank(history.rows(rest), k, exclude=out.rows(rest), allowed=allowed)
            found.ids[rest], found.scores[rest] = other
        return found
