"""Base class of estimators, and the formula that combines atoms, weights and log-scores."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fewfold.expectation.latents.latent import LatentDistribution
from fewfold.structured.structures.structure import Structure
from fewfold.support import Support, sum_rows

__all__ = ["Choice", "Estimator", "combine"]


@dataclass(frozen=True, eq=False)
class Choice:
    """The pairs (row, atom) whose cost an estimator evaluates.

    Attributes:
        support: atoms and their weights; both may require a gradient.
        log_scores: (m,) log-probabilities of sampled atoms, for the score-function gradient; None
            if no atom is sampled or the atoms themselves require a gradient.
        drawn: (sampled rows, draws) indices of the pairs sampled independently from the same
            distribution, those with a weight first.
        scored: number of draws per row that have a weight.
    """

    support: Support
    log_scores: Tensor | None = None
    drawn: Tensor | None = None
    scored: int = 0


class Estimator(ABC):
    """Base class of estimators of an expected cost and its gradient, passed to `expect`."""

    #: Whether the weights are the probabilities of the latent.
    exact: ClassVar[bool] = False

    #: Whether atoms of categories are vectors instead of ids.
    relaxed: ClassVar[bool] = False

    @property
    def structure(self) -> Structure | None:
        """Structure of the latent, if the estimator determines it."""
        return None

    @abstractmethod
    def choose(self, latent: LatentDistribution, generator: torch.Generator | None) -> Choice:
        """Return the pairs (row, atom) whose cost is to be evaluated."""

    def compare(self, choice: Choice, costs: Tensor, context: Tensor | None) -> Tensor | None:
        """(m,) baseline of each cost, or None; trained to predict the cost if differentiable.

        An estimator may return something else that its `surrogate` and `error` have in common.
        """
        return None

    def surrogate(self, choice: Choice, costs: Tensor, baseline: Tensor | None) -> Tensor:
        """(rows,) tensor whose value and gradient estimate those of the expected cost."""
        return combine(choice.support, costs, choice.log_scores, baseline)

    def error(self, choice: Choice, costs: Tensor, baseline: Tensor | None) -> Tensor | None:
        """(rows,) loss of what the estimator learns: the mean squared error of a learned baseline.

        None if nothing is learned.
        """
        if baseline is None or not baseline.requires_grad:
            return None
        assert choice.drawn is not None
        at = choice.drawn[:, : choice.scored]
        each = (costs.detach() - baseline)[at].square().mean(1)
        # Rows without samples have no error.
        return sum_rows(each, choice.support.row[choice.drawn[:, 0]], choice.support.rows)


def combine(
    support: Support, costs: Tensor, log_scores: Tensor | None, baseline: Tensor | None
) -> Tensor:
    """Combine weights w, costs f, log-scores l and baseline b of each row into a surrogate:

        sum w f  +  sum sg(w) (sg(f) - b) (l - sg(l)),

    where sg stops the gradient. The value of the second sum is zero; its gradient is the
    score-function gradient.
    """
    weights = support.weights
    # Pairs without weight, such as the sample of a critic, may have an infinite cost.
    terms = torch.where(weights.detach() == 0, 0.0, weights * costs)
    if log_scores is not None:
        signal = costs.detach()
        if baseline is not None:  # infinite baselines are ignored
            signal = signal - torch.where(baseline.isinf(), 0.0, baseline).detach()
        signal = weights.detach() * torch.where(signal.isinf(), 0.0, signal)
        terms = terms + signal * (log_scores - log_scores.detach()).to(terms.dtype)
    return sum_rows(terms, support.row, support.rows)
