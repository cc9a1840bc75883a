"""Models a recommender can be made with: what they are fitted by, and what they answer."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewfold._check import positive_number, whole_number
from fewfold._progress import line, over, silence
from fewfold.recommender.baselines import BM25, EASE, Baseline, Cosine, ItemKNN, MostPopular
from fewfold.recommender.catalogue import Catalogue
from fewfold.recommender.checkpoint import Checkpoint
from fewfold.recommender.errors import ArtifactError
from fewfold.recommender.fastvae import FastVAE
from fewfold.recommender.interactions import Interactions, Jagged
from fewfold.recommender.spectral import Directions, Shortcut
from fewfold.recommender.topk import DotProduct, Ranking, top_k
from fewfold.recommender.train import Epoch, train
from fewfold.recommender.tuning import Trial, Weight, tuned_weight

__all__ = [
    "KINDS",
    "VAE",
    "Fitted",
    "FittedBaseline",
    "FittedVAE",
    "Learned",
    "Recipe",
    "Training",
    "described",
    "fitted_to",
    "recipe_of",
    "restore",
    "singles",
]


@dataclass(frozen=True)
class Training:
    """How a `VAE` is trained.

    Attributes:
        epochs: passes over the users; None is sixteen, or as many as a small log needs for 600
            steps.
        batch: users per step.
        lr: the highest learning rate.
        beta: the weight of the KL term.
        time_budget: seconds; fewer steps are made where they would not fit.
    """

    epochs: int | None = None
    batch: int = 256
    lr: float = 8e-3
    beta: float = 0.4
    time_budget: float | None = None

    def __post_init__(self) -> None:
        if self.epochs is not None:
            whole_number(self.epochs, "epochs")
        whole_number(self.batch, "batch")
        positive_number(self.lr, "lr")
        if self.time_budget is not None:
            positive_number(self.time_budget, "time_budget")

    def plan(self, users: int) -> tuple[int, int]:
        """Epochs and batch for as many users."""
        batch = min(self.batch, max(16, users // 16))
        least = -(-_STEPS * batch // max(users, 1))
        epochs = max(16, min(least, 100)) if self.epochs is None else self.epochs
        return epochs, batch


_STEPS = 600
_USERS = 8192  # ranked at once


@dataclass(frozen=True)
class VAE:
    """A `FastVAE` with a `Shortcut`: the model for any number of items.

    How much the shortcut weighs is found by hiding a few items of some hundred users; nothing
    learns from those pairs.

    Attributes:
        hidden: width of the encoder's table.
        latent: width of the latent.
        layers: of the encoder beyond its table.
        shortcut: rank of the linear item-item model that is added, 0 for none; by default 1024
            for up to 7,800 items, 192 for more than 41,000, and between such that its table has
            eight million numbers.
    """

    hidden: int = 200
    latent: int = 63
    layers: int = 1
    shortcut: int | None = None

    def __post_init__(self) -> None:
        whole_number(self.hidden, "hidden")
        whole_number(self.latent, "latent")
        whole_number(self.layers, "layers", least=0)
        if self.shortcut is not None:
            whole_number(self.shortcut, "shortcut", least=0)

    def rank(self, items: int) -> int:
        """Of the shortcut, for as many items."""
        return max(192, min(1024, 8_000_000 // items)) if self.shortcut is None else self.shortcut

    def fit(
        self,
        log: Interactions,
        training: Training,
        *,
        seed: int = 0,
        checkpoint: Checkpoint | None = None,
        progress: bool = True,
        weight: Weight | None = None,
    ) -> "Learned":
        """Train on the log, all of it where the weight of the shortcut is known."""
        model = FastVAE(
            log.items, hidden=self.hidden, latent=self.latent, layers=self.layers, seed=seed
        )
        rank = self.rank(log.items)
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
        return Learned(FittedVAE(self, model), learn, passed, weight)


Recipe = VAE | Baseline


@dataclass(frozen=True, eq=False)
class Learned:
    """What fitting a model came to.

    Attributes:
        fitted: the model.
        log: what it learned from: the log it was given, or all but the few pairs on which the
            weight of the shortcut was tried.
        epochs: of the training, if there was one.
        weight: of the shortcut, if there is one.
    """

    fitted: "Fitted"
    log: Interactions
    epochs: list[Epoch]
    weight: Weight | None = None


class Fitted(Protocol):
    """What a fitted model answers, in numbers of items."""

    @property
    def recipe(self) -> Recipe:
        """What it was made by."""

    def rank(
        self,
        history: Jagged,
        k: int,
        *,
        exclude: Jagged | None = None,
        allowed: Tensor | None = None,
    ) -> Ranking:
        """The best k items for each row, without those excluded in it, of those allowed to all."""

    def alike(self, items: Tensor, k: int, *, allowed: Tensor | None = None) -> Ranking:
        """The k items most similar to each of these, without itself."""

    def tensors(self) -> dict[str, Tensor]:
        """Everything `restore` needs beside the recipe."""


class FittedVAE:
    """Answers of a `FastVAE`: an inner product of a query with every item's vector."""

    def __init__(self, recipe: VAE, model: FastVAE) -> None:
        self.recipe, self.model = recipe, model.eval().requires_grad_(False)
        self._table: Catalogue | None = None

    @cached_property
    def vectors(self) -> Tensor:
        """Item vectors, (items, d), laid out once."""
        return self.model.vectors.contiguous()

    def prepare(self) -> None:
        """Make a compact copy of the vectors, which answers one user at a time more quickly."""
        self._table = self._table or Catalogue(self.vectors)

    @cached_property
    def directions(self) -> Tensor:
        """Item vectors of length one, without their bias: what similarity compares."""
        kept = torch.arange(self.vectors.shape[1]) != self.model.latent
        return F.normalize(self.vectors[:, kept])

    def rank(
        self,
        history: Jagged,
        k: int,
        *,
        exclude: Jagged | None = None,
        allowed: Tensor | None = None,
    ) -> Ranking:
        """The best k items for each row, without those excluded in it, of those allowed to all."""
        table, found = self._table or self.vectors, []
        for block in blocks(len(history.offsets) - 1, _USERS):  # or all queries are held at once
            scorer = DotProduct(self.model.queries(history.rows(block)), table)
            mine = None if exclude is None else exclude.rows(block)
            found.append(top_k(scorer, k, exclude=mine, allowed=allowed))
        return joined(found)

    def alike(self, items: Tensor, k: int, *, allowed: Tensor | None = None) -> Ranking:
        """The k items whose vectors point the same way."""
        scorer = DotProduct(self.directions[items], self.directions)
        return top_k(scorer, k, exclude=singles(items), allowed=allowed)

    def tensors(self) -> dict[str, Tensor]:
        """The parameters and the shortcut's table."""
        state = {f"vae.{name}": value for name, value in self.model.state_dict().items()}
        linear = self.model.shortcut
        if linear is not None:
            state["shortcut.table"], state["shortcut.scale"] = linear.table, linear.scale
            state["shortcut.strength"] = torch.tensor(linear.strength, dtype=torch.float64)
        return state

    @classmethod
    def restore(cls, recipe: VAE, tensors: dict[str, Tensor]) -> "FittedVAE":
        """The model with these parameters."""
        model = FastVAE(1, hidden=recipe.hidden, latent=recipe.latent, layers=recipe.layers)
        # The tables are taken as they are; drawing first weights for them would take longer.
        model.inputs = nn.Parameter(tensors.pop("vae.inputs"))
        model.items = nn.Parameter(tensors.pop("vae.items"))
        if "shortcut.table" in tensors:
            table, scale = tensors.pop("shortcut.table"), tensors.pop("shortcut.scale")
            model.shortcut = Shortcut(table, scale, tensors.pop("shortcut.strength").item())
        rest = {name.removeprefix("vae."): value for name, value in tensors.items()}
        model.load_state_dict({"inputs": model.inputs, "items": model.items, **rest})
        return cls(recipe, model)


class FittedBaseline:
    """Answers of a model that scores all items from those a user has."""

    def __init__(self, recipe: Baseline) -> None:
        self.recipe = recipe

    def rank(
        self,
        history: Jagged,
        k: int,
        *,
        exclude: Jagged | None = None,
        allowed: Tensor | None = None,
    ) -> Ranking:
        """The best k items for each row, without those excluded in it, of those allowed to all."""
        options: dict[str, int] = {}
        if isinstance(self.recipe, ItemKNN):  # adds up whole rows, whichever part is asked for
            items = max(self.recipe.items, 1)
            options = {"items_at_once": items, "users_at_once": max(1, min(256, 10**8 // items))}
        scorer = self.recipe.scorer(history)
        return top_k(scorer, k, exclude=exclude, allowed=allowed, **options)

    def alike(self, items: Tensor, k: int, *, allowed: Tensor | None = None) -> Ranking:
        """What somebody would be recommended who had this item alone."""
        if isinstance(self.recipe, MostPopular):
            raise ValueError("MostPopular knows of no similar items; fit another model")
        alone = singles(items)
        found = self.rank(alone, k, exclude=alone, allowed=allowed)
        if not isinstance(self.recipe, ItemKNN):
            return found
        apart = found.scores <= 0  # no neighbour at all
        return Ranking(
            found.ids.masked_fill(apart, -1), found.scores.masked_fill(apart, -torch.inf)
        )

    def tensors(self) -> dict[str, Tensor]:
        """What the model has learned."""
        learned = (f.name for f in fields(self.recipe) if not f.init)  # type: ignore[arg-type]
        return {name: getattr(self.recipe, name) for name in learned}

    @classmethod
    def restore(cls, recipe: Baseline, tensors: dict[str, Tensor], items: int) -> "FittedBaseline":
        """The model with what it had learned."""
        for name, value in tensors.items():
            setattr(recipe, name, value)
        recipe.items = items
        return cls(recipe)


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
) -> Learned:
    """The recipe's model of the log."""
    if isinstance(recipe, VAE):
        return recipe.fit(
            log, training, seed=seed, checkpoint=checkpoint, progress=progress, weight=weight
        )
    if checkpoint is not None:
        raise ValueError(f"a {type(recipe).__name__} is fitted at once and needs no checkpoint")
    line(f"fitting {type(recipe).__name__}")
    fitted = FittedBaseline(replace(recipe).fit(log))  # type: ignore[type-var]
    line("")
    return Learned(fitted, log, [])


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
    return {"kind": kind, **options}


def recipe_of(description: dict[str, Any]) -> Recipe:
    """The recipe that was described."""
    options = dict(description)
    try:
        cls = KINDS[options.pop("kind")]
        if cls is ItemKNN:
            weighting = dict(options["weighting"])
            options["weighting"] = _WEIGHTINGS[weighting.pop("kind")](**weighting)
        recipe: Recipe = cls(**options)
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"this program knows no model {description!r}") from error
    return recipe


def restore(recipe: Recipe, tensors: dict[str, Tensor], items: int) -> Fitted:
    """The fitted model from what `Fitted.tensors` gave."""
    for name, tensor in tensors.items():
        by_item = name in ("vae.inputs", "vae.items") or not name.startswith("vae.")
        if by_item and tensor.dim() and len(tensor) != items:
            raise ArtifactError(f"{name} has {len(tensor)} rows, but there are {items} items")
    try:
        if isinstance(recipe, VAE):
            return FittedVAE.restore(recipe, dict(tensors))
        return FittedBaseline.restore(recipe, tensors, items)
    except (AttributeError, KeyError, RuntimeError) as error:
        raise ArtifactError(f"the weights are not those of {recipe!r}: {error}") from error


def blocks(rows: int, size: int) -> Iterator[slice]:
    """All rows, so many at a time; one empty block where there are none."""
    for start in over("ranking items", range(0, max(rows, 1), size)):
        yield slice(start, min(start + size, rows))


def joined(found: list[Ranking]) -> Ranking:
    """The rankings of block after block as one."""
    if len(found) == 1:
        return found[0]
    return Ranking(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def singles(items: Tensor) -> Jagged:
    """Each item as a row of its own."""
    return Jagged(items, torch.arange(len(items) + 1))
