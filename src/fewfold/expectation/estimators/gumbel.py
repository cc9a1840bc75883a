"""Relaxation estimators: Gumbel-softmax and REBAR."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fewfold._check import non_negative_number, positive_number, whole_number
from fewfold.expectation.estimators.estimator import Choice, Estimator
from fewfold.expectation.latents.latent import LatentDistribution, flatten_pairs
from fewfold.support import Support

__all__ = ["REBAR", "Gumbel", "annealed", "positive_temperature"]


@dataclass(frozen=True)
class Gumbel(Estimator):
    """Gumbel-softmax: the cost at the relaxed sample `softmax((scores + noise) / temperature)`.

    Biased; the bias grows with the temperature. Atoms are vectors, `(m, n)`; for bits they are
    `sigmoid((scores + logistic noise) / temperature)`. `embed_atoms` accepts vectors and ids.

    Args:
        temperature: of the relaxation; see `annealed` for a schedule.
        straight_through: round the vectors to one-hot vectors (bits: to 0 and 1) in the forward
            pass, with the gradient of the relaxed vectors.
        samples: samples per row, averaged.

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
        object.__setattr__(self, "temperature", positive_temperature(self.temperature))
        whole_number(self.samples, "samples")

    def choose(self, latent: LatentDistribution, generator: torch.Generator | None) -> Choice:
        soft = latent.sample_relaxed(self.temperature, self.samples, generator)
        if self.straight_through:
            soft = latent.harden(soft).to(soft) + (soft - soft.detach())
        return Choice(_equal_weights(soft))


@dataclass(frozen=True)
class REBAR(Estimator):
    """Score-function estimator with a Gumbel-softmax control variate.

    Unbiased, with three evaluations of the cost per row: at a sample b (0/1), at the relaxation of
    the noise that gave b, and at the relaxation of noise resampled given b. For categories and
    bits; atoms are vectors.

    Args:
        temperature: of the relaxation.
        strength: coefficient of the control variate; 0 gives the plain score function.

    Reference: Tucker, Mnih, Maddison, Lawson and Sohl-Dickstein, "REBAR: low-variance, unbiased
    gradient estimates for discrete latent variable models", 2017.
    """

    temperature: float = 0.5
    strength: float = 1.0
    relaxed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "temperature", positive_temperature(self.temperature))
        object.__setattr__(self, "strength", non_negative_number(self.strength, "strength"))

    def choose(self, latent: LatentDistribution, generator: torch.Generator | None) -> Choice:
        draw, noisy, again = latent.sample_coupled(generator)
        both = torch.stack([noisy, again], 1)
        soft = latent.relax(both, self.temperature)
        atoms = torch.cat([draw.unsqueeze(1), soft], 1)
        support = _equal_weights(atoms)
        weights = atoms.new_tensor([1.0, self.strength, -self.strength]).repeat(latent.rows)
        row = torch.arange(latent.rows, device=atoms.device)
        hard = latent.atoms_of_vectors(draw)
        log_scores = atoms.new_zeros(atoms.shape[:2])
        log_scores = torch.cat([latent.log_prob(hard, row).unsqueeze(1), log_scores[:, 1:]], 1)
        return Choice(
            Support(weights, support.atoms, support.row, latent.rows),
            log_scores.flatten(),
        )

    def compare(self, choice: Choice, costs: Tensor, context: Tensor | None) -> Tensor | None:
        last = self.strength * costs.detach().view(-1, 3)[:, 2:]
        return torch.nn.functional.pad(last, (0, 2)).flatten()


def annealed(step: int, *, rate: float, every: int = 1000, least: float = 0.5) -> float:
    """Exponentially decaying temperature, `max(least, exp(-rate * step))`.

    Args:
        step: number of completed training steps.
        rate: decay rate per step.
        every: number of steps between updates of the temperature.
        least: lower bound of the temperature.

    Example:
        >>> import fewfold as ff
        >>> [round(ff.expectation.annealed(step, rate=1e-4), 3) for step in (0, 999, 1000, 50_000)]
        [1.0, 1.0, 0.905, 0.5]
    """
    whole_number(step, "step", least=0)
    positive_number(rate, "rate")
    positive_number(least, "least")
    return max(least, math.exp(-rate * (step // whole_number(every, "every") * every)))


def _equal_weights(atoms: Tensor) -> Support:
    """Support of atoms `(rows, count, *atom)` with equal weights."""
    flat, row = flatten_pairs(atoms)
    return Support(atoms.new_full(row.shape, 1 / atoms.shape[1]), flat, row, len(atoms))


def positive_temperature(temperature: float | Tensor) -> float:
    """Return a temperature as a float; raise unless it is a positive constant."""
    return positive_number(non_negative_number(temperature, "temperature"), "temperature")
