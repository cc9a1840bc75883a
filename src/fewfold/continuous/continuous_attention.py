"""Functional continuous attention."""

from torch import Tensor

from fewfold.continuous.basis import Basis
from fewfold.continuous.density import Density, LineDensity
from fewfold.continuous.plane_density import PlaneDensity
from fewfold.continuous.signal import Ridge, Signal

__all__ = ["continuous_attention", "density_of"]


def continuous_attention(
    values: Tensor | Signal,
    mu: Tensor,
    sigma_sq: Tensor,
    basis: Basis | None = None,
    *,
    alpha: float = 2.0,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    ridge: float | Ridge = 0.01,
) -> Tensor:
    """Compute continuous attention `E_p[V(t)]`, the expectation of a signal under a density.

    The density is the regularised prediction `p = argmax E_p[f] + H_alpha(p)` for the score
    `f(t) = -(t - mu)^2 / (2 sigma_sq)`; the signal `V(t) = B^T psi(t)` is fitted to the values by
    ridge regression; then `E_p[V] = B^T E_p[psi]`, in closed form.

    Args:
        values: `(..., L, d)`, a sequence over [0, 1]; `(..., H, W, d)`, an image over [0, 1]^2, if
            the basis is one of the plane, where points are (down, across); or a `Signal`.
        mu: `(..., m)` for m queries; `(..., m, 2)` on the plane.
        sigma_sq: `(..., m)`, positive; `(..., m, 2, 2)` on the plane, positive definite.
        basis: basis functions psi of the signal; must be omitted for a `Signal`.
        alpha: 1 for the Gaussian, 4/3, 3/2, 2 for triweight, biweight, truncated parabola; any
            other above 1, and heavy tails below, by quadrature; on the line 0 for Cauchy.
        weights: `(..., m, k)` weights of mixture components; mu and sigma_sq then have a dimension
            of size k after that of m.
        mask: boolean, True = keep, broadcasts to values without their last dimension. Values that
            are all masked give zeros.
        ridge: penalty of the regression, or `Ridge(penalty, padded)`.

    Returns:
        `(..., m, d)`.

    Example:
        >>> import torch, fewfold as ff
        >>> values = torch.linspace(-1, 1, 50).unsqueeze(-1)
        >>> mu, sigma_sq = torch.tensor([0.3, 0.8]), torch.tensor([1e-4, 1e-4])
        >>> ff.continuous_attention(values, mu, sigma_sq, ff.continuous.GaussianBasis.grid(16))
        tensor([[-0.4069],
                [ 0.6139]])

    Reference: Martins et al., "Sparse and continuous attention mechanisms", 2020.
    """
    if isinstance(values, Signal):
        if basis is not None or mask is not None:
            raise ValueError("a Signal has its basis and its mask already; write neither")
        signal = values
    elif basis is None:
        raise ValueError(
            "values need a basis, such as GaussianBasis.grid(32); a Signal has its own"
        )
    else:
        signal = Signal.fit(values, basis, mask=mask, ridge=ridge)
    return signal.expect(density_of(signal.basis, mu, sigma_sq, alpha, weights))


def density_of(
    basis: Basis, mu: Tensor, sigma_sq: Tensor, alpha: float, weights: Tensor | None
) -> Density:
    """Return a line or plane density, according to the dimension of the basis."""
    kind = LineDensity if basis.dim == 1 else PlaneDensity
    return kind(mu, sigma_sq, alpha, weights)
