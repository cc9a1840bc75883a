"""Scaled dot-product attention with exactly sparse weights."""

import torch
from torch import Tensor

from fewfold._check import non_negative_number
from fewfold._random import rand
from fewfold._torch import untransformed
from fewfold.attention.chunked import chunked
from fewfold.attention.chunks import Plan, parameter_by_head
from fewfold.attention.shapes import Layout
from fewfold.attention.triton_attention import fused_attention
from fewfold.attention.watch import is_watched, note
from fewfold.maps.entropies import Tsallis
from fewfold.maps.map_support import map_support
from fewfold.maps.omega import Omega, check_omega
from fewfold.structured.omega_tensors import tensors
from fewfold.support import Support

__all__ = ["attention_support", "sparse_attention", "weighted_attention"]


def sparse_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    omega: Omega = Tsallis(1.5),  # noqa: B008  (an immutable value)
    *,
    attn_mask: Tensor | None = None,
    mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
    enable_gqa: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Compute `omega.argmax(query key^T scale) value`, with the conventions of torch's attention.

    A query whose keys are all masked gives zeros. Long sequences are processed in chunks of
    queries, so that the full matrix of scores is never stored; only the support of each query is
    saved, and the backward pass touches no other keys. The full matrix is computed under transforms
    and compilers of torch, for masks that require a gradient, and for `Fused`, `Oscar` and
    structures whose scores involve several keys.

    Args:
        query: `(..., heads, L, d)`.
        key: `(..., heads, S, d)`.
        value: `(..., heads, S, dv)`.
        omega: regulariser of the map from scores to weights: `Gini()` is sparsemax,
            `Tsallis(alpha)` is entmax, also with a learned alpha of shape (heads, 1, 1);
            `Subset(k)` selects k keys, or all if fewer are visible.
        attn_mask: boolean, True = take part, or numbers to add to the scores; broadcasts to
            `(..., heads, L, S)`. As in `torch.nn.functional.scaled_dot_product_attention`, and
            unlike in `torch.nn.MultiheadAttention`, where True is to ignore.
        mask: alias of `attn_mask`, the name of masks elsewhere in fewfold; give one of them.
        is_causal: query i attends to keys 0, ..., i only; combines with a mask.
        scale: factor of the scores; default: `1 / sqrt(d)`.
        dropout_p: probability that a weight is dropped; the others are scaled by 1 / (1 - p).
        enable_gqa: allow fewer heads of key and value, each shared by a group of query heads.
        generator: random number generator of the dropout.

    Returns:
        `(..., heads, L, dv)`.

    Example:
        >>> import torch, fewfold as ff
        >>> query = torch.tensor([[[3.0, 0.0], [0.0, 1.0]]])
        >>> key = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]])
        >>> value = torch.tensor([[[1.0], [2.0], [3.0]]])
        >>> ff.sparse_attention(query, key, value, ff.Gini())
        tensor([[[1.0000],
                 [2.3232]]])

    Reference: Correia, Niculae and Martins, "Adaptively sparse transformers", 2019.
    """
    mask = _one_mask(mask, attn_mask)
    layout = Layout.of(query, key, value, mask, is_causal, scale, enable_gqa)
    omega = _checked(omega, layout, dropout_p)
    if is_watched() and untransformed(query, key):
        with torch.no_grad():
            note(attention_support_of(query, key, omega, layout), layout)
    if not dropout_p and (fused := fused_attention(query, key, value, omega, layout)) is not None:
        return fused
    if not _use_chunks(omega, layout, query, key, value):
        probs = omega.argmax(layout.scores(query, key))
        return _apply_dropout(probs, dropout_p, generator) @ layout.shared(value)
    return chunked(query, key, value, omega, layout, dropout_p, generator)


def weighted_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    omega: Omega,
    *,
    mask: Tensor | None,
    is_causal: bool,
    dropout_p: float,
    enable_gqa: bool,
) -> tuple[Tensor, Tensor]:
    """Return the output of `sparse_attention`, and weights `(..., heads, L, S)` before dropout."""
    layout = Layout.of(query, key, value, mask, is_causal, None, enable_gqa)
    omega = _checked(omega, layout, dropout_p)
    probs = omega.argmax(layout.scores(query, key))
    if is_watched() and untransformed(query, key):
        note(Support.from_dense(probs.detach()), layout)
    return _apply_dropout(probs, dropout_p, None) @ layout.shared(value), probs


def attention_support(
    query: Tensor,
    key: Tensor,
    omega: Omega = Tsallis(1.5),  # noqa: B008  (an immutable value)
    *,
    attn_mask: Tensor | None = None,
    mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Support:
    """Return the keys that each query of `sparse_attention` attends to, and their weights.

    Returns:
        Support whose atoms are positions of keys and whose rows are the queries, `(..., heads, L)`
        flattened.

    Example:
        >>> import torch, fewfold as ff
        >>> query = torch.tensor([[[3.0, 0.0], [0.0, 1.0]]])
        >>> key = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]])
        >>> support = ff.attention.attention_support(query, key, ff.Gini())
        >>> support.row.tolist(), support.atoms.tolist()
        ([0, 1, 1], [0, 1, 2])
    """
    mask = _one_mask(mask, attn_mask)
    layout = Layout.of(query, key, key, mask, is_causal, scale, enable_gqa)
    check_omega(omega)
    return attention_support_of(query, key, omega.for_size(layout.keys), layout)


def attention_support_of(query: Tensor, key: Tensor, omega: Omega, layout: Layout) -> Support:
    """Return the support of each query, for validated arguments."""
    if not _use_chunks(omega, layout, query, key):
        return map_support(layout.scores(query, key), omega)
    query, key, _ = layout.by_head(query, key, key)
    plan = Plan(layout, omega)
    parameters = [parameter_by_head(learnt, layout) for learnt in tensors(omega).values()]
    number = torch.arange(layout.heads * layout.queries).view(layout.heads, layout.queries)
    weights, atoms, row = [], [], []
    for chunk in plan.chunks():
        scores = plan.scores(query[chunk.heads, chunk.rows], plan.visible(key, chunk), chunk)
        found = map_support(scores, plan.chunk_omega(chunk, parameters))
        weights.append(found.weights)
        atoms.append(found.atoms)
        row.append(number[chunk.heads, chunk.rows].reshape(-1).to(found.row.device)[found.row])
    return Support(torch.cat(weights), torch.cat(atoms), torch.cat(row), number.numel())


def _checked(omega: Omega, layout: Layout, dropout_p: float) -> Omega:
    """Validate omega and dropout_p; return omega adapted to the number of keys."""
    check_omega(omega)
    if non_negative_number(dropout_p, "dropout_p") > 1:
        raise ValueError(f"dropout_p must be between 0 and 1, got {dropout_p}")
    return omega.for_size(layout.keys)


def _one_mask(mask: Tensor | None, attn_mask: Tensor | None) -> Tensor | None:
    """Return the mask given as `mask` or as `attn_mask`."""
    if mask is not None and attn_mask is not None:
        raise ValueError("mask and attn_mask are two names of one argument; give one of them")
    return attn_mask if mask is None else mask


def _use_chunks(omega: Omega, layout: Layout, *given: Tensor) -> bool:
    """Whether to use chunks: many scores, and no transform or gradient that needs plain torch."""
    mask = layout.mask
    return (
        untransformed(*given)  # first, because a trace must not read sizes
        and not layout.small
        and omega.chunkable
        and not (mask is not None and mask.requires_grad)
    )


def _apply_dropout(probs: Tensor, share: float, generator: torch.Generator | None) -> Tensor:
    return drop_weights(probs, share, generator) if share else probs


def drop_weights(probs: Tensor, share: float, generator: torch.Generator | None) -> Tensor:
    """Apply dropout with probability `share` to attention weights."""
    stay = rand(probs.shape, probs.device, generator=generator) >= share
    return probs * stay.to(probs) / ((1 - share) or 1.0)  # share = 1 drops all weights
