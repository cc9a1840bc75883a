"""What a recommender can be made with: values, nothing learned yet."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from fewfold._check import non_negative_number, positive_number, whole_number
from fewfold._tensors import AtMost, Found, Spec
from fewfold.embeddings.files.file_schema import table_layout
from fewfold.recommender.models.baselines import Baseline
from fewfold.recommender.models.fastvae.anchors import Anchors
from fewfold.recommender.training.options import TrainOptions

__all__ = ["VAE", "Recipe", "Training", "dense_reference", "with_anchors", "without_anchors"]

_STEPS = 600


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
        non_negative_number(self.beta, "beta")
        if self.time_budget is not None:
            positive_number(self.time_budget, "time_budget")

    def options(self, users: int, seed: int) -> TrainOptions:
        """Return the options of `train` for as many users."""
        batch = min(self.batch, max(16, users // 16))
        least = -(-_STEPS * batch // max(users, 1))
        epochs = max(16, min(least, 100)) if self.epochs is None else self.epochs
        return TrainOptions(
            epochs, batch, self.lr, self.beta, seed=seed, time_budget=self.time_budget
        )


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
            eight million numbers. With anchors none, unless a rank is given: its table is dense.
        anchors: make both tables of few anchors, tens of times smaller: `Anchors`, or how many, or
            `"auto"`, which become `Anchors`.
    """

    hidden: int = 200
    latent: int = 63
    layers: int = 1
    shortcut: int | None = None
    anchors: Anchors | None = None

    def __post_init__(self) -> None:
        whole_number(self.hidden, "hidden")
        whole_number(self.latent, "latent")
        whole_number(self.layers, "layers", least=0)
        if self.shortcut is not None:
            whole_number(self.shortcut, "shortcut", least=0)
        if self.anchors is not None:
            object.__setattr__(self, "anchors", Anchors.of(self.anchors))

    def rank(self, items: int) -> int:
        """Of the shortcut, for as many items."""
        if self.shortcut is None and self.anchors is not None:
            return 0
        return max(192, min(1024, 8_000_000 // items)) if self.shortcut is None else self.shortcut

    def layout(self, found: Found, items: int) -> Iterator[tuple[str, Spec]]:
        """What has been learned, as a file holds it: a name and what the tensor must be.

        Args:
            found: what the file has: the number of anchors, and whether there is a shortcut, are
                found in training.
            items: how many items there are.
        """
        hidden, latent = self.hidden, self.latent
        yield "vae.shift", Spec((hidden,))
        yield "vae.posterior.weight", Spec((2 * latent, hidden))
        yield "vae.posterior.bias", Spec((2 * latent,))
        for number in range(self.layers + 1):
            yield f"vae.layers.norms.{number}.weight", Spec((hidden,))
            yield f"vae.layers.norms.{number}.bias", Spec((hidden,))
        for number in range(self.layers):
            yield f"vae.layers.layers.{number}.weight", Spec((hidden, hidden))
            yield f"vae.layers.layers.{number}.bias", Spec((hidden,))
        if self.anchors is None:
            yield "vae.inputs", Spec((items, hidden))
            yield "vae.items", Spec((items, latent + 1))
        else:
            wide, most = hidden + latent + 1, self.anchors.most + 1
            yield from table_layout(found, "table.", rows=items, dim=wide, most=most)
        if self.rank(items) and any(name.startswith("shortcut.") for name in found):
            yield "shortcut.table", Spec((items, AtMost(self.shortcut or 1024)))
            yield "shortcut.scale", Spec((items,), positive=True)
            yield "shortcut.strength", Spec((), torch.float64, least=0)

    def largest(self, ranges: Mapping[str, tuple[float, float]], items: int) -> float:
        """What no number on the way to a score can exceed, from the extremes of each tensor."""
        size = {name: max(abs(low), abs(high)) for name, (low, high) in ranges.items()}
        if self.anchors is None:
            into, out = size["vae.inputs"], size["vae.items"]
        else:  # whole numbers, of at most 8 bits, of anchors and weights
            weight = 256 * size["table.value_scales"]
            into = out = (self.anchors.most + 1) * weight * 256 * size["table.anchor_scales"]
        bag = items**0.5 * into + size["vae.shift"]
        norms = [
            self.hidden**0.5 * size[f"vae.layers.norms.{n}.weight"]
            + size[f"vae.layers.norms.{n}.bias"]
            for n in range(self.layers + 1)
        ]
        found = [bag, *norms, into, out]
        for n in range(self.layers):
            wide = self.hidden * size[f"vae.layers.layers.{n}.weight"] * norms[n]
            found.append(wide + size[f"vae.layers.layers.{n}.bias"] + sum(norms[: n + 1]))
        latent = self.hidden * size["vae.posterior.weight"] * norms[-1] + size["vae.posterior.bias"]
        found += [latent, (self.latent * latent + 1) * out]
        if "shortcut.table" in size:
            table, (least, most) = size["shortcut.table"], ranges["shortcut.scale"]
            query = size["shortcut.strength"] * items**0.5 * table / least
            found += [1 / least, query, table * most, 1024 * query * table * most]
        return max(found) if all(map(math.isfinite, found)) else math.inf


Recipe = VAE | Baseline


def with_anchors(recipe: Recipe, anchors: int | str | Anchors | None) -> Recipe:
    """The recipe with tables of as many anchors; as it is without any."""
    if anchors is None:
        return recipe
    if not isinstance(recipe, VAE):
        raise ValueError(f"a {type(recipe).__name__} has no tables to make of anchors; fit a VAE")
    return replace(recipe, anchors=Anchors.of(anchors))


def without_anchors(recipe: Recipe) -> VAE | None:
    """The same with dense tables, or None where they are."""
    if not isinstance(recipe, VAE) or recipe.anchors is None:
        return None
    return replace(recipe, anchors=None, shortcut=recipe.shortcut or 0)


def dense_reference(recipe: Recipe) -> VAE | None:
    """The model with dense tables to compare with, or None if they must not be trained."""
    anchors = recipe.anchors if isinstance(recipe, VAE) else None
    return None if anchors is None or anchors.from_scratch else without_anchors(recipe)
