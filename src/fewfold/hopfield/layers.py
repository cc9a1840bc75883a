"""Hopfield modules: lookup in a given memory, lookup in a learned memory, and pooling."""

import torch
from torch import Tensor, nn

from fewfold._check import whole_number
from fewfold.attention.shapes import check_vectors
from fewfold.hopfield.association import Association, Heads, check_pattern_mask
from fewfold.maps.entropies import Tsallis
from fewfold.maps.omega import Omega

__all__ = ["Hopfield", "HopfieldLayer", "HopfieldPooling"]


class Hopfield(Association):
    """Retrieval of given queries from a given memory, with learned projections.

    Args:
        dim: size of queries and patterns.
        omega: regulariser of the pattern weights; default: 1.5-entmax.
        beta: inverse temperature; default: `1 / sqrt(width)`. A tensor (heads,) gives one per head;
            an `nn.Parameter` is trained.
        heads: number of heads, or `Heads(count, size, dropout)`.
        steps: number of retrieval steps.
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
        """Return `(..., m, dim)`; the default memory is the queries themselves.

        Args:
            query: `(..., m, dim)`.
            memory: `(..., n, dim)`.
            mask: boolean, True = keep: `(..., n)` of the patterns, or `(..., m, n)`.
        """
        return self.associate(query, query if memory is None else memory, mask)


class HopfieldPooling(Association):
    """Pooling of a set of vectors by learned queries.

    Args:
        dim: size of the vectors.
        omega, beta, heads, steps: as in `Hopfield`.
        queries: number of output vectors.
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
        """Return `(..., queries, dim)`.

        Args:
            memory: `(..., n, dim)`.
            mask: boolean, True = keep: `(..., n)` of the vectors, or `(..., queries, n)`.
        """
        return self.associate(self.queries, memory, mask)


class HopfieldLayer(Association):
    """Retrieval of queries from a learned memory.

    Args:
        dim: size of the vectors.
        omega, beta, heads, steps: as in `Hopfield`.
        patterns: number of patterns in the memory.
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
        """Return `(..., m, dim)`.

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
