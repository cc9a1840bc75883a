"""DisARM: antithetic sampling of independent bits."""

from dataclasses import dataclass

import torch

from fewfold.expectation.estimators.estimator import Choice, Estimator
from fewfold.expectation.latents.latent import LatentDistribution, flatten_pairs
from fewfold.expectation.latents.noise import uniform
from fewfold.support import Support

__all__ = ["DisARM"]


@dataclass(frozen=True)
class DisARM(Estimator):
    """Antithetic estimator for bits: the cost difference of the samples given by u and 1 - u.

    Unbiased, with two evaluations of the cost per row and no baseline. The gradient of each bit
    that differs between the two samples is half the cost difference times `sigmoid(abs(score))`,
    with the sign of the bit; it is zero for other bits.

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

    def choose(self, latent: LatentDistribution, generator: torch.Generator | None) -> Choice:
        if not latent.independent_bits:
            raise TypeError("DisARM is for bits: write expect(..., over=ff.structures.Bits())")
        scores = latent.flat
        fixed = scores.detach()
        chance = fixed.double().sigmoid()
        point = uniform(fixed.shape, chance, generator)
        one, other = point < chance, 1 - point < chance
        slope = torch.where(one != other, fixed.double().abs().sigmoid(), 0.0)
        slope = torch.where(one, slope, -slope)
        finite = torch.where(fixed.isinf(), 0.0, scores)
        log_score = (slope * finite).sum(-1).to(scores)
        atoms, row = flatten_pairs(torch.stack([one, other], 1).to(scores))
        support = Support(atoms.new_full((len(row),), 0.5), atoms, row, latent.rows)
        return Choice(support, torch.stack([log_score, -log_score], 1).flatten())
