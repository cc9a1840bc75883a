"""Proposals that do not depend on the query: uniform, or by popularity."""

import math
from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor

from fewfold._random import randint
from fewfold.sampling.inverted_index import Cells, GivenCells
from fewfold.sampling.item_rows import ItemRows
from fewfold.sampling.proposal import (
    Given,
    Proposal,
    check_counts,
    check_ids,
    check_rows,
    stored,
)

__all__ = ["Popularity", "Uniform"]


class Uniform(Proposal):
    """Uniform proposal: q(i) = 1 / items.

    Example:
        >>> import torch, fewfold as ff
        >>> proposal = ff.Uniform().fit(torch.zeros(4, 2))
        >>> ids, log_q = proposal.sample(torch.zeros(1, 2), 3)
        >>> log_q.exp()
        tensor([[0.2500, 0.2500, 0.2500]])
    """

    _items: int | None = None

    def fit(self, item_vectors: Tensor | ItemRows, counts: Tensor | None = None) -> Self:
        self._items = check_rows(item_vectors).count
        return self

    def state_dict(self) -> dict[str, Tensor]:
        return {} if self._items is None else {"items": torch.tensor(self._items)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        items = None
        if "items" in state:
            count = stored(state, "items", self)
            if count.numel() != 1 or count.is_floating_point() or int(count) < 1:
                raise ValueError(
                    f"the state of Uniform must hold a positive number of items, got {count}"
                )
            items = int(count)
        self._items = items

    def given(self, queries: Tensor, *, shared: bool = False) -> Given:
        if self._items is None:
            raise unfitted(self)
        return _GivenUniform(self._items, queries, shared)


class _GivenUniform(Given):
    def __init__(self, items: int, queries: Tensor, shared: bool) -> None:
        self.shared = shared
        self._items, self._queries, self._device = items, len(queries), queries.device

    def sample(self, n: int, *, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        shape = (n,) if self.shared else (self._queries, n)
        if self.part is None or self.shared:
            ids = randint(self._items, shape, self._device, generator=generator)
        else:
            whole = (self.part.rows, n)
            ids = randint(self._items, whole, self._device, generator=generator)
            ids = ids[self.part.slice(self._queries)]
        return ids, torch.full(shape, -math.log(self._items), device=self._device)

    def log_prob(self, ids: Tensor, row: Tensor | None = None) -> Tensor:
        check_ids(ids, self._items)
        return torch.full(ids.shape, -math.log(self._items), device=ids.device)


class Popularity(Proposal):
    """Proposal by popularity: q(i) = counts_i^power / sum_j counts_j^power.

    Sampled by the alias method, in constant time per sample. Items with a count of zero are never
    sampled.

    Example:
        >>> import torch, fewfold as ff
        >>> proposal = ff.Popularity().fit(torch.zeros(3, 2), counts=torch.tensor([1., 0., 3.]))
        >>> proposal.log_prob(torch.zeros(1, 2), torch.tensor([[0, 1, 2]])).exp()
        tensor([[0.2500, 0.0000, 0.7500]])

    Reference: Vose, "A linear algorithm for generating random numbers with a given distribution",
    1991.
    """

    _cells: Cells | None = None
    _mass: Tensor | None = None

    def __init__(self, power: float = 1.0) -> None:
        if isinstance(power, (Tensor, list, tuple)):
            raise TypeError(
                "Popularity(power) takes the power of the counts, a number; the counts go to fit: "
                "write Popularity().fit(item_vectors, counts)"
            )
        if not (isinstance(power, (int, float)) and 0 <= power < math.inf):
            raise ValueError(f"power must be a number of at least 0, got {power!r}")
        self.power = power

    def fit(self, item_vectors: Tensor | ItemRows, counts: Tensor | None = None) -> Self:
        vectors = check_rows(item_vectors)
        self._mass = powered(counts, vectors.count, self.power, device=vectors.local.device)
        return self._build_cells()

    def _build_cells(self) -> Self:
        """Put all items into one cell, weighted by their mass."""
        if self._mass is None:
            self._cells = None
        else:
            one = torch.zeros(len(self._mass), 1, dtype=torch.int64, device=self._mass.device)
            self._cells = Cells.build(one, self._mass)
        return self

    def state_dict(self) -> dict[str, Tensor]:
        return {} if self._mass is None else {"mass": self._mass}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        mass = stored(state, "mass", self) if "mass" in state else None
        self._mass = None if mass is None else check_counts(mass.clone(), mass.numel(), "mass")
        self._build_cells()

    def given(self, queries: Tensor, *, shared: bool = False) -> Given:
        if self._cells is None:
            raise unfitted(self)
        # Scores of the one cell, where the cells are.
        scores = self._cells.log_mass.new_zeros(1 if shared else len(queries), 1)
        return GivenCells(self._cells, scores, shared=shared)


def powered(
    counts: Tensor | None, items: int, power: float = 1.0, *, device: torch.device
) -> Tensor:
    """Return counts to a power, on a device; counts of zero stay zero, also for power 0."""
    if counts is None:
        raise ValueError("sampling by popularity needs counts; write fit(vectors, counts=...)")
    checked = check_counts(counts, items).to(device)
    return torch.where(checked > 0, checked.pow(power), checked)


def unfitted(proposal: Proposal) -> RuntimeError:
    """Return the error for a proposal that is used before `fit`."""
    name = type(proposal).__name__
    return RuntimeError(f"{name} has not been fitted yet; write {name}(...).fit(item_vectors)")
