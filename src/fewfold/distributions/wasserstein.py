"""Wasserstein-2 distance between q-Gaussians."""

import torch
from torch import Tensor

from fewfold.distributions.faces.face_distribution import same_size
from fewfold.distributions.q_gaussian import QGaussian

__all__ = ["wasserstein2"]


def wasserstein2(p: QGaussian, q: QGaussian) -> Tensor:
    """Return the Wasserstein-2 distance between two q-Gaussians of the same alpha.

    The square root of `|loc_p - loc_q|^2 + tr(A + B - 2 (A^1/2 B A^1/2)^1/2)`, A and B the
    covariances.

    Args:
        p, q: of equal alpha, with finite covariances.

    Returns:
        (...).

    Example:
        >>> import torch, fewfold as ff
        >>> one, two = (ff.distributions.QGaussian.from_covariance(torch.zeros(1), torch.tensor([[v]])) for v in (1.0, 9.0))
        >>> ff.distributions.wasserstein2(one, two)
        tensor(2.0000)

    Reference: Gelbrich, "On a formula for the L2 Wasserstein metric between measures on Euclidean
    and Hilbert spaces", 1990.
    """  # noqa: E501
    for dist in (p, q):
        if not isinstance(dist, QGaussian):
            raise TypeError(
                f"p and q must be q-Gaussians, got {type(dist).__name__}; write "
                "QGaussian(p.loc, p.scale_tril, 1.0) for a MultivariateNormal"
            )
    same_size(p.event_shape[0], q.event_shape[0])
    if not bool((p.alpha == q.alpha).all()):
        raise ValueError(
            f"p and q must have the same alpha, got {p.alpha} and {q.alpha}; members of different "
            "families have no closed form"
        )
    a, b = p.covariance_matrix, q.covariance_matrix
    if not bool(p._spread.isfinite().all()):
        raise ValueError(
            f"p and q must have finite covariances, alpha above n / (n + 2), got alpha {p.alpha}"
        )
    factor = torch.linalg.cholesky(a)
    cross: Tensor = torch.linalg.eigvalsh(factor.mT @ b @ factor).clamp(min=0).sqrt().sum(-1)
    trace = (a + b).diagonal(dim1=-2, dim2=-1).sum(-1) - 2 * cross
    square = (p.loc - q.loc).square().sum(-1) + trace.clamp(min=0)
    distinct = square.detach() > 0  # the root is not differentiable at 0; use the subgradient 0
    return torch.where(distinct, torch.where(distinct, square, 1.0).sqrt(), 0 * square)
