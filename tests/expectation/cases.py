"""Table of latents: every property test of this module runs on the rows it applies to.

What a latent ranges over, and what its additional scores add, is said by a rule about 0/1 vectors;
the reference goes through all of these. Draws are not left to chance either: a batch has a row for
each thing that may be drawn, and its probability is the weight of the row.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fewfold as ff
from fewfold.expectation.latents.bernoulli import BernoulliLatent
from fewfold.expectation.latents.categorical import CategoricalLatent
from fewfold.expectation.latents.structured import StructuredLatent
from fewfold.structured import structures
from fewfold.structured.structures.structure import Structure
from tests.structured import cases as structured

INF = math.inf


@dataclass(frozen=True, eq=False)
class Latent:
    """What a latent ranges over, the shape of its scores, and all of its values."""

    name: str
    event: tuple[int, ...]
    over: Structure | None = None
    rule: structured.Rule | None = None
    adds: Callable[..., Tensor] | None = None
    """(structures, *additional scores) -> (m,) what these add"""

    @property
    def dist(self) -> type[Any]:
        """The class that draws it."""
        if self.over is None:
            return CategoricalLatent
        return BernoulliLatent if isinstance(self.over, structures.Bits) else StructuredLatent

    @property
    def every(self) -> Tensor:
        """(m,) ids, or `(m, *event)` of 0 and 1 in float64."""
        if self.rule is None:
            return torch.arange(self.event[0])
        return structured.Case(self.name, self.over, self.event, self.rule).every()

    @property
    def vectors(self) -> Tensor:
        """The same as (m, parts) vectors."""
        if self.rule is None:
            return torch.eye(self.event[0], dtype=torch.float64)
        return self.every.flatten(1)

    def totals(self, scores: Tensor, additional: tuple[Tensor, ...] | None = None) -> Tensor:
        """`(*batch, m)` the scores of all values, for those of parts `(*batch, *event)`."""
        flat = scores.flatten(scores.dim() - len(self.event))
        on = self.vectors > 0.5
        found = torch.where(on, flat.unsqueeze(-2), 0.0).sum(-1)
        if self.adds is None:
            return found
        assert self.over is not None
        return found + self.adds(self.every, *(additional or self.over.additional))

    def log_probs(self, scores: Tensor, additional: tuple[Tensor, ...] | None = None) -> Tensor:
        """`(*batch, m)` under the distribution in which a value has a share of exp(its score)."""
        return self.totals(scores, additional).log_softmax(-1)

    def scores(self, *batch: int, seed: int = 0, scale: float = 0.7) -> Tensor:
        draw = torch.Generator().manual_seed(seed)
        return scale * torch.randn(*batch, *self.event, generator=draw, dtype=torch.float64)

    def live(self) -> tuple[Structure | None, tuple[Tensor, ...]]:
        """What it ranges over with additional scores that record gradients, and these."""
        if self.over is None:
            return None, ()
        own = tuple(value.clone().requires_grad_() for value in self.over.additional)
        return self.over.with_additional(own), own

    def prior_over(self, seed: int | None = None) -> dict[str, Any]:
        """What the prior is over, as an argument: the same, or with additional scores anew."""
        if self.over is None or self.adds is None:
            return {}
        if seed is None:
            return {"prior_over": self.over}
        draw = torch.Generator().manual_seed(seed)
        given = [
            torch.where(v == -INF, v, torch.randn(v.shape, generator=draw, dtype=v.dtype))
            for v in self.over.additional
        ]
        return {"prior_over": self.over.with_additional([v.requires_grad_() for v in given])}


class Cost:
    """A cost that no part of an atom decides alone, with a parameter; it remembers its calls."""

    def __init__(self, latent: Latent, seed: int = 1, rows: int = 1) -> None:
        draw = torch.Generator().manual_seed(seed)
        parts = math.prod(latent.event)
        self.weight = torch.randn(parts, 3, generator=draw, dtype=torch.float64).requires_grad_()
        self.shift = torch.randn(rows, 3, generator=draw, dtype=torch.float64)
        self.asked: list[tuple[Tensor, Tensor]] = []

    def __call__(self, atoms: Tensor, row: Tensor) -> Tensor:
        self.asked.append((atoms, row))
        flat = atoms.flatten(1) if atoms.is_floating_point() else atoms
        found = ff.expectation.embed_atoms(
            flat, self.weight.to(atoms if flat.dim() > 1 else self.weight)
        )
        return (found + self.shift.to(found)[row % len(self.shift)]).square().sum(-1)

    def every(self, latent: Latent, row: int = 0) -> Tensor:
        """(m,) at all values of a latent, without the calls being remembered."""
        return (latent.vectors @ self.weight + self.shift[row % len(self.shift)]).square().sum(-1)


def exact(latent: Latent, scores: Tensor, cost: Cost, *more: Tensor) -> tuple[Tensor, ...]:
    """The expected cost for `(*event)` scores, and its gradients, by going through all values."""
    value = (latent.log_probs(scores, more).exp() * cost.every(latent)).sum()
    return value.detach(), *torch.autograd.grad(value, [scores, cost.weight, *more])


def two_noises(score: float, nodes: int = 48) -> tuple[Tensor, Tensor]:
    """Quadrature over the two noises of a relaxed bit: (2, t, 1) logistic noise, and (t,) weights.

    There is a seam where the bit changes.
    """
    points, weights = (torch.from_numpy(a) / 2 for a in np.polynomial.legendre.leggauss(nodes))
    points = points + 0.5
    seam = 1 / (1 + math.exp(score))
    early = torch.cat([points * seam, seam + points * (1 - seam)])
    share = torch.cat([weights * seam, weights * (1 - seam)])
    chance = torch.cartesian_prod(share, weights).prod(1)
    return torch.cartesian_prod(early, points).T.logit().unsqueeze(-1), chance


def tuples(probs: Tensor, draws: int) -> tuple[Tensor, Tensor]:
    """All that may be drawn independently, (t, draws) places, and (t,) how probable each is."""
    possible = probs.detach().nonzero()[:, 0].tolist()
    places = torch.tensor(list(itertools.product(possible, repeat=draws)), dtype=torch.int64)
    return places, probs.detach()[places].prod(1)


@contextmanager
def drawing(latent: Latent, *given: Tensor) -> Iterator[None]:
    """In here draws are not random: row after row they are these atoms, `(rows, draws, *atom)`."""
    left = list(given)

    def sample(self: Any, draws: int, generator: torch.Generator | None) -> Tensor:
        found = left.pop(0)
        assert found.shape[:2] == (self.rows, draws)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(latent.dist, "sample", sample)
        yield
    assert not left


# The table.

_between, _ends = structured.draw(2, 2), (structured.draw(2, seed=1), structured.draw(2, seed=2))
_barred = torch.tensor([[0.4, -INF], [-0.3, 0.2]], dtype=torch.float64)
_edges = [(0, 1), (1, 2), (0, 2), (2, 3)]

CATEGORIES = Latent("categories", (4,))
BITS = Latent("bits", (3,), structures.Bits(), structured.picks(0, 3))
ON_OFF = Latent("bits, on or off", (2,), structures.Bits(on_off=True), structured.picks(0, 2))
SUBSET = Latent("k-subset", (4,), structures.KSubset(2), structured.picks(2, 2))
SEQUENCE = Latent(
    "sequence",
    (3, 2),
    structures.Sequence(_between, start=_ends[0], stop=_ends[1]),
    structured.sequence,
    structured.transitions,
)
BARRED = Latent(
    "sequence, a transition barred",
    (3, 2),
    structures.Sequence(_barred),
    structured.sequence,
    # a product with -inf is no number, so those sequences are told apart
    lambda z, between: torch.where(
        (z[:, :-1, 0] * z[:, 1:, 1]).sum(1) > 0,
        -INF,
        structured.transitions(z, torch.where(between == -INF, 0.0, between)),
    ),
)
LATENTS = [
    CATEGORIES,
    BITS,
    ON_OFF,
    SUBSET,
    SEQUENCE,
    BARRED,
    Latent("budget", (3,), structures.Budget(2), structured.picks(0, 2)),
    Latent(
        "sequential subset",
        (4,),
        structures.SequentialSubset(2, bonus=structured.draw(3, seed=4)),
        structured.picks(2, 2),
        structured.neighbours,
    ),
    Latent("tree", (2, 2), structures.DependencyTree(), structured.tree()),
    Latent(
        "spanning tree",
        (4,),
        structures.SpanningTree(torch.tensor(_edges), 4),
        structured.spanning(_edges, 4),
    ),
]
FREE = [CATEGORIES, BITS, ON_OFF]
"""Those that can be relaxed, and summed in part."""


def over(latents: list[Latent]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("latent", latents, ids=[latent.name for latent in latents])
