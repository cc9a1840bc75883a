"""Six laws of ten numbers: what the encoder says of an image, and what it costs to say it."""

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
    """A family of laws of `SIZE` numbers.

    Attributes:
        lr: learning rate of Adam.
        clip: of the norm of the gradient.
        outputs: of the encoder, for one image.
        from_mean: whether the decoder begins with the mean image. Before anything is learned of
            the pixels, costs are so large that laws of corners choose one for all images, and
            stay there; all others learn faster without.
    """

    lr: float = 1e-3
    clip: float = 5.0
    outputs: ClassVar[int] = SIZE
    from_mean: ClassVar[bool] = False

    @abstractmethod
    def loss(self, said: Tensor, cost: Cost, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """(n,) what to follow, and (n,) the cost, given what the encoder said of n images."""

    @abstractmethod
    def rate(self, said: Tensor, generator: torch.Generator) -> Tensor:
        """(n,) the divergence from the prior, or what it is for one draw."""

    @abstractmethod
    def weighted(self, said: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Points (n, SIZE), and the logarithms (n,) of prior over posterior at them."""


@dataclass(frozen=True)
class Smooth(Latent):
    """Draws and their divergence are differentiable."""

    @abstractmethod
    def law(self, said: Tensor) -> Distribution:
        """Of each image."""

    @abstractmethod
    def prior(self, said: Tensor) -> Distribution:
        """Of the points."""

    @abstractmethod
    def draw(self, said: Tensor, generator: torch.Generator) -> Tensor:
        """(n, SIZE) differentiable."""

    def loss(self, said: Tensor, cost: Cost, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        costs = cost(self.draw(said, generator), torch.arange(len(said)))
        return costs + self.rate(said, generator), costs.detach()

    def rate(self, said: Tensor, generator: torch.Generator) -> Tensor:
        return kl_divergence(self.law(said), self.prior(said))

    def weighted(self, said: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        point = self.draw(said, generator)
        return point, self.prior(said).log_prob(point) - self.law(said).log_prob(point)


@dataclass(frozen=True)
class Gaussian(Smooth):
    """Independent normal numbers."""

    outputs: ClassVar[int] = 2 * SIZE

    def law(self, said: Tensor) -> Distribution:
        mean, spread = said.chunk(2, -1)
        return Independent(Normal(mean, F.softplus(spread) + 1e-4), 1)

    def prior(self, said: Tensor) -> Distribution:
        zeros = said.new_zeros(SIZE)
        return Independent(Normal(zeros, torch.ones_like(zeros)), 1)

    def draw(self, said: Tensor, generator: torch.Generator) -> Tensor:
        law = self.law(said)
        return law.mean + law.stddev * torch.randn(law.mean.shape, generator=generator)


@dataclass(frozen=True)
class Inside(Smooth):
    """A Dirichlet: points of the simplex, none of them zero."""

    def law(self, said: Tensor) -> Dirichlet:
        return Dirichlet(said.clamp(-_LOGS, _LOGS).exp(), validate_args=False)

    def prior(self, said: Tensor) -> Distribution:
        return Dirichlet(torch.ones_like(said), validate_args=False)

    def draw(self, said: Tensor, generator: torch.Generator) -> Tensor:
        concentration = self.law(said).concentration
        faces = torch.ones_like(concentration, dtype=torch.bool)
        return _mixture(concentration).rsample_on(faces, generator=generator)


@dataclass(frozen=True)
class Corners(Latent):
    """One of ten, as a corner of the simplex; how its expectation is taken is a value."""

    estimator: ff.expectation.Estimator = ff.Dense()  # noqa: RUF009  (an immutable value)
    from_mean: ClassVar[bool] = True

    def loss(self, said: Tensor, cost: Cost, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        def priced(atoms: Tensor, row: Tensor) -> Tensor:
            corners = atoms if atoms.dim() > 1 else F.one_hot(atoms, SIZE).to(said)
            return cost(corners, row)

        out = ff.expect(priced, said, self.estimator, generator=generator)
        return out.surrogate + out.kl(), out.value

    def rate(self, said: Tensor, generator: torch.Generator) -> Tensor:
        logs = said.log_softmax(-1)
        return (logs.exp() * logs).sum(-1) + math.log(SIZE)

    def weighted(self, said: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        logs = said.log_softmax(-1)
        which = torch.multinomial(logs.exp(), 1, generator=generator)
        corners = F.one_hot(which.squeeze(1), SIZE).to(said)
        return corners, -math.log(SIZE) - logs.gather(1, which).squeeze(1)


@dataclass(frozen=True)
class Mixed(Latent):
    """A mixed Dirichlet: a face is drawn, and a point on it.

    The face learns from the cost of its point next to that of another draw (a self-critic), the
    point by its own gradient. Both divergences are exact: that of the face, and that on it.
    """

    outputs: ClassVar[int] = 2 * SIZE

    def law(self, said: Tensor) -> ff.MixedDirichlet:
        scores, logs = said.chunk(2, -1)
        concentration = logs.clamp(-_LOGS, _LOGS).exp()
        return ff.MixedDirichlet(scores.clamp(-10, 10), concentration, validate_args=False)

    def loss(self, said: Tensor, cost: Cost, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        law = self.law(said)
        face = law.faces.sample(generator=generator)
        costs = cost(law.rsample_on(face, generator=generator), torch.arange(len(said)))
        total = costs + self._within(law, face)
        with torch.no_grad():
            other = law.faces.sample(generator=generator)
            point = law.rsample_on(other, generator=generator)
            apart = total - cost(point, torch.arange(len(said))) - self._within(law, other)
        learned = apart * law.faces.log_prob(face)
        return total + learned - learned.detach() + self._of_faces(law), costs.detach()

    def rate(self, said: Tensor, generator: torch.Generator) -> Tensor:
        law = self.law(said)
        return self._of_faces(law) + self._within(law, law.faces.sample(generator=generator))

    def weighted(self, said: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        law = self.law(said)
        point = law.sample(generator=generator)
        return point, _uninformed().log_prob(point) - law.log_prob(point)

    def _of_faces(self, law: ff.MixedDirichlet) -> Tensor:
        """(n,) divergence of the laws of faces."""
        return kl_divergence(law.faces, _uninformed().faces.expand(law.batch_shape))

    def _within(self, law: ff.MixedDirichlet, face: Tensor) -> Tensor:
        """(n,) divergence from the flat law on the face."""
        own = torch.where(face, law.concentration, 0.0)
        total = own.sum(-1)
        size = face.sum(-1).to(total)
        safe = torch.where(face, law.concentration, 1.0)
        slopes = (safe.digamma() - total.digamma().unsqueeze(-1)) * (safe - 1)
        return total.lgamma() - safe.lgamma().sum(-1) - size.lgamma() + slopes.sum(-1)


@dataclass(frozen=True)
class Projected(Latent):
    """Gaussian-sparsemax: normal scores, projected on the simplex.

    The cost is continuous in the point and learns through it. The density jumps from face to face,
    so the divergence learns by the score function, next to that of another draw.
    """

    outputs: ClassVar[int] = 2 * SIZE

    def law(self, said: Tensor) -> ff.GaussianSparsemax:
        loc, spread = said.chunk(2, -1)
        scale = F.softplus(spread).clamp(1e-3, 1e3)
        return ff.GaussianSparsemax(loc.clamp(-100, 100), scale, validate_args=False)

    def loss(self, said: Tensor, cost: Cost, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        law = self.law(said)
        point = law.rsample(generator=generator)
        costs = cost(point, torch.arange(len(said)))
        log_prob = law.log_prob(point.detach())
        ratio = (log_prob - _uninformed().log_prob(point.detach())).detach()
        with torch.no_grad():
            other = self.rate(said, generator)
        return costs + (ratio - other) * log_prob + ratio, costs.detach()

    def rate(self, said: Tensor, generator: torch.Generator) -> Tensor:
        return -self.weighted(said, generator)[1]

    def weighted(self, said: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        law = self.law(said)
        point = law.sample(generator=generator)
        return point, _uninformed().log_prob(point) - law.log_prob(point)


def _uninformed() -> ff.distributions.MaxEntropyMixed:
    """The prior of points that may be on any face."""
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
