"""Choose how item vectors are completed from attributes, on a log with hidden items."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fewfold.recommender.evaluation.splits import random_split
from fewfold.recommender.interactions import Interactions, Jagged
from fewfold.recommender.models.model import Fitted
from fewfold.recommender.ranking.exact_ranking import DotProduct, top_k
from fewfold.recommender.warm_vectors import Prediction, WarmSettings, ridge_predictions, shrunk

__all__ = ["HiddenItems", "offset_unit", "tuned_settings"]

_SHARE = 0.1  # of the items, hidden
_USERS = 2000  # validated
_DEPTH = 50  # of the rankings
_PENALTIES = (0.3, 1.0, 3.0, 10.0, 30.0)
_STRENGTHS = (1.0, 3.0, 10.0)
_OFFSETS = (-32.0, -16.0, -8.0, *torch.linspace(-4, 8, 49).tolist())
_WORTH = 0.02  # least relative gain, above its noise, for which learned vectors are changed


@dataclass(frozen=True, eq=False)
class HiddenItems:
    """A log without some of its items and pairs, and users to validate with.

    Attributes:
        train: the log without all pairs of the hidden items, and without some of the users' others.
        hidden: (items,) mask of the hidden items.
        history: of the users, from `train`.
        warm, cold: their held-out items: those with interactions in `train`, and the hidden ones.
    """

    train: Interactions
    hidden: Tensor
    history: Interactions
    warm: Jagged
    cold: Jagged

    @classmethod
    def of(cls, log: Interactions, *, seed: int) -> "HiddenItems":
        """Hide a tenth of the items at random, and a fifth of some users' other pairs."""
        generator = torch.Generator().manual_seed(seed)
        items = (log.counts() > 0).nonzero().squeeze(1)
        order = torch.randperm(len(items), generator=generator)
        hidden = torch.zeros(log.items, dtype=torch.bool)
        hidden[items[order[: round(_SHARE * len(items))]]] = True
        cold = log.keep(hidden[log.ids])
        rest = log.keep(~hidden[log.ids])
        able = ((cold.jagged.lengths > 0) & (rest.jagged.lengths > 1)).nonzero().squeeze(1)
        order = torch.randperm(len(able), generator=generator)
        users = able[order[:_USERS]].sort().values
        chosen = torch.zeros(log.users, dtype=torch.bool)
        chosen[users] = True
        if len(users) == 0:
            return cls(rest, hidden, rest.select(users), rest.rows(users), cold.rows(users))
        split = random_split(rest, seed=seed)
        kept = split.train.jagged
        stays = ~chosen[rest.row] | rest.jagged.isin(kept)
        train = rest.keep(stays)
        seen = train.counts() > 0
        warm = split.test.rows(users)
        return cls(
            train, hidden, train.select(users), warm.select(seen[warm.values]), cold.rows(users)
        )


def tuned_settings(
    fitted: Fitted, features: Any, hidden: HiddenItems, warm_loss: float
) -> WarmSettings:
    """Choose the settings for a model that was fitted to `hidden.train`.

    The penalty is that of the best Recall@50 of hidden items ranked among themselves. The offset is
    the one with which most of them are found among all items, while other items lose at most the
    share `warm_loss` of their recall. The strength is the one with the best recall of other items,
    0 unless that gains two percent.
    """
    vectors = fitted.vectors
    assert vectors is not None
    if len(hidden.cold.values) == 0 or len(hidden.warm.values) == 0:
        return WarmSettings()  # too few interactions to choose on
    bench = _Bench.of(fitted, vectors, hidden)
    counts, best, chosen = hidden.train.counts(), -1.0, None
    predictions = ridge_predictions(features, vectors, counts, _PENALTIES)
    for l2, prediction in zip(_PENALTIES, predictions, strict=True):
        recall = bench.cold_recall(prediction.vectors)
        if recall > best:
            best, chosen = recall, (l2, prediction)
    assert chosen is not None
    settings = bench.with_offset(replace(WarmSettings(), l2=chosen[0]), chosen[1], warm_loss)
    least = bench.warm_recall(vectors) * (1 + _WORTH)
    for strength in _STRENGTHS:
        recall = bench.warm_recall(shrunk(vectors, chosen[1].vectors, counts, strength))
        if recall > least:
            least, settings = recall, replace(settings, shrinkage=strength)
    return replace(settings, cold_recall_alone=best)


@dataclass(frozen=True, eq=False)
class _Bench:
    """Queries of the validated users, and their best items with interactions."""

    hidden: HiddenItems
    queries: Tensor
    warm: Tensor  # mask of the items with interactions
    best: Tensor  # (users, 50) scores of the best of them
    warm_scores: Tensor  # of the held-out pairs of such items

    @classmethod
    def of(cls, fitted: Fitted, vectors: Tensor, hidden: HiddenItems) -> "_Bench":
        ordered = fitted.recipe.ordered
        queries = fitted.queries(hidden.history.rows(slice(None), ordered=ordered))
        warm = hidden.train.counts() > 0
        best = _best(queries, vectors, warm, hidden.history.jagged)
        return cls(hidden, queries, warm, best, _scores(queries, vectors, hidden.warm))

    def cold_recall(self, vectors: Tensor) -> float:
        """Recall@50 of hidden items among themselves."""
        best = _best(self.queries, vectors, self.hidden.hidden, None)
        found = _scores(self.queries, vectors, self.hidden.cold)
        return _reached(found, best[:, -1], self.hidden.cold)

    def warm_recall(self, vectors: Tensor) -> float:
        """Recall@50 of items with interactions among themselves."""
        best = _best(self.queries, vectors, self.warm, self.hidden.history.jagged)
        found = _scores(self.queries, vectors, self.hidden.warm)
        return _reached(found, best[:, -1], self.hidden.warm)

    def with_offset(
        self, settings: WarmSettings, prediction: Prediction, warm_loss: float
    ) -> WarmSettings:
        """Return the settings with the offset, and the recalls that it has among all items."""
        cold = _best(self.queries, prediction.vectors, self.hidden.hidden, None)
        found = _scores(self.queries, prediction.vectors, self.hidden.cold)
        unit = _unit(self.best)
        before = _reached(self.warm_scores, self.best[:, -1], self.hidden.warm)
        chosen = None
        for offset in _OFFSETS:  # rising: the last that is allowed has the most hidden items
            merged = torch.cat([self.best, cold + offset * unit], 1)
            last = merged.topk(self.best.shape[1]).values[:, -1]
            warm = _reached(self.warm_scores, last, self.hidden.warm)
            if chosen is None or warm >= (1 - warm_loss) * before:
                recall = _reached(found + offset * unit, last, self.hidden.cold)
                chosen = replace(
                    settings, offset=offset, cold_recall=recall, warm_recall=warm,
                    warm_recall_before=before, users=len(self.queries),
                    hidden_items=int(self.hidden.hidden.sum()),
                )  # fmt: skip
        assert chosen is not None
        return chosen


def offset_unit(fitted: Fitted, vectors: Tensor, log: Interactions, warm: Tensor) -> float:
    """Return the unit of offsets: the standard deviation of the 50 best scores of a user.

    It is the mean over some users of the log, and makes an offset independent of the scale of the
    scores, which differs between trainings.
    """
    some = (log.jagged.lengths > 0).nonzero().squeeze(1)[:_USERS]
    queries = fitted.queries(log.rows(some, ordered=fitted.recipe.ordered))
    return _unit(_best(queries, vectors, warm, log.rows(some)))


def _unit(best: Tensor) -> float:
    there = best.isfinite().all(1)
    if not bool(there.any()) or best.shape[1] < 2:
        return 1.0
    return float(best[there].std(1).mean())


def _best(queries: Tensor, vectors: Tensor, allowed: Tensor, exclude: Jagged | None) -> Tensor:
    """(users, 50) the highest scores of allowed items, -inf where there are fewer."""
    return top_k(DotProduct(queries, vectors), _DEPTH, exclude=exclude, allowed=allowed).scores


def _scores(queries: Tensor, vectors: Tensor, pairs: Jagged) -> Tensor:
    """(pairs,) scores of these items of each row."""
    return (queries[pairs.row] * vectors[pairs.values]).sum(1)


def _reached(scores: Tensor, last: Tensor, pairs: Jagged) -> float:
    """Share of the pairs with a score at least the last of their row's ranking."""
    # A score may be summed in another order than in the ranking.
    return float((scores >= last[pairs.row] - 1e-5 * scores.abs()).double().mean())
