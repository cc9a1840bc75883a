"""Baseline compact embeddings written as anchor tables with a special transform.

Experiments compare learned anchor tables with them.
"""

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
    """Build a table of selected objects only: their rows of T are fixed unit vectors.

    Args:
        ids: (k,) distinct objects that have a vector.
        num_embeddings: rows.
        embedding_dim: d.
        unknown: whether all others share one vector, the last anchor; otherwise theirs is zero.
        options: of `AnchorEmbedding`.

    Example:
        >>> table = vocabulary_selection([4, 1], 6, 3)
        >>> torch.equal(table(torch.tensor([4, 1])), table.anchors)
        True
        >>> table(torch.tensor([0])).detach()
        tensor([[0., 0., 0.]])

    Reference: Liang, Zaheer, Wang and Ahmed, Anchor & Transform (2021), appendix I.
    """
    selected = int64_vector(ids, "ids")
    if len(selected) and not 0 <= int(selected.min()) <= int(selected.max()) < num_embeddings:
        raise ValueError(f"ids must be between 0 and {num_embeddings - 1}")
    if len(selected.unique()) < len(selected):
        raise ValueError("ids must be different objects, got one of them twice")
    anchors = len(selected) + int(unknown)
    table = AnchorEmbedding(num_embeddings, embedding_dim, anchors=anchors, width=1, **options)
    slots = torch.full((num_embeddings,), len(selected) if unknown else 0)
    slots[selected] = torch.arange(len(selected))
    has = torch.full((num_embeddings,), float(unknown))
    has[selected] = 1.0
    if table.padding_idx is not None:
        has[table.padding_idx] = 0.0
    return _fixed(table, slots[:, None], has[:, None])


def low_rank(num_embeddings: int, embedding_dim: int, rank: int, **options: Any) -> AnchorEmbedding:
    """Build a low-rank table: T is dense, signed and not penalised.

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
    """Build a table of sums of one codeword per codebook: T has one entry per row and codebook.

    Anchor b * codewords + c is codeword c of codebook b.

    Args:
        num_embeddings: rows.
        embedding_dim: d.
        codebooks: number of codebooks.
        codewords: number of codewords in each.
        codes: (rows, codebooks) indices of codewords; random if None.
        weighted: whether the entries are learned, with any sign; otherwise they are one.
        generator: for the codes and the initial values.
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
        table.anchors.mul_(codebooks**-0.5)  # gives the entries of a row variance one
    return table


@torch.no_grad()
def _fixed(table: AnchorEmbedding, slots: Tensor, transform: Tensor) -> AnchorEmbedding:
    """Set the transform and freeze it."""
    assert table.slots is not None  # every caller passes a table of fixed width
    table.slots.copy_(slots)
    table.transform.copy_(transform)
    table.transform.requires_grad_(False)
    return table
