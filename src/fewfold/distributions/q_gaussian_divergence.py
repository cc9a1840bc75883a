"""KL divergence of q-Gaussians from Gaussians, given as QGaussian or MultivariateNormal."""

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from fewfold.distributions.faces.face_distribution import same_size
from fewfold.distributions.kl_registration import divergence
from fewfold.distributions.q_gaussian import QGaussian

__all__: list[str] = []


@divergence(QGaussian, QGaussian)
def _kl(p: QGaussian, q: QGaussian) -> Tensor:
    if not bool((q.alpha == 1).all()):
        raise NotImplementedError(
            f"the KL divergence has a closed form only if q is Gaussian (alpha = 1), got alpha "
            f"{q.alpha}; write direct_sum_kl(p, q, samples=10_000)"
        )
    same_size(p.event_shape[0], q.event_shape[0])
    solved: Tensor = torch.linalg.solve_triangular(q.scale_tril, p.scale_tril, upper=False)
    spread = p._spread * solved.square().sum((-2, -1)) + q._square(p.loc)
    return spread / 2 - q.log_peak - p.entropy()


@divergence(QGaussian, MultivariateNormal)
def _kl_from_normal(p: QGaussian, q: MultivariateNormal) -> Tensor:
    return _kl(p, QGaussian(q.loc, q.scale_tril, 1.0, validate_args=False))


@divergence(MultivariateNormal, QGaussian)
def _kl_of_normal(p: MultivariateNormal, q: QGaussian) -> Tensor:
    return _kl(QGaussian(p.loc, p.scale_tril, 1.0, validate_args=False), q)
