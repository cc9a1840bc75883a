"""Table of proposals: every property test of this module runs on every row."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import fewfold as ff


@dataclass(frozen=True)
class Case:
    """How to make a proposal, and the mass of every item for every query it stands for."""

    name: str
    make: Callable[[], ff.sampling.Proposal]
    mass: Callable[
        [Tensor, Tensor, Tensor, ff.sampling.Proposal], Tensor
    ]  # queries, items, counts -> (B, M)


def _dynamic(
    queries: Tensor, items: Tensor, counts: Tensor, proposal: ff.sampling.Proposal
) -> Tensor:
    rank = (queries @ items.T).argsort(dim=1, descending=True, stable=True).argsort(1).double()
    m, c = len(items), 3
    return (m - rank) ** c - (m - rank - 1) ** c


def _quantised(queries: Tensor, proposal: ff.sampling.Proposal) -> Tensor:
    return (queries.double() @ proposal.quantised().double().T).exp()


CASES = [
    Case("uniform", ff.Uniform, lambda q, x, n, p: torch.ones(len(q), len(x))),
    Case("popularity", ff.Popularity, lambda q, x, n, p: n.expand(len(q), -1)),
    Case(
        "popularity, power",
        lambda: ff.Popularity(0.5),
        lambda q, x, n, p: n.sqrt().expand(len(q), -1),
    ),
    Case("index", lambda: ff.MultiIndex(3), lambda q, x, n, p: _quantised(q, p)),
    Case(
        "index of one book",
        lambda: ff.MultiIndex(4, codebooks=1),
        lambda q, x, n, p: _quantised(q, p),
    ),
    Case(
        "index of three books",
        lambda: ff.MultiIndex(3, codebooks=3),
        lambda q, x, n, p: _quantised(q, p),
    ),
    Case(
        "residual index",
        lambda: ff.MultiIndex(3, residual=True),
        lambda q, x, n, p: _quantised(q, p),
    ),
    Case(
        "index by popularity",
        lambda: ff.MultiIndex(3, within="popularity"),
        lambda q, x, n, p: n * _quantised(q, p),
    ),
    Case(
        "exact index",
        lambda: ff.MultiIndex(3, within="exact"),
        lambda q, x, n, p: (q.double() @ x.double().T).exp(),
    ),
    Case(
        "quadratic kernel",
        ff.sampling.QuadraticKernel,
        lambda q, x, n, p: 100 * (q.double() @ x.double().T) ** 2 + 1,
    ),
    Case("dynamic", lambda: ff.sampling.Dynamic(3, corrected=True), _dynamic),
]

every_proposal = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def problem(items: int = 60, dim: int = 5, queries: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, items and counts, a few of which are zero."""
    generator = torch.Generator().manual_seed(items)
    vectors = torch.randn(items, dim, generator=generator)
    counts = torch.randint(0, 6, (items,), generator=generator).double()
    counts[0] = 5
    return torch.randn(queries, dim, generator=generator), vectors, counts


def distribution(case: Case, proposal: ff.sampling.Proposal, shared: bool) -> Tensor:
    """The exact probabilities of all items: (B, M), or (M,) if shared."""
    queries, items, counts = problem()
    mass = case.mass(queries, items, counts, proposal).double()
    probs = mass / mass.sum(1, keepdim=True)
    return probs.mean(0) if shared else probs
