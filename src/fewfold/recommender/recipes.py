"""What a recommender can be made with: values, nothing learned yet."""

from dataclasses import dataclass, replace

from fewfold._check import positive_number, whole_number
from fewfold.recommender.anchored import Anchors
from fewfold.recommender.baselines import Baseline

__all__ = ["VAE", "Recipe", "Training", "with_anchors", "without_anchors"]

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
        if self.time_budget is not None:
            positive_number(self.time_budget, "time_budget")

    def plan(self, users: int) -> tuple[int, int]:
        """Epochs and batch for as many users."""
        batch = min(self.batch, max(16, users // 16))
        least = -(-_STEPS * batch // max(users, 1))
        epochs = max(16, min(least, 100)) if self.epochs is None else self.epochs
        return epochs, batch


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
