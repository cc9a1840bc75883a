"""Six distributions of a ten-dimensional latent, with their losses and KL divergences."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Dirichlet, Distribution, Independent, Normal, kl_divergence

import fewfold as ff

SIZE = 10
Cost = Callable[[Tensor, Tensor], Tensor]  # of points (m, SIZE), for the images (m,) they are of
_LOGS = 6.9  # of concentrations: from 0.001 to 1000


@dataclass(frozen=True)
class Latent(ABC):
    """Base class: a family of distributions of `SIZE` numbers.

    Attributes:
        lr: learning rate of Adam.
        clip: of the norm of the gradient.
        outputs: of the encoder, for one image.
        from_mean: whether the decoder is initialised to the mean image. Otherwise initial costs are
            so large that categorical posteriors collapse to one corner for all images; all others
            learn faster without.
    """

    lr: float = 1e-3
    clip: float = 5.0
    outputs: ClassVar[int] = SIZE
    from_mean: ClassVar[bool] = False

    @abstractmethod
    def loss(
        self, encoded: Tensor, cost: Cost, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return the surrogate loss (n,) and the cost (n,), given encoder outputs of n images."""

    @abstractmethod
    def rate(self, encoded: Tensor, generator: torch.Generator) -> Tensor:
        """Return the KL divergence (n,) from the prior, or its single-sample estimate."""

    @abstractmethod
    def weighted(self, encoded: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return samples (n, SIZE), and the log ratios (n,) of prior to posterior density."""


@dataclass(frozen=True)
class Smooth(Latent):
    """Base class of latents with reparameterised samples and closed-form KL divergence."""

    @abstractmethod
    def dist(self, encoded: Tensor) -> Distribution:
        """Return the posterior of each image."""

    @abstractmethod
    def prior(self, encoded: Tensor) -> Distribution:
        """Return the prior."""

    @abstractmethod
    def draw(self, encoded: Tensor, generator: torch.Generator) -> Tensor:
        """Return reparameterised samples (n, SIZE)."""

    def loss(
        self, encoded: Tensor, cost: Cost, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        costs = cost(self.draw(encoded, generator), torch.arange(len(encoded)))
        return costs + self.rate(encoded, generator), costs.detach()

    def rate(self, encoded: Tensor, generator: torch.Generator) -> Tensor:
        return kl_divergence(self.dist(encoded), self.prior(encoded))

    def weighted(self, encoded: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        point = self.draw(encoded, generator)
        return point, self.prior(encoded).log_prob(point) - self.dist(encoded).log_prob(point)


@dataclass(frozen=True)
class Gaussian(Smooth):
    """Independent normal variables."""

    outputs: ClassVar[int] = 2 * SIZE

    def dist(self, encoded: Tensor) -> Distribution:
        mean, spread = encoded.chunk(2, -1)
        return Independent(Normal(mean, F.softplus(spread) + 1e-4), 1)

    def prior(self, encoded: Tensor) -> Distribution:
        zeros = encoded.new_zeros(SIZE)
        return Independent(Normal(zeros, torch.ones_like(zeros)), 1)

    def draw(self, encoded: Tensor, generator: torch.Generator) -> Tensor:
        dist = self.dist(encoded)
        return dist.mean + dist.stddev * torch.randn(dist.mean.shape, generator=generator)


@dataclass(frozen=True)
class Inside(Smooth):
    """Dirichlet distribution: points of the simplex without zeros."""

    def dist(self, encoded: Tensor) -> Dirichlet:
        return Dirichlet(encoded.clamp(-_LOGS, _LOGS).exp(), validate_args=False)

    def prior(self, encoded: Tensor) -> Distribution:
        return Dirichlet(torch.ones_like(encoded), validate_args=False)

    def draw(self, encoded: Tensor, generator: torch.Generator) -> Tensor:
        concentration = self.dist(encoded).concentration
        faces = torch.ones_like(concentration, dtype=torch.bool)
        return _mixture(concentration).rsample_on(faces, generator=generator)


@dataclass(frozen=True)
class Corners(Latent):
    """Categorical distribution over the corners of the simplex, with any estimator."""

    estimator: ff.expectation.Estimator = ff.Dense()  # noqa: RUF009  (an immutable value)
    from_mean: ClassVar[bool] = True

    def loss(
        self, encoded: Tensor, cost: Cost, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        def priced(atoms: Tensor, row: Tensor) -> Tensor:
            corners = atoms if atoms.dim() > 1 else F.one_hot(atoms, SIZE).to(encoded)
            return cost(corners, row)

        out = ff.expect(priced, encoded, self.estimator, generator=generator)
        return out.surrogate + out.kl(), out.value

    def rate(self, encoded: Tensor, generator: torch.Generator) -> Tensor:
        logs = encoded.log_softmax(-1)
        return (logs.exp() * logs).sum(-1) + math.log(SIZE)

    def weighted(self, encoded: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        logs = encoded.log_softmax(-1)
        which = torch.multinomial(logs.exp(), 1, generator=generator)
        corners = F.one_hot(which.squeeze(1), SIZE).to(encoded)
        return corners, -math.log(SIZE) - logs.gather(1, which).squeeze(1)


@dataclass(frozen=True)
class Mixed(Latent):
    """Mixed Dirichlet: a random face and a Dirichlet on it.

    The face learns from the cost of its point next to that of another draw (a self-critic), the
    point by its own gradient. Both divergences are exact: that of the face, and that on it.
    """

    outputs: ClassVar[int] = 2 * SIZE

    def dist(self, encoded: Tensor) -> ff.MixedDirichlet:
        scores, logs = encoded.chunk(2, -1)
        concentration = logs.clamp(-_LOGS, _LOGS).exp()
        return ff.MixedDirichlet(scores.clamp(-10, 10), concentration, validate_args=False)

    def loss(
        self, encoded: Tensor, cost: Cost, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        dist = self.dist(encoded)
        face = dist.faces.sample(generator=generator)
        costs = cost(dist.rsample_on(face, generator=generator), torch.arange(len(encoded)))
        total = costs + self._within(dist, face)
        with torch.no_grad():
            other = dist.faces.sample(generator=generator)
            point = dist.rsample_on(other, generator=generator)
            advantage = total - cost(point, torch.arange(len(encoded))) - self._within(dist, other)
        learned = advantage * dist.faces.log_prob(face)
        return total + learned - learned.detach() + self._of_faces(dist), costs.detach()

    def rate(self, encoded: Tensor, generator: torch.Generator) -> Tensor:
        dist = self.dist(encoded)
        return self._of_faces(dist) + self._within(dist, dist.faces.sample(generator=generator))

    def weighted(self, encoded: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        dist = self.dist(encoded)
        point = dist.sample(generator=generator)
        return point, _uninformed().log_prob(point) - dist.log_prob(point)

    def _of_faces(self, dist: ff.MixedDirichlet) -> Tensor:
        """Return the KL divergence (n,) of the distributions of faces."""
        return kl_divergence(dist.faces, _uninformed().faces.expand(dist.batch_shape))

    def _within(self, dist: ff.MixedDirichlet, face: Tensor) -> Tensor:
        """Return the KL divergence (n,) from the uniform distribution on the face."""
        own = torch.where(face, dist.concentration, 0.0)
        total = own.sum(-1)
        size = face.sum(-1).to(total)
        safe = torch.where(face, dist.concentration, 1.0)
        slopes = (safe.digamma() - total.digamma().unsqueeze(-1)) * (safe - 1)
        return total.lgamma() - safe.lgamma().sum(-1) - size.lgamma() + slopes.sum(-1)


@dataclass(frozen=True)
class Projected(Latent):
    """Gaussian-sparsemax: projection of normal scores on the simplex.

    The cost is continuous in the point and learns through it. The density jumps from face to face,
    so the divergence learns by the score function, next to that of another draw.
    """

    outputs: ClassVar[int] = 2 * SIZE

    def dist(self, encoded: Tensor) -> ff.GaussianSparsemax:
        loc, spread = encoded.chunk(2, -1)
        scale = F.softplus(spread).clamp(1e-3, 1e3)
        return ff.GaussianSparsemax(loc.clamp(-100, 100), scale, validate_args=False)

    def loss(
        self, encoded: Tensor, cost: Cost, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        dist = self.dist(encoded)
        point = dist.rsample(generator=generator)
        costs = cost(point, torch.arange(len(encoded)))
        log_prob = dist.log_prob(point.detach())
        ratio = (log_prob - _uninformed().log_prob(point.detach())).detach()
        with torch.no_grad():
            other = self.rate(encoded, generator)
        return costs + (ratio - other) * log_prob + ratio, costs.detach()

    def rate(self, encoded: Tensor, generator: torch.Generator) -> Tensor:
        return -self.weighted(encoded, generator)[1]

    def weighted(self, encoded: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        dist = self.dist(encoded)
        point = dist.sample(generator=generator)
        return point, _uninformed().log_prob(point) - dist.log_prob(point)


def _uninformed() -> ff.distributions.MaxEntropyMixed:
    """Return the prior over all faces."""
    return ff.distributions.MaxEntropyMixed(SIZE, validate_args=False)


def _mixture(concentration: Tensor) -> ff.distributions.FaceMixture:
    return ff.distributions.FaceMixture(
        ff.distributions.uniform_faces(SIZE), concentration, validate_args=False
    )


LATENTS: dict[str, Latent] = {
    "Gaussian": Gaussian(),
    "Dirichlet": Inside(),
    "categorical": Corners(lr=1e-4),
    "straight-through": Corners(lr=5e-4, estimator=ff.Gumbel(1.0, straight_through=True)),
    "mixed Dirichlet": Mixed(lr=2e-4, clip=1.0),
    "Gaussian-sparsemax": Projected(lr=5e-4),
}
