"""Distribution of independent bits."""

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from fewfold._torch import under_vmap
from fewfold.expectation.latents.latent import LatentDistribution, enumerate_structures
from fewfold.expectation.latents.noise import gumbel, logistic, uniform
from fewfold.structured.structures.bits import Bits
from fewfold.structured.structures.structure import Structure

__all__ = ["BernoulliLatent"]


@dataclass(frozen=True, eq=False)
class BernoulliLatent(LatentDistribution):
    """Independent bits, each on with probability sigmoid(score); atoms are 0/1 vectors."""

    over: Bits
    independent_bits: ClassVar[bool] = True

    @property
    def structure(self) -> Structure:
        return self.over

    @property
    def event(self) -> torch.Size:
        return self.scores.shape[-1:]

    @property
    def wide(self) -> Tensor:
        """(rows, bits) scores, at least float32."""
        return self.flat.to(self.wide_type)

    def sample(self, draws: int, generator: torch.Generator | None) -> Tensor:
        # In double precision, a bit of probability e^-40 is not sampled because of rounding.
        chance = self.flat.detach().double().sigmoid().unsqueeze(1)
        point = uniform((self.rows, draws, *self.event), chance, generator)
        return (point < chance).to(self.scores)

    def log_prob(self, atoms: Tensor, row: Tensor) -> Tensor:
        return self.bit_log_probs(atoms, self.wide[row]).sum(-1)

    @staticmethod
    def bit_log_probs(atoms: Tensor, scores: Tensor) -> Tensor:
        """Elementwise log-probability of bits: log sigmoid(score) if on, log sigmoid(-score)."""
        return F.logsigmoid(torch.where(atoms > 0.5, scores, -scores))

    def mean(self) -> Tensor:
        return self.wide.sigmoid().to(self.scores)

    def mode(self) -> Tensor:
        return (self.flat.detach() > 0).to(self.scores)

    def entropy(self) -> Tensor:
        return _bit_entropy(self.wide).sum(-1).to(self.scores)

    def kl(self, prior: Self) -> Tensor:
        own, its = self.wide, prior.wide
        return (_divergence(own, its) + _divergence(-own, -its)).sum(-1).to(self.scores)

    def enumerate_atoms(self) -> tuple[Tensor, Tensor]:
        atoms = enumerate_structures(self.over, self.event).to(self.scores)
        return atoms, self.bit_log_probs(atoms, self.wide.unsqueeze(1)).sum(-1)

    def k_best(self, k: int) -> tuple[Tensor, Tensor]:
        if under_vmap():
            raise RuntimeError(
                "the best bit vectors cannot be listed inside torch.func.vmap; give expect the "
                "whole batch, whose rows are independent, or use ScoreFunction()"
            )
        found = self.over.k_best(self.flat, k)
        return found.structures.to(self.scores), found.valid

    def sample_excluding(
        self, chosen: Tensor, valid: Tensor, draws: int, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """Sample bit by bit, with the total probability of completions outside `chosen`."""
        scores = self.flat.unsqueeze(1)
        wide = self.bit_log_probs(chosen, scores.double())  # (rows, k, D)
        mass = (1 - torch.where(valid, wide.sum(-1).exp(), 0.0).sum(-1)).clamp(min=0)
        free = self.flat.detach().isfinite().sum(-1)
        mass = torch.where(valid.sum(-1) >= 2.0**free, 0.0, mass)  # every atom is in `chosen`
        wide, bits = wide.detach(), chosen > 0.5
        rest = wide.flip(-1).cumsum(-1).flip(-1).exp()  # probability of bits i, i + 1, ...
        rest = torch.cat([rest[..., 1:], torch.ones_like(rest[..., :1])], -1)
        chance = scores.detach().double().sigmoid()
        alive = valid.unsqueeze(1).expand(-1, draws, -1)  # (rows, draws, k): same prefix
        found = torch.empty(self.rows, draws, *self.event, dtype=torch.bool, device=chosen.device)
        for i in range(self.event[0]):
            left = alive * rest[:, None, :, i]
            bit = bits[:, None, :, i]
            on = chance[..., i] * (1 - torch.where(bit, left, 0.0).sum(-1)).clamp(min=0)
            off = (1 - chance[..., i]) * (1 - torch.where(bit, 0.0, left).sum(-1)).clamp(min=0)
            found[..., i] = uniform(on.shape, on, generator) * (on + off) < on
            alive = alive & (bit == found[..., i].unsqueeze(-1))
        return found.to(self.scores), mass.to(self.scores)

    def sample_distinct(
        self, count: int, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Sample by stochastic beam search: Gumbel-top-k over all vectors, bit by bit.

        A prefix has the log-probability of its bits and the largest perturbed log-probability of
        its completions; only the `count` best prefixes can have one of the best completions.
        """
        scores = self.flat.detach().double()
        logs = torch.stack([F.logsigmoid(-scores), F.logsigmoid(scores)], -1)  # (rows, D, 2)
        total, top = (logs.new_zeros(self.rows, 1) for _ in range(2))
        found = torch.zeros(self.rows, 1, 0, dtype=torch.bool, device=logs.device)
        for i in range(self.event[0]):
            longer = total.unsqueeze(-1) + logs[:, None, i]  # (rows, prefixes, 2)
            best = _perturb_below(longer, top, generator)
            top, place = best.flatten(1).topk(min(count, 2 * top.shape[1]), -1)
            total = longer.flatten(1).gather(1, place)
            prefix = found.gather(1, (place // 2).unsqueeze(-1).expand(-1, -1, i))
            found = torch.cat([prefix, (place % 2 == 1).unsqueeze(-1)], -1)
        valid = ~(total == -math.inf)
        mass = (1 - total.exp().sum(-1)).clamp(min=0)
        free = self.flat.detach().isfinite().sum(-1)
        mass = torch.where(valid.sum(-1) >= 2.0**free, 0.0, mass)  # every atom was sampled
        return found.to(self.scores), valid, mass.log()

    def sample_relaxed(
        self, temperature: float, draws: int, generator: torch.Generator | None
    ) -> Tensor:
        scores = self.flat.unsqueeze(1)
        noise = logistic((self.rows, draws, *self.event), scores, generator)
        return self.relax(scores + noise, temperature)

    def relax(self, perturbed: Tensor, temperature: float) -> Tensor:
        return (perturbed / temperature).sigmoid()

    def harden(self, relaxed: Tensor) -> Tensor:
        return relaxed > 0.5

    def sample_coupled(self, generator: torch.Generator | None) -> tuple[Tensor, Tensor, Tensor]:
        scores = self.flat
        point = logistic((2, *scores.shape), scores, generator)
        noisy = scores + point[0]
        draw = noisy.detach() > 0
        signed = torch.where(draw, scores, -scores)
        again = F.softplus(point[1] + F.softplus(signed))
        return draw.to(scores), noisy, torch.where(draw, again, -again)


def _perturb_below(logs: Tensor, top: Tensor, generator: torch.Generator | None) -> Tensor:
    """Gumbel variables (..., m) at these locations, given that the largest is `top` (...).

    Reference: Kool, van Hoof and Welling, "Stochastic beams and where to find them", 2019,
    appendix B.3.
    """
    noisy = logs + gumbel(logs.shape, logs, generator)
    below = noisy - noisy.amax(-1, keepdim=True)
    # log(1 - exp(below)); -inf at the largest, which therefore becomes `top`
    rest = torch.where(below > -0.5, (-below.expm1()).log(), (-below.exp()).log1p())
    excess = top.unsqueeze(-1) - noisy + rest
    moved = top.unsqueeze(-1) - excess.clamp(min=0) - (-excess.abs()).exp().log1p()
    return torch.where(logs == -math.inf, -math.inf, moved)


def _bit_entropy(scores: Tensor) -> Tensor:
    """Entropy of Bernoulli(sigmoid(score)), without cancellation."""
    finite = torch.where(scores.detach().isinf(), 0.0, scores)
    low = torch.where(finite.detach() > 0, -finite, finite)  # the entropy is even in the score
    found = low.exp().log1p() - low * low.sigmoid()
    return torch.where(scores.detach().isinf(), 0.0, found)


def _divergence(scores: Tensor, others: Tensor) -> Tensor:
    """Contribution of bits that are on to the KL divergence of `scores` from `others`."""
    chance = scores.sigmoid()
    used = chance.detach() > 0
    own, other = torch.where(used, scores, 0.0), torch.where(used, others, 0.0)
    return chance * (F.logsigmoid(own) - F.logsigmoid(other))
