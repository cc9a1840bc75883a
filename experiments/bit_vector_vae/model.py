"""The autoencoder with a latent bit vector, and the training methods."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

import fewfold as ff
from experiments.bit_vector_vae.pixels import pixel_nll
from experiments.networks import perceptron
from fewfold.structured.structures.structure import Structure

PIXELS, VALUES, RANK, HIDDEN = 784, 256, 5, 128
SMALL, LARGE = 32, 128  # bits of the published latents
Sizes = dict[int, float]


class BitVAE(nn.Module):
    """Encoder from images to scores of bits; decoder from bits to a categorical per pixel."""

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(PIXELS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, bits))
        self.decoder = nn.Sequential(
            nn.Linear(bits, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, RANK * PIXELS)
        )
        self.output = nn.Linear(RANK, VALUES)

    def cost(self, images: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        """Return the cost -log p(image | bits) of pairs of an image `(rows, pixels)` and bits."""

        def cost(atoms: Tensor, row: Tensor) -> Tensor:
            features = self.decoder(atoms).view(-1, RANK, PIXELS)
            return pixel_nll(features, self.output.weight, self.output.bias, images, row)

        return cost


@dataclass(frozen=True)
class Method:
    """Training method of one row of the table; settings may depend on the number of bits."""

    estimator: Callable[[int], ff.expectation.Estimator]
    lr: Sizes
    over: Callable[[int], Structure] = lambda bits: ff.structures.Bits()
    batch: Sizes = field(default_factory=dict)  # 64 unless given
    rate: Sizes = field(default_factory=dict)  # at which a temperature falls

    def scores(self, found: Tensor, bits: int) -> Tensor:
        """Return the scores of the latent from the output of the encoder.

        A bit that is off is a part of its own, as in `Bits(on_off=True)`; over a budget that is the
        same as half of score and one.
        """
        return (found + 1) / 2 if isinstance(self.over(bits), ff.structures.Budget) else found

    def at(
        self, estimator: ff.expectation.Estimator, step: int, bits: int
    ) -> ff.expectation.Estimator:
        """Return the estimator at a training step."""
        if not isinstance(estimator, ff.Gumbel):
            return estimator
        return replace(estimator, temperature=ff.expectation.annealed(step, rate=self.rate[bits]))


def testing(estimator: ff.expectation.Estimator, samples: int) -> ff.expectation.Estimator:
    """Return the estimator for evaluation: this many samples, and no baseline."""
    if estimator.exact:
        return estimator
    if isinstance(estimator, ff.Gumbel):
        return replace(estimator, samples=samples)
    return ff.ScoreFunction(samples)


def learned(width: int = 512) -> ff.expectation.Learned:
    """Return a baseline network that predicts the cost of an image."""
    return ff.expectation.Learned(perceptron(PIXELS, width, width, width, 1))


def control(bits: int, width: int = 256) -> nn.Module:
    """Return a control variate of relaxed bits and images."""
    return perceptron(bits + PIXELS, width, width, 1, activation=nn.Tanh)


METHODS = {
    "top-k sparsemax": Method(lambda bits: ff.SparseMarginal(k=10), {SMALL: 2e-3, LARGE: 1e-3}),
    "SparseMAP": Method(
        lambda bits: ff.SparseMarginal(),
        {SMALL: 2e-3, LARGE: 2e-3},
        over=lambda bits: ff.structures.Bits(on_off=True),
        batch={LARGE: 16},
    ),
    "SparseMAP, budget": Method(
        lambda bits: ff.SparseMarginal(),
        {SMALL: 2e-3, LARGE: 2e-3},
        over=lambda bits: ff.structures.Budget(bits // 2),
        batch={LARGE: 16},
    ),
    "SFE": Method(
        lambda bits: ff.ScoreFunction(baseline=ff.expectation.RunningMean()),
        {SMALL: 1e-3, LARGE: 1e-3},
    ),
    "SFE+": Method(
        lambda bits: ff.ScoreFunction(baseline=ff.expectation.SelfCritic()),
        {SMALL: 1e-3, LARGE: 1e-3},
    ),
    "NVIL": Method(lambda bits: ff.ScoreFunction(baseline=learned()), {SMALL: 1e-3, LARGE: 5e-4}),
    "Gumbel": Method(
        lambda bits: ff.Gumbel(), {SMALL: 1e-3, LARGE: 1e-3}, rate={SMALL: 1e-5, LARGE: 1e-4}
    ),
    "ST Gumbel": Method(
        lambda bits: ff.Gumbel(straight_through=True),
        {SMALL: 1e-3, LARGE: 5e-4},
        rate={SMALL: 1e-5, LARGE: 1e-5},
    ),
    # Not in the paper.
    "straight-through": Method(
        lambda bits: ff.expectation.StraightThrough(), {SMALL: 1e-3, LARGE: 1e-3}
    ),
    "unordered set": Method(
        lambda bits: ff.expectation.UnorderedSet(2), {SMALL: 1e-3, LARGE: 1e-3}
    ),
    "MuProp": Method(lambda bits: ff.expectation.MuProp(), {SMALL: 1e-3, LARGE: 1e-3}),
    "RELAX": Method(lambda bits: ff.expectation.RELAX(control(bits)), {SMALL: 1e-3, LARGE: 1e-3}),
}
