"""What an estimator is: it chooses atoms, weights and log-scores; one function combines them."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fewfold.expectation.latents.latent import Law
from fewfold.structured.structures.structure import Structure
from fewfold.support import Support, sum_rows

__all__ = ["Choice", "Estimator", "combine"]


@dataclass(frozen=True, eq=False)
class Choice:
    """The pairs (row, atom) whose cost an estimator asks for.

    Attributes:
        support: atoms, which may carry a gradient, and their weights, which may too.
        log_scores: (m,) whose gradient is that of the law a draw comes from; None: nothing is
            drawn, or the atoms carry the gradient themselves.
        drawn: (drawn rows, draws) which of the pairs were drawn independently from one law, the
            scored ones first.
        scored: how many of the draws have a weight.
    """

    support: Support
    log_scores: Tensor | None = None
    drawn: Tensor | None = None
    scored: int = 0


class Estimator(ABC):
    """A way to estimate an expected cost and its gradient: a value to give to `expect`."""

    #: Whether the weights are the distribution of the latent itself.
    exact: ClassVar[bool] = False

    #: Whether atoms are vectors, for categories too.
    relaxed: ClassVar[bool] = False

    @property
    def structure(self) -> Structure | None:
        """What the latent ranges over, where the estimator says it itself."""
        return None

    @abstractmethod
    def choose(self, law: Law, generator: torch.Generator | None) -> Choice:
        """The pairs whose cost matters."""

    def compare(self, choice: Choice, costs: Tensor, context: Tensor | None) -> Tensor | None:
        """(m,) what each cost is compared with; if it carries a gradient, it learns the costs."""
        return None

    def surrogate(self, choice: Choice, costs: Tensor, baseline: Tensor | None) -> Tensor:
        """(rows,) whose value estimates the expected cost, and its gradient the gradient."""
        return combine(choice.support, costs, choice.log_scores, baseline)


def combine(
    support: Support, costs: Tensor, log_scores: Tensor | None, baseline: Tensor | None
) -> Tensor:
    """The one formula behind every estimator, for each row:

        sum w f  +  sum sg(w) (sg(f) - b) (l - sg(l)),

    with weights w, costs f, log-scores l, baseline b; sg stops the gradient. The second sum is
    zero and has the gradient that comes from how atoms were drawn.
    """
    weights = support.weights
    # what has no weight, the draw of a critic, may cost anything
    terms = torch.where(weights.detach() == 0, 0.0, weights * costs)
    if log_scores is not None:
        apart = costs.detach()
        if baseline is not None:  # one that is infinite says nothing
            apart = apart - torch.where(baseline.isinf(), 0.0, baseline).detach()
        apart = weights.detach() * torch.where(apart.isinf(), 0.0, apart)
        terms = terms + apart * (log_scores - log_scores.detach()).to(terms.dtype)
    return sum_rows(terms, support.row, support.rows)
