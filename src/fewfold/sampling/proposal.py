"""Base classes of proposals: distributions over items given a query, for sampled softmax."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor

from fewfold._random import randint
from fewfold.sampling.batch_part import BatchPart
from fewfold.sampling.item_rows import ItemRows

__all__ = [
    *("Given", "Proposal", "check_counts", "check_ids", "check_items", "check_queries"),
    *("check_rows", "fresh_seed", "stored"),
]


class Given(ABC):
    """A proposal conditioned on queries: one distribution per query, or their mixture if shared."""

    shared: bool
    part: BatchPart | None = None
    """Which queries of a larger batch these are; each draws as it would in the whole batch."""

    @abstractmethod
    def sample(self, n: int, *, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Sample with replacement: return ids and their log q, (queries, n), or (n,) if shared."""

    @abstractmethod
    def log_prob(self, ids: Tensor, row: Tensor | None = None) -> Tensor:
        """Return log q of `ids`; -inf for an item of probability zero.

        Args:
            ids: (queries, m); of any shape if shared; flat with `row`.
            row: for flat ids, the index of the query of each.
        """


class Proposal(ABC):
    """Distribution over items given a query that is cheap to sample from.

    A softmax over millions of items is trained on samples from q(item | query), corrected by log q;
    the closer q is to the softmax, the fewer samples are needed.

    A subclass implements `fit` and `given`. To resume training it also needs `state_dict` and
    `load_state_dict`.
    """

    @abstractmethod
    def fit(self, item_vectors: Tensor, counts: Tensor | None = None) -> Self:
        """Fit to item vectors (items, d) and their frequencies (items,). Returns itself."""

    def refresh(self, item_vectors: Tensor) -> Self:
        """Update for item vectors that changed since the last fit. Returns itself."""
        return self

    def state_dict(self) -> dict[str, Tensor]:
        """Return the fitted state as tensors, for `load_state_dict`.

        Example:
            >>> import torch, fewfold as ff
            >>> fitted = ff.Popularity().fit(torch.zeros(3, 2), torch.tensor([1., 0., 3.]))
            >>> other = ff.Popularity()
            >>> other.load_state_dict(fitted.state_dict())
            >>> other.log_prob(torch.zeros(1, 2), torch.tensor([[0, 1, 2]])).exp()
            tensor([[0.2500, 0.0000, 0.7500]])
        """
        raise _without_state(self)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore a state returned by `state_dict` of a proposal with the same options."""
        raise _without_state(self)

    @abstractmethod
    def given(self, queries: Tensor, *, shared: bool = False) -> Given:
        """Condition on queries (queries, d); shared: on their mixture."""

    def sample(
        self,
        queries: Tensor,
        n: int,
        *,
        shared: bool = False,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Sample `n` items per query: return ids and log q, (queries, n), or (n,) if shared.

        Samples are independent and with replacement. Shared samples come from the mixture of the
        distributions of all queries, with the log q of that mixture.
        """
        if not isinstance(n, int) or n < 1:
            raise ValueError(f"n, the number of samples, must be a positive int, got {n!r}")
        if shared and isinstance(queries, Tensor) and len(queries) == 0:
            raise ValueError("shared samples need at least one query, got 0")
        return self.given(queries, shared=shared).sample(n, generator=generator)

    def log_prob(self, queries: Tensor, ids: Tensor, *, shared: bool = False) -> Tensor:
        """Return log q of `ids` (queries, m), or of any shape if shared."""
        given = self.given(queries, shared=shared)
        dtype = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
        if dtype not in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
            raise TypeError(f"ids must be a tensor of whole numbers, got {dtype}")
        if not shared and (ids.dim() != 2 or len(ids) != len(queries)):
            raise ValueError(
                f"ids must be ({len(queries)}, m), a row for each query, got {tuple(ids.shape)}; "
                "to ask the same ids of every query, write ids.expand(len(queries), -1)"
            )
        return given.log_prob(ids.long())


def _without_state(proposal: Proposal) -> TypeError:
    name = type(proposal).__name__
    return TypeError(
        f"{name} cannot be saved; give it state_dict(), what it has fitted as a dictionary of "
        "tensors, and load_state_dict(state)"
    )


def check_rows(vectors: Tensor | ItemRows) -> ItemRows:
    """Return item vectors, perhaps of several processes, checked as by `check_items`."""
    rows = ItemRows.of(vectors)
    return rows.with_rows(check_items(rows.local))


def check_items(vectors: Tensor | ItemRows) -> Tensor:
    """Return item vectors as detached float32; raise ValueError naming the first bad row."""
    if isinstance(vectors, ItemRows):
        vectors = vectors.whole()
    if not isinstance(vectors, Tensor) or not vectors.is_floating_point() or vectors.dim() != 2:
        got = f"{tuple(vectors.shape)} {vectors.dtype}" if isinstance(vectors, Tensor) else vectors
        raise ValueError(f"item_vectors must be a floating-point tensor (items, d), got {got}")
    if vectors.numel() == 0:
        raise ValueError(f"item_vectors must not be empty, got shape {tuple(vectors.shape)}")
    vectors = vectors.detach().float()
    if not vectors.sum(1).isfinite().all() and not (fine := vectors.isfinite().all(1)).all():
        row = int(fine.logical_not().nonzero()[0])
        raise ValueError(f"item_vectors must be finite; row {row} is not; remove or replace it")
    return vectors


def check_counts(counts: Tensor, items: int, name: str = "counts") -> Tensor:
    """Return counts as float64; raise unless one per item, non-negative and not all zero."""
    if not isinstance(counts, Tensor) or counts.shape != (items,):
        got = tuple(counts.shape) if isinstance(counts, Tensor) else type(counts).__name__
        raise ValueError(f"{name} must be a tensor with one number per item, ({items},), got {got}")
    counts = counts.detach().double()
    bad = (counts < 0) | ~counts.isfinite()
    if bad.any():
        row = int(bad.nonzero()[0])
        raise ValueError(
            f"{name} must be finite and not negative; {name}[{row}] is {counts[row].item():g}"
        )
    if not (counts > 0).any():
        raise ValueError(f"{name} must not all be zero: nothing could be sampled")
    return counts


def check_queries(queries: Tensor, dim: int) -> Tensor:
    """Return queries (queries, dim) as detached float32; raise for another shape."""
    if not isinstance(queries, Tensor) or queries.dim() != 2 or queries.shape[1] != dim:
        got = tuple(queries.shape) if isinstance(queries, Tensor) else type(queries).__name__
        raise ValueError(f"queries must be a tensor (queries, {dim}), like the items, got {got}")
    return queries.detach().float()


def check_ids(ids: Tensor, items: int, subject: str = "ids must be", hint: str = "") -> None:
    """Raise IndexError unless all ids are in range; the message begins with `subject`."""
    if ids.numel() == 0:
        return
    low, high = torch.aminmax(ids)
    if low < 0 or high >= items:
        flat = ids.flatten()
        at = int(((flat < 0) | (flat >= items)).nonzero()[0])
        raise IndexError(
            f"{subject} between 0 and {items - 1}, got {flat[at].item()} at position {at}{hint}"
        )


def stored(state: Mapping[str, Tensor], name: str, owner: Proposal) -> Tensor:
    """Return a tensor of a saved state; raise ValueError if it is missing."""
    value = state.get(name)
    if not isinstance(value, Tensor):
        got = "nothing" if value is None else type(value).__name__
        raise ValueError(
            f"the state of {type(owner).__name__} must hold a tensor {name!r}, got {got}"
        )
    return value


def fresh_seed(generator: torch.Generator | None) -> int:
    """Draw a seed for the kernels from torch's generator, so that `manual_seed` controls both."""
    return int(randint(2**63 - 1, (), torch.device("cpu"), generator=generator))
