"""Scores of attention that grow with the number of keys, by learned powers of its logarithm."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from fewfold._check import positive_number, whole_number
from fewfold.attention.shapes import check_vectors

__all__ = ["AdaptiveLengthScaling", "LengthScaling", "QueryScaling"]


class QueryScaling(nn.Module, ABC):
    """Base class of scalings `delta + beta (log n)^gamma`, which say what beta and gamma are."""

    def __init__(self, heads: int, delta: float) -> None:
        super().__init__()
        self.heads, self.delta = whole_number(heads, "heads"), float(delta)

    @abstractmethod
    def powers(self, vectors: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return beta and gamma, each `(heads, 1, 1)` or `(..., heads, L, 1)`."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        *,
        mask: Tensor | None = None,
        is_causal: bool = False,
        vectors: Tensor | None = None,
    ) -> Tensor:
        """Return the scaled queries, of the shape and dtype of `query`.

        Args:
            query: `(..., heads, L, d)`.
            key: `(..., heads, S, d)`; its length is used alone.
            mask: as in `sparse_attention`: boolean, True = take part, or numbers to add to the
                scores, among which -inf and the lowest number of its dtype hide a key.
            is_causal: query i sees keys 0, ..., i only.
            vectors: `(..., L, embed_dim)`, for `AdaptiveLengthScaling`.
        """
        if query.dim() < 3 or query.shape[-3] != self.heads:
            raise ValueError(f"query must be (..., {self.heads}, L, d), got {tuple(query.shape)}")
        count = _visible_keys(query.shape[-2], key.shape[-2], mask, is_causal, query.device)
        return query * self.factor(count, vectors).to(query.dtype)

    def factor(self, count: Tensor, vectors: Tensor | None = None) -> Tensor:
        """Return the factor for numbers of keys `(..., heads or 1, L or 1, 1)`."""
        beta, gamma = self.powers(vectors)
        length = count.to(torch.promote_types(beta.dtype, torch.float32)).clamp(min=2).log()
        return self.delta + beta * length**gamma

    def extra_repr(self) -> str:
        return f"heads={self.heads}, delta={self.delta:g}"


class LengthScaling(QueryScaling):
    """Scaling of queries, and so of scores, with the number of keys that each of them sees.

    A query of head h that sees n keys is multiplied by

        delta + beta_h (log n)^gamma_h

    with learned `beta` and `gamma`, so that weights need not spread out over more keys as sequences
    grow. Attention on scaled queries with `Tsallis(alpha)` is ASEntmax; with `Shannon()`, delta = 0
    and gamma = 1 it is scalable softmax. At beta = 0 and delta = 1, where training starts by
    default, it is unscaled attention. For n < 2 the factor is that of n = 2, as a single key has
    a weight of 1 at any scale. Numbers that a mask adds to the scores are not scaled.

    Args:
        heads: number of query heads.
        delta: the constant part, not learned.
        beta: initial factor of each head. The paper draws it uniformly from [0.1, 1].
        gamma: initial exponent of each head. The paper draws it from N(0, 0.01).
        device, dtype: of the parameters.

    Example:
        >>> import torch, fewfold as ff
        >>> scaling = ff.attention.LengthScaling(4, beta=1.0, gamma=0.5)
        >>> query, key, value = torch.randn(3, 2, 4, 10, 8)
        >>> ff.sparse_attention(scaling(query, key), key, value).shape
        torch.Size([2, 4, 10, 8])
        >>> attention = ff.MultiheadAttention(8, 4, length_scaling=scaling)
        >>> attention(torch.randn(2, 10, 8), is_causal=True).shape
        torch.Size([2, 10, 8])

    Reference: Vasylenko, Pitorro, Martins and Treviso, "Long-context generalization with sparse
    attention", 2026.
    """

    def __init__(
        self,
        heads: int,
        *,
        delta: float = 1.0,
        beta: float = 0.0,
        gamma: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(heads, delta)
        self.beta = nn.Parameter(torch.full((heads,), float(beta), device=device, dtype=dtype))
        self.gamma = nn.Parameter(torch.full((heads,), float(gamma), device=device, dtype=dtype))

    def powers(self, vectors: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.beta.view(-1, 1, 1), self.gamma.view(-1, 1, 1)


class AdaptiveLengthScaling(QueryScaling):
    """Scaling of queries with the number of keys, with powers that depend on each position.

    As `LengthScaling`, with `beta = softplus(<w_beta, x>)` and `gamma = limit tanh(<w_gamma, x>)`
    of the vector x at the position of the query, and learned `w_beta` and `w_gamma` for each head.
    The paper trains language models with it. beta is always positive.

    Args:
        heads: number of query heads.
        embed_dim: size of the vectors.
        delta: the constant part, not learned.
        limit: largest absolute value of gamma.
        device, dtype: of the parameters.

    Example:
        >>> import torch, fewfold as ff
        >>> scaling = ff.attention.AdaptiveLengthScaling(4, 8)
        >>> attention = ff.MultiheadAttention(8, 4, length_scaling=scaling)
        >>> attention(torch.randn(2, 10, 8), is_causal=True).shape
        torch.Size([2, 10, 8])

    Reference: Vasylenko, Pitorro, Martins and Treviso, "Long-context generalization with sparse
    attention", 2026.
    """

    def __init__(
        self,
        heads: int,
        embed_dim: int,
        *,
        delta: float = 1.0,
        limit: float = 2.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(heads, delta)
        self.embed_dim = whole_number(embed_dim, "embed_dim")
        self.limit = positive_number(limit, "limit")
        self.to_beta, self.to_gamma = (
            nn.Linear(embed_dim, heads, bias=False, device=device, dtype=dtype) for _ in range(2)
        )

    def powers(self, vectors: Tensor | None) -> tuple[Tensor, Tensor]:
        if vectors is None:
            raise TypeError(
                "AdaptiveLengthScaling needs the vectors of the queries; write "
                "scaling(query, key, vectors=x), or use LengthScaling"
            )
        check_vectors(vectors, "vectors", self.embed_dim)
        beta = nn.functional.softplus(self.to_beta(vectors))
        gamma = self.limit * torch.tanh(self.to_gamma(vectors))
        return beta.transpose(-2, -1).unsqueeze(-1), gamma.transpose(-2, -1).unsqueeze(-1)


def _visible_keys(
    queries: int, keys: int, mask: Tensor | None, is_causal: bool, device: torch.device
) -> Tensor:
    """Return how many keys each query sees, `(..., L or 1, 1)`, broadcastable with the scores."""
    if mask is None:
        if not is_causal:
            return torch.full((1, 1), keys, device=device)
        return torch.arange(1, queries + 1, device=device).clamp(max=keys).unsqueeze(-1)
    keep = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min
    keep = keep.expand(*keep.shape[:-1], keys)
    if not is_causal or keys == 0:
        return keep.sum(-1, keepdim=True)
    if keep.dim() == 1 or keep.shape[-2] == 1:  # one row of keys for all queries
        last = torch.arange(queries, device=device).clamp(max=keys - 1)
        return keep.cumsum(-1).index_select(-1, last).reshape(*keep.shape[:-2], queries, 1)
    return keep.tril().sum(-1, keepdim=True)
