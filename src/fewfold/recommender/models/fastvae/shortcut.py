"""A linear, low-rank item-item model: a regression like EASE for any number of items."""

import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fewfold._check import positive_number, whole_number
from fewfold._progress import Phase, phase
from fewfold.distributed.group import Group
from fewfold.recommender.interactions import Interactions, Jagged

__all__ = ["L2_PER_USER", "Directions", "Shortcut"]

_EXTRA = 32  # directions beyond the rank, with which subspace iteration converges faster
_ROUNDS = 4
_BLOCKS = 16  # of rows of the log, between which progress is reported


@dataclass(frozen=True, eq=False)
class Shortcut:
    """Scores of items from the items a user has, through the leading directions of the log.

    With X the users x items matrix, n_u and c_i its row and column sums over their means,
    Y = diag(n)^-p X diag(c)^-q and V, w the leading eigenvectors and -values of Y'Y,

        score_ui = strength / sqrt(size of u)  sum_{j in u} G_ij,
        G = diag(c)^q  V diag(w / (w + l2)) V'  diag(c)^-q,

    the ridge regression of every item on all items (as EASE has it) in the space of V. The diagonal
    of G concerns items a user already has, which are never recommended. Entries of X are 1, or the
    roots of `Interactions.weights`.

    Attributes:
        table: (items, rank), V times the root of its filter.
        scale: (items,), c^q.
        strength: weight of these scores relative to those of another model.
    """

    table: Tensor
    scale: Tensor
    strength: float

    @classmethod
    def fit(
        cls,
        train: Interactions,
        rank: int = 192,
        *,
        l2: float | None = None,
        powers: tuple[float, float] = (0.3, 0.35),
        strength: float = 130.0,
        seed: int = 0,
    ) -> "Shortcut":
        """Fit the leading directions of the log and the regression in their space.

        Args:
            train: users x items.
            rank: number of directions, at most that of the items.
            l2: penalty of the regression; by default proportional to the number of users.
            powers: p for users and q for items; 0 does not damp active users or popular items.
            strength: see the class.
            seed: of the initial subspace.
        """
        found = Directions.find(train, rank, powers=powers, seed=seed)
        return found.shortcut(train.users * L2_PER_USER if l2 is None else l2, strength)

    def queries(self, history: Jagged) -> Tensor:
        """Return user vectors, (rows, rank), whose inner products with `vectors` are the scores."""
        found = F.embedding_bag(
            history.values, self.table, history.offsets, mode="sum", include_last_offset=True,
            per_sample_weights=1 / self.scale[history.values],
        )  # fmt: skip
        return found * (self.strength / history.lengths.clamp(min=1).sqrt()).unsqueeze(1)

    @property
    def vectors(self) -> Tensor:
        """Item vectors, (items, rank)."""
        return self.rows(slice(None))

    def rows(self, items: slice) -> Tensor:
        """Return the vectors of these items."""
        return self.table[items] * self.scale[items].unsqueeze(1)


L2_PER_USER = 0.025


@dataclass(frozen=True, eq=False)
class Directions:
    """Leading directions of a log, which give a `Shortcut` for any l2 and strength.

    Attributes:
        vectors: (items, rank), V.
        values: (rank,), w, in descending order.
        scale: (items,), c^q.
    """

    vectors: Tensor
    values: Tensor
    scale: Tensor

    @classmethod
    def find(
        cls,
        train: Interactions,
        rank: int,
        *,
        powers: tuple[float, float] = (0.3, 0.35),
        seed: int = 0,
    ) -> "Directions":
        """Compute the directions by subspace iteration."""
        whole_number(rank, "rank")
        rank = min(rank, train.items, max(train.users, 1))
        width = min(rank + _EXTRA, train.items)
        with phase("finding directions") as finding:
            lengths, counts = train.jagged.lengths.float(), train.counts().float()
            by_user = (lengths / lengths.mean()).clamp(min=1e-3).pow(-powers[0])
            scale = (counts / counts.mean()).clamp(min=1e-3).pow(powers[1])
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
            return cls.of_gram(guess, (part.T @ part).double(), scale, rank)

    @classmethod
    def of_windows(
        cls,
        windows: Callable[[], Iterator[Interactions]],
        counts: Tensor,
        users: int,
        rank: int,
        *,
        powers: tuple[float, float] = (0.3, 0.35),
        seed: int = 0,
        group: Group | None = None,
    ) -> "Directions":
        """Compute the directions of a log that is read window by window, once in every round.

        Args:
            windows: returns the users of the log that this process reads, some at a time.
            counts: (items,) number of users of each item.
            users: number of all users.
            rank, powers, seed: as in `Shortcut.fit`.
            group: processes that read the log; each has the whole subspace, and products are
                summed over them.
        """
        whole_number(rank, "rank")
        items, group = len(counts), group or Group()
        rank = min(rank, items, max(users, 1))
        width = min(rank + _EXTRA, items)
        mean = float(counts.sum()) / users
        scale = (counts.float() / counts.float().mean()).clamp(min=1e-3).pow(powers[1])
        guess = torch.randn(items, width, generator=torch.Generator().manual_seed(seed))
        gram = torch.zeros(width, width, dtype=torch.float64)

        def multiply(sums: Tensor, finding: Phase) -> Tensor:
            for window in windows():
                lengths = window.jagged.lengths.float()
                by_user = (lengths / mean).clamp(min=1e-3).pow(-powers[0])
                forth, back = _matrices(window, by_user, 1 / scale)
                part = _times(forth, guess, finding, 0)
                sums += (part.T @ part).double() if sums is gram else _times(back, part, finding, 0)
            return sums

        with phase("finding directions", total=_ROUNDS + 1) as finding:
            for number in finding.each(range(_ROUNDS + 1)):
                sums = torch.zeros_like(guess) if number < _ROUNDS else gram
                with group.together():
                    multiply(sums, finding)
                group.add_up(sums, "shortcut")
                guess = torch.linalg.qr(sums)[0] if number < _ROUNDS else guess
        return cls.of_gram(guess, gram, scale, rank)

    @classmethod
    def of_gram(cls, guess: Tensor, gram: Tensor, scale: Tensor, rank: int) -> "Directions":
        """Return the leading directions within a subspace, from the Gram matrix of its products."""
        values, turn = torch.linalg.eigh(gram)
        values, turn = values.flip(0)[:rank].clamp(min=0), turn.flip(1)[:, :rank].float()
        return cls(guess @ turn, values, scale)

    def shortcut(self, l2: float, strength: float) -> Shortcut:
        """Return the shortcut with this penalty and strength."""
        positive_number(strength, "strength")
        by = (self.values / (self.values + l2)).sqrt().float()
        return Shortcut(self.vectors * by, self.scale, strength)


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
