"""The popularity model: the same ranking for all users, by the number of users of each item."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Self

import torch
from torch import Tensor

from fewfold.recommender.interactions import Interactions, Jagged
from fewfold.recommender.models.baseline import Baseline
from fewfold.recommender.models.model import Fitted
from fewfold.recommender.models.registry import register
from fewfold.recommender.ranking.exact_ranking import Ranking

__all__ = ["MostPopular"]


@register
@dataclass(eq=False)
class MostPopular(Baseline):
    """The same ranking for all users: ``score_i = number of users of item i``.

    With `Interactions.weights` it is the sum of the weights of its pairs.

    Example:
        >>> from fewfold.recommender import Interactions, MostPopular
        >>> train = Interactions.from_pairs([0, 0, 1, 2], [1, 2, 2, 0])
        >>> MostPopular().fit(train).recommend(train, 2)
        tensor([[ 0, -1],
                [ 0,  1],
                [ 2,  1]])
    """

    name: ClassVar[str] = "popularity"
    colour: ClassVar[str] = "#b8b8b8"
    weighted: ClassVar[bool] = True
    extendable: ClassVar[bool] = True
    update_note: ClassVar[str] = "new pairs are counted, as a fit would"
    counts: Tensor = field(init=False, repr=False)

    def fit(self, train: Interactions) -> Self:
        """Count the users of every item, or add their weights."""
        self.counts, self.items = train.popularity(), train.items
        return self

    def updated(self, fitted: Fitted, log: Interactions, added: Interactions) -> Fitted:
        """A copy with the counts of all pairs."""
        again = super().updated(fitted, log, added)
        again.items = log.items
        return again

    def scores(self, history: Jagged, items: slice) -> Tensor:
        """(rows, items in the slice), the same in every row."""
        return self.counts[items].repeat(len(history.offsets) - 1, 1)

    def contributions(self, history: Tensor, items: Tensor) -> Tensor:
        """(len(items), len(history)) zeros: the scores do not depend on the history."""
        return torch.zeros(len(items), len(history))

    def similar(self, items: Tensor, k: int, *, allowed: Tensor | None = None) -> Ranking:
        """Raise ValueError: popularity does not compare items."""
        raise ValueError("MostPopular knows of no similar items; fit another model")

    def similarity_to(self, others: Tensor) -> Callable[[Tensor], Tensor]:
        """Raise ValueError: popularity does not compare items."""
        raise ValueError(
            "MostPopular knows of no similar items; diversify by an attribute of the items, as "
            "Diversity(0.3, by='section') (--diversity-by section), or fit another model"
        )
