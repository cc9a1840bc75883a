"""Marginal log-likelihood: an exact sum over the support plus a Monte Carlo estimate elsewhere."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from fewfold._check import whole_number
from fewfold.expectation.estimators.estimator import Estimator
from fewfold.expectation.expect import (
    Cost,
    evaluate_costs,
    latent_distribution,
    prior_distribution,
    to_batch_shape,
)
from fewfold.expectation.latents.latent import LatentDistribution, flatten_pairs
from fewfold.structured.structures.structure import Structure

__all__ = ["log_likelihood"]

# Samples of up to 16 numbers held at once; the result for a given seed depends on it.
_AT_ONCE = 2**16


@torch.no_grad()
def log_likelihood(
    cost: Cost,
    scores: Tensor,
    estimator: Estimator,
    over: Structure | None = None,
    *,
    samples: int,
    prior: Tensor | None = None,
    prior_over: Structure | None = None,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    pairs: int = 4096,
) -> Tensor:
    """Estimate `log sum_z p(z) exp(-cost(z))` of each row, for a cost `-log p(x | z)`.

    With `SparseMarginal` and `Dense` the sum over the support is exact; the sum over other atoms is
    estimated by samples of the prior outside the support. Other estimators use importance sampling
    from the distribution of the latent.

    Args:
        cost, scores, estimator, over, mask, generator: as in `expect`; the cost receives ids, bits
            or structures for every estimator, never relaxed vectors, in chunks of `pairs`.
        samples: samples per row.
        prior: scores of p(z), broadcastable to those of the latent; default: uniform. Values that
            are masked or have a score of -inf in the latent are excluded from the prior.
        prior_over: for structures with additional scores: the same structure with the additional
            scores of the prior.
        pairs: maximum number of pairs (row, atom) per call of the cost.

    Returns:
        `(*batch,)` estimates, whose exponential is unbiased.

    Example:
        >>> import torch, fewfold as ff
        >>> price = torch.tensor([1.0, 2.0, 0.5, 3.0])
        >>> scores = torch.tensor([[0.3, -0.2, 0.5, 0.1]])
        >>> from fewfold.expectation import log_likelihood
        >>> log_likelihood(lambda atoms, row: price[atoms], scores, ff.Dense(), samples=1)
        tensor([-1.2383])
    """
    whole_number(samples, "samples", least=0)
    whole_number(pairs, "pairs")
    latent = latent_distribution(scores, estimator, over, mask)
    if not latent.rows:
        return scores.new_zeros(latent.batch)
    own = prior_distribution(latent, prior, prior_over)
    if not estimator.exact:
        found = torch.full((latent.rows,), -math.inf, device=scores.device)
        for atoms, row in _sample_blocks(latent, whole_number(samples, "samples"), generator):
            terms = own.log_prob(atoms, row) - latent.log_prob(atoms, row) - math.log(samples)
            terms = terms - _evaluate_in_chunks(cost, atoms, row, pairs)
            found = torch.logaddexp(found, _row_logsumexp(terms, row, latent.rows))
        return to_batch_shape(found.to(scores), latent, estimator.exact)
    support = estimator.choose(latent, generator).support
    atoms, row = support.atoms, support.row
    inside = own.log_prob(atoms, row) - _evaluate_in_chunks(cost, atoms, row, pairs)
    found = _row_logsumexp(inside, row, latent.rows)
    for others, owner in _sample_blocks(own, samples, generator):
        new = ~_within(others, owner, atoms, row)
        others, owner = others[new], owner[new]
        outside = -_evaluate_in_chunks(cost, others, owner, pairs) - math.log(samples)
        found = torch.logaddexp(found, _row_logsumexp(outside, owner, latent.rows))
    return to_batch_shape(found.to(scores), latent, estimator.exact)


def _sample_blocks(
    latent: LatentDistribution, samples: int, generator: torch.Generator | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield samples of every row and their rows, in blocks of at most about `_AT_ONCE` samples."""
    size = 1 if latent.structure is None else latent.event.numel()
    most = max(1, _AT_ONCE // (latent.rows * max(1, size // 16)))
    for first in range(0, samples, most):
        yield flatten_pairs(latent.sample(min(most, samples - first), generator))


def _evaluate_in_chunks(cost: Cost, atoms: Tensor, row: Tensor, pairs: int) -> Tensor:
    parts = zip(atoms.split(pairs), row.split(pairs), strict=True)
    return torch.cat([evaluate_costs(cost, *part) for part in parts])


def _row_logsumexp(logs: Tensor, row: Tensor, rows: int) -> Tensor:
    """Log-sum-exp of each row, at least float32; -inf for empty rows."""
    logs = logs.to(torch.promote_types(logs.dtype, torch.float32))
    top = logs.new_full((rows,), -math.inf).scatter_reduce(0, row, logs, "amax")
    safe = torch.where(top.isfinite(), top, 0.0)
    return logs.new_zeros(rows).index_add(0, row, (logs - safe[row]).exp()).log() + safe


def _within(atoms: Tensor, owner: Tensor, support: Tensor, row: Tensor) -> Tensor:
    """Mask of the atoms that are in the support of their row."""
    code = torch.cat([row, owner])
    for word in torch.cat([_words(support), _words(atoms)]).unbind(1):
        # Combine the code of the previous words with this word into one dense code.
        rank = word.unique(return_inverse=True)[1]
        code = (code * len(word) + rank).unique(return_inverse=True)[1]
    return torch.isin(code[len(row) :], code[: len(row)])


def _words(atoms: Tensor) -> Tensor:
    """Encode atoms as `(m, words)` int64: ids unchanged, bits packed."""
    if not atoms.is_floating_point():
        return atoms.unsqueeze(1)
    bits = (atoms.flatten(1) > 0.5).long()
    width = 62
    bits = torch.nn.functional.pad(bits, (0, -bits.shape[1] % width))
    powers = 2 ** torch.arange(width, device=bits.device)
    return (bits.view(len(bits), bits.shape[1] // width, width) * powers).sum(-1)
