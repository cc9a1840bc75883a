"""Automatic choice: the model that ranks best on a validation part of the log."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from torch import Tensor

from fewfold._progress import silence
from fewfold._tensors import Found, Spec
from fewfold.distributed.group import Group
from fewfold.recommender.interactions import Interactions
from fewfold.recommender.models.model import FitOptions, Fitted, Learned, Model
from fewfold.recommender.models.registry import models, register
from fewfold.recommender.selection.choice import Choice
from fewfold.recommender.selection.choose import choose

__all__ = ["Auto"]


@dataclass(frozen=True, eq=False)
class _LearnedChoice(Learned):
    """Result of fitting the chosen model."""

    model: Model | None = None
    winner: Learned | None = None


@dataclass(frozen=True, eq=False)
class _Completion:
    """Features of items for the chosen model; see `Model.warmed`."""

    features: Any
    known: int
    required: bool

    @property
    def cold(self) -> bool:
        """Whether there are items without interactions."""
        return bool(self.features.shape[0] > self.known)


@register
@dataclass(frozen=True)
class Auto(Model):
    """The model that ranks best on a validation part of the log, or a blend of two.

    All registered models that suit the log are tried on a part of it, the best one is fitted to
    all of it; see `fewfold.recommender.selection.choose`. A saved model is the one that was chosen.

    With attributes of items (`warmed`), the chosen model completes its item vectors if it has any.
    If some items have no interactions, a model that can rank them is preferred to one that is not
    significantly better; if they are required, only such models are tried.
    """

    name: ClassVar[str] = "auto"
    resumable: ClassVar[bool] = True
    weighted: ClassVar[bool] = True
    completable: ClassVar[bool] = True
    automatic: ClassVar[bool] = True
    completion: "_Completion | None" = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def grid(cls, items: int) -> "list[Model]":
        """None: it chooses among the others."""
        return []

    def fit(self, train: Interactions) -> Fitted:
        """Choose a model and fit it."""
        return self.learn(train, FitOptions(progress=False)).fitted

    def warmed(self, features: Any, *, known: int, required: bool) -> "Auto":
        """The same choice; the chosen model completes its item vectors if it has any."""
        found = replace(self)
        object.__setattr__(found, "completion", _Completion(features, known, required))
        return found

    def for_group(self, group: Group) -> Model:
        """In several processes the model for any number of items: others are for one process."""
        return self if group.world == 1 else models()["fastvae"]()

    def learn(self, log: Interactions, options: FitOptions) -> Learned:
        """Choose a model, or take the one of `options.previous`, and fit it.

        Items of the table alone are not known to a chosen model without item vectors: it is fitted
        to a log without them.
        """
        before = options.previous if isinstance(options.previous, _LearnedChoice) else None
        model, choice = (None, None) if before is None else (before.model, before.choice)
        more = self.completion
        known = log if more is None else log.with_items(more.known)
        if model is None:
            with silence(not options.progress):
                model, choice = self._choose(known, options)
        if more is not None and model.completable:
            # One that was chosen before has its features already, if it is of this kind.
            model = model.warmed(more.features, known=more.known, required=more.required)
            known = log
        kept = options.checkpoint.stage("chosen") if options.checkpoint else None
        previous = None if before is None else before.winner
        learned = model.learn(
            known,
            replace(options, checkpoint=kept if model.resumable else None, previous=previous),
        )
        return _LearnedChoice(
            learned.fitted, learned.log, learned.epochs, learned.dense, choice,
            learned.attributes, model, learned,
        )  # fmt: skip

    def _choose(self, log: Interactions, options: FitOptions) -> tuple[Model, Choice]:
        more = self.completion
        if more is None or not more.cold:
            return choose(log, options)
        if not more.required:
            return choose(log, options, prefer_completable=True)
        known = models()
        able = [name for name in known if known[name].completable and known[name].grid(log.items)]
        return choose(log, options, able, blends=False)

    def layout(self, found: Found, items: int) -> Iterator[tuple[str, Spec]]:
        """Raise: a saved model is the one that was chosen."""
        raise ValueError("a saved model names the model that was chosen, not auto")

    def from_state(self, tensors: dict[str, Tensor], items: int) -> Any:
        """Raise: a saved model is the one that was chosen."""
        raise ValueError("a saved model names the model that was chosen, not auto")
