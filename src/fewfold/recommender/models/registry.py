"""From recipes to fitted models, and both as an artifact keeps them."""

import itertools
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fewfold._progress import phase, silence
from fewfold._tensors import Spec
from fewfold.recommender.artifact.folder import Part
from fewfold.recommender.artifact.schema import Source, check_tagged, plain
from fewfold.recommender.interactions import Interactions
from fewfold.recommender.models.baselines import EASE, ItemKNN, MostPopular
from fewfold.recommender.models.fastvae.anchored import AnchorVAE
from fewfold.recommender.models.fastvae.shortcut import Directions
from fewfold.recommender.models.fastvae.shortcut_weight import Trial, Weight, tuned_weight
from fewfold.recommender.models.fitted import Fitted, FittedBaseline, FittedVAE, made_by
from fewfold.recommender.models.recipes import VAE, Recipe, Training, without_anchors
from fewfold.recommender.training.checkpoint import Checkpoint
from fewfold.recommender.training.train import Epoch, train

__all__ = ["KINDS", "Learned", "described", "expect", "fitted_to", "recipe_of", "restore"]


@dataclass(frozen=True, eq=False)
class Learned:
    """What fitting a model came to.

    Attributes:
        fitted: the model.
        log: what it learned from: the log it was given, or all but the few pairs on which the
            weight of the shortcut was tried.
        epochs: of the training, if there was one.
        weight: of the shortcut, if there is one.
        dense: the model before its tables were cut to anchors, where they were.
    """

    fitted: Fitted
    log: Interactions
    epochs: list[Epoch]
    weight: Weight | None = None
    dense: Fitted | None = None


KINDS: dict[str, type[Any]] = {
    "fastvae": VAE, "ease": EASE, "item-knn": ItemKNN, "popularity": MostPopular
}  # fmt: skip

_LARGEST = 1e17  # on the way to a score: its square is still a number of single precision


def fitted_to(
    log: Interactions,
    recipe: Recipe,
    training: Training,
    *,
    seed: int = 0,
    checkpoint: Checkpoint | None = None,
    progress: bool = True,
    weight: Weight | None = None,
) -> Learned:
    """The recipe's model of the log."""
    if isinstance(recipe, VAE):
        return _trained(
            log, recipe, training, seed=seed, checkpoint=checkpoint, progress=progress,
            weight=weight,
        )  # fmt: skip
    if checkpoint is not None:
        raise ValueError(f"a {type(recipe).__name__} is fitted at once and needs no checkpoint")
    with silence(not progress), phase(f"fitting {type(recipe).__name__}"):
        fitted = FittedBaseline(replace(recipe).fit(log))  # type: ignore[type-var]
    return Learned(fitted, log, [])


def _trained(
    log: Interactions,
    recipe: VAE,
    training: Training,
    *,
    seed: int,
    checkpoint: Checkpoint | None,
    progress: bool,
    weight: Weight | None,
) -> Learned:
    """Train on the log, all of it where the weight of the shortcut is known."""
    few = recipe.anchors if recipe.anchors and recipe.anchors.cuts(log.items) else None
    whole = None if few is None else without_anchors(recipe)
    with silence(not progress), phase("preparing the model"):
        model = made_by(whole or recipe, log.items, seed)
        rank = recipe.rank(log.items)
        trial = Trial.of(log, seed=seed) if rank and weight is None else None
    learn = log if trial is None else trial.rest
    options = training.options(int((learn.jagged.lengths > 0).sum()), seed)
    passed = train(model, learn, options, checkpoint=checkpoint, progress=progress)
    if rank:
        with silence(not progress):
            directions = Directions.find(learn, rank, seed=seed)
            if trial is not None:
                weight = tuned_weight(model, directions, trial, seed=seed)
            weight = weight or Weight()
            with phase("computing the shortcut"):
                model.shortcut = weight.of(directions, learn.users)
    dense = None
    if few is not None and whole is not None:
        dense, trained = FittedVAE(whole, model), model
        with silence(not progress), phase("cutting the tables to anchors"):
            model = AnchorVAE.from_dense(trained, few, learn, seed=seed)
    with silence(not progress), phase("finishing the tables"):
        model.finalize()
    return Learned(FittedVAE(recipe, model), learn, passed, weight, dense)


def described(recipe: Recipe) -> dict[str, Any]:
    """A recipe as JSON holds it."""
    found: dict[str, Any] = plain(recipe, KINDS)
    return found


def recipe_of(description: Any, source: Source) -> Recipe:
    """The recipe that was described in a file; ArtifactError says what is wrong."""
    recipe: Recipe = check_tagged(KINDS, description, source, "model")
    return recipe


def expect(recipe: Recipe, part: Part, items: int) -> None:
    """Raise unless a file has the names, dtypes and shapes of this recipe's tensors."""
    learned = ("learned", Spec((items,), torch.bool, below=2))
    part.expect(itertools.chain(recipe.layout(part.found, items), [learned]))


def restore(recipe: Recipe, part: Part, items: int) -> tuple[Fitted, Tensor]:
    """The fitted model, and (items,) what it has seen, of a file that is as `expect` wants it."""
    tensors = part.read()
    if not recipe.largest(part.ranges, items) < _LARGEST:
        raise Source(part.file).damaged("", "holds numbers so large that scores would overflow")
    learned = tensors.pop("learned")
    if not isinstance(recipe, VAE):
        return FittedBaseline.restore(recipe, tensors, items), learned
    try:
        return FittedVAE.restore(recipe, tensors), learned
    except ValueError as error:  # of the table of anchors, which knows its own values best
        raise Source(part.file).damaged("table", f"cannot be used: {error}") from error
