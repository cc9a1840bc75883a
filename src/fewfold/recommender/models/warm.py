"""A model whose item vectors are completed from attributes: items without interactions."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from fewfold._progress import phase, silence
from fewfold._tensors import AtMost, Found, Spec
from fewfold._torch import CPU, transferred
from fewfold.embeddings.anchor_inspection import AnchorInspection
from fewfold.recommender.artifact.schema import tagged
from fewfold.recommender.interactions import Interactions, Jagged
from fewfold.recommender.models.blend import inside
from fewfold.recommender.models.model import (
    FitOptions,
    Fitted,
    Learned,
    Model,
    cosines,
    single_item_rows,
)
from fewfold.recommender.models.registry import models, register
from fewfold.recommender.models.shared_ranking import share_directions, share_ranking
from fewfold.recommender.models.warm_settings import (
    HiddenItems,
    offset_unit,
    tuned_settings,
)
from fewfold.recommender.ranking.catalogue import Catalogue
from fewfold.recommender.ranking.exact_ranking import DotProduct, Ranking, top_k
from fewfold.recommender.shared_tensors import SharedTensors
from fewfold.recommender.warm_vectors import WarmSettings, ridge_predictions, shrunk

__all__ = ["FittedWarm", "Warm"]

_USERS = 8192  # ranked at once
_PROBES = 256  # histories of one item, to find the constant columns of queries


class FittedWarm(Fitted):
    """A fitted model some of whose item vectors are replaced.

    Scores are those of the inner model with other vectors, and an offset of each replaced item:
    queries have one more column, of ones.

    Attributes:
        inner: the fitted model.
        known: (items,) mask of the items that the inner model was trained on. Others are left out
            of histories.
        replaced: (n,) numbers of the items whose vectors are replaced.
        rows: (n, d + 1) their vectors, the offset last.
    """

    def __init__(
        self, recipe: "Warm", inner: Fitted, known: Tensor, replaced: Tensor, rows: Tensor
    ) -> None:
        vectors = _vectors_of(inner)
        if rows.shape[1] != vectors.shape[1] + 1:
            raise ValueError(
                f"warm.vectors must have {vectors.shape[1] + 1} columns, one more than the vectors "
                f"of the model, got {rows.shape[1]}"
            )
        self._recipe, self.inner, self.known = recipe, inner, known
        self.replaced, self.rows, self.items = replaced, rows, inner.items
        self._table: Catalogue | None = None
        self._shared: SharedTensors | None = None
        self._placed: Tensor | None = None

    @property
    def recipe(self) -> "Warm":
        """The `Warm` this was fitted by."""
        return self._recipe

    @cached_property
    def vectors(self) -> Tensor:
        """(items, d + 1) item vectors with their offsets, contiguous."""
        found = F.pad(_vectors_of(self.inner), (0, 1))
        found[self.replaced] = self.rows
        return found

    def queries(self, history: Jagged) -> Tensor:
        """(rows, d + 1) query vectors of users with these items; the last column is one."""
        return F.pad(
            self.inner.queries(history.select(self.known[history.values])), (0, 1), value=1
        )

    def to(self, device: torch.device) -> None:
        """Score and rank on a device; the vectors are copied there."""
        self._placed = None if device.type == "cpu" else self.vectors.to(device)

    def prepare(self, shared: SharedTensors | None = None) -> None:
        """Build a compact copy of the vectors, which speeds up rankings of single users."""
        self._shared = shared
        if shared is not None:
            self._table = share_ranking(self, shared)
            vars(self.inner).pop("vectors", None)  # computed by the constructor
        self._table = self._table or Catalogue(self.vectors)

    def rank(
        self,
        history: Jagged,
        k: int,
        *,
        exclude: Jagged | None = None,
        allowed: Tensor | None = None,
    ) -> Ranking:
        """Rank the best k items for each row by inner products."""
        rows, found = len(history.offsets) - 1, []
        table = (self._table or self.vectors) if self._placed is None else self._placed
        device = CPU if self._placed is None else self._placed.device
        with phase("ranking items", total=max(rows, 1)) as progress:
            for start in range(0, max(rows, 1), _USERS):  # so that not all queries are in memory
                block = slice(start, min(start + _USERS, rows))
                queries = transferred(self.queries(history.rows(block)), device)
                mine = None if exclude is None else exclude.rows(block)
                best = top_k(DotProduct(queries, table), k, exclude=mine, allowed=allowed)
                found.append(Ranking(best.ids.cpu(), best.scores.cpu()))
                progress.advance(block.stop)
        return Ranking(*(torch.cat(parts) for parts in zip(*found, strict=True)))

    @cached_property
    def directions(self) -> Tensor:
        """(items, d') item vectors of length one, by which items are similar."""
        return share_directions(self, self._shared)

    def normalised(self) -> Tensor:
        """Compute the directions: vectors without columns that are the same for all users.

        These are biases, which say how popular an item is and not what it is like.
        """
        probes = self.known.nonzero().squeeze(1)[:_PROBES]
        queries = self.queries(single_item_rows(probes))
        varies = (queries != queries[:1]).any(0)
        return F.normalize(self.vectors[:, varies] if bool(varies.any()) else self.vectors)

    def similar(self, items: Tensor, k: int, *, allowed: Tensor | None = None) -> Ranking:
        """Rank the k items with the largest cosine similarity of vectors."""
        scorer = DotProduct(self.directions[items], self.directions)
        return top_k(scorer, k, exclude=single_item_rows(items), allowed=allowed)

    def similarity_to(self, others: Tensor) -> Callable[[Tensor], Tensor]:
        """Return a function from (rows,) items to cosines with the vectors of `others`."""
        return cosines(self.directions, others)

    def state(self) -> dict[str, Tensor]:
        """Tensors of the inner model, with the prefix `inner.`, and the replaced vectors."""
        state = {f"inner.{name}": value for name, value in self.inner.state().items()}
        state |= {"warm.known": self.known, "warm.items": self.replaced}
        return state | {"warm.vectors": self.rows}

    def score_cost(self, known: Jagged) -> float:
        """Multiply-adds to score one item for one user: the width of the vectors."""
        return self.vectors.shape[1]

    def inspect_anchors(
        self, labels: Sequence[Any] | None, names: Sequence[Any]
    ) -> AnchorInspection | None:
        """Describe the anchors of the inner model."""
        return self.inner.inspect_anchors(labels, names)


@dataclass(frozen=True, eq=False)
class _LearnedWarm(Learned):
    """Result of fitting the inner model and completing its vectors."""

    inner: Learned | None = None


@register
@dataclass(frozen=True)
class Warm(Model):
    """A model with item vectors, those of items with few or no interactions from attributes.

    A ridge regression predicts the learned vectors from features of the items. An item without
    interactions gets the predicted vector, and a common offset of its scores; other items are drawn
    to theirs the more the fewer interactions they have, if that helps. The penalty, the offset and
    the strength are chosen on a part of the log with a tenth of the items hidden, for which the
    inner model is fitted once more. See `ItemsTable`.

    Attributes:
        inner: the model; it must have item vectors, as `VAE` has.
        warm_loss: share of the Recall@50 of other items that may be given up for items without
            interactions.
        features: (items, features) sparse features of the items, needed to fit; they are not saved.
    """

    name: ClassVar[str] = "warm"
    resumable: ClassVar[bool] = True
    inner: Model = field(metadata=tagged(models))
    warm_loss: float = 0.05
    features: Any = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.warm_loss < 1:
            raise ValueError(f"warm_loss must be at least 0 and below 1, got {self.warm_loss}")
        # Of this model, not of all: it depends on the inner one.
        object.__setattr__(self, "ordered", self.inner.ordered)
        object.__setattr__(self, "weighted", self.inner.weighted)
        object.__setattr__(self, "resumable", self.inner.resumable)
        object.__setattr__(self, "completable", self.inner.completable)

    def with_features(self, features: Any) -> "Warm":
        """Return the same model with these features to be fitted with."""
        found = replace(self)
        object.__setattr__(found, "features", features)
        return found

    def warmed(self, features: Any, *, known: int, required: bool) -> "Warm":
        """The same model with these features; its `warm_loss` stays."""
        return self.with_features(features)

    @classmethod
    def from_options(cls, values: Mapping[str, Any]) -> Self:
        """Raise: it is fitted by naming another model and --use-attributes."""
        raise ValueError("warm is made of another model: write --model fastvae --use-attributes")

    def flags(self) -> str:
        """Flags of `fewfold fit` that give these settings."""
        return f"{self.inner.flags()} --use-attributes"

    def summary(self) -> str:
        """The inner model and its settings."""
        return f"{self.inner.name} with attributes, {self.inner.summary()}"

    @classmethod
    def grid(cls, items: int) -> "list[Model]":
        """None: it needs attributes of the items."""
        return []

    def work(self, log: Interactions) -> float:
        """Multiply-adds to fit the inner model twice."""
        return 2 * self.inner.work(log)

    def fit(self, train: Interactions) -> Fitted:
        """Fit the inner model and complete its vectors."""
        return self.learn(train, FitOptions(progress=False)).fitted

    def learn(self, log: Interactions, options: FitOptions) -> Learned:
        """Fit the inner model, with items hidden and without, and complete its vectors."""
        features = self.features
        if features is None or features.shape[0] != log.items:
            got = "none" if features is None else f"those of {features.shape[0]:,}"
            raise ValueError(
                f"Warm needs features of the {log.items:,} items, got {got}; write "
                "Recommender(...).fit(log, items_table=ItemsTable(table, use=True))"
            )
        before = options.previous if isinstance(options.previous, _LearnedWarm) else None
        settings = None if before is None else before.attributes
        if settings is None:
            settings = self._tuned(log, options)
        first = None if before is None else before.inner
        learned = self._learn_inner("inner", log, replace(options, previous=first))
        with silence(not options.progress), phase("completing item vectors"):
            fitted = self.completed(learned.fitted, learned.log, settings)
        return _LearnedWarm(
            fitted, learned.log, learned.epochs, None, learned.choice, settings, learned
        )

    def _tuned(self, log: Interactions, options: FitOptions) -> WarmSettings:
        """Choose the settings on a part of the log with hidden items."""
        hidden = HiddenItems.of(log, seed=options.seed)
        limit = options.deadline and options.deadline.share(0.5)
        part = replace(options, deadline=limit, previous=None)
        learned = self._learn_inner("hidden", hidden.train, part)
        _vectors_of(learned.fitted)
        with silence(not options.progress), phase("choosing how to use attributes"):
            return tuned_settings(learned.fitted, self.features, hidden, self.warm_loss)

    def _learn_inner(self, stage: str, log: Interactions, options: FitOptions) -> Learned:
        checkpoint = options.checkpoint
        kept = checkpoint.stage(stage) if checkpoint and self.inner.resumable else None
        return self.inner.learn(log, replace(options, checkpoint=kept))

    def completed(self, inner: Fitted, log: Interactions, settings: WarmSettings) -> FittedWarm:
        """Return a fitted model with the vectors of items with few interactions replaced."""
        vectors, counts = _vectors_of(inner), log.counts()
        predicted = next(ridge_predictions(self.features, vectors, counts, [settings.l2]))
        cold = counts == 0
        replaced = cold if settings.shrinkage == 0 else torch.ones_like(cold)
        rows = shrunk(vectors, predicted.vectors, counts, settings.shrinkage)
        unit = offset_unit(inner, vectors, log, ~cold)
        offsets = torch.where(cold, settings.offset * unit, 0.0).to(vectors.dtype)
        rows = torch.cat([rows, offsets.unsqueeze(1)], 1)[replaced]
        return FittedWarm(self, inner, ~cold, replaced.nonzero().squeeze(1), rows)

    def layout(self, found: Found, items: int) -> Iterator[tuple[str, Spec]]:
        """Yield the specifications of the inner model's tensors, and of the replaced vectors."""
        for name, spec in self.inner.layout(inside(found, "inner."), items):
            yield f"inner.{name}", spec
        count = found["warm.items"][1][:1] if "warm.items" in found else (0,)
        yield "warm.known", Spec((items,), torch.bool, below=2)
        yield "warm.items", Spec((AtMost(items, 0),), torch.int64, least=0, below=items)
        yield "warm.vectors", Spec((*count, None))

    def largest(self, ranges: Mapping[str, tuple[float, float]], items: int) -> float:
        """Upper bound of all scores: queries are at most the largest value of the inner model."""
        size = max(map(abs, ranges.get("warm.vectors", (0.0, 0.0))))
        return self.inner.largest(inside(ranges, "inner."), items) * max(1.0, 2048 * size)

    def from_state(self, tensors: dict[str, Tensor], items: int) -> FittedWarm:
        """The fitted model with these tensors."""
        inner = self.inner.from_state(inside(tensors, "inner."), items)
        return FittedWarm(
            self, inner, tensors["warm.known"], tensors["warm.items"], tensors["warm.vectors"]
        )


def _vectors_of(fitted: Fitted) -> Tensor:
    """Return the item vectors of a model; ValueError if it has none."""
    vectors = fitted.vectors
    if vectors is None:
        raise ValueError(
            f"attributes need a model with item vectors, and {fitted.recipe.name} has none; "
            "fit fastvae (--model fastvae)"
        )
    return vectors
