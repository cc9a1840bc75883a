"""The likelihood of data whose latent is summed out: exact on the support, drawn elsewhere."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from fewfold._check import whole_number
from fewfold.expectation.estimators.estimator import Estimator
from fewfold.expectation.expect import Cost, costs_of, law_for, prior_of, told
from fewfold.expectation.latents.latent import Law
from fewfold.expectation.latents.latent import pairs as flat_pairs
from fewfold.structured.structures.structure import Structure

__all__ = ["log_likelihood"]

_AT_ONCE = 2**16  # draws of up to 16 numbers that are held; what comes out for a seed depends on it


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
    """`log sum_z p(z) exp(-cost(z))` of each row, for a cost `-log p(x | z)`.

    With `SparseMarginal` the sum over the support is exact, and that over all other atoms is
    estimated by draws from the prior, of which those within the support are left out. With the
    others draws come from the law of the latent and are weighted by prior over law.

    Args:
        cost, scores, estimator, over, mask, generator: as in `expect`; the cost gets ids, bits or
            structures whatever the estimator, and is called as often as `pairs` asks for.
        samples: draws per row.
        prior: scores of p(z), which broadcast to those of the latent; uniform unless given. What
            the latent cannot be (masked, or of a score of -inf) is left out of it.
        prior_over: for structures with additional scores, the same with those of the prior.
        pairs: of a row and an atom in one call of the cost, at most.

    Returns:
        `(*batch,)`; exp of it is unbiased.

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
    law = law_for(scores, estimator, over, mask)
    if not law.rows:
        return scores.new_zeros(law.batch)
    own = prior_of(law, prior, prior_over)
    if not estimator.exact:
        found = torch.full((law.rows,), -math.inf, device=scores.device)
        for atoms, row in _drawn(law, whole_number(samples, "samples"), generator):
            terms = own.log_prob(atoms, row) - law.log_prob(atoms, row) - math.log(samples)
            terms = terms - _pieces(cost, atoms, row, pairs)
            found = torch.logaddexp(found, _sums(terms, row, law.rows))
        return told(found.to(scores), law, estimator.exact)
    support = estimator.choose(law, generator).support
    atoms, row = support.atoms, support.row
    inside = own.log_prob(atoms, row) - _pieces(cost, atoms, row, pairs)
    found = _sums(inside, row, law.rows)
    for others, owner in _drawn(own, samples, generator):
        new = ~_within(others, owner, atoms, row)
        others, owner = others[new], owner[new]
        outside = -_pieces(cost, others, owner, pairs) - math.log(samples)
        found = torch.logaddexp(found, _sums(outside, owner, law.rows))
    return told(found.to(scores), law, estimator.exact)


def _drawn(
    law: Law, samples: int, generator: torch.Generator | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Atoms and their rows, a few draws of every row at a time, the fewer the larger atoms are."""
    size = 1 if law.structure is None else law.event.numel()
    most = max(1, _AT_ONCE // (law.rows * max(1, size // 16)))
    for first in range(0, samples, most):
        yield flat_pairs(law.sample(min(most, samples - first), generator))


def _pieces(cost: Cost, atoms: Tensor, row: Tensor, pairs: int) -> Tensor:
    parts = zip(atoms.split(pairs), row.split(pairs), strict=True)
    return torch.cat([costs_of(cost, *part) for part in parts])


def _sums(logs: Tensor, row: Tensor, rows: int) -> Tensor:
    """Log of the sum of exponentials in each row, float32 at least; -inf where there is none."""
    logs = logs.to(torch.promote_types(logs.dtype, torch.float32))
    top = logs.new_full((rows,), -math.inf).scatter_reduce(0, row, logs, "amax")
    safe = torch.where(top.isfinite(), top, 0.0)
    return logs.new_zeros(rows).index_add(0, row, (logs - safe[row]).exp()).log() + safe


def _within(atoms: Tensor, owner: Tensor, support: Tensor, row: Tensor) -> Tensor:
    """Which atoms of which rows are in the support of their row."""
    code = torch.cat([row, owner])
    for word in torch.cat([_words(support), _words(atoms)]).unbind(1):
        # one number for each pair of what was seen so far and this word
        rank = word.unique(return_inverse=True)[1]
        code = (code * len(word) + rank).unique(return_inverse=True)[1]
    return torch.isin(code[len(row) :], code[: len(row)])


def _words(atoms: Tensor) -> Tensor:
    """Ids as they are, bits packed: `(m, words)` int64."""
    if not atoms.is_floating_point():
        return atoms.unsqueeze(1)
    bits = (atoms.flatten(1) > 0.5).long()
    width = 62
    bits = torch.nn.functional.pad(bits, (0, -bits.shape[1] % width))
    powers = 2 ** torch.arange(width, device=bits.device)
    return (bits.view(len(bits), bits.shape[1] // width, width) * powers).sum(-1)
