"""A weighted blend of two models."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from fewfold._check import whole_number
from fewfold._native import dispatch
from fewfold._options import Option
from fewfold._tensors import Found, Spec
from fewfold.recommender.artifact.schema import tagged
from fewfold.recommender.interactions import Interactions, Jagged
from fewfold.recommender.models.model import FitOptions, Fitted, Learned, Model
from fewfold.recommender.models.model_options import BLEND as OPTIONS
from fewfold.recommender.models.model_options import setting
from fewfold.recommender.models.registry import models, register
from fewfold.recommender.ranking.exact_ranking import Ranking
from fewfold.recommender.ranking.row_top_k import Heaps, Sorted
from fewfold.recommender.shared_tensors import SharedTensors

__all__ = ["Blend", "FittedBlend", "MergedLists", "blended", "inside"]

_DEPTH = 200  # items of each list that are blended


def blended(first: Ranking, second: Ranking, weight: float, k: int) -> Ranking:
    """Merge two rankings of the same users by weighted, normalised scores.

    The scores of a list are shifted and scaled to be 1 for its first and 0 for its last item; an
    item that is missing from a list scores 0 there.

    Args:
        first, second: (users, depth) ids, -1 where there is no item, and their scores.
        weight: of the second list, from 0 to 1; the first has the rest.
        k: length of the result.

    Returns:
        (users, k) ids, best first, -1 where no item is left, and the blended scores.
    """
    return MergedLists(first, second).blended(weight, k)


class MergedLists:
    """Two rankings of the same users, merged by item, to be blended with any weight; see `blended`.

    Args:
        first, second: (users, depth) ids, -1 where there is no item, and their scores.
    """

    def __init__(self, first: Ranking, second: Ranking) -> None:
        one, other = _normalised(first), _normalised(second)
        ids, order = torch.cat([first.ids, second.ids], 1).sort(dim=1, stable=True)
        twice = ids[:, 1:] == ids[:, :-1]
        one = F.pad(one, (0, other.shape[1])).gather(1, order)
        other = F.pad(other, (first.ids.shape[1], 0)).gather(1, order)
        other[:, :-1] += torch.where(twice, other[:, 1:], 0.0)  # to the entry of the first list
        void = ids < 0
        void[:, 1:] |= twice
        self._ids, self._scores, self._void = ids, (one, other), void

    def blended(self, weight: float, k: int) -> Ranking:
        """Return the best k items with this weight of the second ranking."""
        one, other = self._scores
        total = ((1 - weight) * one + weight * other).masked_fill_(self._void, -torch.inf)
        nothing = Jagged(self._ids.new_empty(0), self._ids.new_zeros(len(total) + 1))
        best = (Heaps if dispatch.ready(total) else Sorted)(total, k, nothing, None)
        best.add(total, 0)  # of items with equal scores those with lower numbers come first
        place, scores = best.ranked()
        none = (place < 0) | (scores == -torch.inf)
        ids = self._ids.gather(1, place.clamp(min=0)).masked_fill(none, -1)
        return Ranking(ids, scores)


def _normalised(ranking: Ranking) -> Tensor:
    """Scores from 1, of the first item, to 0, of the last; 0 where there is no item."""
    there = (ranking.ids >= 0) & ranking.scores.isfinite()
    scores = ranking.scores.float()
    high = scores.masked_fill(~there, -torch.inf).amax(1, keepdim=True)
    low = scores.masked_fill(~there, torch.inf).amin(1, keepdim=True)
    span = high - low
    unit = torch.where(span > 0, (scores - low) / span, 1.0)
    return torch.where(there, unit, 0.0)


class FittedBlend(Fitted):
    """Two fitted models whose rankings are blended."""

    def __init__(self, recipe: "Blend", first: Fitted, second: Fitted) -> None:
        self._recipe, self.first, self.second = recipe, first, second
        self.items = first.items

    @property
    def recipe(self) -> "Blend":
        """The `Blend` this was fitted by."""
        return self._recipe

    def to(self, device: torch.device) -> None:
        """Let both models rank on a device."""
        self.first.to(device)
        self.second.to(device)

    def prepare(self, shared: SharedTensors | None = None) -> None:
        """Prepare both models."""
        self.first.prepare(shared and shared.inside("first"))
        self.second.prepare(shared and shared.inside("second"))

    def rank(
        self,
        history: Jagged,
        k: int,
        *,
        exclude: Jagged | None = None,
        allowed: Tensor | None = None,
    ) -> Ranking:
        """Rank the best k items of both models' lists by their blended scores."""
        depth, sets = self._depth(k), history.sets() if self._recipe.ordered else history
        first, second = (
            part.rank(
                history if part.recipe.ordered else sets, depth, exclude=exclude, allowed=allowed
            )
            for part in (self.first, self.second)
        )
        return blended(first, second, self._recipe.weight, k)

    def contributions(self, history: Tensor, items: Tensor) -> Tensor:
        """The weighted contributions to both models, scaled as their scores are."""
        total = torch.zeros(len(items), len(history))
        weights = (1 - self._recipe.weight, self._recipe.weight)
        for part, weight in zip((self.first, self.second), weights, strict=True):
            known = Jagged(history, torch.tensor([0, len(history)]))
            mine = known if part.recipe.ordered or not self._recipe.ordered else known.sets()
            best = part.rank(mine, self._depth(len(items)), exclude=mine)
            there = best.ids[0] >= 0
            scores = best.scores[0][there & best.scores[0].isfinite()].float()
            span = float(scores.max() - scores.min()) if len(scores) else 0.0
            if span > 0:
                found = part.contributions(mine.values, items).float()
                by_item = torch.searchsorted(mine.values, history) if mine is not known else None
                found = found if by_item is None else found[:, by_item]
                listed = torch.isin(items, best.ids[0]).unsqueeze(1)
                total += weight / span * torch.where(listed, found, 0.0)
        return total

    def similar(self, items: Tensor, k: int, *, allowed: Tensor | None = None) -> Ranking:
        """Rank the k items most similar by both models."""
        depth = self._depth(k)
        first = self.first.similar(items, depth, allowed=allowed)
        second = self.second.similar(items, depth, allowed=allowed)
        return blended(first, second, self._recipe.weight, k)

    def similarity_to(self, others: Tensor) -> Callable[[Tensor], Tensor]:
        """Return a function from (rows,) items to the weighted similarity by both models."""
        weight = self._recipe.weight
        first, second = self.first.similarity_to(others), self.second.similarity_to(others)
        return lambda items: (1 - weight) * first(items) + weight * second(items)

    def _depth(self, k: int) -> int:
        return min(max(k, self._recipe.depth), max(self.items, 1))

    def state(self) -> dict[str, Tensor]:
        """Tensors of both models, with the prefixes `first.` and `second.`."""
        return {
            f"{part}.{name}": value
            for part, fitted in (("first", self.first), ("second", self.second))
            for name, value in fitted.state().items()
        }

    def score_cost(self, known: Jagged) -> float:
        """Multiply-adds of both models to score one item for one user."""
        return self.first.score_cost(known) + self.second.score_cost(known)


@dataclass(frozen=True, eq=False)
class _LearnedBlend(Learned):
    """Result of fitting both models."""

    first: Learned | None = None
    second: Learned | None = None

    def reusable(self) -> dict[str, float]:
        """What either model chose, with the prefixes `first.` and `second.`."""
        return {
            f"{part}.{name}": value
            for part, learned in (("first", self.first), ("second", self.second))
            for name, value in (learned.reusable() if learned else {}).items()
        }


@register
@dataclass(frozen=True)
class Blend(Model):
    """Two models, ranked by a weighted sum of their normalised scores.

    Each model ranks its best `depth` items; the scores of each list are scaled to the range from 0
    to 1 and added with the weights ``1 - weight`` and ``weight``.

    Attributes:
        first, second: the models.
        weight: of the second model, above 0 and below 1.
        depth: number of items of each list.

    Example:
        >>> from fewfold.recommender import EASE, Blend, Interactions, ItemKNN
        >>> train = Interactions.from_pairs([0, 0, 1, 1, 2, 2], [0, 1, 0, 1, 2, 3])
        >>> fitted = Blend(EASE(l2=1.0), ItemKNN(neighbours=2), weight=0.5).fit(train)
        >>> fitted.rank(Interactions.from_pairs([0], [3]).jagged, 1).ids
        tensor([[2]])
    """

    name: ClassVar[str] = "blend"
    colour: ClassVar[str] = "#b5de2b"
    resumable: ClassVar[bool] = True
    first: Model = field(metadata=tagged(models))
    second: Model = field(metadata=tagged(models))
    weight: float = field(default=0.5, metadata=setting(OPTIONS["blend_weight"], "weight {:g}"))
    depth: int = _DEPTH

    def __post_init__(self) -> None:
        if not 0 < self.weight < 1:
            raise ValueError(f"weight must be above 0 and below 1, got {self.weight}")
        whole_number(self.depth, "depth")
        # Of this blend, not of all: it depends on the models.
        object.__setattr__(self, "ordered", self.first.ordered or self.second.ordered)
        object.__setattr__(self, "weighted", self.first.weighted or self.second.weighted)
        object.__setattr__(self, "extendable", self.first.extendable and self.second.extendable)
        notes = [f"{part.name}: {part.update_note}" for part in (self.first, self.second)]
        object.__setattr__(self, "update_note", "; ".join(dict.fromkeys(notes)))

    @classmethod
    def options(cls) -> tuple[Option, ...]:
        """Options of the command line."""
        return tuple(OPTIONS.values())

    @classmethod
    def from_options(cls, values: Mapping[str, Any]) -> Self:
        """Construct from values of the command line; --blend-of names the two models."""
        known, names = models(), str(values["blend_of"] or "").split(",")
        if len(names) != 2 or cls.name in names or not set(names) <= set(known):
            choices = ", ".join(name for name in known if name not in (cls.name, "auto"))
            raise ValueError(
                f"--blend-of must name two of {choices}, as --blend-of ease,fastvae; "
                f"got {values['blend_of']}"
            )
        first, second = (known[name].from_options(values) for name in names)
        return cls(first, second, weight=values["blend_weight"])

    def flags(self) -> str:
        """Flags of `fewfold fit` that give these settings."""
        own = f" --blend-of {self.first.name},{self.second.name} --blend-weight {self.weight:g}"
        return own + self.first.flags() + self.second.flags()

    def summary(self) -> str:
        """Both models and the weight of the second."""
        return f"{1 - self.weight:g} {self.first.name} + {self.weight:g} {self.second.name}"

    @classmethod
    def grid(cls, items: int) -> "list[Model]":
        """None: a blend is made of models that were compared before."""
        return []

    def reusing(self, found: Mapping[str, float]) -> "Blend":
        """The same blend, whose models reuse what they chose."""
        first = self.first.reusing(inside(found, "first."))
        return replace(self, first=first, second=self.second.reusing(inside(found, "second.")))

    def work(self, log: Interactions) -> float:
        """Multiply-adds to fit both models."""
        return self.first.work(log) + self.second.work(log)

    def fit(self, train: Interactions) -> FittedBlend:
        """Fit both models."""
        return FittedBlend(self, self.first.fit(train), self.second.fit(train))

    def learn(self, log: Interactions, options: FitOptions) -> Learned:
        """Fit both models, each with a checkpoint of its own if it saves any."""
        before = options.previous if isinstance(options.previous, _LearnedBlend) else None
        first = self._part("first", self.first, log, options, before and before.first)
        second = self._part("second", self.second, log, options, before and before.second)
        fitted = FittedBlend(self, first.fitted, second.fitted)
        smaller = min(first.log, second.log, key=lambda one: one.pairs)
        return _LearnedBlend(
            fitted, smaller, [*first.epochs, *second.epochs], first=first, second=second
        )

    def _part(
        self, name: str, model: Model, log: Interactions, options: FitOptions, before: Any
    ) -> Learned:
        kept = options.checkpoint.stage(name) if options.checkpoint and model.resumable else None
        return model.learn(log, replace(options, checkpoint=kept, previous=before))

    def layout(self, found: Found, items: int) -> Iterator[tuple[str, Spec]]:
        """Yield the specifications of both models' tensors, with their prefixes."""
        for part, model in (("first.", self.first), ("second.", self.second)):
            for name, spec in model.layout(inside(found, part), items):
                yield f"{part}{name}", spec

    def largest(self, ranges: Mapping[str, tuple[float, float]], items: int) -> float:
        """Upper bound of the scores and intermediate values of both models."""
        return max(
            model.largest(inside(ranges, part), items)
            for part, model in (("first.", self.first), ("second.", self.second))
        )

    def updated(self, fitted: Fitted, log: Interactions, added: Interactions) -> Fitted:
        """The blend of both models, updated."""
        assert isinstance(fitted, FittedBlend)
        first = self.first.updated(fitted.first, log, added)
        return FittedBlend(self, first, self.second.updated(fitted.second, log, added))

    def from_state(self, tensors: dict[str, Tensor], items: int) -> FittedBlend:
        """The fitted blend with these tensors."""
        first = self.first.from_state(dict(inside(tensors, "first.")), items)
        second = self.second.from_state(dict(inside(tensors, "second.")), items)
        return FittedBlend(self, first, second)


def inside(named: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Entries whose names begin with the prefix, without it."""
    return {
        name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)
    }
