"""Automatic choice: the model that ranks best on a validation part of the log."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from fewfold._progress import silence
from fewfold._tensors import Found, Spec
from fewfold.recommender.interactions import Interactions
from fewfold.recommender.models.model import FitOptions, Fitted, Learned, Model
from fewfold.recommender.models.registry import register
from fewfold.recommender.selection.choose import choose

__all__ = ["Auto"]


@dataclass(frozen=True, eq=False)
class _LearnedChoice(Learned):
    """Result of fitting the chosen model."""

    model: Model | None = None
    winner: Learned | None = None


@register
@dataclass(frozen=True)
class Auto(Model):
    """The model that ranks best on a validation part of the log, or a blend of two.

    All registered models that suit the log are tried on a part of it, the best one is fitted to
    all of it; see `fewfold.recommender.selection.choose`. A saved model is the one that was chosen.
    """

    name: ClassVar[str] = "auto"
    resumable: ClassVar[bool] = True

    @classmethod
    def grid(cls, items: int) -> "list[Model]":
        """None: it chooses among the others."""
        return []

    def fit(self, train: Interactions) -> Fitted:
        """Choose a model and fit it."""
        return self.learn(train, FitOptions(progress=False)).fitted

    def learn(self, log: Interactions, options: FitOptions) -> Learned:
        """Choose a model, or take the one of `options.previous`, and fit it."""
        before = options.previous if isinstance(options.previous, _LearnedChoice) else None
        model, choice = (None, None) if before is None else (before.model, before.choice)
        if model is None:
            with silence(not options.progress):
                model, choice = choose(log, options)
        kept = options.checkpoint.stage("chosen") if options.checkpoint else None
        previous = None if before is None else before.winner
        learned = model.learn(
            log,
            replace(options, checkpoint=kept if model.resumable else None, previous=previous),
        )
        return _LearnedChoice(
            learned.fitted, learned.log, learned.epochs, learned.dense, choice,
            learned.attributes, model, learned,
        )  # fmt: skip

    def layout(self, found: Found, items: int) -> Iterator[tuple[str, Spec]]:
        """Raise: a saved model is the one that was chosen."""
        raise ValueError("a saved model names the model that was chosen, not auto")

    def from_state(self, tensors: dict[str, Tensor], items: int) -> Any:
        """Raise: a saved model is the one that was chosen."""
        raise ValueError("a saved model names the model that was chosen, not auto")
