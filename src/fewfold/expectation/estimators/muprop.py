"""MuProp: the score function with a linear expansion of the cost around the mean."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fewfold._check import whole_number
from fewfold.expectation.estimators.cost_gradient import (
    cost_needs,
    differentiate,
    refuse_transforms,
)
from fewfold.expectation.estimators.estimator import Choice, Estimator, combine
from fewfold.expectation.latents.latent import LatentDistribution, flatten_pairs
from fewfold.support import Support

__all__ = ["MuProp"]


@dataclass(frozen=True, eq=False, kw_only=True)
class _Expanded(Choice):
    """Samples followed by the mean.

    Attributes:
        mean: `(rows, *event)` probabilities, differentiable.
        point: the mean as a leaf, at which the cost is differentiated.
    """

    mean: Tensor
    point: Tensor


@dataclass(frozen=True)
class MuProp(Estimator):
    """Score-function estimator with a first-order Taylor expansion of the cost as its baseline.

    With the probabilities `mu` (categories: softmax; bits: sigmoid; structures: marginals) and the
    gradient g of the cost at `mu`, the expansion is subtracted from the cost of each sample z and
    the gradient of its expectation is added:

        (cost(z) - cost(mu) - g . (z - mu)) grad log p(z)  +  g . grad mu.

    Unbiased, and exact for costs that are linear in the atoms. One more evaluation of the cost per
    row, at the mean. Atoms are vectors, `(m, n)` for categories, and the cost must be
    differentiable in them; `embed_atoms` accepts vectors and ids.

    Args:
        samples: samples per row, averaged.

    Example:
        >>> import torch, fewfold as ff
        >>> price = torch.tensor([1.0, 2.0, 0.5, 3.0])
        >>> scores = torch.tensor([[0.3, -0.2, 0.5, 0.1]], requires_grad=True)
        >>> estimator = ff.expectation.MuProp()
        >>> out = ff.expect(lambda atoms, row: atoms @ price, scores, estimator)
        >>> out.loss.backward()
        >>> scores.grad, out.calls
        (tensor([[-0.1228,  0.0918, -0.3175,  0.3485]]), tensor([2]))

    Reference: Gu, Levine, Sutskever and Mnih, "MuProp: unbiased backpropagation for stochastic
    neural networks", 2016.
    """

    samples: int = 1
    relaxed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        whole_number(self.samples, "samples")

    def choose(self, latent: LatentDistribution, generator: torch.Generator | None) -> Choice:
        refuse_transforms("MuProp")
        drawn = latent.sample(self.samples, generator)
        flat, owner = flatten_pairs(drawn)
        scored = latent.log_prob(flat, owner).view(latent.rows, self.samples)
        mean = latent.mean()
        point = mean.detach().clone()
        if torch.is_grad_enabled():
            point.requires_grad_()
        vectors = torch.cat([latent.vectors_of_atoms(drawn), point.unsqueeze(1)], 1)
        atoms, row = flatten_pairs(vectors)
        weights = latent.scores.new_zeros(vectors.shape[:2])
        weights[:, : self.samples] = 1 / self.samples
        log_scores = torch.cat([scored, torch.zeros_like(scored[:, :1])], 1).flatten()
        support = Support(weights.flatten(), atoms, row, latent.rows)
        return _Expanded(support=support, log_scores=log_scores, mean=mean, point=point)

    def surrogate(self, choice: Choice, costs: Tensor, baseline: Tensor | None) -> Tensor:
        assert isinstance(choice, _Expanded)
        mean, point, support = choice.mean, choice.point, choice.support
        if not point.requires_grad:
            return combine(support, costs, choice.log_scores, None)
        at_mean = costs.view(support.rows, -1)[:, -1]
        slope = differentiate(at_mean, point, cost_needs("MuProp"))
        # A row whose cost has no expansion has no baseline, whatever is sampled.
        valid = at_mean.detach().isfinite() & slope.flatten(1).isfinite().all(1)
        slope = torch.where(valid.view(-1, *[1] * (slope.dim() - 1)), slope, 0.0)
        steps = (support.atoms.detach() - point.detach()[support.row]) * slope[support.row]
        expansion = torch.where(valid, at_mean.detach(), 0.0)[support.row]
        expansion = expansion + steps.flatten(1).sum(1).to(expansion)
        linear = ((mean - mean.detach()) * slope).flatten(1).sum(1)
        return combine(support, costs, choice.log_scores, expansion) + linear
