"""Ridge regressions of many short rows on a table of vectors whose Gram matrix is diagonal."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from fewfold._native import dispatch
from fewfold.recommender.interactions import Jagged

__all__ = ["Rotated", "diagonalise", "regress"]

_AT_ONCE = 2**24  # numbers in a block of the plain path


class Rotated(NamedTuple):
    """A table whose Gram matrix is diagonal.

    Attributes:
        table: (rows, d).
        gram: (d,) the diagonal of the Gram matrix, at least 0.
        rotation: (d, d), by which the table was multiplied.
    """

    table: Tensor
    gram: Tensor
    rotation: Tensor


def diagonalise(table: Tensor) -> Rotated:
    """Rotate a table so that its Gram matrix is diagonal; inner products of its rows stay the same.

    With the eigenvectors Q of ``table.T @ table`` this is ``table @ Q``. The same for any number of
    threads.

    Args:
        table: (rows, d), contiguous; kernels, which are for float32, overwrite it.
    """
    rows, d = table.shape
    native = _has_kernels(table)
    if native:
        gram = torch.empty(d, d, dtype=torch.float64)
        dispatch.kernel("gram")(table, rows, d, gram, dispatch.threads())
    else:
        gram = table.new_zeros(d, d, dtype=torch.float64)
        for part in table.split(max(1, _AT_ONCE // max(d, 1))):
            gram += part.double().T @ part.double()
    with _one_thread():
        values, vectors = torch.linalg.eigh(gram)
    rotation = vectors.to(table.dtype).contiguous()
    if native:
        dispatch.kernel("multiply_rows")(table, rows, d, rotation, dispatch.threads())
    else:
        table = table @ rotation
    return Rotated(table, values.clamp(min=0).to(table.dtype), rotation)


def regress(
    rows: Jagged,
    others: Rotated,
    ridge: Tensor,
    weights: Tensor | None = None,
    start: Tensor | None = None,
    *,
    scale: float = 1.0,
) -> Tensor:
    """Return the solution of one ridge regression for each row, with all targets equal to 1.

    Row r minimises ``sum_p c_p (1 - <x, v_p>)^2 + sum_k (scale gram_k + ridge_r) x_k^2`` over x,
    where p are the pairs of the row, v_p their rows of the table and c_p their weights. A row with
    fewer pairs than columns is solved in its pairs, as ``x = D^-1 V^T (C^-1 + V D^-1 V^T)^-1 1``
    with the diagonal ``D = scale gram + ridge_r``.

    With a `start`, kernels solve a row of more than 96 pairs in blocks of 64 columns, each of them
    exactly while the others stay, once: in alternating least squares that converges as quickly, and
    takes a fraction of the time. All other rows, and all without kernels, are exact.

    Args:
        rows: rows of the table for each regression; repetitions count as often as they occur.
        others: the table; kernels are for float32.
        ridge: (rows,), above 0.
        weights: (m,) of the pairs, above 0; None if all are 1.
        start: (rows, d) vectors which, multiplied by ``others.rotation``, are close to the
            solution; overwritten.
        scale: of the Gram matrix, above 0.

    Returns:
        (rows, d); zeros for an empty row. The same for any number of threads.

    Reference:
        Rendle, Krichene, Zhang, Koren (2021). iALS++: speeding up matrix factorization with
        subspace optimization. arXiv:2110.14044.
    """
    table, gram = others.table, others.gram * scale
    if not _has_kernels(table, gram, ridge):
        return _regress_plain(rows, table, gram, ridge, weights)
    count, (n, d) = len(rows.offsets) - 1, table.shape
    out = dispatch.table(count, d) if start is None else start.contiguous()
    values, offsets = (part.contiguous() for part in rows)
    rotation = None if start is None else others.rotation.contiguous()
    dispatch.kernel("regress")(
        offsets, values, weights, count, table.contiguous(), n, d, gram, ridge, rotation, out,
        dispatch.threads(),
    )  # fmt: skip
    return out


def _has_kernels(*tensors: Tensor) -> bool:
    return dispatch.ready(*tensors) and all(each.dtype == torch.float32 for each in tensors)


def _regress_plain(
    rows: Jagged, table: Tensor, gram: Tensor, ridge: Tensor, weights: Tensor | None
) -> Tensor:
    """Regressions in blocks of rows of similar length, by the normal equations in double."""
    d = table.shape[1]
    out = table.new_zeros(len(rows.offsets) - 1, d)
    for block in _blocks(rows.lengths, d):
        lengths = rows.lengths[block]
        place = torch.arange(int(lengths[-1])) + rows.offsets[block].unsqueeze(1)
        there = torch.arange(int(lengths[-1])) < lengths.unsqueeze(1)
        place = place.where(there, 0)
        vectors = table[rows.values[place]].double()
        by = there.double() if weights is None else weights[place].double() * there
        weighted = vectors * by.unsqueeze(2)
        normal = weighted.mT @ vectors
        normal.diagonal(dim1=1, dim2=2).add_(gram.double() + ridge[block].double().unsqueeze(1))
        factor = torch.linalg.cholesky(normal)
        solution = torch.cholesky_solve(weighted.sum(1).unsqueeze(2), factor)
        out[block] = solution.squeeze(2).to(out.dtype)
    return out


def _blocks(lengths: Tensor, d: int) -> Iterator[Tensor]:
    """Numbers of the rows that are not empty, in blocks of bounded size, short rows first."""
    order = lengths.argsort(stable=True)
    order = order[lengths[order] > 0]
    start = 0
    while start < len(order):
        # Doubling the length at most: padding never takes more than half of the work.
        most = 2 * int(lengths[order[start]])
        stop = int(torch.searchsorted(lengths[order], most, right=True))
        stop = min(stop, start + max(1, _AT_ONCE // (d * max(d, most))))
        yield order[start:stop]
        start = stop


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run torch on one thread: the rounding of LAPACK depends on their number."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
