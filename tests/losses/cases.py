"""Table of losses: every property test of this module runs on every row."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fewfold.losses import (
    entmax_loss,
    fenchel_young_loss,
    ksubset_loss,
    normmax_loss,
    softmax_loss,
    sparsemax_loss,
)
from fewfold.maps import Gini, Norm, Shannon, Subset, Tsallis
from tests.maps import reference


@dataclass(frozen=True)
class Case:
    """A regulariser, its loss by name, and both once more in numpy."""

    name: str
    omega: Any
    member: Callable[..., Tensor]
    twin: Callable[..., np.ndarray]
    """The map in tests/maps/reference.py."""
    value: Callable[[np.ndarray], np.ndarray]
    """Omega of the rows of an array."""
    options: dict[str, Any] = field(default_factory=dict)
    """What the member and the twin take beside scores and target."""
    mass: int = 1
    """What a target sums to."""
    at_most: bool = False
    margin: float | None = None
    lowest: Callable[[int], float] | None = None
    """The smallest value of Omega among n classes."""
    learnt: bool = False
    """The parameter is given as a tensor."""

    @property
    def indexed(self) -> bool:
        return self.mass == 1

    def __call__(self, scores: Tensor, target: Tensor, **options: Any) -> Tensor:
        return fenchel_young_loss(scores, target, self.regulariser(scores), **options)

    def by_name(self, scores: Tensor, target: Tensor, **options: Any) -> Tensor:
        given = dict(self.options)
        if self.learnt:
            given = {name: scores.new_tensor(value) for name, value in given.items()}
        return self.member(scores, target, **given, **options)

    def regulariser(self, scores: Tensor) -> Any:
        if not self.learnt:
            return self.omega
        return self.omega(*(scores.new_tensor(value) for value in self.options.values()))

    def probs(self, scores: Tensor) -> Tensor:
        """The map of (rows, n) scores, in float64 by the twin."""
        return torch.from_numpy(self.twin(scores.detach().double().numpy(), **self.options))

    def expected(self, scores: Tensor, target: Tensor) -> Tensor:
        """The loss of every row of (rows, n), in float64."""
        p = self.probs(scores).numpy()
        y = target.detach().double().numpy()
        s = scores.detach().double().numpy()
        if not self.at_most:
            top = s.max(-1, keepdims=True)
            s = np.where(s == top, 0.0, s - np.where(np.isinf(top), 0.0, top))
        with np.errstate(invalid="ignore"):
            product = np.where(p == y, 0.0, (p - y) * s).sum(-1)
        return torch.from_numpy(product - self.value(p) + self.value(y))

    def target(self, scores: Tensor, seed: int = 1) -> Tensor:
        """Random corners of the polytope: rows with as many ones as the mass."""
        generator = torch.Generator().manual_seed(seed)
        place = torch.rand(scores.shape, generator=generator).topk(self.mass, -1).indices
        return torch.zeros_like(scores).scatter(-1, place, 1.0)

    def soft(self, scores: Tensor, seed: int = 2) -> Tensor:
        """Random points inside the polytope."""
        return torch.stack([self.target(scores, seed + i) for i in range(4)]).mean(0)


def shannon(p: np.ndarray) -> np.ndarray:
    return (p * np.log(np.where(p > 0, p, 1.0))).sum(-1)


def tsallis(alpha: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda p: ((p**alpha).sum(-1) - 1) / (alpha * (alpha - 1))


def norm(alpha: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda p: (p**alpha).sum(-1) ** (1 / alpha) - 1


def half_square(p: np.ndarray) -> np.ndarray:
    return (p**2).sum(-1) / 2


def entmax(alpha: float, learnt: bool = False) -> Case:
    return Case(
        f"entmax {alpha:g}" + " learnt" * learnt,
        Tsallis if learnt else Tsallis(alpha),
        entmax_loss,
        reference.entmax,
        tsallis(alpha),
        {"alpha": alpha},
        margin=1 / (alpha - 1) if alpha > 1 else None,
        lowest=lambda n: (n ** (1 - alpha) - 1) / (alpha * (alpha - 1)),
        learnt=learnt,
    )


def normmax(alpha: float, learnt: bool = False) -> Case:
    return Case(
        f"normmax {alpha:g}" + " learnt" * learnt,
        Norm if learnt else Norm(alpha),
        normmax_loss,
        reference.normmax,
        norm(alpha),
        {"alpha": alpha},
        margin=1.0,
        lowest=lambda n: n ** ((1 - alpha) / alpha) - 1,
        learnt=learnt,
    )


CASES = [
    Case(
        "softmax",
        Shannon(),
        softmax_loss,
        reference.softmax,
        shannon,
        lowest=lambda n: -float(np.log(n)),
    ),
    Case(
        "sparsemax",
        Gini(),
        sparsemax_loss,
        reference.sparsemax,
        tsallis(2.0),
        margin=1.0,
        lowest=lambda n: (1 / n - 1) / 2,
    ),
    *(entmax(alpha) for alpha in (0.7, 1.25, 1.5, 2.0, 3.0)),
    *(normmax(alpha) for alpha in (1.5, 2.0, 5.0)),
    entmax(1.4, learnt=True),
    normmax(3.0, learnt=True),
    Case(
        "ksubset 2",
        Subset(2),
        ksubset_loss,
        reference.ksubset,
        half_square,
        {"k": 2},
        mass=2,
        margin=1.0,
    ),
    Case(
        "ksubset at most 2",
        Subset(2, at_most=True),
        ksubset_loss,
        reference.ksubset,
        half_square,
        {"k": 2, "at_most": True},
        mass=2,
        at_most=True,
    ),
]

every_loss = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
every_class_loss = pytest.mark.parametrize(
    "case", [case for case in CASES if case.indexed], ids=lambda case: case.name
)


def random_scores(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def smooth_scores(case: Case, rows: int = 3, n: int = 6, seed: int = 0) -> Tensor:
    """Scores around which the support does not change, so that differences mean something."""
    found = []
    for attempt in range(200):
        row = 0.7 * random_scores(1, n, seed=1000 * seed + attempt)
        nudges = torch.cat([row + 2e-2 * sign * torch.eye(n, dtype=row.dtype) for sign in (-1, 1)])
        state = torch.cat([case.probs(row), case.probs(nudges)])
        inside = (state > 0) & ((state < 1) | (case.mass == 1))
        if bool((inside == inside[:1]).all()) and int(inside[0].sum()) > 1:
            found.append(row)
        if len(found) == rows:
            return torch.cat(found)
    raise RuntimeError(f"no smooth rows for {case.name}")


def close(got: Tensor, want: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(got, want.to(got.dtype), atol=tolerance, rtol=tolerance)


def slope(function: Callable[[Tensor], Tensor], scores: Tensor) -> Tensor:
    leaf = scores.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(function(leaf).sum(), leaf)
    return gradient
