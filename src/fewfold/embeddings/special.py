"""Older ways to a small table, as anchor tables with a special transform."""

from typing import Any

import torch
from torch import Tensor

from fewfold._check import int64_vector, whole_number
from fewfold.embeddings.table.embedding import AnchorEmbedding

__all__ = ["compositional_codes", "low_rank", "vocabulary_selection"]


def vocabulary_selection(
    ids: Any,
    num_embeddings: int,
    embedding_dim: int,
    *,
    unknown: bool = False,
    **options: Any,
) -> AnchorEmbedding:
    """A table in which only some objects have a vector: rows of T are unit vectors, and fixed.

    Args:
        ids: the objects that have one, (k,), all different.
        num_embeddings: rows.
        embedding_dim: d.
        unknown: whether all others share a vector, the last anchor; otherwise they are zero.
        options: of `AnchorEmbedding`.

    Example:
        >>> table = vocabulary_selection([4, 1], 6, 3)
        >>> torch.equal(table(torch.tensor([4, 1])), table.anchors)
        True
        >>> table(torch.tensor([0])).detach()
        tensor([[0., 0., 0.]])

    Reference: Liang, Zaheer, Wang and Ahmed, Anchor & Transform (2021), appendix I.
    """
    kept = int64_vector(ids, "ids")
    if len(kept) and not 0 <= int(kept.min()) <= int(kept.max()) < num_embeddings:
        raise ValueError(f"ids must be between 0 and {num_embeddings - 1}")
    if len(kept.unique()) < len(kept):
        raise ValueError("ids must be different objects, got one of them twice")
    anchors = len(kept) + int(unknown)
    table = AnchorEmbedding(num_embeddings, embedding_dim, anchors=anchors, width=1, **options)
    slots = torch.full((num_embeddings,), len(kept) if unknown else 0)
    slots[kept] = torch.arange(len(kept))
    has = torch.full((num_embeddings,), float(unknown))
    has[kept] = 1.0
    if table.padding_idx is not None:
        has[table.padding_idx] = 0.0
    return _fixed(table, slots[:, None], has[:, None])


def low_rank(num_embeddings: int, embedding_dim: int, rank: int, **options: Any) -> AnchorEmbedding:
    """A product of two thin matrices: T is dense, of any sign, and not penalised.

    Example:
        >>> table = low_rank(100, 16, 4)
        >>> int(torch.linalg.matrix_rank(table.weight.detach())), table.size()
        (4, 464)
    """
    return AnchorEmbedding(num_embeddings, embedding_dim, anchors=rank, signed=True, **options)


def compositional_codes(
    num_embeddings: int,
    embedding_dim: int,
    *,
    codebooks: int,
    codewords: int,
    codes: Tensor | None = None,
    weighted: bool = False,
    generator: torch.Generator | None = None,
    **options: Any,
) -> AnchorEmbedding:
    """Sums of one codeword from each codebook: T has one entry per row and codebook.

    Anchor b * codewords + c is codeword c of codebook b.

    Args:
        num_embeddings: rows.
        embedding_dim: d.
        codebooks: how many.
        codewords: in each.
        codes: (rows, codebooks) which codeword; drawn at random if not given.
        weighted: whether the entries learn, with any sign; otherwise they are one.
        generator: of codes and values.
        options: of `AnchorEmbedding`.

    Example:
        >>> table = compositional_codes(1000, 16, codebooks=4, codewords=8)
        >>> table.anchors.shape, table.slots.shape
        (torch.Size([32, 16]), torch.Size([1000, 4]))

    Reference: Shu and Nakayama, Compressing word embeddings via deep compositional code learning
    (2018).
    """
    shape = (num_embeddings, whole_number(codebooks, "codebooks"))
    whole_number(codewords, "codewords")
    if codes is None:
        codes = torch.randint(codewords, shape, generator=generator)
    if tuple(codes.shape) != shape or codes.is_floating_point():
        raise ValueError(f"codes must be integers {shape}, got {codes.dtype} {tuple(codes.shape)}")
    if codes.numel() and not 0 <= int(codes.min()) <= int(codes.max()) < codewords:
        raise ValueError(f"codes must be between 0 and {codewords - 1}")
    table = AnchorEmbedding(
        num_embeddings, embedding_dim, anchors=codebooks * codewords, width=codebooks,
        signed=weighted, generator=generator, **options,
    )  # fmt: skip
    ones = torch.ones(shape)
    if table.padding_idx is not None:
        ones[table.padding_idx] = 0.0
    _fixed(table, codes + codewords * torch.arange(codebooks, device=codes.device), ones)
    table.transform.requires_grad_(weighted)
    with torch.no_grad():
        table.anchors.mul_(codebooks**-0.5)  # so that entries of a row have variance one
    return table


@torch.no_grad()
def _fixed(table: AnchorEmbedding, slots: Tensor, transform: Tensor) -> AnchorEmbedding:
    """This transform, for good."""
    assert table.slots is not None  # all of them are of fixed width
    table.slots.copy_(slots)
    table.transform.copy_(transform)
    table.transform.requires_grad_(False)
    return table
