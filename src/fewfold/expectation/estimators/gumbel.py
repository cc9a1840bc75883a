"""Estimators that relax: vectors near a draw, through which the gradient flows."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fewfold._check import non_negative_number, positive_number, whole_number
from fewfold.expectation.estimators.estimator import Choice, Estimator
from fewfold.expectation.latents.bernoulli import BitLaw
from fewfold.expectation.latents.categorical import CategoryLaw, cooled
from fewfold.expectation.latents.latent import Law, pairs
from fewfold.support import Support

__all__ = ["REBAR", "Gumbel", "annealed"]


@dataclass(frozen=True)
class Gumbel(Estimator):
    """The cost at a softened draw: `softmax((scores + noise) / temperature)`.

    Biased, and the more so the higher the temperature. Atoms are vectors, `(m, n)`; for bits they
    are `sigmoid((scores + logistic noise) / temperature)`. `embed_atoms` reads them and ids alike.

    Args:
        temperature: see `annealed` for a falling one.
        straight_through: round the vectors to a category (bits: to 0 and 1), and let the gradient
            pass as if they had not been.
        samples: draws per row, averaged.

    Example:
        >>> import torch, fewfold as ff
        >>> price = torch.tensor([1.0, 2.0, 0.5, 3.0])
        >>> scores = torch.tensor([[0.3, -0.2, 0.5, 0.1]])
        >>> out = ff.expect(lambda atoms, row: atoms @ price, scores, ff.Gumbel(0.5),
        ...     generator=torch.Generator().manual_seed(0))
        >>> out.support.atoms.sum()
        tensor(1.0000)

    Reference: Jang, Gu and Poole, "Categorical reparameterization with Gumbel-softmax", 2017;
    Maddison, Mnih and Teh, "The concrete distribution", 2017.
    """

    temperature: float = 1.0
    straight_through: bool = False
    samples: int = 1
    relaxed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "temperature", _positive(self.temperature))
        whole_number(self.samples, "samples")

    def choose(self, law: Law, generator: torch.Generator | None) -> Choice:
        soft = law.relaxed(self.temperature, self.samples, generator)
        if self.straight_through:
            soft = _hard(law, soft).to(soft) + (soft - soft.detach())
        return Choice(_equal(soft))


@dataclass(frozen=True)
class REBAR(Estimator):
    """A draw whose cost is compared with the cost of a softened draw of the same noise.

    Unbiased, with three calls for a row: at a draw b (0/1), at the relaxed noise it came from, and
    at relaxed noise drawn anew given b. For categories and bits; atoms are vectors.

    Args:
        temperature: of the relaxation.
        strength: of the comparison; 0 leaves the plain score function.

    Reference: Tucker, Mnih, Maddison, Lawson and Sohl-Dickstein, "REBAR: low-variance, unbiased
    gradient estimates for discrete latent variable models", 2017.
    """

    temperature: float = 0.5
    strength: float = 1.0
    relaxed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "temperature", _positive(self.temperature))
        object.__setattr__(self, "strength", non_negative_number(self.strength, "strength"))

    def choose(self, law: Law, generator: torch.Generator | None) -> Choice:
        draw, noisy, again = law.coupled(generator)
        both = torch.stack([noisy, again], 1)
        if isinstance(law, BitLaw):
            soft = (both / self.temperature).sigmoid()
        else:
            soft = cooled(both, self.temperature)
        atoms = torch.cat([draw.unsqueeze(1), soft], 1)
        support = _equal(atoms)
        weights = atoms.new_tensor([1.0, self.strength, -self.strength]).repeat(law.rows)
        row = torch.arange(law.rows, device=atoms.device)
        hard = draw.argmax(-1) if isinstance(law, CategoryLaw) else draw
        log_scores = atoms.new_zeros(atoms.shape[:2])
        log_scores = torch.cat([law.log_prob(hard, row).unsqueeze(1), log_scores[:, 1:]], 1)
        return Choice(
            Support(weights, support.atoms, support.row, law.rows),
            log_scores.flatten(),
        )

    def compare(self, choice: Choice, costs: Tensor, context: Tensor | None) -> Tensor | None:
        last = self.strength * costs.detach().view(-1, 3)[:, 2:]
        return torch.nn.functional.pad(last, (0, 2)).flatten()


def annealed(step: int, *, rate: float, every: int = 1000, least: float = 0.5) -> float:
    """A temperature that falls as training goes on: `max(least, exp(-rate * step))`.

    Args:
        step: how many there have been.
        rate: of the fall.
        every: steps between changes.
        least: what it does not fall below.

    Example:
        >>> import fewfold as ff
        >>> [round(ff.expectation.annealed(step, rate=1e-4), 3) for step in (0, 999, 1000, 50_000)]
        [1.0, 1.0, 0.905, 0.5]
    """
    whole_number(step, "step", least=0)
    positive_number(rate, "rate")
    positive_number(least, "least")
    return max(least, math.exp(-rate * (step // whole_number(every, "every") * every)))


def _equal(atoms: Tensor) -> Support:
    """`(rows, count, *atom)`, each with the same weight."""
    flat, row = pairs(atoms)
    return Support(atoms.new_full(row.shape, 1 / atoms.shape[1]), flat, row, len(atoms))


def _hard(law: Law, soft: Tensor) -> Tensor:
    if isinstance(law, BitLaw):
        return soft > 0.5
    every = torch.arange(soft.shape[-1], device=soft.device)
    return soft.argmax(-1, keepdim=True) == every


def _positive(temperature: float | Tensor) -> float:
    return positive_number(non_negative_number(temperature, "temperature"), "temperature")
