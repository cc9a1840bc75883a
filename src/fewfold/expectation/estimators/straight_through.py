"""Straight-through estimator: discrete values whose gradient is that of their probabilities."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from fewfold._check import whole_number
from fewfold.expectation.estimators.estimator import Choice, Estimator
from fewfold.expectation.latents.latent import LatentDistribution, flatten_pairs, zero_where_masked
from fewfold.support import Support

__all__ = ["StraightThrough"]


@dataclass(frozen=True)
class StraightThrough(Estimator):
    """Straight-through: samples in the forward pass, their probabilities in the backward pass.

    The gradient of the cost at an atom z is passed to the probabilities (categories: softmax; bits:
    sigmoid; structures: marginals) as if the atom were they:

        grad = mean_s J(scores)^T grad cost(z_s),    J = d probabilities / d scores.

    There is no noise in the backward pass and no temperature, unlike in
    `Gumbel(straight_through=True)`. Biased; unbiased for costs that are linear in the atoms and,
    for bits, for costs that are linear in each bit. Atoms are vectors, `(m, n)` for categories;
    `embed_atoms` accepts vectors and ids.

    Args:
        samples: samples per row, averaged.
        argmax: use the most likely value instead of samples; the value is then biased as well.
        identity: pass the gradient of the atom to the scores unchanged, J = I.

    Example:
        >>> import torch, fewfold as ff
        >>> price = torch.tensor([1.0, 2.0, 0.5, 3.0])
        >>> scores = torch.tensor([[0.3, -0.2, 0.5, 0.1]], requires_grad=True)
        >>> estimator = ff.expectation.StraightThrough(argmax=True)
        >>> out = ff.expect(lambda atoms, row: atoms @ price, scores, estimator)
        >>> out.loss.backward()
        >>> out.value, scores.grad
        (tensor([0.5000]), tensor([[-0.1228,  0.0918, -0.3175,  0.3485]]))

    Reference: Bengio, Léonard and Courville, "Estimating or propagating gradients through
    stochastic neurons for conditional computation", 2013.
    """

    samples: int = 1
    argmax: bool = False
    identity: bool = False
    relaxed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if whole_number(self.samples, "samples") > 1 and self.argmax:
            raise ValueError(
                f"the most likely value is one, got samples={self.samples}; write argmax=True "
                "alone, or leave it out to sample"
            )

    def choose(self, latent: LatentDistribution, generator: torch.Generator | None) -> Choice:
        if self.argmax:
            hard = latent.mode().unsqueeze(1)
        else:
            hard = latent.vectors_of_atoms(latent.sample(self.samples, generator))
        soft = (zero_where_masked(latent.flat) if self.identity else latent.mean()).unsqueeze(1)
        atoms, row = flatten_pairs(hard + (soft - soft.detach()))
        weights = latent.scores.new_full(row.shape, 1 / self.samples)
        return Choice(Support(weights, atoms, row, latent.rows))
