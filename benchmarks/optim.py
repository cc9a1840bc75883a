"""Row-wise optimiser steps on a large table compared with sparse and fused dense torch.optim."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from typing import Any

import torch
from torch import Tensor

import fewfold as ff
from benchmarks.harness import Case, Pair

ROWS = 1_000_000
SIZES = ((51_200, 32), (10_240, 200))  # gradients in a batch, width of a row

Make = Callable[[list[Tensor]], torch.optim.Optimizer]


def cases() -> list[Case]:
    """Yield all rows of the suite, in the order of the claims."""
    return [*_rows()]


def _rows() -> Iterator[Case]:
    contests: list[tuple[str, Make, str, Make, float]] = [
        ("Adam", ff.optim.Adam, "torch.optim.SparseAdam", torch.optim.SparseAdam, 0.33),
        ("Adagrad", ff.optim.Adagrad, "torch.optim.Adagrad", torch.optim.Adagrad, 0.7),
        ("SGD", ff.optim.SGD, "torch.optim.SGD", torch.optim.SGD, 0.7),
    ]
    for threads in (1, 2):
        for nnz, width in SIZES:
            row: dict[str, Any] = {"size": f"{nnz} of 1M x {width}", "threads": threads}
            for name, ours, peer_name, peer, bar in contests:
                build = partial(_against_sparse, ours, peer, nnz, width)
                yield Case(f"optim.{name} step", peer=peer_name, bar=bar, build=build, **row)
            yield Case(
                "optim.Adam step",
                peer="torch.optim.Adam(fused=True), dense",
                bar=0.05,
                build=partial(_against_dense, nnz, width),
                **row,
            )


def gradients(nnz: int, width: int) -> Iterator[Tensor]:
    """Cycle over a few sparse gradients of a table, as an embedding produces them."""
    draw = torch.Generator().manual_seed(0)
    batches = []
    for _ in range(4):
        index = torch.randint(ROWS, (1, nnz), generator=draw)
        values = torch.randn(nnz, width, generator=draw)
        batches.append(
            torch.sparse_coo_tensor(index, values, (ROWS, width), check_invariants=False)
        )
    return cycle(batches)


def _step(make: Make, width: int) -> tuple[Callable[[Tensor], None], Tensor]:
    """Return a step with a gradient on a table that has been written, and that table."""
    weight = torch.randn(ROWS, width).requires_grad_()
    optimizer = make([weight])

    def step(grad: Tensor) -> None:
        weight.grad = grad
        optimizer.step()

    return step, weight


def _against_sparse(ours: Make, peer: Make, nnz: int, width: int) -> Pair:
    (step, _), (other, _) = _step(ours, width), _step(peer, width)
    own, its = gradients(nnz, width), gradients(nnz, width)
    for _ in range(4):  # the pages of the state are made when they are first touched
        step(next(own))
        other(next(its))
    return Pair(lambda: step(next(own)), lambda: other(next(its)))


def _against_dense(nnz: int, width: int) -> Pair:
    """Compare with a dense step whose gradient is given, which favours the peer."""
    (step, _), (other, weight) = _step(ff.optim.Adam, width), _step(_fused_adam, width)
    own = gradients(nnz, width)
    dense = torch.randn_like(weight)
    for _ in range(4):
        step(next(own))
    return Pair(lambda: step(next(own)), lambda: other(dense))


def _fused_adam(params: list[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.Adam(params, fused=True)
