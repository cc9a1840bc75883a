"""Base classes of recommender models: `Model`, the settings, and `Fitted`, the result.

A model identifies items by number and a user by the items of their history; `Recommender`
translates ids. See "How to add a model" in docs/architecture.md.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewfold._options import Option
from fewfold._tensors import Found, Spec
from fewfold._torch import CPU
from fewfold.distributed.group import Group
from fewfold.distributed.row_shards import RowShards
from fewfold.embeddings.anchor_inspection import AnchorInspection
from fewfold.recommender.interactions import Interactions, Jagged
from fewfold.recommender.models.contributions import histories_without_one, scores_by_rank
from fewfold.recommender.models.registry import models
from fewfold.recommender.ranking.exact_ranking import Ranking
from fewfold.recommender.selection.choice import Choice
from fewfold.recommender.shared_tensors import SharedTensors
from fewfold.recommender.training.checkpoint import Checkpoint
from fewfold.recommender.training.train_options import Deadline, Epoch, Training
from fewfold.recommender.warm_vectors import WarmSettings

__all__ = ["FitOptions", "Fitted", "Learned", "Model", "cosines", "relative", "single_item_rows"]


class Fitted:
    """A fitted model: rankings, similar items, and its tensors.

    A subclass defines `recipe`, `items`, `rank`, `similar` and `state`; the rest is optional.

    Attributes:
        items: number of items.
        group: processes that have parts of the tensors, and call all methods together.
    """

    items: int = 0
    group = Group()

    @property
    def recipe(self) -> "Model":
        """The model this was fitted by."""
        raise NotImplementedError(f"{type(self).__name__} must define recipe")

    @property
    def vectors(self) -> Tensor | None:
        """(items, d) item vectors whose inner products with `queries` are scores, if there are."""
        return None

    def queries(self, history: Jagged) -> Tensor:
        """(rows, d) query vectors; for models with `vectors` alone."""
        raise NotImplementedError(f"{type(self).__name__} has no vectors")

    def prepare(self, shared: SharedTensors | None = None) -> None:
        """Build what makes later answers faster, if there is anything.

        Args:
            shared: files in which other processes find it, too; None keeps it in this one.
        """

    def rank(
        self,
        history: Jagged,
        k: int,
        *,
        exclude: Jagged | None = None,
        allowed: Tensor | None = None,
    ) -> Ranking:
        """Rank the best k items for each row.

        Args:
            history: items of each user: sorted and different, or, if the model is `ordered`, from
                oldest to newest, perhaps with repetitions.
            k: number of items.
            exclude: items of each row that are not ranked.
            allowed: (items,) boolean mask of the items that are ranked.
        """
        raise NotImplementedError(f"{type(self).__name__} must define rank(history, k)")

    def similar(self, items: Tensor, k: int, *, allowed: Tensor | None = None) -> Ranking:
        """Rank the k items most similar to each of these, itself excluded."""
        raise NotImplementedError(f"{type(self).__name__} must define similar(items, k)")

    def similarity_to(self, others: Tensor) -> Callable[[Tensor], Tensor]:
        """Return a function from (rows,) items to their similarity to `others`, (rows, n).

        It is at most 1, and orders items as `similar` does. Here it is the cosine of item vectors,
        or, of a model without, the score of a user who has the item alone, relative to the largest
        of all items.
        """
        if self.vectors is not None:
            vectors, known = self.vectors, F.normalize(self.vectors[others], dim=2)
            return lambda items: (known @ F.normalize(vectors[items]).unsqueeze(2)).squeeze(2)

        def similarity(items: Tensor) -> Tensor:
            largest = self.similar(items, 1).scores
            alone = single_item_rows(items)
            found = torch.empty(others.shape)
            for row, mine in enumerate(others):
                different, place = mine.unique(return_inverse=True)
                found[row] = self.score(alone.rows(slice(row, row + 1)), different)[0, place]
            return relative(found, largest)

        return similarity

    def to(self, device: torch.device) -> None:
        """Rank on a device; by default on the CPU in any case."""

    def score(self, history: Jagged, items: Tensor) -> Tensor:
        """(rows, len(items)) scores of these different items, as `rank` orders them."""
        allowed = torch.zeros(self.items, dtype=torch.bool)
        allowed[items] = True
        found = self.rank(history, len(items), allowed=allowed)
        return scores_by_rank(found.ids, found.scores, items)

    def contributions(self, history: Tensor, items: Tensor) -> Tensor:
        """How much each item of a history adds to the scores of `items`.

        Here it is the difference that leaving it out makes, which is exact for models that add up
        the items of a history.

        Args:
            history: (n,) one history, as `rank` takes it.
            items: (k,) different items.

        Returns:
            (k, n).
        """
        scores = self.score(histories_without_one(history), items)
        return (scores[:1] - scores[1:]).T

    def state(self) -> dict[str, Tensor]:
        """All tensors, as `Model.layout` describes and `Model.from_state` reads them.

        Of a group of processes the first has all, the others may have fewer.
        """
        raise NotImplementedError(f"{type(self).__name__} must define state()")

    def stored(self) -> Mapping[str, Tensor | RowShards]:
        """All tensors, as `state`, but tables that several processes share stay where they are."""
        return self.state()

    def score_cost(self, known: Jagged) -> float:
        """Multiply-adds to score one item for one user with such a history."""
        return len(known.values) / max(len(known.lengths), 1)

    def to_onnx(self) -> nn.Module:
        """Module from (rows, length) item numbers, padded with -1, to (rows, items) scores.

        It is exported by `torch.onnx`, and may use plain tensor operations only.
        """
        raise ValueError(
            f"a {type(self.recipe).__name__} cannot be exported to ONNX; fit fastvae, ease or als"
        )

    def inspect_anchors(
        self, labels: Sequence[Any] | None, names: Sequence[Any]
    ) -> AnchorInspection | None:
        """Describe the anchors of the tables by labels and names of items; None without anchors."""
        return None


@dataclass(frozen=True, eq=False)
class Learned:
    """Result of `Model.learn`.

    Attributes:
        fitted: the fitted model.
        log: what it was fitted to: the log, or a part where some pairs were held out to choose
            settings.
        epochs: of the training, if there was one.
        dense: the model with dense tables that was compressed, if it was.
        choice: how the model was chosen, if it was not named.
        attributes: how item vectors were completed from attributes, if they were.
    """

    fitted: Fitted
    log: Interactions
    epochs: list[Epoch]
    dense: Fitted | None = None
    choice: Choice | None = None
    attributes: WarmSettings | None = None

    def reusable(self) -> dict[str, float]:
        """What was chosen on held-out pairs, for `Model.reusing`."""
        return {}


@dataclass(frozen=True, eq=False)
class FitOptions:
    """Options of `Model.learn`; a model that is not trained in steps ignores most of them.

    Attributes:
        training: settings of the training.
        seed: of all random numbers.
        checkpoint: where to save the training, so that it can be resumed.
        progress: show progress on standard error.
        previous: result for a part of the log; what was chosen on held-out pairs is reused.
        effort: share of the epochs of a whole training; a model may take more of them.
        split: how pairs are held out to choose between models; see `hold_out`.
        deadline: by which `learn` must have ended; None for no limit.
        cache: results that fits of one model to the same `Interactions` share, by any key.
        device: on which networks are trained; other models are fitted on the CPU.
    """

    training: Training = field(default_factory=Training)
    seed: int = 0
    checkpoint: Checkpoint | None = None
    progress: bool = True
    previous: Learned | None = None
    effort: float = 1.0
    split: str = "auto"
    deadline: Deadline | None = None
    cache: dict[object, Any] = field(default_factory=dict, repr=False, compare=False)
    device: torch.device = CPU

    def limited_training(self) -> Training:
        """The settings of the training, with a time budget of what is left to the deadline."""
        if self.deadline is None:
            return self.training
        left = max(1.0, 0.9 * self.deadline.left())  # the rest is for what follows the training
        return replace(self.training, time_budget=min(left, self.training.time_budget or left))


class Model:
    """A recommender model: a dataclass whose init fields are its settings.

    `config.json` of a saved model stores the init fields. A field with metadata `setting(option)`
    is set by an option of `fewfold fit`. A subclass defines `name`, `fit`, `layout` and
    `from_state`, and is registered by `@register`; models that score all items derive from
    `Baseline`, which defines most of this.

    Attributes:
        name: of the model in `fewfold fit --model`, and `kind` in `config.json`.
        colour: of the model in pictures.
        ordered: whether the order of a history matters; the log must then have times.
        resumable: whether `learn` saves checkpoints.
        extendable: whether `updated` adds items without fitting again.
        update_note: what `updated` does, as a sentence.
        cheap_version: name of a cheaper model with nearly the same results. Where that one is
            clearly behind, `Auto` does not try this one.
        weighted: whether `Interactions.weights` count as confidence; otherwise every pair counts
            alike.
        completable: whether the fitted model has item vectors, so that those of items without
            interactions can be completed from attributes; see `Warm`.
        automatic: whether a model is chosen on a part of the log, and with it how the log is used.
    """

    name: ClassVar[str] = ""
    colour: ClassVar[str] = "#fde725"
    ordered: ClassVar[bool] = False
    resumable: ClassVar[bool] = False
    extendable: ClassVar[bool] = False
    update_note: ClassVar[str] = "its weights stay as they are, histories are continued"
    cheap_version: ClassVar[str | None] = None
    weighted: ClassVar[bool] = False
    completable: ClassVar[bool] = False
    automatic: ClassVar[bool] = False

    @classmethod
    def options(cls) -> tuple[Option, ...]:
        """Options of the command line, in the order of the settings."""
        return tuple(
            replace(option, default=each.default) if option.default is None else option
            for each in _with_option(cls)
            for option in [each.metadata["option"]]
        )

    @classmethod
    def from_options(cls, values: Mapping[str, Any]) -> Self:
        """Construct from values of the command line, by `Option.dest`."""
        found = {}
        for each in _with_option(cls):
            value, kinds = values[each.metadata["option"].dest], each.metadata.get("kinds")
            found[each.name] = value if kinds is None else kinds[value]()
        return cls(**found)

    def flags(self) -> str:
        """Flags of `fewfold fit` that give these settings, each after a space."""
        found = ""
        for each in _with_option(type(self)):
            value = getattr(self, each.name)
            if value is None:  # chosen by the fit
                continue
            for name, kind in each.metadata.get("kinds", {}).items():
                value = name if type(value) is kind else value
            text = f"{value:g}" if isinstance(value, float) else f"{value}"
            found += f" --{each.metadata['option'].name} {text}"
        return found

    def summary(self) -> str:
        """Settings as one cell of a table."""
        shown = (
            (each.metadata["text"], getattr(self, each.name)) for each in _with_option(type(self))
        )
        return ", ".join(text.format(value) for text, value in shown if text and value is not None)

    @classmethod
    def grid(cls, items: int) -> "Sequence[Model]":
        """Candidate settings for `compare` on a log with this many items."""
        return [cls()]

    @classmethod
    def grid_after(cls, items: int, cheap: "Model") -> "Sequence[Model]":
        """Candidate settings once the best ones of `cheap_version` are known."""
        return cls.grid(items)

    @classmethod
    def too_large(cls, items: int) -> str:
        """Why the model cannot be fitted to this many items; empty if it can."""
        return ""

    @classmethod
    def unsuitable(cls, log: Interactions) -> str:
        """Why the model cannot be fitted to this log; empty if it can."""
        if cls.ordered and log.times is None:
            return (
                "it learns from the order of events, and this log has no times (name their column "
                "with time=, --time COLUMN)"
            )
        return cls.too_large(log.items)

    def work(self, log: Interactions) -> float:
        """Approximate multiply-adds of a whole fit to a log, to order and limit trials."""
        return 1000.0 * log.pairs

    def with_anchors(self, anchors: Any) -> "Model":
        """The same model with tables of anchors; see `Anchors.of`."""
        raise ValueError(f"a {type(self).__name__} has no tables to make of anchors; fit a VAE")

    def without_anchors(self) -> "Model | None":
        """The same model with dense tables; None if its tables have no anchors."""
        return None

    def dense_reference(self) -> "Model | None":
        """The same model with dense tables, fitted for comparison; None if there is none."""
        return self.without_anchors()

    def warmed(self, features: Any, *, known: int, required: bool) -> "Model":
        """The same model, whose item vectors are completed from features; see `Warm`.

        Args:
            features: (items, features) scipy sparse matrix.
            known: number of items of the log; those from here on have no interactions.
            required: rank items without interactions although others may lose a little; otherwise
                only as far as others lose nothing in validation.
        """
        if not self.completable:
            raise ValueError(
                f"attributes need a model with item vectors, and {self.name} has none; "
                "fit fastvae (--model fastvae), or leave out use=True (--use-attributes)"
            )
        given = {} if required else {"warm_loss": 0.0}
        found: Model = models()["warm"](self, **given).with_features(features)  # type: ignore
        return found

    def for_group(self, group: Group) -> "Model":
        """The model that these processes fit together; ValueError if one process fits it."""
        if group.world == 1:
            return self
        raise ValueError(
            f"{self.name} is fitted by one process, got {group.world}; fit fastvae, or start "
            "without torchrun"
        )

    def reusing(self, found: Mapping[str, float]) -> "Model":
        """The same model, which need not hold out pairs to choose this; see `Learned.reusable`."""
        return self

    def fit(self, train: Interactions) -> Fitted:
        """Fit to interactions."""
        raise NotImplementedError(f"{type(self).__name__} must define fit(train)")

    def learn(self, log: Interactions, options: FitOptions) -> Learned:
        """Fit a copy to a log, as `Recommender.fit` and `compare` do."""
        raise NotImplementedError(f"{type(self).__name__} must define learn(log, options)")

    def updated(self, fitted: Fitted, log: Interactions, added: Interactions) -> Fitted:
        """The fitted model after further interactions, without training; here it stays the same.

        Args:
            fitted: this model, fitted to earlier interactions.
            log: all interactions, the earlier ones too. If the model is `extendable`, items beyond
                its own are to be added.
            added: those that are new, of the same users and items.
        """
        return fitted

    def layout(self, found: Found, items: int) -> Iterator[tuple[str, Spec]]:
        """Yield name and specification of each tensor of `Fitted.state`.

        Args:
            found: names, dtypes and shapes in the file, where the layout depends on them.
            items: number of items.
        """
        raise NotImplementedError(f"{type(self).__name__} must define layout(found, items)")

    def largest(self, ranges: Mapping[str, tuple[float, float]], items: int) -> float:
        """Upper bound of all scores and intermediate values, from the range of each tensor."""
        return items * max(max(abs(low), abs(high)) for low, high in ranges.values())

    def from_state(self, tensors: dict[str, Tensor], items: int) -> Fitted:
        """The fitted model with these tensors, which follow `layout`.

        ValueError, which names the tensor, if their values cannot be used together.
        """
        raise NotImplementedError(f"{type(self).__name__} must define from_state(tensors, items)")


def _with_option(model: type[Model]) -> list[Field[Any]]:
    """Init fields that an option of the command line sets."""
    every: tuple[Field[Any], ...] = fields(model)  # type: ignore[arg-type]
    return [each for each in every if each.init and "option" in each.metadata]


def cosines(directions: Tensor, others: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function from (rows,) items to the cosines of their vectors with those of `others`.

    Args:
        directions: (items, d) vectors of length one.
        others: (rows, n) items.
    """
    known = F.embedding(others, directions).mT  # several times faster than an index
    return lambda items: (directions[items].unsqueeze(1) @ known).squeeze(1)


def relative(weights: Tensor, largest: Tensor) -> Tensor:
    """(rows, n) weights from 0 to 1, relative to the largest of each row, (rows, 1)."""
    return torch.where(largest > 0, weights / largest, 0.0).clamp(0.0, 1.0)


def single_item_rows(items: Tensor) -> Jagged:
    """Histories of one item each."""
    return Jagged(items, torch.arange(len(items) + 1))
