"""Associative memories as modules: of what is given, of what is learned, and pooling."""

import torch
from torch import Tensor, nn

from fewfold._check import whole_number
from fewfold.attention.shapes import check_vectors
from fewfold.hopfield.association import Association, Heads, check_pattern_mask
from fewfold.maps.entropies import Tsallis
from fewfold.maps.omega import Omega

__all__ = ["Hopfield", "HopfieldLayer", "HopfieldPooling"]


class Hopfield(Association):
    """Queries that are led to what a memory holds, both given.

    Args:
        dim: of queries and patterns.
        omega: how patterns are mixed; 1.5-entmax unless given.
        beta: how sharp; `1 / sqrt(width)` unless given. A tensor (heads,) is one for each head,
            and an `nn.Parameter` learns.
        heads: how many, or `Heads(count, size, dropout)`.
        steps: of retrieval.
        device, dtype: of the parameters.

    Example:
        >>> import torch, fewfold as ff
        >>> layer = ff.Hopfield(8, ff.Gini(), heads=2)
        >>> layer(torch.randn(3, 5, 8), torch.randn(3, 7, 8)).shape
        torch.Size([3, 5, 8])

    Reference: Ramsauer et al., "Hopfield networks is all you need", 2021; Santos et al.,
    "Sparse and structured Hopfield networks", 2024.
    """

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


class HopfieldPooling(Association):
    """A set of vectors as one, or a few: learned queries look them up.

    Args:
        dim: of the vectors.
        omega, beta, heads, steps: as in `Hopfield`.
        queries: how many vectors come out.
        device, dtype: of the parameters.

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
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dim, omega, beta, heads, steps, device=device, dtype=dtype)
        whole_number(queries, "queries")
        self.queries = nn.Parameter(torch.randn(queries, dim, device=device, dtype=dtype))

    def forward(self, memory: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """`(..., queries, dim)` of `(..., n, dim)`.

        Args:
            memory: `(..., n, dim)`.
            mask: boolean, True = keep: `(..., n)` of the vectors, or `(..., queries, n)`.
        """
        return self.associate(self.queries, memory, mask)


class HopfieldLayer(Association):
    """Vectors looked up in a memory that is learned.

    Args:
        dim: of the vectors.
        omega, beta, heads, steps: as in `Hopfield`.
        patterns: how many the memory holds.
        device, dtype: of the parameters.

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
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dim, omega, beta, heads, steps, device=device, dtype=dtype)
        whole_number(patterns, "patterns")
        self.patterns = nn.Parameter(torch.randn(patterns, dim, device=device, dtype=dtype))

    def forward(self, query: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """`(..., m, dim)` of `(..., m, dim)`.

        Args:
            query: `(..., m, dim)`.
            mask: boolean, True = keep: `(patterns,)`, or `(..., m, patterns)`.
        """
        check_vectors(query, "query", self.dim)
        if mask is not None:
            check_pattern_mask(mask, query, self.patterns)
            mask = mask if mask.dim() == 1 else mask.flatten(0, -2)
        found = self.associate(query.reshape(-1, self.dim), self.patterns, mask)
        return found.view(query.shape)
