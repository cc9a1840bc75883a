"""Training as in the authors' code: batches of 32, Yogi with dense gradients, a proximal step.

A step of Yogi moves all rows, also those without a gradient. dense_yogi.cpp has the closed form of
that for a row that is not in the batch, so that a step costs a few microseconds.
"""

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.compiled import library
from experiments.movielens_ratings.ratings import Ratings
from experiments.movielens_ratings.row_tables import RowTable

SOURCE = Path(__file__).with_name("dense_yogi.cpp")
FIRST_SQUARE = 1e-6  # the initial second moment


@dataclass(frozen=True)
class Yogi:
    """Settings of the optimiser; the published ones by default."""

    lr: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-3
    halve_after: int = 100_000
    """steps after which the learning rate is halved"""
    batch: int = 32
    plain_threshold: bool = False
    """whether the penalty takes lr l1 from an entry, as in the text of the paper; the code of the
    authors divides it by the root of the second moment, as the gradient"""


class _Table(ctypes.Structure):
    _fields_ = [
        ("rows", ctypes.c_int64), ("blocks", ctypes.c_int64),
        *[(name, ctypes.c_void_p) for name in ("x", "m", "v", "last", "start", "block", "widths",
                                               "anchors", "identity", "a", "am", "av")],
        *[(name, ctypes.c_int64) for name in ("active", "seen", "non_negative", "plain")],
        ("l1", ctypes.c_double),
    ]  # fmt: skip


class _Schedule(ctypes.Structure):
    _fields_ = [
        *[(name, ctypes.c_void_p) for name in ("step", "sum", "tail")],
        *[(name, ctypes.c_double) for name in ("beta1", "beta2", "eps")],
    ]


@functools.cache
def kernel(width: int) -> Callable[..., float]:
    """Return the training loop compiled for vectors of this width."""
    compiled = library(SOURCE, f"-DWIDTH={width}")
    if compiled is None:
        raise RuntimeError("training needs a C++ compiler, and FEWFOLD_NATIVE must not be 0")
    found = compiled.train
    found.restype = ctypes.c_double
    found.argtypes = [*[ctypes.c_void_p] * 7, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    return found


def step_sizes(settings: Yogi, steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the step sizes s_t for t = 0 (none) to `steps`, their sums, and sum_k s_{t+k} b1^k."""
    t = np.arange(1, steps + 1)
    beta1, beta2 = settings.betas
    size = np.zeros(steps + 1)
    correction = np.sqrt(1 - beta2**t) / (1 - beta1**t)
    size[1:] = settings.lr * 0.5 ** ((t - 1) // settings.halve_after) * correction
    tail, last = [0.0], 0.0
    for following in size[:0:-1].tolist():
        last = beta1 * (following + last)
        tail.append(last)
    return size, size.cumsum(), np.array(tail[::-1])


class Trainer:
    """User and item tables, a bias and the state of Yogi; trains an epoch at a time."""

    def __init__(
        self, users: RowTable, items: RowTable, *, bias: bool, steps: int, settings: Yogi
    ) -> None:
        self.tables, self.settings = (users, items), settings
        self.bias = torch.tensor([0.0, 0.0, FIRST_SQUARE, float(bias)])
        self.steps = 0
        self._step_arrays = step_sizes(settings, steps)
        self._moments = [
            [torch.full_like(what, value) for what in (table.values, table.anchors)
             for value in (0.0, FIRST_SQUARE)]
            for table in self.tables
        ]  # fmt: skip
        self._last = [torch.zeros(table.rows, dtype=torch.int64) for table in self.tables]
        self._seen = [table.active for table in self.tables]

    def epoch(self, ratings: Ratings, order: Tensor, *, l1: float) -> float:
        """Train on the ratings in this order; return the mean squared error before each step."""
        if self.steps + -(-len(order) // self.settings.batch) >= len(self._step_arrays[0]):
            raise ValueError("there are more steps than planned; plan more of them with `steps`")
        tables = [self._structure(place, l1) for place in range(2)]
        schedule = _Schedule(
            *[array.ctypes.data for array in self._step_arrays], *self.settings.betas,
            self.settings.eps,
        )  # fmt: skip
        errors = kernel(self.tables[0].width)(
            *[ctypes.addressof(one) for one in (*tables, schedule)],
            *[part.data_ptr() for part in (ratings.users, ratings.items, ratings.stars, order)],
            len(order), self.settings.batch, self.steps, self.bias.data_ptr(),
        )  # fmt: skip
        self.steps += -(-len(order) // self.settings.batch)
        return float(errors) / len(order)

    def _structure(self, place: int, l1: float) -> _Table:
        table = self.tables[place]
        m, v, anchor_m, anchor_v = self._moments[place]
        self._seen[place] = max(self._seen[place], table.active)
        pointers = [
            table.values, m, v, self._last[place], table.start, table.block, table.widths,
            table.anchor_start, table.identity, table.anchors, anchor_m, anchor_v,
        ]  # fmt: skip
        return _Table(
            table.rows, len(table.widths), *[tensor.data_ptr() for tensor in pointers],
            table.active, self._seen[place], int(table.non_negative),
            int(self.settings.plain_threshold), l1 if table.penalised else 0.0,
        )  # fmt: skip

    @torch.no_grad()
    def mse(self, ratings: Ratings) -> float:
        """Return the mean squared error in stars."""
        users, items = (table.vectors() for table in self.tables)
        stars = (users[ratings.users] * items[ratings.items]).sum(1) + self.bias[0]
        return float((stars - ratings.stars).double().square().mean())

    def size(self) -> int:
        """Return the number of parameters as published, without the bias."""
        return sum(table.size() for table in self.tables)

    def renew(self, first: int, until: int, generator: torch.Generator) -> None:
        """Give these anchors of both tables new first values and an empty optimiser state."""
        for table, (m, v, anchor_m, anchor_v) in zip(self.tables, self._moments, strict=True):
            fresh, wide = table.fresh(generator), int(table.widths[0])
            for mine, new in ((table.values, fresh.values), (m, None), (v, FIRST_SQUARE)):
                columns = mine.view(-1, wide)[:, first:until]
                columns.copy_(_like(new, columns, (-1, wide), (slice(None), slice(first, until))))
            for mine, new in (
                (table.anchors, fresh.anchors), (anchor_m, None), (anchor_v, FIRST_SQUARE),
            ):  # fmt: skip
                rows = mine.view(wide, -1)[first:until]
                rows.copy_(_like(new, rows, (wide, -1), slice(first, until)))

    def prune(self) -> int:
        """Move anchors without an entry behind the others; return how many have entries."""
        most = 1
        for table, (m, v, anchor_m, anchor_v) in zip(self.tables, self._moments, strict=True):
            wide = int(table.widths[0])
            used = table.transform().count_nonzero(0) > 0
            order = torch.arange(wide)
            order[: table.active] = (~used).int().argsort(stable=True)
            for rows in (table.values, m, v):
                rows.view(-1, wide).copy_(rows.view(-1, wide)[:, order])
            for anchors in (table.anchors, anchor_m, anchor_v):
                anchors.view(wide, -1).copy_(anchors.view(wide, -1)[order])
            most = max(most, int(used.sum()))
        return most


def _like(new: Tensor | float | None, like: Tensor, shape: tuple[int, int], part: Any) -> Tensor:
    if isinstance(new, Tensor):
        return new.view(shape)[part]
    return torch.full_like(like, new or 0.0)
