"""DisARM: bits drawn in pairs that mirror each other."""

from dataclasses import dataclass

import torch

from fewfold.expectation.estimators.estimator import Choice, Estimator
from fewfold.expectation.latents.bernoulli import BitLaw
from fewfold.expectation.latents.latent import Law, pairs
from fewfold.expectation.latents.noise import uniform
from fewfold.support import Support

__all__ = ["DisARM"]


@dataclass(frozen=True)
class DisARM(Estimator):
    """Two bit vectors from one uniform draw, u and 1 - u, and the difference of their costs.

    Unbiased, with two calls for a row and no baseline. Of each bit that differs in the pair the
    gradient is half the difference of costs times `sigmoid(abs(score))`, with its sign.

    Example:
        >>> import torch, fewfold as ff
        >>> scores = torch.tensor([[0.3, -0.2, 0.5]])
        >>> out = ff.expect(lambda atoms, row: atoms.sum(1), scores, ff.expectation.DisARM(),
        ...     ff.structures.Bits(), generator=torch.Generator().manual_seed(0))
        >>> out.calls
        tensor([2])

    Reference: Dong, Mnih and Tucker, "DisARM: an antithetic gradient estimator for binary latent
    variables", 2020.
    """

    def choose(self, law: Law, generator: torch.Generator | None) -> Choice:
        if not isinstance(law, BitLaw):
            raise TypeError("DisARM is for bits: write expect(..., over=ff.structures.Bits())")
        scores = law.flat
        fixed = scores.detach()
        chance = fixed.double().sigmoid()
        point = uniform(fixed.shape, chance, generator)
        one, other = point < chance, 1 - point < chance
        slope = torch.where(one != other, fixed.double().abs().sigmoid(), 0.0)
        slope = torch.where(one, slope, -slope)
        finite = torch.where(fixed.isinf(), 0.0, scores)
        log_score = (slope * finite).sum(-1).to(scores)
        atoms, row = pairs(torch.stack([one, other], 1).to(scores))
        support = Support(atoms.new_full((len(row),), 0.5), atoms, row, law.rows)
        return Choice(support, torch.stack([log_score, -log_score], 1).flatten())
