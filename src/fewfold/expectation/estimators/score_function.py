"""Estimators that draw: the score function, sum-and-sample, and the bound of many samples."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fewfold._check import whole_number
from fewfold._torch import check_values, under_vmap
from fewfold.expectation.estimators.control_variates import Baseline, LeaveOneOut
from fewfold.expectation.estimators.estimator import Choice, Estimator
from fewfold.expectation.latents.latent import Law, pairs
from fewfold.support import Support

__all__ = ["VIMCO", "ScoreFunction", "SumAndSample"]


@dataclass(frozen=True)
class ScoreFunction(Estimator):
    """Draws, and the gradient of their log-probability in proportion to their cost.

    Unbiased, for softmax, independent bits and every structure that can be drawn and summed over.

    Args:
        samples: draws per row, averaged.
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

    def choose(self, law: Law, generator: torch.Generator | None) -> Choice:
        draws = self.samples + (0 if self.baseline is None else self.baseline.extra)
        atoms, row = pairs(law.sample(draws, generator))
        drawn = torch.arange(len(row), device=row.device).view(law.rows, draws)
        weights = law.scores.new_zeros(law.rows, draws)
        weights[:, : self.samples] = 1 / self.samples
        support = Support(weights.flatten(), atoms, row, law.rows)
        return Choice(support, law.log_prob(atoms, row), drawn=drawn, scored=self.samples)

    def compare(self, choice: Choice, costs: Tensor, context: Tensor | None) -> Tensor | None:
        return _compared(self.baseline, choice, costs, context)


@dataclass(frozen=True)
class SumAndSample(Estimator):
    """The k most likely atoms summed, and one of the others drawn for all of them.

    Unbiased; with k at least the number of atoms it is exact. For categories and bits.

    Args:
        k: how many are summed.
        baseline: as in `ScoreFunction`, for the drawn one.

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

    def choose(self, law: Law, generator: torch.Generator | None) -> Choice:
        check_values(
            law.scores,
            "which rows SumAndSample draws for depends on the values of the scores",
            "use ScoreFunction or Dense, or another device",
        )
        chosen, valid = law.best(self.k)
        atoms, row = pairs(chosen)
        log_probs = law.log_prob(atoms, row)
        if not under_vmap():  # where those that are impossible have no weight
            keep = valid.flatten()
            atoms, row, log_probs = atoms[keep], row[keep], log_probs[keep]
        draws = 1 + (0 if self.baseline is None else self.baseline.extra)
        others, mass = law.outside(chosen, valid, draws, generator)
        open_rows = torch.arange(law.rows, device=row.device)
        if not under_vmap():
            open_rows = (mass.detach() > 0).nonzero()[:, 0]  # where there are others at all
        mass = mass[open_rows]
        more, place = pairs(others[open_rows])
        owner = open_rows[place]
        drawn = len(row) + torch.arange(len(owner), device=row.device).view(-1, draws)
        weight = torch.nn.functional.pad(mass.unsqueeze(1), (0, draws - 1)).flatten()
        some = mass.detach() > 0
        log_scores = law.log_prob(more, owner) - torch.where(some, mass, 1.0).log()[place]
        log_scores = torch.where(some[place], log_scores, 0.0)
        support = Support(
            torch.cat([log_probs.exp().to(weight), weight]),
            torch.cat([atoms, more]),
            torch.cat([row, owner]),
            law.rows,
        )
        log_scores = torch.cat([torch.zeros_like(log_probs), log_scores])
        return Choice(support, log_scores, drawn=drawn, scored=1)

    def compare(self, choice: Choice, costs: Tensor, context: Tensor | None) -> Tensor | None:
        return _compared(self.baseline, choice, costs, context)


@dataclass(frozen=True)
class VIMCO(Estimator):
    """The bound of many samples, each compared with the others.

    For a cost `-log p(x, z)` the value is

        -log 1/S sum_s p(x, z_s) / q(z_s),

    between the negative ELBO (S = 1) and `-log p(x)`. The entropy of q is a part of it, so it is
    not to be added again. The gradient of the bound is unbiased, for a cost that is not itself
    drawn.

    Args:
        samples: S, two or more.

    Reference: Mnih and Rezende, "Variational inference for Monte Carlo objectives", 2016.
    """

    samples: int = 5

    def __post_init__(self) -> None:
        whole_number(self.samples, "samples", least=2)

    def choose(self, law: Law, generator: torch.Generator | None) -> Choice:
        return ScoreFunction(self.samples).choose(law, generator)

    def surrogate(self, choice: Choice, costs: Tensor, baseline: Tensor | None) -> Tensor:
        log_scores = choice.log_scores
        assert log_scores is not None
        ratios = -(costs + log_scores).view(-1, self.samples)
        none = (ratios.detach() == -math.inf).all(1)  # a row without a gradient
        bound = ratios.masked_fill(none.unsqueeze(1), 0.0).logsumexp(1) - math.log(self.samples)
        bound = bound.masked_fill(none, -math.inf)
        # without one: its ratio is the geometric mean of the others
        fixed = ratios.detach()
        own = torch.eye(self.samples, dtype=torch.bool, device=fixed.device)
        every = fixed.unsqueeze(1)
        mean = torch.where(own, 0.0, every).sum(2, keepdim=True) / (self.samples - 1)
        without = torch.where(own, mean, every).logsumexp(2) - math.log(self.samples)
        # where all the others are impossible there is nothing to compare with
        signal = bound.detach().unsqueeze(1) - torch.where(without == -math.inf, 0.0, without)
        signal = torch.where(signal == -math.inf, 0.0, signal)
        scored = (log_scores - log_scores.detach()).view(-1, self.samples)
        narrow = torch.promote_types(choice.support.weights.dtype, costs.dtype)
        return -(bound + (signal * scored).sum(1)).to(narrow)


def _compared(
    baseline: Baseline | None, choice: Choice, costs: Tensor, context: Tensor | None
) -> Tensor | None:
    """The baseline at the pairs that were drawn and have a weight, zero elsewhere."""
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
            "baseline must be a fewfold.expectation.Baseline such as RunningMean(), got "
            f"{baseline!r}; a network goes into ff.expectation.Learned(network)"
        )
    if isinstance(baseline, LeaveOneOut) and samples < 2:
        raise ValueError(
            "LeaveOneOut compares the draws of a row with each other, and there is one; write "
            "ScoreFunction(samples=2, baseline=LeaveOneOut())"
        )
