"""Spectral features of objects from their co-occurrence."""

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fewfold._check import whole_number
from fewfold._random import randn
from fewfold.embeddings.initial import cooccurrence

__all__ = ["cooccurrence_features"]


def cooccurrence_features(
    documents: Tensor | Iterable[Any],
    objects: int,
    *,
    window: int = 10,
    dim: int = 32,
    rounds: int = 8,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return features such that objects with similar neighbours are close, for `Clusters`.

    With C[u, v] = 1 where u and v occur within the window, and D its row sums, these are the
    leading eigenvectors of D^-1/2 C D^-1/2, each scaled to the root of its eigenvalue, by
    subspace iteration. The features of an object without neighbours are zero.

    Args:
        documents: lists of ids, or one stream of them.
        objects: number of objects.
        window: objects at most this far apart occur together.
        dim: number of features.
        rounds: number of iterations.
        generator: for the initial subspace.

    Returns:
        (objects, dim), on the device of the documents if these are a tensor; columns beyond the
        number of objects are zero.

    Example:
        >>> import torch
        >>> generator = torch.Generator().manual_seed(0)
        >>> near = cooccurrence_features([[0, 1, 2], [3, 4, 5]], 6, dim=2, generator=generator)
        >>> torch.cdist(near, near).argsort(1)[:, :3].sort(1).values.tolist()[::3]
        [[0, 1, 2], [3, 4, 5]]

    Reference: Halko, Martinsson and Tropp, Finding structure with randomness (2011).
    """
    rank = min(whole_number(dim, "dim"), whole_number(objects, "objects"))
    pairs = cooccurrence.edges(documents, objects, torch.arange(objects), window).T
    own = torch.arange(objects).expand(2, -1)  # self-loops: avoids eigenvalues near -1
    pairs = torch.cat([pairs[:, pairs[0] != pairs[1]], own], 1)
    degree = torch.bincount(pairs[0], minlength=objects).double()
    values = (degree[pairs[0]] * degree[pairs[1]]).rsqrt()
    near = torch.sparse_coo_tensor(
        pairs, values, (objects, objects), check_invariants=False
    ).coalesce()
    basis = randn((objects, rank), pairs.device, generator=generator, dtype=torch.float64)
    for _ in range(whole_number(rounds, "rounds")):
        basis = torch.linalg.qr(near @ basis).Q
    size, turn = torch.linalg.eigh(basis.T @ (near @ basis))
    features: Tensor = basis @ turn.flip(1) * size.flip(0).clamp(min=0).sqrt()
    features = F.pad(features, (0, dim - rank))
    found = torch.where(degree[:, None] > 1, features, 0.0).float()
    return found.to(documents.device) if isinstance(documents, Tensor) else found
