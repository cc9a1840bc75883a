"""Product and residual quantisation: vectors as sums of codewords, learned by k-means."""

import importlib.util

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fewfold._native import dispatch
from fewfold._random import randint, randperm
from fewfold.sampling.item_rows import ItemRows

__all__ = ["assign", "centres", "product_codes", "residual_codes"]

_POINTS = 256  # training vectors per centre, at most
_BLOCK = 2**18  # vectors assigned at once
_STEPS = 20
_WARM_STEPS = 4
_CODE = torch.int32  # of codes that other processes need


def product_codes(
    vectors: ItemRows,
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
    device = vectors.local.device
    books = torch.zeros(codebooks, codewords, d, device=device)
    codes = torch.empty(n, codebooks, dtype=torch.int64, device=device)
    for b, part in enumerate(torch.arange(d).tensor_split(codebooks)):
        columns = slice(int(part[0]), int(part[-1]) + 1)
        points = vectors.local[:, columns]
        start = None if before is None else before[b][:, columns].contiguous()
        books[b][:, columns] = found = centres(vectors, codewords, generator, start, columns)
        codes[:, b] = vectors.gather(assign(points, found).to(_CODE)).long()
    return books, codes


def residual_codes(
    vectors: ItemRows,
    codewords: int,
    codebooks: int,
    generator: torch.Generator,
    before: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Residual quantisation: each book quantises the residual of the books before it."""
    books, codes, rest = [], [], vectors
    for b in range(codebooks):
        start = None if before is None else before[b]
        found = centres(rest, codewords, generator, start)
        code = assign(rest.local, found)
        rest = rest.with_rows(rest.local - found[code])
        books.append(found)
        codes.append(rest.gather(code.to(_CODE)).long())
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
    vectors: Tensor | ItemRows,
    k: int,
    generator: torch.Generator,
    before: Tensor | None = None,
    columns: slice = slice(None),
) -> Tensor:
    """Return `k` centres of these columns by k-means, started from random vectors or from `before`.

    All processes draw the same sample of the vectors, and find the same centres.
    """
    rows, most = ItemRows.of(vectors), _POINTS * k
    n = rows.count
    device = rows.local.device
    every = torch.arange(n, device=device)
    sample = randint(n, (most,), device, generator=generator) if n > most else every
    return _k_means(rows.take(sample)[:, columns], k, generator, before)


def _k_means(vectors: Tensor, k: int, generator: torch.Generator, before: Tensor | None) -> Tensor:
    n = len(vectors)
    seed = int(randint(2**31 - 1, (), generator.device, generator=generator))
    if importlib.util.find_spec("faiss") is not None and n > k:
        return _faiss_centres(vectors, k, seed, before)
    first = randperm(n, vectors.device, generator=generator)[:k]
    start = vectors[first] if before is None else before
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
        start = None if before is None else before.cpu().numpy()
        kmeans.train(vectors.cpu().contiguous().numpy(), init_centroids=start)
    finally:
        faiss.omp_set_num_threads(threads)
    return torch.from_numpy(np.array(kmeans.centroids)).to(vectors.device)


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
        again = randint(len(vectors), (int(empty.sum()),), vectors.device, generator=generator)
        after[empty] = vectors[again]
        if torch.equal(after, found):
            break
        found = after
    return found
