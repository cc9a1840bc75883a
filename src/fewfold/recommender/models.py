"""From recipes to fitted models, and both as an artifact keeps them."""

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from torch import Tensor

from fewfold._progress import phase, silence
from fewfold.recommender.anchored import Anchors, AnchorVAE
from fewfold.recommender.baselines import BM25, EASE, Cosine, ItemKNN, MostPopular
from fewfold.recommender.checkpoint import Checkpoint
from fewfold.recommender.errors import ArtifactError
from fewfold.recommender.fitted import Fitted, FittedBaseline, FittedVAE, made_by
from fewfold.recommender.interactions import Interactions
from fewfold.recommender.recipes import VAE, Recipe, Training, without_anchors
from fewfold.recommender.spectral import Directions
from fewfold.recommender.train import Epoch, train
from fewfold.recommender.tuning import Trial, Weight, tuned_weight

__all__ = ["KINDS", "Learned", "described", "fitted_to", "recipe_of", "restore"]


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


_WEIGHTINGS: dict[str, type[Any]] = {"cosine": Cosine, "bm25": BM25}


def fitted_to(
    log: Interactions,
    recipe: Recipe,
    training: Training,
    *,
    seed: int = 0,
    checkpoint: Checkpoint | None = None,
    progress: bool = True,
    weight: Weight | None = None,
    alone: bool = False,
) -> Learned:
    """The recipe's model of the log; with `alone` anchors are trained, never cut from a table."""
    if isinstance(recipe, VAE):
        return _trained(
            log, recipe, training, seed=seed, checkpoint=checkpoint, progress=progress,
            weight=weight, alone=alone,
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
    alone: bool,
) -> Learned:
    """Train on the log, all of it where the weight of the shortcut is known."""
    few = recipe.anchors if recipe.anchors and recipe.anchors.cuts(log.items) else None
    whole = None if few is None or alone else without_anchors(recipe)
    with silence(not progress), phase("preparing the model"):
        model = made_by(whole or recipe, log.items, seed)
        rank = recipe.rank(log.items)
        trial = Trial.of(log, seed=seed) if rank and weight is None else None
    learn = log if trial is None else trial.rest
    epochs, batch = training.plan(int((learn.jagged.lengths > 0).sum()))
    passed = train(
        model, learn, epochs=epochs, batch=batch, lr=training.lr, beta=training.beta,
        time_budget=training.time_budget, seed=seed, checkpoint=checkpoint, progress=progress,
    )  # fmt: skip
    if rank:
        with silence(not progress):
            directions = Directions.find(learn, rank, seed=seed)
            if trial is not None:
                weight = tuned_weight(model, directions, trial, seed=seed)
            weight = weight or Weight()
            model.shortcut = weight.of(directions, learn.users)
    dense = None
    if few is not None and whole is not None:
        dense, trained = FittedVAE(whole, model), model
        with silence(not progress), phase("cutting the tables to anchors"):
            model = AnchorVAE.from_dense(trained, few, learn, seed=seed)
    with silence(not progress), phase("finishing the tables"):
        model.settle()
    return Learned(FittedVAE(recipe, model), learn, passed, weight, dense)


def described(recipe: Recipe) -> dict[str, Any]:
    """A recipe as JSON holds it."""
    kind = next((kind for kind, cls in KINDS.items() if type(recipe) is cls), None)
    if kind is None:
        raise ValueError(
            f"a {type(recipe).__name__} cannot be written down; "
            f"the models that can are {', '.join(cls.__name__ for cls in KINDS.values())}"
        )
    options = {f.name: getattr(recipe, f.name) for f in fields(recipe) if f.init}  # type: ignore[arg-type]
    if isinstance(recipe, ItemKNN):
        name = next(name for name, cls in _WEIGHTINGS.items() if type(recipe.weighting) is cls)
        options["weighting"] = {"kind": name, **vars(recipe.weighting)}
    if isinstance(recipe, VAE) and recipe.anchors is not None:
        options["anchors"] = asdict(recipe.anchors)
    return {"kind": kind, **options}


def recipe_of(description: dict[str, Any]) -> Recipe:
    """The recipe that was described."""
    options = dict(description)
    try:
        cls = KINDS[options.pop("kind")]
        if cls is ItemKNN:
            weighting = dict(options["weighting"])
            options["weighting"] = _WEIGHTINGS[weighting.pop("kind")](**weighting)
        if options.get("anchors"):
            options["anchors"] = Anchors(**options["anchors"])
        recipe: Recipe = cls(**options)
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"this program knows no model {description!r}") from error
    return recipe


def restore(recipe: Recipe, tensors: dict[str, Tensor], items: int) -> Fitted:
    """The fitted model from what `Fitted.tensors` gave."""
    for name, tensor in tensors.items():
        by_item = name in ("vae.inputs", "vae.items") or not name.startswith(("vae.", "table."))
        if by_item and tensor.dim() and len(tensor) != items:
            raise ArtifactError(f"{name} has {len(tensor)} rows, but there are {items} items")
    try:
        if not isinstance(recipe, VAE):
            return FittedBaseline.restore(recipe, tensors, items)
        fitted = FittedVAE.restore(recipe, dict(tensors))
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise ArtifactError(f"the weights are not those of {recipe!r}: {error}") from error
    if fitted.model.count != items:
        raise ArtifactError(f"the tables have {fitted.model.count} rows for {items} items")
    return fitted
