"""Multi-head attention in which every head learns how sparse it is."""

from torch import Tensor, nn

from fewfold._check import fits, fraction, whole_number
from fewfold.attention.association import check_vectors
from fewfold.attention.held import Held
from fewfold.attention.sparse_attention import sparse_attention
from fewfold.maps.modules import AdaptiveEntmax
from fewfold.maps.omega import Omega, Tsallis

__all__ = ["MultiheadAttention"]


class MultiheadAttention(nn.Module):
    """Multi-head attention whose heads learn an alpha each, between softmax and sparsemax.

    Args:
        dim: of the vectors.
        heads: how many; must divide `dim`.
        omega: a fixed map instead, such as `Gini()`; or `AdaptiveEntmax(heads, low=, high=)`, for
            another range of alpha.
        key_heads: fewer heads of keys and values, each for a group of queries.
        dropout: share of the weights dropped in training.
        bias: of the projections.

    Example:
        >>> import torch, fewfold as ff
        >>> attention = ff.MultiheadAttention(16, heads=4)
        >>> attention(torch.randn(2, 5, 16), is_causal=True).shape
        torch.Size([2, 5, 16])
        >>> attention.alpha.tolist()
        [1.5, 1.5, 1.5, 1.5]

    Reference: Correia, Niculae and Martins, "Adaptively sparse transformers", 2019.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        omega: Omega | AdaptiveEntmax | None = None,
        *,
        key_heads: int | None = None,
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.dim, self.heads = whole_number(dim, "dim"), whole_number(heads, "heads")
        if dim % heads:
            raise ValueError(f"heads must divide dim={dim}, got {heads}")
        self.key_heads = heads if key_heads is None else whole_number(key_heads, "key_heads")
        if heads % self.key_heads:
            raise ValueError(f"key_heads must divide heads={heads}, got {self.key_heads}")
        self.dropout = fraction(dropout, "dropout")
        omega = AdaptiveEntmax(heads) if omega is None else omega
        if isinstance(omega, AdaptiveEntmax) and not fits(omega.raw.shape, (heads, 1, 1)):
            raise ValueError(
                f"alpha must be one, or one for each head: write AdaptiveEntmax({heads}), got a "
                f"shape of {tuple(omega.raw.shape)}"
            )
        self.omega = omega if isinstance(omega, AdaptiveEntmax) else Held(omega)
        width = dim // heads
        self.query = nn.Linear(dim, dim, bias=bias)
        self.key = nn.Linear(dim, width * self.key_heads, bias=bias)
        self.value = nn.Linear(dim, width * self.key_heads, bias=bias)
        self.out = nn.Linear(dim, dim, bias=bias)

    @property
    def alpha(self) -> Tensor | None:
        """(heads,) the alpha of each head, where they learn it."""
        return self.omega.alpha.flatten() if isinstance(self.omega, AdaptiveEntmax) else None

    def forward(
        self,
        query: Tensor,
        memory: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """`(..., m, dim)`; without a memory, self-attention.

        Args:
            query: `(..., m, dim)`.
            memory: `(..., n, dim)`, what keys and values are made of.
            mask: boolean, True = take part, or numbers to add; broadcasts to `(..., heads, m, n)`.
            is_causal: query i sees what is up to i.
        """
        memory = query if memory is None else memory
        check_vectors(query, "query", self.dim)
        check_vectors(memory, "memory", self.dim)
        found = sparse_attention(
            self._split(self.query(query), self.heads),
            self._split(self.key(memory), self.key_heads),
            self._split(self.value(memory), self.key_heads),
            self.omega.value if isinstance(self.omega, Held) else Tsallis(self.omega.alpha),
            mask=mask,
            is_causal=is_causal,
            dropout_p=self.dropout if self.training else 0.0,
            enable_gqa=self.key_heads != self.heads,
        )
        joined: Tensor = self.out(found.transpose(-3, -2).flatten(-2))
        return joined

    @staticmethod
    def _split(values: Tensor, heads: int) -> Tensor:
        parts: Tensor = values.unflatten(-1, (heads, -1))
        return parts.transpose(-3, -2)
