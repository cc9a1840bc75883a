"""Base class of models that score all items from the items of a user's history."""

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, fields
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from fewfold._progress import phase, silence
from fewfold._tensors import Found, Spec
from fewfold.recommender.interactions import Interactions, Jagged
from fewfold.recommender.models.model import (
    FitOptions,
    Fitted,
    Learned,
    Model,
    single_item_rows,
)
from fewfold.recommender.ranking.exact_ranking import Ranking, Scorer, top_k

__all__ = ["Baseline", "more_counts"]


class Baseline(Model, Fitted):
    """A model that scores all items from a user's items; settings and learned tensors in one.

    A subclass is a dataclass: fields with `init=True` are settings, all others are tensors that
    `fit` sets, together with `items` and `counts`, the number of users of each item. It defines
    `fit`, which returns the model itself, and `scores`; and `layout` if it has more tensors than
    `counts`. A user without items gets the most popular ones.
    """

    counts: Tensor

    @property
    def recipe(self) -> Model:
        """The model itself."""
        return self

    def fit(self, train: Interactions) -> Self:
        """Fit to interactions; returns the model itself."""
        raise NotImplementedError(f"{type(self).__name__} must define fit(train)")

    def scores(self, history: Jagged, items: slice) -> Tensor:
        """(rows, items in the slice), a new tensor: scores from the items of each row."""
        raise NotImplementedError(f"{type(self).__name__} must define scores(history, items)")

    def recommend(self, history: Interactions | Jagged, k: int) -> Tensor:
        """The best k items for every row of `history`, without those in it.

        Returns:
            (rows, k) int64, best first; -1 where no item is left.
        """
        known = (
            history.rows(slice(None), ordered=self.ordered)
            if isinstance(history, Interactions)
            else history
        )
        return self.rank(known, k, exclude=known).ids

    def scorer(self, history: Jagged) -> Scorer:
        """Scores of all items for every row of `history`, as `top_k` reads them."""
        if self.items == 0:
            raise ValueError(
                f"{type(self).__name__} has learned nothing yet; call fit(train) first"
            )
        return _Rows(self, history)

    def learn(self, log: Interactions, options: FitOptions) -> Learned:
        """Fit a copy, so that the settings can be fitted again."""
        if options.checkpoint is not None:
            raise ValueError(f"a {type(self).__name__} is fitted at once and needs no checkpoint")
        with silence(not options.progress), phase(f"fitting {type(self).__name__}"):
            return Learned(copy(self).fit(log), log, [])

    def block_sizes(self) -> dict[str, int]:
        """Sizes of the blocks in which `top_k` scores users and items; its defaults if empty."""
        return {}

    def rank(
        self,
        history: Jagged,
        k: int,
        *,
        exclude: Jagged | None = None,
        allowed: Tensor | None = None,
    ) -> Ranking:
        """Rank the best k items for each row by `scores`."""
        scorer = self.scorer(history)
        return top_k(scorer, k, exclude=exclude, allowed=allowed, **self.block_sizes())

    def score(self, history: Jagged, items: Tensor) -> Tensor:
        """(rows, len(items)) scores; 0 for a history without items, not the popularity."""
        at_once = self.block_sizes().get("users_at_once", 256)
        found = []
        for first in range(0, len(history.offsets) - 1, at_once):
            part = history.rows(slice(first, first + at_once))
            if "items_at_once" in self.block_sizes():  # they compute all items at once
                scores = self.scores(part, slice(0, self.items))[:, items]
            else:
                each = [self.scores(part, slice(item, item + 1)) for item in items.tolist()]
                scores = torch.cat(each, 1)
            found.append(scores * (part.lengths > 0).unsqueeze(1))
        return torch.cat(found)

    def similar(self, items: Tensor, k: int, *, allowed: Tensor | None = None) -> Ranking:
        """Rank the k items with the highest scores for a user who has this item alone."""
        alone = single_item_rows(items)
        return self.rank(alone, k, exclude=alone, allowed=allowed)

    def updated(self, fitted: Fitted, log: Interactions, added: Interactions) -> Fitted:
        """A copy whose popular items are up to date."""
        again = copy(fitted)
        assert isinstance(again, Baseline)
        again.counts = more_counts(again.counts, added)
        return again

    def state(self) -> dict[str, Tensor]:
        """Tensors that `fit` has set."""
        every: tuple[Any, ...] = fields(self)  # type: ignore[arg-type]
        return {field.name: getattr(self, field.name) for field in every if not field.init}

    def from_state(self, tensors: dict[str, Tensor], items: int) -> Self:
        """A copy with these tensors as attributes."""
        fitted = copy(self)
        for name, value in tensors.items():
            setattr(fitted, name, value)
        fitted.items = items
        return fitted

    def layout(self, found: Found, items: int) -> Iterator[tuple[str, Spec]]:
        """Yield name and specification of each tensor: here the counts alone."""
        yield "counts", Spec((items,), least=0)


def more_counts(counts: Tensor, added: Interactions) -> Tensor:
    """Return the number of users of each item with those of new pairs, perhaps of more items."""
    return F.pad(counts, (0, added.items - len(counts))) + added.counts()


@dataclass(frozen=True, eq=False)
class _Rows:
    """The scorer of a fitted model for the users whose items are known."""

    model: Baseline
    history: Jagged

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.history.offsets) - 1, self.model.items

    def __call__(self, users: slice, items: slice) -> Tensor:
        mine = self.history.rows(users)
        scores = self.model.scores(mine, items)
        scores[mine.lengths == 0] = self.model.counts[items]
        return scores
