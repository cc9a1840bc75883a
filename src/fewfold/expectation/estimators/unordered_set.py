"""The unordered set estimator: samples without replacement."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fewfold._check import whole_number
from fewfold._torch import check_values, under_vmap
from fewfold.expectation.estimators.estimator import Choice, Estimator
from fewfold.expectation.latents.latent import LatentDistribution, flatten_pairs
from fewfold.support import Support

__all__ = ["UnorderedSet", "first_draws"]

_MOST = 12  # the orders of a set are summed over its subsets, 2^12


@dataclass(frozen=True, eq=False, kw_only=True)
class _Set(Choice):
    """A set of distinct samples of each row.

    Attributes:
        shares: (rows, k, k) weights of the costs of the set in the baseline of each of its atoms.
        keep: (rows, k) mask of the atoms in the support.
    """

    shares: Tensor
    keep: Tensor


@dataclass(frozen=True)
class UnorderedSet(Estimator):
    """Score-function estimator from distinct samples, averaged over the orders they can come in.

    A set S is sampled without replacement. The weight of an atom is the probability that it was the
    first of S to be sampled:

        sum_{z in S} w(z) (cost(z) - b(z)) grad log p(z),    w(z) = P(first is z | S).

    The baseline b(z) estimates the expected cost from the set, given that z came first. Unbiased,
    and exact if `samples` is at least the number of atoms. No atom is evaluated twice, so there is
    less variance than with as many independent samples where few atoms are likely. For categories
    (Gumbel-top-k) and bits (stochastic beam search).

    Args:
        samples: number of distinct samples per row, 2 to 12; time and memory per row are
            proportional to `samples * 2**samples`.
        baseline: subtract the baseline; without it one sample is enough.

    Example:
        >>> import torch, fewfold as ff
        >>> price = torch.tensor([1.0, 2.0, 0.5, 3.0])
        >>> scores = torch.tensor([[0.3, -0.2, 0.5, 0.1]])
        >>> estimator = ff.expectation.UnorderedSet(samples=4)
        >>> out = ff.expect(lambda atoms, row: price[atoms], scores, estimator)
        >>> out.value, out.calls
        (tensor([1.4479]), tensor([4]))

    Reference: Kool, van Hoof and Welling, "Estimating gradients for discrete random variables by
    sampling without replacement", 2020.
    """

    samples: int = 4
    baseline: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.baseline, bool):
            raise TypeError(
                "the baseline of UnorderedSet is its own, True or False, got "
                f"{type(self.baseline).__name__}; other baselines are for ScoreFunction"
            )
        if whole_number(self.samples, "samples", least=1 + self.baseline) > _MOST:
            raise ValueError(
                f"samples must be at most {_MOST}, because the orders of the samples are summed, "
                f"got {self.samples}; write ScoreFunction(samples={self.samples}, "
                "baseline=ff.expectation.LeaveOneOut())"
            )

    def choose(self, latent: LatentDistribution, generator: torch.Generator | None) -> Choice:
        check_values(
            latent.scores,
            "how many atoms UnorderedSet finds depends on the values of the scores",
            "use ScoreFunction or Dense, or another device",
        )
        found, valid, rest = latent.sample_distinct(self.samples, generator)
        atoms, row = flatten_pairs(found)
        log_scores = latent.log_prob(atoms, row)
        first, shares = first_draws(log_scores.detach().double().view(valid.shape), valid, rest)
        if under_vmap():  # invalid atoms stay, with a weight of zero
            keep = torch.ones_like(valid)
            log_scores = torch.where(valid.flatten(), log_scores, 0.0)
        else:
            keep = valid
            on = keep.flatten()
            atoms, row, log_scores, first = atoms[on], row[on], log_scores[on], first[keep]
        support = Support(first.flatten().to(latent.scores), atoms, row, latent.rows)
        return _Set(support=support, log_scores=log_scores, shares=shares, keep=keep)

    def compare(self, choice: Choice, costs: Tensor, context: Tensor | None) -> Tensor | None:
        if not self.baseline:
            return None
        assert isinstance(choice, _Set)
        fixed = costs.detach().double()
        if fixed.numel() < choice.keep.numel():
            padded = fixed.new_zeros(choice.keep.shape)
            fixed = padded.masked_scatter(choice.keep, fixed)
        every = fixed.view(choice.keep.shape).unsqueeze(1)
        found = torch.where(choice.shares == 0, 0.0, choice.shares * every).sum(-1)
        if len(costs) < found.numel():
            found = found[choice.keep]
        return found.flatten().to(costs)


def first_draws(logs: Tensor, valid: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
    """Distribution of the first and the second draw of a set sampled without replacement.

    Args:
        logs: (rows, k) log-probabilities of the atoms of the set.
        valid: (rows, k) mask of the atoms that are in the set; all, unless the rest is zero.
        rest: (rows,) log of the total probability of all atoms outside of the set.

    Returns:
        (rows, k) probability that an atom was drawn first, and (rows, k, k): for each atom z its
        probability p(z), and next to it the probability, given that z was drawn first, that another
        atom was drawn second, times 1 - p(z). Zero for atoms that are not valid.
    """
    # An atom that is not in the set comes last, so that it changes nothing for the others.
    last = logs.masked_fill(~valid, torch.inf).amin(-1, keepdim=True) - 1e3
    logs = torch.where(valid, logs, last)
    later = _complete(logs, rest)
    alone = 1 << torch.arange(logs.shape[1], device=logs.device)
    begun = later[:, alone]
    first = (logs + begun).softmax(-1)
    second = later[:, alone.unsqueeze(0) | alone.unsqueeze(1)] - begun.unsqueeze(-1)
    shares = (logs.unsqueeze(1) + second).exp()
    return torch.where(valid, first, 0.0), torch.where(valid.unsqueeze(1), shares, 0.0)


def _complete(logs: Tensor, rest: Tensor) -> Tensor:
    """(rows, 2^k) log-probability that, after a subset of a set is drawn, the others come next.

    Subsets are numbered by their bits. The probability of a subset is the sum over the next atom,
    of which each is drawn in proportion to its probability among those that are left.
    """
    size = logs.shape[1]
    place = torch.arange(size)
    subsets = torch.arange(2**size).unsqueeze(1)
    drawn = (subsets >> place) & 1 == 1  # (2^k, k)
    found = logs.new_zeros(len(logs), 2**size)
    for count in reversed(range(size)):
        which = (drawn.sum(1) == count).nonzero()[:, 0]
        at, after = which.to(logs.device), (subsets[which] | (1 << place)).to(logs.device)
        others = torch.where(drawn[which].to(logs.device), -torch.inf, logs.unsqueeze(1))
        left = torch.logaddexp(others.logsumexp(-1), rest.unsqueeze(1))  # (rows, subsets)
        found = found.index_copy(1, at, (others + found[:, after]).logsumexp(-1) - left)
    return found
