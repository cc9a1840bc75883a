"""q-Gaussians: maximum Tsallis entropy distributions, with bounded support or heavy tails."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.utils import broadcast_all
from torch.types import _size

from fewfold._random import standard_gamma
from fewfold.distributions.integrals.gamma_ratio import (
    digamma_ratio,
    expm1_ratio,
    log1p_ratio,
    log_gamma_ratio,
)
from fewfold.distributions.parameters import (
    Each,
    Finite,
    check_square,
    check_vector,
    finite_vector,
    in_single,
    joined,
    lower_cholesky,
)
from fewfold.distributions.random_draws import Reparameterised, normal

__all__ = ["QGaussian"]

_EMPTY_SHAPE = torch.Size()
_NEAR = 1e-10  # least |alpha - 1| in the formulas, to avoid a division by zero
_FLAT = 1e-4  # below n |alpha - 1| = _FLAT samples use a first-order expansion around alpha = 1


class QGaussian(Reparameterised):
    """q-Gaussian: the regularised prediction for a quadratic score; Gaussian at alpha = 1.

    `argmax_p E_p[f] - Omega_alpha(p)` over densities, with the Tsallis negentropy
    `Omega_alpha(p) = (int p^alpha - 1) / (alpha (alpha - 1))` and the score
    `f(t) = -(t - loc)^T Sigma^-1 (t - loc) / 2`. The solution is
    `p(t) = [(alpha - 1) (f(t) - tau)]_+^(1 / (alpha - 1))`: for alpha > 1 its support is an
    ellipsoid (4/3 triweight, 3/2 biweight, 2 a truncated paraboloid), for alpha < 1 it has the
    tails of a Student t, and for alpha = 0 it is the Cauchy distribution of scale `2 pi Sigma`, of
    one dimension only. Sigma is the scale matrix of the score, not the covariance; see
    `from_covariance`.

    Heavy tails have few moments: the covariance and the Tsallis entropy are inf for
    alpha <= n / (n + 2), where `from_covariance` and `wasserstein2` raise; the mean is NaN for
    alpha <= (n - 1) / (n + 1), and so for Cauchy. Densities, samples and the Shannon entropy
    always exist.

    Args:
        loc: (..., n).
        scale_tril: (..., n, n) lower triangular, `Sigma = scale_tril scale_tril^T`.
        alpha: (...) greater than 1 - 2 / n, and at least 0; may require gradients.

    Example:
        >>> import torch, fewfold as ff
        >>> from fewfold.distributions import QGaussian
        >>> dist = QGaussian(torch.tensor([0.4]), torch.tensor([[0.05**0.5]]), alpha=2.0)
        >>> dist.radius, dist.variance, dist.tsallis_entropy()
        (tensor(1.8860), tensor([0.0356]), tensor(-0.2114))
        >>> dist.log_prob(torch.tensor([[0.4], [0.9]])).exp()
        tensor([1.7784, 0.0000])

    Reference: Martins, Treviso, Farinhas, Aguiar, Figueiredo, Blondel and Niculae, "Sparse
    continuous distributions and Fenchel-Young losses", 2022.
    """

    def __init__(
        self,
        loc: Tensor,
        scale_tril: Tensor,
        alpha: Tensor | float = 2.0,
        *,
        validate_args: bool | None = None,
    ) -> None:
        check_vector(loc, "loc")
        n = loc.shape[-1]
        check_square(scale_tril, n, "scale_tril", "loc")
        batch = joined(loc=loc[..., 0], scale_tril=scale_tril[..., 0, 0], alpha=alpha)
        _, self.alpha = broadcast_all(loc[..., 0].expand(batch), alpha)
        self.loc = loc.expand(*batch, n)
        self.scale_tril = scale_tril.expand(*batch, n, n)
        super().__init__(batch, torch.Size([n]), validate_args=validate_args)

    @classmethod
    def from_covariance(
        cls, loc: Tensor, covariance: Tensor, alpha: Tensor | float = 2.0, **options: Any
    ) -> "QGaussian":
        """Return the q-Gaussian with mean `loc` (..., n) and this covariance (..., n, n).

        Example:
            >>> import torch, fewfold as ff
            >>> from fewfold.distributions import QGaussian
            >>> QGaussian.from_covariance(torch.zeros(1), torch.tensor([[0.2]])).variance
            tensor([0.2000])
        """
        check_vector(loc, "loc")
        n = loc.shape[-1]
        check_square(covariance, n, "covariance", "loc")
        factor, failed = torch.linalg.cholesky_ex(covariance)
        if bool(failed.any()):
            raise ValueError(f"covariance must be positive definite, got {covariance}")
        least = n / (n + 2)  # the covariance is infinite below
        if not bool((torch.as_tensor(alpha) > least).all()):
            raise ValueError(
                f"alpha must be greater than n / (n + 2) = {least:.4g} for a covariance of n = {n} "
                f"dimensions to exist, got {alpha}"
            )
        log_det = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        log_det, order = broadcast_all(log_det, alpha)
        c = _clamp_from_zero(order - 1)
        inner = 2 * log_gamma_ratio(c, n / 2) - n * math.log(2 * math.pi) - log_det
        log_scale = (1 + c * n / 2) * (order + n * c / 2).log() - c / 2 * inner
        return cls(loc, factor * (log_scale / 2).exp()[..., None, None], alpha, **options)

    @property
    def arg_constraints(self) -> dict[str, constraints.Constraint]:
        n = self.loc.shape[-1]
        alpha = Finite(least=0) if n == 1 else Finite(above=1 - 2 / n)
        return {"loc": finite_vector, "scale_tril": lower_cholesky, "alpha": alpha}

    @constraints.dependent_property(is_discrete=False, event_dim=1)
    def support(self) -> constraints.Constraint:
        """All real vectors; the density is 0 outside the ellipsoid."""
        return Each(constraints.real)

    def expand(self, batch_shape: _size, _instance: Any = None) -> "QGaussian":
        new: QGaussian = self._get_checked_instance(QGaussian, _instance)
        n = self.event_shape[0]
        new.loc = self.loc.expand(*batch_shape, n)
        new.scale_tril = self.scale_tril.expand(*batch_shape, n, n)
        new.alpha = self.alpha.expand(batch_shape)
        Distribution.__init__(new, torch.Size(batch_shape), self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def _c(self) -> Tensor:
        return _clamp_from_zero(self.alpha - 1)

    @property
    def _log_det(self) -> Tensor:
        """(...) log |Sigma|."""
        return 2 * self.scale_tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    @property
    @in_single
    def log_peak(self) -> Tensor:
        """(...) log density at `loc`."""
        n, c = self.event_shape[0], self._c
        inner = 2 * log_gamma_ratio(c, n / 2) - n * math.log(2 * math.pi) - self._log_det
        return inner / (2 + c * n)

    @property
    def threshold(self) -> Tensor:
        """(...) the threshold tau; -inf at alpha = 1."""
        return -(self._c * self.log_peak).exp() / self._c

    @property
    def radius(self) -> Tensor:
        """(...) radius of the support in the Mahalanobis distance of Sigma; inf for alpha <= 1."""
        bounded = self.alpha > 1
        square = torch.where(bounded, -2 * self.threshold, 1.0)
        return torch.where(bounded, square.sqrt(), math.inf)

    def _square(self, value: Tensor) -> Tensor:
        """Squared Mahalanobis distance `(t - loc)^T Sigma^-1 (t - loc)`."""
        difference = (value - self.loc).unsqueeze(-1)
        shape = torch.broadcast_shapes(difference.shape[:-2], self.batch_shape)
        factor = self.scale_tril.expand(*shape, *self.scale_tril.shape[-2:])
        difference = difference.expand(*shape, *difference.shape[-2:])
        if difference.numel() == 0:
            return difference.sum((-2, -1))
        solved: Tensor = torch.linalg.solve_triangular(factor, difference, upper=False)
        return solved.square().sum((-2, -1))

    @in_single
    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        u = -self._square(value) / 2 * (-self._c * self.log_peak).exp()
        inside = self._c * u.detach() > -1
        logs = self.log_peak + log1p_ratio(self._c, torch.where(inside, u, 0.0))
        return torch.where(inside, logs, -math.inf)

    @in_single
    def rsample(
        self, sample_shape: _size = _EMPTY_SHAPE, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Sample a Gaussian vector divided by the root of a gamma variable.

        For alpha > 1 the gamma variable includes the squared norm of the vector. Its derivative in
        alpha diverges at alpha = 1, so samples near it are a first-order expansion in alpha of the
        map from a Gaussian vector.
        """
        noise = normal(self._extended_shape(sample_shape), self.loc, generator)
        n = self.event_shape[0]
        flat = self._c.detach().abs() * n < _FLAT
        c = torch.where(flat, 1.0, self._c)
        bounded = c > 0
        order = torch.where(bounded, 1 / c + 1, -1 / c - n / 2)
        gamma = standard_gamma(order.expand(noise.shape[:-1]), generator=generator)
        total = torch.where(bounded, gamma + noise.square().sum(-1) / 2, gamma)
        factor = ((c * self.log_peak).exp() / (c.abs() * total)).sqrt()
        expansion = self.log_peak - (n + 2 + noise.square().sum(-1)) / 4
        factor = torch.where(flat, (self._c * expansion / 2).exp(), factor)
        return self.loc + factor.unsqueeze(-1) * (self.scale_tril @ noise.unsqueeze(-1)).squeeze(-1)

    @property
    def _spread(self) -> Tensor:
        """Ratio of the covariance to Sigma; inf where the covariance is infinite."""
        c, n = self._c, self.event_shape[0]
        below = 2 * self.alpha + n * c
        finite = below > 0
        ratio = 2 * (c * self.log_peak).exp() / torch.where(finite, below, 1.0)
        return torch.where(finite, ratio, math.inf)

    @property
    def mean(self) -> Tensor:
        heavy = 2 + self._c * (self.event_shape[0] + 1) <= 0
        return torch.where(heavy.unsqueeze(-1), math.nan, self.loc)

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    @in_single
    def covariance_matrix(self) -> Tensor:
        """(..., n, n) covariance."""
        return self._spread[..., None, None] * (self.scale_tril @ self.scale_tril.mT)

    @property
    @in_single
    def variance(self) -> Tensor:
        return self._spread.unsqueeze(-1) * self.scale_tril.square().sum(-1)

    @in_single
    def tsallis_entropy(self) -> Tensor:
        """(...) Tsallis entropy `-Omega_alpha(p)`; inf for alpha <= n / (n + 2)."""
        c, n = self._c, self.event_shape[0]
        finite = 2 * self.alpha + n * c > 0
        order = torch.where(finite, self.alpha, 1.0)  # alpha may be 0 where it is infinite
        bent = 2 * order * expm1_ratio(c, self.log_peak)
        entropy = (n - bent) / (order * torch.where(finite, 2 * order + n * c, 1.0))
        return torch.where(finite, entropy, math.inf)

    @in_single
    def entropy(self) -> Tensor:
        """(...) Shannon entropy in nats."""
        return digamma_ratio(self._c, self.event_shape[0] / 2) - self.log_peak

    def fenchel_young_loss(self, value: Tensor) -> Tensor:
        """Fenchel-Young loss of one observation: `Omega*(f) - f(value)`.

        Its average has zero gradient where mean and covariance match those of the data. The term
        `Omega` of a point mass, which is infinite, is left out. `Omega*` is inf for
        alpha <= n / (n + 2), where there is no covariance to match.

        Args:
            value: (..., n).

        Returns:
            (...), convex in `Sigma^-1 loc` and `-Sigma^-1 / 2`.

        Example:
            >>> import torch, fewfold as ff
            >>> from fewfold.distributions import QGaussian
            >>> dist = QGaussian(torch.tensor([0.4]), torch.tensor([[0.05**0.5]]), alpha=2.0)
            >>> dist.fenchel_young_loss(torch.tensor([0.5]))
            tensor(-0.4671)
        """
        n = self.event_shape[0]
        if value.shape[-1:] != (n,):
            raise ValueError(f"value must be (..., {n}), got {tuple(value.shape)}")
        entropy = self.tsallis_entropy()
        order = torch.where(entropy.isfinite(), self.alpha, 1.0)
        value_of_map = (1 + n * self._c / 2) * entropy - n / (2 * order)
        return self._square(value) / 2 + value_of_map


def _clamp_from_zero(c: Tensor) -> Tensor:
    """Replace values too close to 0 to divide by, passing the gradient."""
    return torch.where(c.abs() < _NEAR, c - c.detach() + _NEAR, c)
