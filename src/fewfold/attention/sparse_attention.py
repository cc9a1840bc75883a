"""Attention whose weights are exactly zero for all but a few keys."""

import torch
from torch import Tensor

from fewfold._check import non_negative_number
from fewfold._torch import untransformed
from fewfold.attention.chunked import chunked
from fewfold.attention.chunks import Plan, by_head
from fewfold.attention.shapes import Layout
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
    """`omega.argmax(query key^T scale) value`, with the conventions of torch's attention.

    A query row whose keys are all masked gives zeros. Long sequences are worked off in pieces of
    queries, so that the matrix of scores never exists; of each query the keys in its support are
    kept, and the backward pass touches no others. All scores are made at once under a transform or
    compiler of torch, for a mask that learns, and for `Fused`, `Oscar` and structures with scores
    of more than one key.

    Args:
        query: `(..., heads, L, d)`.
        key: `(..., heads, S, d)`.
        value: `(..., heads, S, dv)`.
        omega: the map from scores to weights: `Gini()` is sparsemax, `Tsallis(alpha)` entmax, also
            with an alpha that learns, such as (heads, 1, 1); `Subset(k)` chooses k keys,
            or all where a query sees fewer.
        attn_mask: boolean, True = take part, or numbers to add to the scores; broadcasts to
            `(..., heads, L, S)`. As in `torch.nn.functional.scaled_dot_product_attention`, and
            unlike in `torch.nn.MultiheadAttention`, where True is to ignore.
        mask: the same under the name that masks have in fewfold; give one of them.
        is_causal: query i sees the keys up to i, whether or not there is a mask.
        scale: of the scores; `1 / sqrt(d)` unless given.
        dropout_p: share of the weights that is dropped, up to 1; the others grow accordingly.
        enable_gqa: key and value may have fewer heads, each for a group of query heads.
        generator: source of randomness for the dropout.

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
    if not _in_pieces(omega, layout, query, key, value):
        probs = omega.argmax(layout.scores(query, key))
        return _dropped(probs, dropout_p, generator) @ layout.shared(value)
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
    return _dropped(probs, dropout_p, None) @ layout.shared(value), probs


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
    """Which keys each query of `sparse_attention` attends to, and how much.

    Returns:
        Atoms are positions of keys; rows are the queries, `(..., heads, L)` flattened.

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
    """What each query of a layout attends to."""
    if not _in_pieces(omega, layout, query, key):
        return map_support(layout.scores(query, key), omega)
    query, key, _ = layout.by_head(query, key, key)
    plan = Plan(layout, omega)
    parameters = [by_head(learnt, layout) for learnt in tensors(omega).values()]
    number = torch.arange(layout.heads * layout.queries).view(layout.heads, layout.queries)
    weights, atoms, row = [], [], []
    for piece in plan.pieces():
        scores = plan.scores(query[piece.heads, piece.rows], plan.shared(key, piece), piece)
        found = map_support(scores, plan.own(piece, parameters))
        weights.append(found.weights)
        atoms.append(found.atoms)
        row.append(number[piece.heads, piece.rows].reshape(-1).to(found.row.device)[found.row])
    return Support(torch.cat(weights), torch.cat(atoms), torch.cat(row), number.numel())


def _checked(omega: Omega, layout: Layout, dropout_p: float) -> Omega:
    """Return omega for as many keys as there are; raise for what is no map or no share."""
    check_omega(omega)
    if non_negative_number(dropout_p, "dropout_p") > 1:
        raise ValueError(f"dropout_p must be between 0 and 1, got {dropout_p}")
    return omega.for_size(layout.keys)


def _one_mask(mask: Tensor | None, attn_mask: Tensor | None) -> Tensor | None:
    """Return the mask, which has two names."""
    if mask is not None and attn_mask is not None:
        raise ValueError("mask and attn_mask are two names of one argument; give one of them")
    return attn_mask if mask is None else mask


def _in_pieces(omega: Omega, layout: Layout, *given: Tensor) -> bool:
    """Whether scores are many, and nothing asks for operations that torch can look into."""
    mask = layout.mask
    return (
        untransformed(*given)  # first: a trace must not look at sizes
        and not layout.small
        and omega.chunkable
        and not (mask is not None and mask.requires_grad)
    )


def _dropped(probs: Tensor, share: float, generator: torch.Generator | None) -> Tensor:
    return dropped(probs, share, generator) if share else probs


def dropped(probs: Tensor, share: float, generator: torch.Generator | None) -> Tensor:
    """Weights without some of them, the others grown accordingly."""
    stay = torch.rand(probs.shape, generator=generator, device=probs.device) >= share
    return probs * stay.to(probs) / ((1 - share) or 1.0)  # nothing stays of all
