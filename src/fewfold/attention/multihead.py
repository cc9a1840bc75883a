"""Multi-head attention with a learned sparsity for each head."""

from typing import NoReturn

import torch
from torch import Tensor, nn

from fewfold._check import fits, fraction, whole_number
from fewfold.attention.length_scaling import QueryScaling
from fewfold.attention.masks import joint_mask
from fewfold.attention.shapes import check_vectors, joint_batch
from fewfold.attention.sparse_attention import sparse_attention, weighted_attention
from fewfold.maps.modules import AdaptiveEntmax
from fewfold.maps.omega import Omega
from fewfold.structured.omega_module import OmegaModule

__all__ = ["MultiheadAttention"]


class MultiheadAttention(nn.Module):
    """Multi-head attention with a learned entmax alpha per head, between softmax and sparsemax.

    Arguments have the names of `torch.nn.MultiheadAttention`. Three things differ: sequences are
    always `(..., positions, embed_dim)`, the batch first; a call returns the output alone, and
    `with_weights` the output and the weights; and the projections are the modules `query`, `key`,
    `value` and `out`. `kdim`, `vdim`, `add_bias_kv` and `add_zero_attn` are not supported.

    Args:
        embed_dim: size of the vectors.
        num_heads: number of heads; must divide `embed_dim`.
        omega: a fixed map instead of a learned alpha, such as `Gini()`; or
            `AdaptiveEntmax(num_heads, low=, high=)`, for another range of alpha.
        key_heads: number of key and value heads, each shared by a group of query heads; default:
            `num_heads`.
        length_scaling: `LengthScaling(num_heads)` or `AdaptiveLengthScaling(num_heads, embed_dim)`,
            by which scores grow with the number of keys that a query sees.
        dropout: probability that a weight is dropped during training.
        bias: whether the projections have a bias.
        batch_first: must be True; other layouts are not supported.
        device, dtype: of the parameters.

    Example:
        >>> import torch, fewfold as ff
        >>> attention = ff.MultiheadAttention(16, 4)
        >>> attention(torch.randn(2, 5, 16), is_causal=True).shape
        torch.Size([2, 5, 16])
        >>> attention.alpha.tolist()
        [1.5, 1.5, 1.5, 1.5]

    Reference: Correia, Niculae and Martins, "Adaptively sparse transformers", 2019.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        omega: Omega | AdaptiveEntmax | None = None,
        *,
        key_heads: int | None = None,
        length_scaling: QueryScaling | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        batch_first: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.embed_dim = whole_number(embed_dim, "embed_dim")
        self.num_heads = whole_number(num_heads, "num_heads")
        if embed_dim % num_heads:
            raise ValueError(f"num_heads must divide embed_dim={embed_dim}, got {num_heads}")
        self.key_heads = num_heads if key_heads is None else whole_number(key_heads, "key_heads")
        if num_heads % self.key_heads:
            raise ValueError(f"key_heads must divide num_heads={num_heads}, got {self.key_heads}")
        if not batch_first:
            raise ValueError(
                "batch_first must be True: sequences are (..., positions, embed_dim); write "
                "x.transpose(0, 1) before and after the call"
            )
        self.dropout = fraction(dropout, "dropout")
        if omega is None:
            omega = AdaptiveEntmax(num_heads, device=device, dtype=dtype)
        if isinstance(omega, AdaptiveEntmax) and not fits(omega.raw.shape, (num_heads, 1, 1)):
            raise ValueError(
                f"alpha must be one, or one for each head: write AdaptiveEntmax({num_heads}), got "
                f"a shape of {tuple(omega.raw.shape)}"
            )
        self.omega = omega if isinstance(omega, AdaptiveEntmax) else OmegaModule(omega)
        if length_scaling is not None and length_scaling.heads != num_heads:
            raise ValueError(
                f"length_scaling must have {num_heads} heads, one for each head of queries, got "
                f"{length_scaling.heads}"
            )
        self.length_scaling = length_scaling

        def linear(size: int) -> nn.Linear:
            return nn.Linear(embed_dim, size, bias=bias, device=device, dtype=dtype)

        inner = embed_dim // num_heads * self.key_heads
        self.query, self.key, self.value = linear(embed_dim), linear(inner), linear(inner)
        self.out = linear(embed_dim)

    @property
    def alpha(self) -> Tensor | None:
        """(num_heads,) alpha of each head, or None for a fixed omega."""
        return self.omega.alpha.flatten() if isinstance(self.omega, AdaptiveEntmax) else None

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        mask: Tensor | None = None,
        is_causal: bool = False,
        need_weights: bool | None = None,
    ) -> Tensor:
        """Return `(..., L, embed_dim)`.

        MIND THE POLARITY. `key_padding_mask` and `attn_mask` are arguments of
        `torch.nn.MultiheadAttention` and mean what they mean there: True = IGNORE. `mask` is that
        of fewfold: True = TAKE PART. Masks given together all apply.

        Args:
            query: `(..., L, embed_dim)`.
            key: `(..., S, embed_dim)`, projected to the keys; default: `query`.
            value: `(..., S, embed_dim)`, projected to the values; default: `key`.
            key_padding_mask: `(..., S)`, boolean, True = ignore, or numbers to add.
            attn_mask: boolean, True = ignore, or numbers to add to the scores: `(L, S)`,
                `(batch * num_heads, L, S)`, or with as many dimensions as the scores.
            mask: boolean, True = take part, or numbers to add to the scores; has all dimensions of
                the scores, `(..., num_heads, L, S)`, with sizes of 1 where it is shared.
            is_causal: query i attends to keys 0, ..., i only; combines with a mask.
            need_weights: not supported; call `with_weights` for the weights.
        """
        if need_weights is not None:
            _refuse_weights()
        masks = mask, attn_mask, key_padding_mask
        heads, joint = self._prepared(query, key, value, masks, is_causal)
        found = sparse_attention(
            *heads,
            self._map(),
            mask=joint,
            is_causal=is_causal,
            dropout_p=self._drop,
            enable_gqa=self.key_heads != self.num_heads,
        )
        return self._joined(found)

    def with_weights(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Return the output, and the weights `(..., num_heads, L, S)` before dropout.

        Arguments as in `forward`. The weights are differentiable and dense; `watch_attention`
        records only the nonzero ones. For the mean over heads, which torch returns, write
        `weights.mean(-3)`.
        """
        masks = mask, attn_mask, key_padding_mask
        heads, joint = self._prepared(query, key, value, masks, is_causal)
        found, weights = weighted_attention(
            *heads,
            self._map(),
            mask=joint,
            is_causal=is_causal,
            dropout_p=self._drop,
            enable_gqa=self.key_heads != self.num_heads,
        )
        return self._joined(found), weights

    def _prepared(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        masks: tuple[Tensor | None, Tensor | None, Tensor | None],
        is_causal: bool,
    ) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor | None]:
        """Return the projected queries, keys and values by head, and the combined mask."""
        key = query if key is None else key
        value = key if value is None else value
        for name, vectors in (("query", query), ("key", key), ("value", value)):
            check_vectors(vectors, name, self.embed_dim)
        batch = joint_batch(query, key)
        shape = torch.Size([*batch, self.num_heads, query.shape[-2], key.shape[-2]])
        by_head = self._split(self.query(query), self.num_heads)
        keys = self._split(self.key(key), self.key_heads)
        values = self._split(self.value(value), self.key_heads)
        joint = joint_mask(shape, *masks)
        if self.length_scaling is not None:
            by_head = self.length_scaling(
                by_head, keys, mask=joint, is_causal=is_causal, vectors=query
            )
        return (by_head, keys, values), joint

    def _map(self) -> Omega:
        return self.omega.value

    @property
    def _drop(self) -> float:
        return self.dropout if self.training else 0.0

    def _joined(self, found: Tensor) -> Tensor:
        joined: Tensor = self.out(found.transpose(-3, -2).flatten(-2))
        return joined

    @staticmethod
    def _split(values: Tensor, heads: int) -> Tensor:
        parts: Tensor = values.unflatten(-1, (heads, -1))
        return parts.transpose(-3, -2)


def _refuse_weights() -> NoReturn:
    raise TypeError(
        "a call returns one tensor, whatever need_weights says; write "
        "output, weights = attention.with_weights(query, key, value), or leave need_weights out"
    )
