"""Product and residual quantisation: vectors as sums of codewords, learned by k-means."""

import importlib.util

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fewfold._native import dispatch

__all__ = ["assign", "centres", "product_codes", "residual_codes"]

_POINTS = 256  # training vectors per centre, at most
_BLOCK = 2**18  # vectors assigned at once
_STEPS = 20
_WARM_STEPS = 4


def product_codes(
    vectors: Tensor,
    codewords: int,
    codebooks: int,
    generator: torch.Generator,
    before: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Product quantisation: return codebooks (books, words, d) and codes (n, books).

    Each book quantises a part of the dimensions, and its codewords are zero outside that part: a
    vector is approximated by the sum of its codewords, as in `residual_codes`. `before` are
    codebooks to start from.
    """
    n, d = vectors.shape
    books = torch.zeros(codebooks, codewords, d)
    codes = torch.empty(n, codebooks, dtype=torch.int64)
    for b, part in enumerate(torch.arange(d).tensor_split(codebooks)):
        columns = slice(int(part[0]), int(part[-1]) + 1)
        points = vectors[:, columns]
        start = None if before is None else before[b][:, columns].contiguous()
        books[b][:, columns] = found = centres(points, codewords, generator, start)
        codes[:, b] = assign(points, found)
    return books, codes


def residual_codes(
    vectors: Tensor,
    codewords: int,
    codebooks: int,
    generator: torch.Generator,
    before: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Residual quantisation: each book quantises the residual of the books before it."""
    books, codes, rest = [], [], vectors
    for b in range(codebooks):
        found = centres(rest, codewords, generator, None if before is None else before[b])
        code = assign(rest, found)
        rest = rest - found[code]
        books.append(found)
        codes.append(code)
    return torch.stack(books), torch.stack(codes, 1)


def assign(vectors: Tensor, centres: Tensor) -> Tensor:
    """Return the index of the nearest centre of every vector."""
    half = centres.square().sum(1) / 2
    if not (dispatch.ready(vectors, centres) and vectors.stride(1) == 1):
        return torch.cat([(half - part @ centres.T).argmin(1) for part in vectors.split(_BLOCK)])
    n, d = vectors.shape
    padding = -len(centres) % 16  # the kernel processes sixteen centres at a time
    half = F.pad(half, (0, padding), value=torch.inf)
    across = F.pad(centres, (0, 0, 0, padding)).T.contiguous()
    code = torch.empty(n, dtype=torch.int64)
    dispatch.kernel("nearest")(
        vectors, vectors.stride(0), n, d, across, half, len(half), code, dispatch.threads()
    )
    return code


def centres(
    vectors: Tensor, k: int, generator: torch.Generator, before: Tensor | None = None
) -> Tensor:
    """Return `k` centres by k-means, started from random vectors or from `before`."""
    n = len(vectors)
    if n > _POINTS * k:
        vectors = vectors[torch.randint(n, (_POINTS * k,), generator=generator)]
        n = len(vectors)
    seed = int(torch.randint(2**31 - 1, (), generator=generator))
    if importlib.util.find_spec("faiss") is not None and n > k:
        return _faiss_centres(vectors, k, seed, before)
    start = vectors[torch.randperm(n, generator=generator)[:k]] if before is None else before
    return _torch_centres(vectors, start, generator, _STEPS if before is None else _WARM_STEPS)


def _faiss_centres(vectors: Tensor, k: int, seed: int, before: Tensor | None) -> Tensor:
    import faiss

    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(torch.get_num_threads())
    try:
        kmeans = faiss.Kmeans(
            vectors.shape[1], k, niter=_STEPS if before is None else _WARM_STEPS, seed=seed,
            min_points_per_centroid=1, max_points_per_centroid=_POINTS,
        )  # fmt: skip
        start = None if before is None else before.numpy()
        kmeans.train(vectors.contiguous().numpy(), init_centroids=start)
    finally:
        faiss.omp_set_num_threads(threads)
    return torch.from_numpy(np.array(kmeans.centroids))


def _torch_centres(
    vectors: Tensor, start: Tensor, generator: torch.Generator, steps: int
) -> Tensor:
    found = start.clone()
    for _ in range(steps):
        code = assign(vectors, found)
        count = torch.bincount(code, minlength=len(found))
        total = torch.zeros_like(found).index_add_(0, code, vectors)
        after = total / count.clamp(min=1)[:, None]
        empty = count == 0
        again = torch.randint(len(vectors), (int(empty.sum()),), generator=generator)
        after[empty] = vectors[again]
        if torch.equal(after, found):
            break
        found = after
    return found
