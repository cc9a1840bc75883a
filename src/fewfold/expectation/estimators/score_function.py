"""Sampling estimators: the score function, sum-and-sample, and the multi-sample bound."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fewfold._check import whole_number
from fewfold._torch import check_values, under_vmap
from fewfold.expectation.estimators.control_variates import Baseline
from fewfold.expectation.estimators.estimator import Choice, Estimator
from fewfold.expectation.latents.latent import LatentDistribution, flatten_pairs
from fewfold.support import Support

__all__ = ["VIMCO", "ScoreFunction", "SumAndSample"]


@dataclass(frozen=True)
class ScoreFunction(Estimator):
    """Score-function (REINFORCE) estimator: the cost times the gradient of the log-probability.

    Unbiased; for categories, independent bits and structures with `sample` and `log_partition`.

    Args:
        samples: samples per row, averaged.
        baseline: `RunningMean()`, `SelfCritic()`, `LeaveOneOut()`, `Learned(network)` or none.

    Example:
        >>> import torch, fewfold as ff
        >>> price = torch.tensor([1.0, 2.0, 0.5, 3.0])
        >>> out = ff.expect(
        ...     lambda atoms, row: price[atoms],
        ...     torch.tensor([[0.3, -0.2, 0.5, 0.1]]),
        ...     ff.ScoreFunction(samples=4, baseline=ff.expectation.LeaveOneOut()),
        ...     generator=torch.Generator().manual_seed(0),
        ... )
        >>> out.calls
        tensor([4])

    Reference: Williams, "Simple statistical gradient-following algorithms for connectionist
    reinforcement learning", 1992.
    """

    samples: int = 1
    baseline: Baseline | None = None

    def __post_init__(self) -> None:
        whole_number(self.samples, "samples")
        _check_baseline(self.baseline, self.samples)

    def choose(self, latent: LatentDistribution, generator: torch.Generator | None) -> Choice:
        draws = self.samples + (0 if self.baseline is None else self.baseline.extra)
        atoms, row = flatten_pairs(latent.sample(draws, generator))
        drawn = torch.arange(len(row), device=row.device).view(latent.rows, draws)
        weights = latent.scores.new_zeros(latent.rows, draws)
        weights[:, : self.samples] = 1 / self.samples
        support = Support(weights.flatten(), atoms, row, latent.rows)
        return Choice(support, latent.log_prob(atoms, row), drawn=drawn, scored=self.samples)

    def compare(self, choice: Choice, costs: Tensor, context: Tensor | None) -> Tensor | None:
        return _baseline_of_pairs(self.baseline, choice, costs, context)


@dataclass(frozen=True)
class SumAndSample(Estimator):
    """Exact sum over the k most likely atoms plus one sample from the remaining ones.

    Unbiased, and exact if k is at least the number of atoms. For categories and bits.

    Args:
        k: number of atoms that are summed.
        baseline: as in `ScoreFunction`, applied to the sampled atom.

    Example:
        >>> import torch, fewfold as ff
        >>> price = torch.tensor([1.0, 2.0, 0.5, 3.0])
        >>> scores = torch.tensor([[0.3, -0.2, 0.5, 0.1]])
        >>> out = ff.expect(lambda atoms, row: price[atoms], scores, ff.SumAndSample(3),
        ...     generator=torch.Generator().manual_seed(0))
        >>> out.value, out.calls
        (tensor([1.4479]), tensor([4]))

    Reference: Liu, Regier, Tripuraneni, Jordan and McAuliffe, "Rao-Blackwellized stochastic
    gradients for discrete distributions", 2019.
    """

    k: int = 1
    baseline: Baseline | None = None

    def __post_init__(self) -> None:
        whole_number(self.k, "k")
        _check_baseline(self.baseline, 1)

    def choose(self, latent: LatentDistribution, generator: torch.Generator | None) -> Choice:
        check_values(
            latent.scores,
            "which rows SumAndSample draws for depends on the values of the scores",
            "use ScoreFunction or Dense, or another device",
        )
        chosen, valid = latent.k_best(self.k)
        atoms, row = flatten_pairs(chosen)
        log_probs = latent.log_prob(atoms, row)
        if not under_vmap():  # under vmap, invalid atoms stay with a weight of zero
            keep = valid.flatten()
            atoms, row, log_probs = atoms[keep], row[keep], log_probs[keep]
        draws = 1 + (0 if self.baseline is None else self.baseline.extra)
        others, mass = latent.sample_excluding(chosen, valid, draws, generator)
        open_rows = torch.arange(latent.rows, device=row.device)
        if not under_vmap():
            open_rows = (mass.detach() > 0).nonzero()[:, 0]  # rows with mass outside the k best
        mass = mass[open_rows]
        more, place = flatten_pairs(others[open_rows])
        owner = open_rows[place]
        drawn = len(row) + torch.arange(len(owner), device=row.device).view(-1, draws)
        weight = torch.nn.functional.pad(mass.unsqueeze(1), (0, draws - 1)).flatten()
        some = mass.detach() > 0
        log_scores = latent.log_prob(more, owner) - torch.where(some, mass, 1.0).log()[place]
        log_scores = torch.where(some[place], log_scores, 0.0)
        support = Support(
            torch.cat([log_probs.exp().to(weight), weight]),
            torch.cat([atoms, more]),
            torch.cat([row, owner]),
            latent.rows,
        )
        log_scores = torch.cat([torch.zeros_like(log_probs), log_scores])
        return Choice(support, log_scores, drawn=drawn, scored=1)

    def compare(self, choice: Choice, costs: Tensor, context: Tensor | None) -> Tensor | None:
        return _baseline_of_pairs(self.baseline, choice, costs, context)


@dataclass(frozen=True)
class VIMCO(Estimator):
    """Multi-sample variational bound, with a leave-one-out control variate for each sample.

    For a cost `-log p(x, z)` the value is

        -log 1/S sum_s p(x, z_s) / q(z_s),

    between the negative ELBO (S = 1) and `-log p(x)`. It includes the entropy of q, which must not
    be added again. The gradient of the bound is unbiased if the cost is deterministic.

    Args:
        samples: S, at least 2.

    Reference: Mnih and Rezende, "Variational inference for Monte Carlo objectives", 2016.
    """

    samples: int = 5

    def __post_init__(self) -> None:
        whole_number(self.samples, "samples", least=2)

    def choose(self, latent: LatentDistribution, generator: torch.Generator | None) -> Choice:
        return ScoreFunction(self.samples).choose(latent, generator)

    def surrogate(self, choice: Choice, costs: Tensor, baseline: Tensor | None) -> Tensor:
        log_scores = choice.log_scores
        assert log_scores is not None
        ratios = -(costs + log_scores).view(-1, self.samples)
        none = (ratios.detach() == -math.inf).all(1)  # rows without a gradient
        bound = ratios.masked_fill(none.unsqueeze(1), 0.0).logsumexp(1) - math.log(self.samples)
        bound = bound.masked_fill(none, -math.inf)
        # Control variate: the bound with each ratio replaced by the geometric mean of the others.
        fixed = ratios.detach()
        own = torch.eye(self.samples, dtype=torch.bool, device=fixed.device)
        every = fixed.unsqueeze(1)
        mean = torch.where(own, 0.0, every).sum(2, keepdim=True) / (self.samples - 1)
        without = torch.where(own, mean, every).logsumexp(2) - math.log(self.samples)
        # No control variate where all other samples have a ratio of zero.
        signal = bound.detach().unsqueeze(1) - torch.where(without == -math.inf, 0.0, without)
        signal = torch.where(signal == -math.inf, 0.0, signal)
        scored = (log_scores - log_scores.detach()).view(-1, self.samples)
        narrow = torch.promote_types(choice.support.weights.dtype, costs.dtype)
        return -(bound + (signal * scored).sum(1)).to(narrow)


def _baseline_of_pairs(
    baseline: Baseline | None, choice: Choice, costs: Tensor, context: Tensor | None
) -> Tensor | None:
    """(m,) baseline of the sampled pairs that have a weight, zero for all other pairs."""
    if baseline is None or choice.drawn is None:
        return None
    if context is not None:
        context = context[choice.support.row[choice.drawn[:, 0]]]
    found = baseline(costs.detach()[choice.drawn], choice.scored, context).to(costs)
    at = choice.drawn[:, : choice.scored]
    return torch.zeros_like(costs).index_put((at,), found.expand(at.shape))


def _check_baseline(baseline: Baseline | None, samples: int) -> None:
    if not isinstance(baseline, Baseline | None):
        raise TypeError(
            "baseline must be a fewfold.expectation.Baseline such as "
            f"ff.expectation.RunningMean(), got {baseline!r}; a network goes into "
            "ff.expectation.Learned(network)"
        )
    if baseline is not None and samples < baseline.min_samples:
        name, least = type(baseline).__name__, baseline.min_samples
        raise ValueError(
            f"{name} compares the samples of a row with each other and needs at least {least}, "
            f"got {samples}; write ScoreFunction(samples={least}, baseline={name}())"
        )
