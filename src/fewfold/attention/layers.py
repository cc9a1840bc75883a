"""Associative memories as modules: of what is given, of what is learned, and pooling."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fewfold._check import fraction, positive_number, whole_number
from fewfold.attention.energies import check_rowwise
from fewfold.attention.held import Held
from fewfold.attention.sparse_attention import sparse_attention
from fewfold.maps.omega import Omega, Tsallis

__all__ = ["Heads", "Hopfield", "HopfieldLayer", "HopfieldPooling"]


@dataclass(frozen=True)
class Heads:
    """How many associations are made side by side.

    Args:
        count: of heads.
        size: of the vectors compared in a head; `dim / count` unless given.
        dropout: share of the weights of patterns that is dropped in training.
    """

    count: int = 1
    size: int | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        whole_number(self.count, "count")
        if self.size is not None:
            whole_number(self.size, "size")
        fraction(self.dropout, "dropout")

    def width(self, dim: int) -> int:
        """Of a head, in a module for vectors of this size."""
        if self.size is None and dim % self.count:
            raise ValueError(
                f"dim={dim} cannot be shared out among {self.count} heads; write "
                f"Heads({self.count}, size={dim // self.count + 1})"
            )
        return dim // self.count if self.size is None else self.size


class _Association(nn.Module):
    """Projections of queries and patterns, and the steps between them."""

    def __init__(
        self, dim: int, omega: Omega, beta: float | Tensor | None, heads: int | Heads, steps: int
    ) -> None:
        super().__init__()
        check_rowwise(omega)
        self.dim = whole_number(dim, "dim")
        self.heads = heads if isinstance(heads, Heads) else Heads(heads)
        self.steps = whole_number(steps, "steps")
        self.omega = Held(omega)
        width = self.heads.width(dim)
        self.beta: float | Tensor
        beta = _checked_beta(1 / math.sqrt(width) if beta is None else beta, self.heads.count)
        if isinstance(beta, Tensor) and not isinstance(beta, nn.Parameter):
            self.register_buffer("beta", beta)
        else:
            self.beta = beta
        inner = width * self.heads.count
        self.state_norm, self.stored_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.value_norm = nn.LayerNorm(dim)
        self.query = nn.Linear(dim, inner)
        self.key = nn.Linear(dim, inner)
        self.value = nn.Linear(dim, inner)
        self.out = nn.Linear(inner, dim)

    def associate(self, state: Tensor, stored: Tensor, mask: Tensor | None) -> Tensor:
        """`(..., m, dim)` queries and `(..., n, dim)` patterns to `(..., m, dim)`."""
        for name, tensor in (("query", state), ("memory", stored)):
            if not isinstance(tensor, Tensor) or tensor.dim() < 2 or tensor.shape[-1] != self.dim:
                came = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
                raise ValueError(f"{name} must be (..., count, {self.dim}), got {came}")
        query = self._split(self.query(self.state_norm(state)))
        key = self._split(self.key(self.stored_norm(stored)))
        value = self._split(self.value(self.value_norm(stored)))
        mask = None if mask is None else _mask_of(mask, state, stored)
        scaled = key * self.beta.view(-1, 1, 1) if isinstance(self.beta, Tensor) else key
        beta = 1.0 if isinstance(self.beta, Tensor) else self.beta
        omega = self.omega.value
        for _ in range(self.steps - 1):
            query = sparse_attention(query, scaled, key, omega, mask=mask, scale=beta)
        drop = self.heads.dropout if self.training else 0.0
        found = sparse_attention(query, scaled, value, omega, mask=mask, scale=beta, dropout_p=drop)
        joined: Tensor = self.out(found.transpose(-3, -2).flatten(-2))
        return joined

    def _split(self, values: Tensor) -> Tensor:
        """`(..., m, heads * width)` as `(..., heads, m, width)`."""
        parts: Tensor = values.unflatten(-1, (self.heads.count, -1))
        return parts.transpose(-3, -2)

    def extra_repr(self) -> str:
        beta = "learnt" if isinstance(self.beta, nn.Parameter) else self.beta
        return f"dim={self.dim}, beta={beta}, {self.heads}, steps={self.steps}"


class Hopfield(_Association):
    """Queries that are led to what a memory holds, both given.

    Args:
        dim: of queries and patterns.
        omega: how patterns are mixed; 1.5-entmax unless given.
        beta: how sharp; `1 / sqrt(width)` unless given. A tensor (heads,) may learn.
        heads: how many, or `Heads(count, size, dropout)`.
        steps: of retrieval.

    Example:
        >>> import torch, fewfold as ff
        >>> layer = ff.Hopfield(8, ff.Gini(), heads=2)
        >>> layer(torch.randn(3, 5, 8), torch.randn(3, 7, 8)).shape
        torch.Size([3, 5, 8])

    Reference: Ramsauer et al., "Hopfield networks is all you need", 2021; Santos et al.,
    "Sparse and structured Hopfield networks", 2024.
    """

    def __init__(
        self,
        dim: int,
        omega: Omega = Tsallis(1.5),  # noqa: B008  (an immutable value)
        beta: float | Tensor | None = None,
        heads: int | Heads = 1,
        steps: int = 1,
    ) -> None:
        super().__init__(dim, omega, beta, heads, steps)

    def forward(
        self, query: Tensor, memory: Tensor | None = None, *, mask: Tensor | None = None
    ) -> Tensor:
        """`(..., m, dim)`; without a memory queries are looked up among themselves.

        Args:
            query: `(..., m, dim)`.
            memory: `(..., n, dim)`.
            mask: boolean, True = keep: `(..., n)` of the patterns, or `(..., m, n)`.
        """
        return self.associate(query, query if memory is None else memory, mask)


class HopfieldPooling(_Association):
    """A set of vectors as one, or a few: learned queries look them up.

    Args:
        dim: of the vectors.
        omega, beta, heads, steps: as in `Hopfield`.
        queries: how many vectors come out.

    Example:
        >>> import torch, fewfold as ff
        >>> pool = ff.HopfieldPooling(8, ff.Subset(2))
        >>> pool(torch.randn(3, 7, 8)).shape
        torch.Size([3, 1, 8])
    """

    def __init__(
        self,
        dim: int,
        omega: Omega = Tsallis(1.5),  # noqa: B008  (an immutable value)
        beta: float | Tensor | None = None,
        heads: int | Heads = 1,
        steps: int = 1,
        queries: int = 1,
    ) -> None:
        super().__init__(dim, omega, beta, heads, steps)
        self.queries = nn.Parameter(torch.randn(whole_number(queries, "queries"), dim))

    def forward(self, memory: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """`(..., queries, dim)` of `(..., n, dim)`; `mask` `(..., n)`, True = keep."""
        return self.associate(
            self.queries.expand(*memory.shape[:-2], *self.queries.shape), memory, mask
        )


class HopfieldLayer(_Association):
    """Vectors looked up in a memory that is learned.

    Args:
        dim: of the vectors.
        omega, beta, heads, steps: as in `Hopfield`.
        patterns: how many the memory holds.

    Example:
        >>> import torch, fewfold as ff
        >>> layer = ff.HopfieldLayer(8, patterns=16)
        >>> layer(torch.randn(3, 5, 8)).shape
        torch.Size([3, 5, 8])
    """

    def __init__(
        self,
        dim: int,
        omega: Omega = Tsallis(1.5),  # noqa: B008  (an immutable value)
        beta: float | Tensor | None = None,
        heads: int | Heads = 1,
        steps: int = 1,
        patterns: int = 64,
    ) -> None:
        super().__init__(dim, omega, beta, heads, steps)
        self.patterns = nn.Parameter(torch.randn(whole_number(patterns, "patterns"), dim))

    def forward(self, query: Tensor) -> Tensor:
        """`(..., m, dim)` of `(..., m, dim)`."""
        return self.associate(query, self.patterns.expand(*query.shape[:-2], -1, -1), None)


def _checked_beta(beta: float | Tensor, heads: int) -> float | Tensor:
    if not isinstance(beta, Tensor):
        return positive_number(beta, "beta")
    if beta.shape != (heads,):
        raise ValueError(f"beta must be a number or a tensor ({heads},), got {tuple(beta.shape)}")
    if not bool((beta > 0).all()):
        raise ValueError(f"beta must be greater than 0, got {beta.min().item()}")
    return beta


def _mask_of(mask: Tensor, state: Tensor, stored: Tensor) -> Tensor:
    """The mask of patterns, or of queries and patterns, for every head."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        came = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"mask must be a boolean tensor (True = keep), got {came}")
    if mask.shape == stored.shape[:-1]:
        return mask.unsqueeze(-2).unsqueeze(-3)
    if mask.shape == (*state.shape[:-1], stored.shape[-2]):
        return mask.unsqueeze(-3)
    raise ValueError(
        f"mask must be {tuple(stored.shape[:-1])}, of the patterns, or "
        f"{(*state.shape[:-1], stored.shape[-2])}, got {tuple(mask.shape)}"
    )
