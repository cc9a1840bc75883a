"""Table of maps: every property test of this module runs on every row."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fewfold as ff

from . import reference


@dataclass(frozen=True)
class Case:
    """A map with its parameters, its slow twin, and what is known about its answers."""

    name: str
    function: Callable[..., Tensor]
    twin: Callable[..., np.ndarray]
    """The same map in tests/maps/reference.py."""
    parameters: tuple[tuple[str, Any], ...] = ()
    total: float = 1.0
    """What a row sums to."""
    at_most: bool = False
    """The total is an upper limit, and so a constant added to the scores matters."""
    bounded: bool = False
    """Takes an upper bound per entry, the argument after the scores."""
    ordered: bool = False
    """The position of an entry matters."""
    capped: bool = False
    """At most this many entries are kept, so that ties at the edge have no unique answer."""
    smallest: int = 1
    """The shortest row on which the parameters make sense."""
    longest: int = 100_000
    """The longest row its twin can do in reasonable time."""
    blunt: bool = False
    """The slope of an entry is unbounded where it enters the support, so rounding is amplified."""
    learnt: bool = False
    """Its parameters are given as tensors instead of numbers."""
    wide: bool = False
    """One representative per public function and per kind of code, for the slow transforms."""

    def __call__(
        self, scores: Tensor, *upper: Tensor, dim: int = -1, mask: Tensor | None = None
    ) -> Tensor:
        parameters = dict(self.parameters)
        if self.learnt:
            parameters = {name: scores.new_tensor(value) for name, value in self.parameters}
        if self.bounded and not upper:
            upper = (along(self.upper(scores.shape[dim]).to(scores), scores, dim),)
        return self.function(scores, *upper, dim=dim, mask=mask, **parameters)

    def upper(self, n: int) -> Tensor:
        """Bounds that leave the simplex non-empty as long as entry 0 is kept."""
        bounds = 0.2 + 0.7 * torch.frac(0.6180339887 * torch.arange(n, dtype=torch.float64))
        bounds[:1] = 1.0
        return bounds

    def expected(self, scores: Tensor, upper: Tensor | None = None) -> Tensor:
        """The twin's answer along the last dim, in float64, from exactly these scores."""
        rows = scores.detach().double().reshape(-1, scores.shape[-1])
        extras = []
        if self.bounded:
            bound = self.upper(scores.shape[-1]).to(scores.dtype) if upper is None else upper
            extras = [bound.double().expand(scores.shape).reshape(rows.shape).numpy()]
        answer = self.twin(rows.numpy(), *extras, **dict(self.parameters))
        return torch.from_numpy(answer).reshape(scores.shape)

    def totals(self, kept: Tensor) -> Tensor:
        """What rows with ``kept`` entries left sum to (an upper limit when ``at_most``)."""
        return torch.minimum(kept.double(), torch.tensor(self.total, dtype=torch.float64))


def along(vector: Tensor, scores: Tensor, dim: int) -> Tensor:
    """View a vector so that it lies along ``dim`` of the scores."""
    shape = [1] * scores.dim()
    shape[dim] = -1
    return vector.reshape(shape)


def entmax(alpha: float, **known: Any) -> Case:
    return Case(f"entmax({alpha:g})", ff.entmax, reference.entmax, (("alpha", alpha),), **known)


def normmax(alpha: float, **known: Any) -> Case:
    return Case(f"normmax({alpha:g})", ff.normmax, reference.normmax, (("alpha", alpha),), **known)


def ksubset(k: float, **known: Any) -> Case:
    return Case(
        f"ksubset({k:g})",
        ff.ksubset,
        reference.ksubset,
        (("k", k),),
        total=k,
        smallest=int(np.ceil(k)),
        **known,
    )


CASES = [
    Case("softmax", ff.softmax, reference.softmax, wide=True),
    Case("sparsemax", ff.sparsemax, reference.sparsemax, wide=True),
    entmax(0.7),
    entmax(1.0),
    entmax(1.25, wide=True),
    entmax(1.5, wide=True),
    entmax(1.75),
    entmax(2.0),
    entmax(3.0, blunt=True),
    entmax(5.0, blunt=True),
    Case(
        "entmax(tensor)",
        ff.entmax,
        reference.entmax,
        (("alpha", 1.625),),
        learnt=True,
        wide=True,
    ),
    normmax(1.5),
    normmax(2.0, wide=True),
    normmax(5.0, blunt=True),
    ksubset(1),
    ksubset(2, wide=True),
    ksubset(2.5),
    Case(
        "ksubset(2, at_most)",
        ff.ksubset,
        reference.ksubset,
        (("k", 2), ("at_most", True)),
        total=2.0,
        at_most=True,
        smallest=2,
    ),
    Case(
        "topk_sparsemax(3)",
        ff.topk_sparsemax,
        reference.topk_sparsemax,
        (("k", 3),),
        capped=True,
        wide=True,
    ),
    Case(
        "constrained_sparsemax",
        ff.constrained_sparsemax,
        reference.constrained_sparsemax,
        bounded=True,
        wide=True,
    ),
    Case(
        "constrained_softmax",
        ff.maps.constrained_softmax,
        reference.constrained_softmax,
        bounded=True,
        wide=True,
    ),
    Case(
        "fusedmax(0.1)",
        ff.fusedmax,
        reference.fusedmax,
        (("strength", 0.1),),
        ordered=True,
        longest=7,
        wide=True,
    ),
    Case(
        "oscarmax(0.1)",
        ff.oscarmax,
        reference.oscarmax,
        (("strength", 0.1),),
        longest=60,
        wide=True,
    ),
]

every_map = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
wide_maps = pytest.mark.parametrize(
    "case", [case for case in CASES if case.wide], ids=lambda case: case.name
)


def random_scores(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def pattern(case: Case, scores: Tensor) -> Tensor:
    """Which entries are at a bound, which are equal, and whether the total is met.

    Every map is smooth where this does not change.
    """
    probs = case.expected(scores)
    upper = case.upper(scores.shape[-1]) if case.bounded else torch.ones(())
    equal = (probs[..., :, None] - probs[..., None, :]).abs() < 1e-9
    parts = [probs < 1e-9, probs > upper - 1e-9, equal.flatten(-2)]
    parts.append((probs.sum(-1, keepdim=True) - case.total).abs() < 1e-9)
    return torch.cat(parts, -1)


@functools.cache
def smooth_scores(case: Case, rows: int = 3, n: int = 5, seed: int = 0) -> Tensor:
    """Random rows around which the map is smooth, not constant, and not close to an edge."""
    found = []
    nudges = 2e-3 * torch.cat([torch.eye(n), -torch.eye(n)]).double()
    upper = case.upper(n) if case.bounded else torch.ones(())
    while len(found) < rows:
        seed += 1
        row = 0.5 * random_scores(n, seed=seed)
        probs = case.expected(row[None])[0]
        free = (probs > 0) & (probs < upper - 1e-9)
        if free.sum() < 2 or probs[free].min() < 0.03:
            continue
        around = pattern(case, row + nudges)
        if (around == pattern(case, row[None])).all():
            found.append(row)
    return torch.stack(found)
