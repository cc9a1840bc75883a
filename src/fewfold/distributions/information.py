"""Entropy, KL divergence and mutual information of mixed random variables, exact or estimated.

Densities are with respect to the direct-sum measure: the sum of the Lebesgue measures of all faces,
counting at the corners. All distributions of this module on the same simplex share it, so that any
two of them can be compared.
"""

import inspect
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, kl_divergence

from fewfold._check import whole_number
from fewfold.distributions.faces.geometry import probabilities
from fewfold.distributions.parameters import joined
from fewfold.distributions.sparse_categorical import SparseCategorical

__all__ = ["Estimate", "direct_sum_entropy", "direct_sum_kl", "mutual_information"]

_CHUNK = 2**22  # entries sampled at a time


@dataclass(frozen=True, eq=False)
class Estimate:
    """A value and its standard error.

    Attributes:
        value: (...) in nats; its gradient is unbiased.
        standard_error: (...) of the value; 0 where it is exact.
    """

    value: Tensor
    standard_error: Tensor


def direct_sum_entropy(
    p: Distribution, *, samples: int = 10_000, generator: torch.Generator | None = None
) -> Estimate:
    """Compute the entropy of a mixed random variable, by sampling if it has no closed form.

    `H(Y) = H(F) + H(Y | F) = E[-log p(y)]`, F the face of Y.

    Args:
        p: any distribution with a density.
        samples: number of samples to average if there is no closed form.
        generator: of the samples.

    Returns:
        `Estimate` of the batch shape of p.

    Example:
        >>> import torch, fewfold as ff
        >>> from fewfold.distributions import direct_sum_entropy
        >>> direct_sum_entropy(ff.GaussianSparsemax(torch.tensor([0.0, 0.4]), 0.5)).value
        tensor(0.5312)
        >>> rng = torch.Generator().manual_seed(0)
        >>> estimate = direct_sum_entropy(ff.GaussianSparsemax(torch.zeros(3), 0.5), generator=rng)
        >>> bool(estimate.standard_error < 0.02)
        True
    """
    try:
        return _exact(p.entropy())
    except NotImplementedError:
        logs = torch.cat([p.log_prob(y) for y in _sample_chunks(p, samples, generator)])
        return _average(-logs, logs)


def direct_sum_kl(
    p: Distribution,
    q: Distribution,
    *,
    samples: int = 10_000,
    generator: torch.Generator | None = None,
) -> Estimate:
    """Compute the KL divergence of one mixed random variable from another.

    `KL(p, q) = E_p[log p(y) - log q(y)]`, infinite if p has a face of probability 0 under q.

    Args:
        p, q: distributions with densities with respect to the same measure.
        samples: number of samples of p to average if there is no closed form.
        generator: of the samples.

    Returns:
        `Estimate` of the batch shape that those of p and q broadcast to.

    Example:
        >>> import torch, fewfold as ff
        >>> dist = ff.MixedDirichlet(torch.zeros(3), torch.ones(3))
        >>> ff.distributions.direct_sum_kl(dist, ff.distributions.MaxEntropyMixed(3)).value
        tensor(0.0249)
    """
    try:
        return _exact(kl_divergence(p, q))
    except NotImplementedError:
        p = _broadcast(p, q)
        pairs = [(p.log_prob(y), q.log_prob(y)) for y in _sample_chunks(p, samples, generator)]
        log_p, log_q = (torch.cat(part) for part in zip(*pairs, strict=True))
        return _average(log_p - log_q, log_p)


def mutual_information(
    conditional: Distribution,
    weights: Tensor | None = None,
    *,
    samples: int = 10_000,
    generator: torch.Generator | None = None,
) -> Estimate:
    """Compute the mutual information of a mixed random variable y and a discrete x.

    `I(X; Y) = H(Y) - H(Y | X) = sum_x w_x E_(y | x) [log p(y | x) - log sum_x' w_x' p(y | x')]`.

    Args:
        conditional: a batch (n,) of distributions of y, one for each x.
        weights: (n,) probabilities of x; uniform by default.
        samples: number of samples of each distribution; unused for a `SparseCategorical`.
        generator: of the samples.

    Returns:
        `Estimate` of a scalar between 0 and the entropy of x.

    Example:
        >>> import torch, fewfold as ff
        >>> from fewfold.distributions import SparseCategorical
        >>> dist = SparseCategorical(ff.Gini(), torch.tensor([[3.0, 0.0], [0.0, 3.0]]))
        >>> ff.distributions.mutual_information(dist).value  # log 2: y determines x
        tensor(0.6931)
    """
    if len(conditional.batch_shape) != 1:
        raise ValueError(
            "conditional must be a batch (n,) of distributions, one for each x, got batch shape "
            f"{tuple(conditional.batch_shape)}"
        )
    count = conditional.batch_shape[0]
    if weights is None:
        weights = torch.full((count,), 1 / count, dtype=torch.float64)
    _check_weights(weights, count)
    if isinstance(conditional, SparseCategorical):
        return _exact(_information(conditional.probs, weights.to(conditional.probs)))
    event = len(conditional.event_shape)
    conditional_logs, ratios = [], []
    for y in _sample_chunks(conditional, samples, generator, count):
        pairwise = conditional.log_prob(y.unsqueeze(-1 - event))  # (samples, x, x')
        weights = weights.to(pairwise)
        conditional_logs.append(pairwise.diagonal(dim1=-2, dim2=-1))
        ratios.append(conditional_logs[-1] - (pairwise + weights.log()).logsumexp(-1))
    each = _average(torch.cat(ratios), torch.cat(conditional_logs))
    error = (weights * each.standard_error).square().sum().sqrt()
    return Estimate((weights * each.value).sum(), error)


def _broadcast(p: Distribution, q: Distribution) -> Distribution:
    """Expand p to the common batch shape, so that each distribution of q gets its own samples."""
    batch = joined(p=p.batch_shape, q=q.batch_shape)
    return p if p.batch_shape == batch else p.expand(batch)


def _check_weights(weights: Tensor, count: int) -> None:
    """Raise unless `weights` are probabilities of shape (count,)."""
    if weights.shape != (count,):
        raise ValueError(
            f"weights must be ({count},), one for each distribution, got {tuple(weights.shape)}"
        )
    if not bool(probabilities.check(weights)):
        raise ValueError(
            f"weights must not be negative and must sum to 1, got {weights}; "
            "write weights / weights.sum()"
        )


def _information(probs: Tensor, weights: Tensor) -> Tensor:
    """Mutual information from conditional probabilities (n, K)."""
    mixed = weights @ probs
    used = probs.detach() > 0
    ratio = torch.where(used, probs, 1.0).log() - torch.where(used, mixed, 1.0).log()
    return weights @ (probs * ratio).sum(-1)


def _sample_chunks(
    p: Distribution, samples: int, generator: torch.Generator | None, width: int = 1
) -> list[Tensor]:
    """Return `samples` samples of p, in chunks of bounded memory."""
    whole_number(samples, "samples", least=2)
    entries = p.batch_shape.numel() * max(p.event_shape.numel(), 1) * width
    rows = max(1, _CHUNK // max(entries, 1))
    sizes = [min(rows, samples - at) for at in range(0, samples, rows)]
    return [_sample(p, torch.Size([size]), generator) for size in sizes]


def _sample(p: Distribution, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
    """Sample with a generator, also from distributions of torch, which use only the global one."""
    if generator is None:
        return p.sample(shape)
    if "generator" in inspect.signature(p.sample).parameters:
        options: dict[str, Any] = {"generator": generator}
        return p.sample(shape, **options)
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return p.sample(shape)


def _average(values: Tensor, logs: Tensor) -> Estimate:
    """Average values over the first dimension, at samples with log-probabilities `logs`.

    Densities are discontinuous between faces, so the gradient through reparameterised samples is
    biased. The score function estimator `E[(f - b) d log p + df]` is not.
    """
    mean = values.detach().mean(0)
    error = values.detach().std(0) / len(values) ** 0.5
    above = values.detach() - mean
    score = torch.where(above.isfinite(), above, 0.0) * (logs - logs.detach())
    score = torch.where(logs.detach().isfinite(), score, 0.0)
    value = (values + score * (len(values) / (len(values) - 1))).mean(0)
    return Estimate(value, torch.where(mean.isfinite(), error, math.inf))


def _exact(value: Tensor) -> Estimate:
    return Estimate(value, torch.zeros_like(value))
