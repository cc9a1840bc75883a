"""Proposal proportional to the squared score, sampled from a tree of second moments."""

import math
from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor

from fewfold._random import randint
from fewfold.sampling.categorical_draws import draw_places
from fewfold.sampling.proposal import Given, Proposal, check_ids, check_items, check_queries, stored
from fewfold.sampling.static import unfitted

__all__ = ["QuadraticKernel"]

_CHUNK = 2**13  # samples whose leaves are gathered at once


class QuadraticKernel(Proposal):
    """Quadratic-kernel proposal: q(i | z) proportional to strength (z . item_i)^2 + 1.

    The mass of a set of items is  strength z' S z + size  with S the sum of their outer products,
    so that items can be sampled from a tree of such sums; here the tree has two levels, of about
    equal cost. It costs d^2 per leaf and query; the multi-index costs d per codeword.

    Example:
        >>> import torch, fewfold as ff
        >>> from fewfold.sampling import QuadraticKernel
        >>> proposal = QuadraticKernel(strength=1.0).fit(torch.tensor([[0.], [1.], [-2.]]))
        >>> proposal.log_prob(torch.tensor([[1.]]), torch.tensor([[0, 1, 2]])).exp()
        tensor([[0.1250, 0.2500, 0.6250]])

    Reference: Blanc and Rendle, "Adaptive sampled softmax with kernel based sampling", 2018.
    """

    def __init__(self, strength: float = 100.0) -> None:
        if not (isinstance(strength, (int, float)) and 0 < strength < math.inf):
            raise ValueError(f"strength must be a positive number, got {strength!r}")
        self.strength = strength
        self._leaves: Tensor | None = None  # (leaves, size, d), the last padded with zeros
        self._moments = self._filled = torch.empty(0)
        self._items = 0

    def fit(self, item_vectors: Tensor, counts: Tensor | None = None) -> Self:
        return self.refresh(item_vectors)

    def refresh(self, item_vectors: Tensor) -> Self:
        vectors = check_items(item_vectors)
        self._items, d = vectors.shape
        size = max(1, min(self._items, max(d, math.isqrt(self._items) // 8)))
        count = -(-self._items // size)
        padded = vectors.new_zeros(count * size, d)
        padded[: self._items] = vectors
        self._leaves = padded.view(count, size, d)
        self._moments = torch.einsum("lid,lie->lde", self._leaves, self._leaves).flatten(1)
        place = torch.arange(count * size, device=vectors.device)
        filled = place.view(count, size) < self._items
        self._filled = filled.float()
        return self

    def state_dict(self) -> dict[str, Tensor]:
        if self._leaves is None:
            return {}
        return {"items": self._leaves.flatten(0, 1)[: self._items]}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        if "items" in state:
            self.refresh(stored(state, "items", self))
        else:
            self._leaves = None

    def given(self, queries: Tensor, *, shared: bool = False) -> Given:
        if self._leaves is None:
            raise unfitted(self)
        queries = check_queries(queries, self._leaves.shape[2])
        outer = torch.einsum("bd,be->bde", queries, queries).flatten(1)
        mass = self.strength * (outer @ self._moments.T) + self._filled.sum(1)
        if not mass.isfinite().all():
            raise ValueError("queries must be finite, and so must the squares of their scores")
        return _GivenQuadratic(self._leaves, self._filled, queries, mass, self.strength, shared)


class _GivenQuadratic(Given):
    def __init__(
        self, leaves: Tensor, filled: Tensor, queries: Tensor, mass: Tensor, strength: float,
        shared: bool,
    ) -> None:  # fmt: skip
        self.shared = shared
        self._leaves, self._filled, self._queries = leaves, filled, queries
        self._mass, self._strength = mass, strength
        self._log_total = mass.double().sum(1).log()
        self._items = int(filled.sum())

    def sample(self, n: int, *, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        rows, device = len(self._queries), self._queries.device
        if self.shared:  # a random query for each sample: the mixture
            who = randint(rows, (n, 1), device, generator=generator)
            leaf = draw_places(self._mass[who[:, 0]], 1, generator)
        else:
            who = torch.arange(rows, device=device)[:, None].expand(rows, n)
            leaf = draw_places(self._mass, n, generator)
        ids = torch.empty_like(leaf).flatten()
        who, leaf = who.reshape(-1), leaf.reshape(-1)
        for start in range(0, len(ids), _CHUNK):
            at = slice(start, start + _CHUNK)
            ids[at] = self._inside(who[at], leaf[at], generator)
        ids = ids.view(n) if self.shared else ids.view(rows, n)
        return ids, self.log_prob(ids)

    def _inside(self, who: Tensor, leaf: Tensor, generator: torch.Generator | None) -> Tensor:
        """Sample an item of each leaf for each query `who`."""
        score = torch.einsum("kid,kd->ki", self._leaves[leaf], self._queries[who])
        mass = (self._strength * score.square() + 1) * self._filled[leaf]
        return leaf * self._leaves.shape[1] + draw_places(mass, 1, generator)[:, 0]

    def log_prob(self, ids: Tensor, row: Tensor | None = None) -> Tensor:
        check_ids(ids, self._items)
        vectors = self._leaves.flatten(0, 1)[ids]
        if self.shared:
            score = vectors.reshape(ids.numel(), vectors.shape[-1]) @ self._queries.T
            log_q = self._log_mass(score) - self._log_total
            mixed = log_q.logsumexp(1) - math.log(max(len(self._queries), 1))
            return mixed.view(ids.shape).float()
        if row is None:
            row = torch.arange(len(self._queries), device=ids.device)[:, None].expand(ids.shape)
        score = (vectors * self._queries[row]).sum(-1)
        return (self._log_mass(score) - self._log_total[row]).float()

    def _log_mass(self, score: Tensor) -> Tensor:
        return (self._strength * score.double().square()).log1p()
