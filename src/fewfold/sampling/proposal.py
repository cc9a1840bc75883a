"""What every proposal does: fit to item vectors, then draw items for queries and say how likely."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor

__all__ = [
    *("Given", "Proposal", "check_counts", "check_ids", "check_items", "check_queries"),
    *("fresh_seed", "stored"),
]


class Given(ABC):
    """A proposal given its queries: one distribution per query, or one for all if shared."""

    shared: bool

    @abstractmethod
    def sample(self, n: int, *, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """`n` draws with replacement: ids and their log q, (queries, n), or (n,) if shared."""

    @abstractmethod
    def log_prob(self, ids: Tensor, row: Tensor | None = None) -> Tensor:
        """log q of `ids`.

        Per query: `ids` is (queries, m), or, with `row` saying whose each is, flat. Shared: any
        shape. An item that is never drawn has -inf.
        """


class Proposal(ABC):
    """A distribution over items given a query that costs little to draw from.

    A softmax over millions of items is trained on a few of them, drawn from q(item | query) and
    corrected by log q; the closer q is to the softmax itself, the fewer are needed.

    Whoever writes one of their own gives `fit` and `given`; the rest follows. Training that is to
    be resumed also needs `state_dict` and `load_state_dict`.
    """

    @abstractmethod
    def fit(self, item_vectors: Tensor, counts: Tensor | None = None) -> Self:
        """Prepare for items with these vectors (items, d), seen `counts` times. Returns itself."""

    def refresh(self, item_vectors: Tensor) -> Self:
        """Follow items that have moved since the last fit, starting from it. Returns itself."""
        return self

    def state_dict(self) -> dict[str, Tensor]:
        """What has been fitted, as tensors: what `load_state_dict` needs to draw the same again.

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
        """Become what the proposal was whose `state_dict` this is; its options are the same."""
        raise _without_state(self)

    @abstractmethod
    def given(self, queries: Tensor, *, shared: bool = False) -> Given:
        """The distribution for each of the queries (queries, d); shared: their mixture."""

    def sample(
        self,
        queries: Tensor,
        n: int,
        *,
        shared: bool = False,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        """`n` items per query and their log q, both (queries, n); shared by all queries: (n,).

        Draws are independent and with replacement. Shared draws come from the mixture of all the
        queries' distributions, with the exact log q of that mixture.
        """
        if not isinstance(n, int) or n < 1:
            raise ValueError(f"n, the number of draws, must be a positive int, got {n!r}")
        if shared and isinstance(queries, Tensor) and len(queries) == 0:
            raise ValueError("shared draws come from the mixture over the queries, of which 0 came")
        return self.given(queries, shared=shared).sample(n, generator=generator)

    def log_prob(self, queries: Tensor, ids: Tensor, *, shared: bool = False) -> Tensor:
        """log q of `ids` (queries, m), or of any shape if shared."""
        return self.given(queries, shared=shared).log_prob(ids)


def _without_state(proposal: Proposal) -> TypeError:
    name = type(proposal).__name__
    return TypeError(
        f"{name} cannot be saved; give it state_dict(), what it has fitted as a dictionary of "
        "tensors, and load_state_dict(state)"
    )


def check_items(vectors: Tensor) -> Tensor:
    """Item vectors as detached float32, or an error that says which row is bad."""
    if not isinstance(vectors, Tensor) or not vectors.is_floating_point() or vectors.dim() != 2:
        came = f"{tuple(vectors.shape)} {vectors.dtype}" if isinstance(vectors, Tensor) else vectors
        raise ValueError(f"item_vectors must be a floating-point tensor (items, d), got {came}")
    if vectors.numel() == 0:
        raise ValueError(f"item_vectors must hold something, got shape {tuple(vectors.shape)}")
    vectors = vectors.detach().float()
    if not vectors.sum(1).isfinite().all() and not (fine := vectors.isfinite().all(1)).all():
        row = int(fine.logical_not().nonzero()[0])
        raise ValueError(f"item_vectors must be finite; row {row} is not, drop it or mend it")
    return vectors


def check_counts(counts: Tensor, items: int, name: str = "counts") -> Tensor:
    """Counts as float64: one per item, none negative, not all zero."""
    if not isinstance(counts, Tensor) or counts.shape != (items,):
        came = tuple(counts.shape) if isinstance(counts, Tensor) else type(counts).__name__
        raise ValueError(
            f"{name} must be a tensor with one number per item, ({items},), got {came}"
        )
    counts = counts.detach().double()
    bad = (counts < 0) | ~counts.isfinite()
    if bad.any():
        row = int(bad.nonzero()[0])
        raise ValueError(
            f"{name} must be finite and not negative; {name}[{row}] is {counts[row].item():g}"
        )
    if not (counts > 0).any():
        raise ValueError(f"{name} must not all be zero: nothing could ever be drawn")
    return counts


def check_queries(queries: Tensor, dim: int) -> Tensor:
    """Queries as detached float32 (queries, dim)."""
    if not isinstance(queries, Tensor) or queries.dim() != 2 or queries.shape[1] != dim:
        came = tuple(queries.shape) if isinstance(queries, Tensor) else type(queries).__name__
        raise ValueError(f"queries must be a tensor (queries, {dim}), like the items, got {came}")
    return queries.detach().float()


def check_ids(ids: Tensor, items: int, subject: str = "ids must be", hint: str = "") -> None:
    """Raise IndexError unless all ids name one of the items; the message begins with `subject`."""
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
    """A tensor of a saved state, or an error that says which proposal misses it."""
    found = state.get(name)
    if not isinstance(found, Tensor):
        came = "nothing" if found is None else type(found).__name__
        raise ValueError(
            f"the state of {type(owner).__name__} must hold a tensor {name!r}, got {came}"
        )
    return found


def fresh_seed(generator: torch.Generator | None) -> int:
    """A seed for the kernels, taken from torch's generator, so that one seed governs everything."""
    return int(torch.randint(2**63 - 1, (), generator=generator))
