"""What a fitted model answers, in numbers of items: rankings, similar items, its weights."""

from dataclasses import fields
from functools import cached_property
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from fewfold._progress import phase
from fewfold.recommender.interactions import Jagged
from fewfold.recommender.models.baselines import Baseline, ItemKNN, MostPopular
from fewfold.recommender.models.fastvae.anchored_tables import AnchoredTables
from fewfold.recommender.models.fastvae.dense_tables import DenseTables
from fewfold.recommender.models.fastvae.network import FastVAE
from fewfold.recommender.models.fastvae.shortcut import Shortcut
from fewfold.recommender.models.fastvae.tables import Tables
from fewfold.recommender.models.recipes import VAE, Recipe
from fewfold.recommender.ranking.catalogue import Catalogue
from fewfold.recommender.ranking.top_k import DotProduct, Ranking, top_k

__all__ = ["Fitted", "FittedBaseline", "FittedVAE", "made_by", "singles"]

_USERS = 8192  # ranked at once


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
        with phase("preparing the ranking"):
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
        parts, found = blocks(len(history.offsets) - 1, _USERS), []
        with phase("ranking items", total=len(parts)) as told:
            table = self._table or self.vectors
            for block in told.each(parts):  # or all queries are held at once
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
        state = {f"vae.{name}": value for name, value in self.model.encoder_state().items()}
        state |= self.model.tables.saved()
        linear = self.model.shortcut
        if linear is not None:
            state["shortcut.table"], state["shortcut.scale"] = linear.table, linear.scale
            state["shortcut.strength"] = torch.tensor(linear.strength, dtype=torch.float64)
        return state

    @classmethod
    def restore(cls, recipe: VAE, tensors: dict[str, Tensor]) -> "FittedVAE":
        """The model with these parameters."""
        model = FastVAE(tables=_saved_tables(recipe, tensors), layers=recipe.layers)
        if "shortcut.table" in tensors:
            table, scale = tensors.pop("shortcut.table"), tensors.pop("shortcut.scale")
            model.shortcut = Shortcut(table, scale, tensors.pop("shortcut.strength").item())
        rest = {name.removeprefix("vae."): value for name, value in tensors.items()}
        model.load_encoder_state(rest)
        return cls(recipe, model)


def made_by(recipe: VAE, items: int, seed: int = 0) -> FastVAE:
    """The recipe's model of as many items, not yet trained."""
    widths = recipe.hidden, recipe.latent
    if recipe.anchors is None:
        tables: Tables = DenseTables(items, *widths)
    else:
        tables = AnchoredTables(items, recipe.anchors, *widths)
    return FastVAE(tables=tables, layers=recipe.layers, seed=seed)


def _saved_tables(recipe: VAE, tensors: dict[str, Tensor]) -> Tables:
    """The tables of a saved model, whose tensors are removed from `tensors`."""
    if recipe.anchors is None:
        return DenseTables.of(tensors.pop("vae.inputs"), tensors.pop("vae.items"))
    names = [name for name in tensors if name.startswith("table.")]
    packed = {name.removeprefix("table."): tensors.pop(name) for name in names}
    return AnchoredTables.unpack(packed, recipe.anchors, recipe.hidden, recipe.latent)


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


def blocks(rows: int, size: int) -> list[slice]:
    """All rows, so many at a time; one empty block where there are none."""
    starts = range(0, max(rows, 1), size)
    return [slice(start, min(start + size, rows)) for start in starts]


def joined(found: list[Ranking]) -> Ranking:
    """The rankings of block after block as one."""
    if len(found) == 1:
        return found[0]
    return Ranking(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def singles(items: Tensor) -> Jagged:
    """Each item as a row of its own."""
    return Jagged(items, torch.arange(len(items) + 1))
