"""Exact row-wise top-k over scores that arrive in chunks of columns."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fewfold._native import dispatch
from fewfold.recommender.interactions import Jagged

__all__ = ["Heaps", "Sorted", "padded"]

_NAN = "scores must be numbers, got nan; look at the vectors of the model"


class Heaps:
    """Row-wise top-k as heaps, maintained by the native kernels."""

    def __init__(self, like: Tensor, k: int, seen: Jagged, allowed: Tensor | None) -> None:
        rows = len(like)
        self.scores, self.ids = like.new_empty(rows, k), torch.empty(rows, k, dtype=torch.int64)
        self.count = torch.zeros(rows, dtype=torch.int64)
        self.seen, self.allowed = seen, allowed

    def add(self, block: Tensor, start: int) -> None:
        """Merge the scores of the items from `start` on."""
        block = block.to(self.scores).contiguous()
        fine = dispatch.kernel("best_of", block.dtype)(
            block, *block.shape, start, self.ids.shape[1], *self._state(), self.seen.values,
            self.seen.offsets, self.allowed, dispatch.threads(),
        )  # fmt: skip
        if not fine:
            raise ValueError(_NAN)

    def ranked(self) -> tuple[Tensor, Tensor]:
        """Ids and scores, best first."""
        dispatch.kernel("best_sorted", self.scores.dtype)(
            *self.ids.shape, *self._state(), dispatch.threads()
        )
        return self.ids, self.scores

    def _state(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.scores, self.ids, self.count


class Sorted:
    """Row-wise top-k in plain torch, always sorted."""

    def __init__(self, like: Tensor, k: int, seen: Jagged, allowed: Tensor | None) -> None:
        self.scores = like.new_empty(len(like), 0)
        self.ids = torch.empty(len(like), 0, dtype=torch.int64, device=like.device)
        self.k, self.seen = k, seen.to(like.device)
        self.allowed = None if allowed is None else allowed.to(like.device)
        self.row = self.seen.row

    def add(self, block: Tensor, start: int) -> None:
        """Merge the scores of the items from `start` on."""
        block, stop = block.to(self.scores), start + block.shape[1]
        inside = (self.seen.values >= start) & (self.seen.values < stop)
        block[self.row[inside], self.seen.values[inside] - start] = -torch.inf
        if self.allowed is not None:
            block = block.masked_fill(~self.allowed[start:stop], -torch.inf)
        best, where = _best(block, min(self.k, block.shape[1]))
        # Earlier candidates have lower ids and come first: a stable sort keeps ties in order.
        best, order = torch.cat([self.scores, best], 1).sort(dim=1, descending=True, stable=True)
        where = torch.cat([self.ids, where + start], 1).gather(1, order)
        self.scores, self.ids = best[:, : self.k], where[:, : self.k]

    def ranked(self) -> tuple[Tensor, Tensor]:
        """Return ids and scores, best first."""
        return padded(self.ids, self.scores, self.k)  # skipped chunks may leave fewer than k


def _best(block: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k highest scores of each row and their columns, ties from the left."""
    more = min(k + 1, block.shape[1])
    values, where = block.topk(more, dim=1)
    if bool(values[:, 0].isnan().any()):  # NaN sorts first
        raise ValueError(_NAN)
    if more > k:
        # topk may select any of the scores equal to the k-th. If the next one is equal too, select
        # the leftmost instead; rows without further items are irrelevant.
        last = values[:, k - 1]
        tied = ((values[:, k] == last) & (last > -torch.inf)).nonzero().squeeze(-1)
        values, where = values[:, :k], where[:, :k]
        if len(tied):
            where = where.clone()
            where[tied] = _leftmost(block[tied], last[tied], k)
    where = where.sort(1).values
    values, order = block.gather(1, where).sort(dim=1, descending=True, stable=True)
    return values, where.gather(1, order)


def _leftmost(block: Tensor, last: Tensor, k: int) -> Tensor:
    """Return (rows, k) ascending columns: all above `last`, then the first ones equal to it."""
    above = block > last.unsqueeze(1)
    equal = block == last.unsqueeze(1)
    needed = k - above.sum(1, keepdim=True)
    selected = above | (equal & (equal.cumsum(1, dtype=torch.int32) <= needed))
    return selected.nonzero()[:, 1].view(-1, k)


def padded(ids: Tensor, scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Pad both to k columns, with id -1 and score -inf."""
    missing = k - ids.shape[1]
    if not missing:
        return ids, scores
    return F.pad(ids, (0, missing), value=-1), F.pad(scores, (0, missing), value=-torch.inf)
