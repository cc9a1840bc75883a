"""Table of distributions: every property test of this module runs on the rows it applies to."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.distributions import Distribution

import fewfold as ff
from fewfold import distributions as fd


def real(*values) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Case:
    """How to build a distribution from tensors, two sets of these, and what is known of it."""

    name: str
    build: Callable[..., Distribution]
    given: tuple[Tensor, ...]
    other: tuple[Tensor, ...]
    wrong: tuple[str, int, float] | None = None
    """a parameter, its place among those given, and a value that it must not have"""
    known: tuple[str, ...] = ()
    """which of mean, variance, entropy and kl have a closed form"""

    @property
    def dist(self) -> Distribution:
        return self.build(*self.given)

    @property
    def rival(self) -> Distribution:
        return self.build(*self.other)

    def live(self) -> tuple[Tensor, ...]:
        return tuple(value.clone().requires_grad_() for value in self.given)


ALL = ("mean", "variance", "entropy", "kl")


def full(loc: Tensor, factor: Tensor) -> Distribution:
    return fd.GaussianSparsemax(loc, scale_tril=factor.tril())


def quadratic(loc: Tensor, factor: Tensor, alpha: Tensor) -> Distribution:
    return fd.QGaussian(loc, factor.tril(), alpha)


def listed(scores: Tensor, concentration: Tensor) -> Distribution:
    return fd.FaceMixture(fd.ListedFaces(scores.softmax(-1)), concentration)


TRIL2 = torch.tensor([[0.4, 0.0], [0.1, 0.3]], dtype=torch.float64)
TRIL3 = torch.tensor([[0.4, 0, 0], [0.1, 0.3, 0], [-0.2, 0.1, 0.5]], dtype=torch.float64)
PAIR = (real(0.5, 0.1), real(0.4, 0.3))
TRIPLE = (real(0.5, 0.2, 0.0), real(0.4, 0.3, 0.5))
SPREAD = (real(0.5, -0.3, 0.1, 0.0), real(0.7, 1.0, 2.5, 1.3))

CASES = [
    Case(
        "gaussian-sparsemax, two", fd.GaussianSparsemax, PAIR, (real(0.2, 0.1), real(0.5, 0.6)),
        ("scale", 1, -1.0), ALL,
    ),
    Case(
        "gaussian-sparsemax, three", fd.GaussianSparsemax, TRIPLE,
        (real(0.0, 0.2, 0.1), real(0.5, 0.4, 0.5)), ("scale", 1, 0.0),
    ),
    Case(
        "full gaussian-sparsemax, two", full, (PAIR[0], TRIL2), (real(0.2, 0.1), 1.2 * TRIL2),
        ("scale_tril", 1, -1.0), ALL,
    ),
    Case(
        "full gaussian-sparsemax, three", full, (TRIPLE[0], TRIL3),
        (real(0.0, 0.2, 0.1), 1.2 * TRIL3), ("scale_tril", 1, 0.0),
    ),
    Case(
        "binary hard concrete", fd.BinaryHardConcrete, (real(0.5)[0], real(0.7)[0], real(1.2)[0]),
        (real(-0.2)[0], real(0.5)[0], real(1.3)[0]), ("stretch", 2, 0.9), ALL,
    ),
    Case(
        "hard concrete, two", fd.HardConcrete, (real(0.5, 0.1), real(0.7)[0], real(1.1)[0]),
        (real(-0.2, 0.3), real(0.9)[0], real(1.2)[0]), ("temperature", 1, 0.0), ALL,
    ),
    Case(
        "concrete", fd.Concrete, (real(0.2, -0.1, 0.4), real(0.7)[0]),
        (real(0.0, 0.1, 0.3), real(0.9)[0]), ("temperature", 1, -1.0),
    ),
    Case(
        "logistic normal", fd.LogisticNormal, TRIPLE, (real(0.0, 0.2, 0.1), real(0.5, 0.4, 0.5)),
        ("scale", 1, 0.0), ("kl",),
    ),
    Case(
        "mixed dirichlet", fd.MixedDirichlet, SPREAD,
        (real(0.1, 0.2, -0.4, 0.3), real(1.0, 1.5, 2.0, 0.8)), ("concentration", 1, 0.0),
        ("mean", "entropy", "kl"),
    ),
    Case(
        "listed faces, dirichlet", listed, (real(0.2, 0.5, -0.3), real(0.9, 1.7)),
        (real(0.0, 0.3, 0.1), real(1.0, 1.2)), ("concentration", 1, -2.0),
        ("mean", "entropy", "kl"),
    ),
    Case(
        "gibbs faces", fd.GibbsFaces, SPREAD[:1], (real(0.1, 0.2, -0.4, 0.3),),
        ("scores", 0, float("nan")), ("mean", "entropy", "kl"),
    ),
    Case(
        "faces by size", fd.FacesBySize, SPREAD[:1], (real(0.1, 0.2, -0.4, 0.3),),
        ("log_weights", 0, float("inf")), ("mean", "entropy", "kl"),
    ),
    Case(
        "sparse categorical", lambda scores: fd.SparseCategorical(ff.Gini(), scores),
        (real(0.3, -0.2, 0.5, 0.1),), (real(0.3, 0.0, 0.4, 0.2),), None, ("entropy", "kl"),
    ),
    *(
        Case(
            f"q-gaussian, alpha {alpha}", quadratic, (real(0.3, 0.6), TRIL2, real(alpha)[0]),
            (real(0.2, 0.5), 1.5 * TRIL2, real(1.0)[0]), ("alpha", 2, 0.0), ALL,
        )
        for alpha in (0.8, 1.0, 1.5, 2.0, 3.0)
    ),
]  # fmt: skip


def over(*known: str) -> pytest.MarkDecorator:
    rows = [case for case in CASES if set(known) <= set(case.known)]
    return pytest.mark.parametrize("case", rows, ids=[case.name for case in rows])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
