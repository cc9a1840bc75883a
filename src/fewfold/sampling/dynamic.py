"""Dynamic negative sampling: the highest-scoring of several uniform candidates."""

import math
from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor

from fewfold._random import randint
from fewfold.sampling.proposal import Given, Proposal, check_ids, check_items, check_queries, stored
from fewfold.sampling.static import unfitted

__all__ = ["Dynamic"]


class Dynamic(Proposal):
    """Dynamic negative sampling: the highest-scoring of `candidates` uniformly sampled items.

    With rank r of an item by score (0 the best, ties by the smaller id) among m items,

        q(i | z) = ((m - r)^c - (m - r - 1)^c) / m^c,        c = candidates.

    Computing r needs the scores of all items for every query, which defeats the purpose of
    sampling, so the literature trains without a correction. That is the default here too: `sample`
    returns the log q of a uniform proposal, which is constant and has no effect in a loss. With
    `corrected=True` it returns the exact log q; `log_prob` always does.

    Example:
        >>> import torch, fewfold as ff
        >>> proposal = ff.sampling.Dynamic(candidates=2).fit(torch.tensor([[1.], [3.], [2.], [0.]]))
        >>> proposal.log_prob(torch.tensor([[1.]]), torch.tensor([[0, 1, 2, 3]])).exp()
        tensor([[0.1875, 0.4375, 0.3125, 0.0625]])

    Reference: Zhang, Chen, Wang and Yu, "Optimizing top-N collaborative filtering via dynamic
    negative item sampling", 2013.
    """

    def __init__(self, candidates: int = 4, *, corrected: bool = False) -> None:
        if not isinstance(candidates, int) or isinstance(candidates, bool) or candidates < 1:
            raise ValueError(f"candidates must be a positive int, got {candidates!r}")
        self.candidates, self.corrected = candidates, corrected
        self._items: Tensor | None = None

    def fit(self, item_vectors: Tensor, counts: Tensor | None = None) -> Self:
        return self.refresh(item_vectors)

    def refresh(self, item_vectors: Tensor) -> Self:
        self._items = check_items(item_vectors).clone()
        return self

    def state_dict(self) -> dict[str, Tensor]:
        return {} if self._items is None else {"items": self._items}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        items = stored(state, "items", self) if "items" in state else None
        self._items = None if items is None else check_items(items).clone()

    def given(self, queries: Tensor, *, shared: bool = False) -> Given:
        if self._items is None:
            raise unfitted(self)
        queries = check_queries(queries, self._items.shape[1])
        if not queries.isfinite().all():
            row = int(queries.isfinite().all(1).logical_not().nonzero()[0])
            raise ValueError(f"queries must be finite; row {row} is not")
        return _GivenDynamic(self._items, queries, self.candidates, self.corrected, shared)


class _GivenDynamic(Given):
    def __init__(
        self, items: Tensor, queries: Tensor, candidates: int, corrected: bool, shared: bool
    ) -> None:
        self.shared = shared
        self._items, self._queries = items, queries
        self._candidates, self._corrected = candidates, corrected
        self._table: Tensor | None = None

    def sample(self, n: int, *, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        rows, m, device = len(self._queries), len(self._items), self._queries.device
        if self.shared:
            query = randint(rows, (n,), device, generator=generator)
        else:
            query = torch.arange(rows, device=device).repeat_interleave(n)
        drawn = randint(m, (len(query), self._candidates), device, generator=generator)
        drawn = drawn.sort(1).values  # argmax then breaks ties by the smaller id
        best = torch.einsum("kcd,kd->kc", self._items[drawn], self._queries[query]).argmax(1)
        ids = drawn.gather(1, best[:, None])[:, 0]
        ids = ids if self.shared else ids.view(rows, n)
        if self._corrected:
            return ids, self.log_prob(ids)
        return ids, torch.full(ids.shape, -math.log(m), device=device)

    def log_prob(self, ids: Tensor, row: Tensor | None = None) -> Tensor:
        check_ids(ids, len(self._items))
        if self._table is None:
            self._table = self._log_q()
        if self.shared:
            return (self._table.logsumexp(0) - math.log(len(self._table)))[ids].float()
        if row is None:
            return self._table.gather(1, ids).float()
        return self._table[row, ids].float()

    def _log_q(self) -> Tensor:
        """Return log q of every item for every query, (queries, items)."""
        m, c = len(self._items), self._candidates
        # Same order of summation as in `sample`: a difference in rounding could swap two ranks.
        scores = torch.einsum("id,kd->ki", self._items, self._queries)
        order = scores.argsort(dim=1, descending=True, stable=True)
        left = (m - torch.arange(m, dtype=torch.float64, device=scores.device)) / m
        by_rank = (left.pow(c) - (left - 1 / m).clamp(min=0).pow(c)).log()
        return torch.empty_like(scores, dtype=torch.float64).scatter_(
            1, order, by_rank.expand(len(scores), m)
        )
