"""Subspace iteration for the leading singular vectors of a log, in memory or block by block."""

import itertools
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from fewfold._progress import Phase, phase
from fewfold.distributed.group import Group
from fewfold.recommender.interactions import Interactions
from fewfold.recommender.models.fastvae.sharded_rows import drawn_rows

__all__ = ["Powers", "item_scale", "subspace_of_blocks", "subspace_of_log"]

_ROUNDS = 4
_BLOCKS = 16  # of rows of the log, between which progress is reported
_CHUNK = 1 << 15  # rows that are converted to double precision at once
_DEPENDENT = 1e-13  # squared length, relative to the largest, of what is only rounding

Powers = tuple[float, float]


def item_scale(counts: Tensor, powers: Powers) -> Tensor:
    """Return c^q, (items,), for the number of users of each item."""
    found = counts.float()
    return (found / found.mean()).clamp(min=1e-3).pow(powers[1])


def subspace_of_log(
    train: Interactions, width: int, scale: Tensor, powers: Powers, seed: int
) -> tuple[Tensor, Tensor]:
    """Return an orthonormal basis G, (items, width), and the Gram matrix of Y G.

    Args:
        train: a log in memory, of one process.
        width: number of directions.
        scale: (items,) c^q.
        powers: p and q of `Shortcut`.
        seed: of the initial subspace.
    """
    with phase("finding directions") as finding:
        lengths = train.jagged.lengths.float()
        by_user = (lengths / lengths.mean()).clamp(min=1e-3).pow(-powers[0])
        forth, back = _matrices(train, by_user, 1 / scale)
        guess = torch.randn(train.items, width, generator=torch.Generator().manual_seed(seed))
        # Products are bound by memory and the QR by arithmetic; this is their ratio of cost.
        heavy = len(back) * train.items * width / (5 * max(train.pairs, 1))
        finding.total = _ROUNDS * (len(forth) + len(back) + heavy) + len(forth)
        for _ in range(_ROUNDS):
            guess = _times(back, _times(forth, guess, finding), finding)
            guess = torch.linalg.qr(guess)[0]
            finding.advance(finding.done + heavy)
        part = _times(forth, guess, finding)
    return guess, (part.T @ part).double()


def subspace_of_blocks(
    blocks: Callable[[], Iterator[Interactions]],
    width: int,
    scale: Tensor,
    powers: Powers,
    seed: int,
    *,
    mean: float,
    group: Group,
) -> tuple[Tensor, Tensor]:
    """Return the same for a log that is given block by block, once in every round.

    Each process has the rows of its items of the basis. Of a block of users it multiplies the
    columns of these items; the products, (users of the block, width), are summed over processes.
    The basis is made orthonormal by its Gram matrix, which is small.

    Args:
        blocks: returns all users of the log, some at a time, the same in all processes.
        width, scale, powers, seed: as in `subspace_of_log`.
        mean: number of items of a user, on average.
        group: processes that call this together.
    """
    items, by_item = len(scale), 1 / scale[group.rank :: group.world]
    guess = torch.empty(group.owned(items), width)
    generator = torch.Generator().manual_seed(seed)
    drawn_rows(group, guess, items, lambda n: torch.randn(n, width, generator=generator))
    with phase("finding directions", total=_ROUNDS + 1) as finding:

        def products() -> Iterator[tuple[Tensor, list[Tensor]]]:
            """Yield the product of each block with the basis, and the transposed block."""
            for block in blocks():
                forth, back = _own_matrices(block, by_item, mean, powers, group)
                yield group.add_up(_times(forth, guess, finding, 0), "shortcut"), back

        for number in range(_ROUNDS):
            sums = torch.zeros_like(guess)
            for product, back in products():
                sums += _times(back, product, finding, 0)
            guess = _orthonormal(sums, group)
            finding.advance(number + 1)
        gram = torch.zeros(width, width, dtype=torch.float64)
        for product, _ in products():
            mine = product[group.share(len(product))]
            gram += (mine.T @ mine).double()
    return guess, group.add_up(gram, "shortcut")


def _orthonormal(rows: Tensor, group: Group) -> Tensor:
    """Make the columns an orthonormal basis of their space, in place; dependent ones become zero.

    The second pass removes what rounding of the first has left.
    """
    for _ in range(2):
        gram = torch.zeros(rows.shape[1], rows.shape[1], dtype=torch.float64)
        for chunk in rows.split(_CHUNK):
            gram += chunk.T.double() @ chunk.double()
        turn = _inverse_root(group.add_up(gram, "shortcut")).float()
        for chunk in rows.split(_CHUNK):
            chunk.copy_(chunk @ turn)
    return rows


def _inverse_root(gram: Tensor) -> Tensor:
    """Return a matrix R with R' gram R = 1, but for zeros where columns are dependent."""
    root, failed = torch.linalg.cholesky_ex(gram)
    sizes = root.diagonal().square()
    if not bool(failed) and bool((sizes > _DEPENDENT * gram.diagonal().max()).all()):
        identity = torch.eye(len(gram), dtype=gram.dtype)
        inverse: Tensor = torch.linalg.solve_triangular(root, identity, upper=False)
        return inverse.T
    values, vectors = torch.linalg.eigh(gram)  # 20 times slower
    scaled: Tensor = vectors * values.rsqrt().where(values > _DEPENDENT * values[-1], 0.0)
    return scaled


def _own_matrices(
    block: Interactions, by_item: Tensor, mean: float, powers: Powers, group: Group
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the columns of this process's items of a weighted block of the log."""
    by_user = (block.jagged.lengths.float() / mean).clamp(min=1e-3).pow(-powers[0])
    if group.world > 1:
        mine = block.keep(block.ids % group.world == group.rank)
        block = Interactions.trusted(mine.offsets, mine.ids // group.world, len(by_item))
        block = block.with_values(weights=mine.weights)
    return _matrices(block, by_user, by_item)


def _matrices(
    train: Interactions, by_user: Tensor, by_item: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the weighted log and its transpose as sparse blocks of rows."""
    row, ids = train.row, train.ids
    value = by_user[row] * by_item[ids]
    if train.weights is not None:
        value = value * train.weights.sqrt()
    order = ids.argsort(stable=True)
    starts = torch.cat([ids.new_zeros(1), torch.bincount(ids, minlength=train.items).cumsum(0)])
    forth = _blocks(train.offsets, ids, value, train.items)
    return forth, _blocks(starts, row[order], value[order], train.users)


def _blocks(offsets: Tensor, ids: Tensor, values: Tensor, width: int) -> list[Tensor]:
    """Split a sparse matrix into blocks of rows with about the same number of entries each."""
    marks = torch.arange(1, _BLOCKS) * (len(ids) // _BLOCKS)
    ends = torch.searchsorted(offsets[1:], marks).unique().tolist()
    edges = [0, *(end for end in ends if 0 < end < len(offsets) - 1), len(offsets) - 1]
    found = []
    with warnings.catch_warnings():  # that sparse CSR tensors are in beta
        warnings.simplefilter("ignore", UserWarning)
        for first, last in itertools.pairwise(edges):
            mine = offsets[first : last + 1]
            part = slice(int(mine[0]), int(mine[-1]))
            shape = (last - first, width)
            found.append(torch.sparse_csr_tensor(mine - mine[0], ids[part], values[part], shape))
    return found


def _times(blocks: list[Tensor], dense: Tensor, progress: Phase, each: int = 1) -> Tensor:
    """Return the product of a matrix in blocks of rows with a dense one."""
    found = []
    for block in blocks:
        found.append(block @ dense)
        progress.advance(progress.done + each)
    return torch.cat(found)
