"""The recipe of a FastVAE: settings, training, and the tensors of a saved model."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, astuple, dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from fewfold._check import whole_number
from fewfold._options import Option
from fewfold._progress import phase, silence
from fewfold._tensors import AtMost, Found, Spec
from fewfold.distributed.group import Group
from fewfold.embeddings.files.file_schema import table_layout
from fewfold.recommender.interactions import Interactions
from fewfold.recommender.models.fastvae.anchor_options import Anchors
from fewfold.recommender.models.fastvae.anchored import AnchorVAE
from fewfold.recommender.models.fastvae.anchored_tables import AnchoredTables
from fewfold.recommender.models.fastvae.fitted import FittedVAE
from fewfold.recommender.models.fastvae.network import FastVAE
from fewfold.recommender.models.fastvae.objectives import training_work
from fewfold.recommender.models.fastvae.perceptron import Perceptron
from fewfold.recommender.models.fastvae.sharded_anchored_tables import ShardedAnchoredTables
from fewfold.recommender.models.fastvae.sharded_tables import ShardedTables
from fewfold.recommender.models.fastvae.shortcut import BLOCK, Directions, Shortcut
from fewfold.recommender.models.fastvae.shortcut_weight import Trial, Weight, tuned_weight
from fewfold.recommender.models.fastvae.tables import DenseTables, Tables
from fewfold.recommender.models.model import FitOptions, Fitted, Learned, Model
from fewfold.recommender.models.model_options import FASTVAE, setting
from fewfold.recommender.models.new_items import with_more_items
from fewfold.recommender.models.registry import register
from fewfold.recommender.training.train import train
from fewfold.recommender.training.train_options import Training

__all__ = ["VAE"]

_NUMBERS = 40_000_000  # of the shortcut's table, where its rank is between the least and the most


@dataclass(frozen=True, eq=False)
class _LearnedVAE(Learned):
    """Result of training, with the weight of the shortcut, if there is one."""

    fitted: FittedVAE
    weight: Weight | None = None

    def reusable(self) -> dict[str, float]:
        """Penalty and strength of the shortcut."""
        return {} if self.weight is None else asdict(self.weight)


@register
@dataclass(frozen=True)
class VAE(Model):
    """A `FastVAE` with a `Shortcut`: the model for any number of items.

    The weight of the shortcut is chosen on pairs of some hundred users that are held out from
    training.

    Attributes:
        hidden: width of the encoder's table.
        latent: width of the latent.
        layers: number of layers of the encoder after its table.
        shortcut: rank of the linear item-item model that is added, 0 for none; by default 1024
            for up to 39,000 items, 192 for more than 208,000, and in between such that its table
            has forty million numbers. With anchors 0 unless given, because its table is dense.
        anchors: compress both tables to anchors, tens of times smaller: `Anchors`, their number, or
            `"auto"`; the last two are converted to `Anchors`.
        encoder: layers of another kind: a `Perceptron`, as published.
    """

    name: ClassVar[str] = "fastvae"
    colour: ClassVar[str] = "#440154"
    weighted: ClassVar[bool] = True
    completable: ClassVar[bool] = True
    resumable: ClassVar[bool] = True
    extendable: ClassVar[bool] = True
    update_note: ClassVar[str] = "new items take the mean of the vectors of their nearest items"
    hidden: int = field(default=200, metadata=setting(FASTVAE["hidden"]))
    latent: int = field(default=63, metadata=setting(FASTVAE["latent"]))
    layers: int = 1
    shortcut: int | None = None
    anchors: Anchors | None = None
    encoder: Perceptron | None = None
    weight: Weight | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        whole_number(self.hidden, "hidden")
        whole_number(self.latent, "latent")
        whole_number(self.layers, "layers", least=0)
        if self.shortcut is not None:
            whole_number(self.shortcut, "shortcut", least=0)
        if self.anchors is not None:
            object.__setattr__(self, "anchors", Anchors.of(self.anchors))

    def rank(self, items: int) -> int:
        """Rank of the shortcut for this many items."""
        if self.shortcut is None and self.anchors is not None:
            return 0
        return max(192, min(1024, _NUMBERS // items)) if self.shortcut is None else self.shortcut

    def layout(self, found: Found, items: int) -> Iterator[tuple[str, Spec]]:
        """Yield name and specification of each tensor.

        Args:
            found: names, dtypes and shapes in the file: the number of anchors, and whether there is
                a shortcut, are results of the training.
            items: number of items.
        """
        hidden, latent = self.hidden, self.latent
        if self.encoder is None:
            yield "vae.shift", Spec((hidden,))
            yield "vae.posterior.weight", Spec((2 * latent, hidden))
            yield "vae.posterior.bias", Spec((2 * latent,))
            for number in range(self.layers + 1):
                yield f"vae.layers.norms.{number}.weight", Spec((hidden,))
                yield f"vae.layers.norms.{number}.bias", Spec((hidden,))
            for number in range(self.layers):
                yield f"vae.layers.layers.{number}.weight", Spec((hidden, hidden))
                yield f"vae.layers.layers.{number}.bias", Spec((hidden,))
        else:
            yield from self.encoder.layout(hidden, latent, self.layers)
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
        """Upper bound of all scores and intermediate values, from the range of each tensor."""
        size = {name: max(abs(low), abs(high)) for name, (low, high) in ranges.items()}
        if self.anchors is None:
            into, out = size["vae.inputs"], size["vae.items"]
        else:  # anchors and weights are stored as integers of at most 8 bits
            weight = 256 * size["table.value_scales"]
            into = out = (self.anchors.most + 1) * weight * 256 * size["table.anchor_scales"]
        bag = items**0.5 * into + size["vae.shift"]
        encoded = self._bounds if self.encoder is None else self.encoder.bounds
        bounds = encoded(size, bag, self.hidden, self.layers)
        found = [into, out, *bounds, (self.latent * bounds[-1] + 1) * out]
        if "shortcut.table" in size:
            table, (least, most) = size["shortcut.table"], ranges["shortcut.scale"]
            query = size["shortcut.strength"] * items**0.5 * table / least
            found += [1 / least, query, table * most, 1024 * query * table * most]
        return max(found) if all(map(math.isfinite, found)) else math.inf

    @staticmethod
    def _bounds(size: Mapping[str, float], bag: float, hidden: int, layers: int) -> list[float]:
        """Upper bounds of the values in the encoder, the last that of its output."""
        norms = [
            hidden**0.5 * size[f"vae.layers.norms.{n}.weight"] + size[f"vae.layers.norms.{n}.bias"]
            for n in range(layers + 1)
        ]
        found = [bag, *norms]
        for n in range(layers):
            wide = hidden * size[f"vae.layers.layers.{n}.weight"] * norms[n]
            found.append(wide + size[f"vae.layers.layers.{n}.bias"] + sum(norms[: n + 1]))
        last = hidden * size["vae.posterior.weight"] * norms[-1] + size["vae.posterior.bias"]
        return [*found, last]

    @classmethod
    def options(cls) -> tuple[Option, ...]:
        """Options of the command line, those of the anchors included."""
        return tuple(FASTVAE.values())

    @classmethod
    def from_options(cls, values: Mapping[str, Any]) -> Self:
        """Construct from values of the command line."""
        return cls(
            hidden=values["hidden"], latent=values["latent"], anchors=_anchors_option(values)
        )

    def summary(self) -> str:
        """Settings as one cell of a table."""
        return f"latent {self.latent}, hidden {self.hidden}"

    def with_anchors(self, anchors: int | str | Anchors) -> "VAE":
        """The same model with tables of anchors."""
        return replace(self, anchors=Anchors.of(anchors))

    def without_anchors(self) -> "VAE | None":
        """The same model with dense tables; None if its tables are dense."""
        if self.anchors is None:
            return None
        return replace(self, anchors=None, shortcut=self.shortcut or 0)

    def dense_reference(self) -> "VAE | None":
        """The same model with dense tables, unless `Anchors.from_scratch` forbids to train them."""
        if self.anchors is None or self.anchors.from_scratch:
            return None
        return self.without_anchors()

    def for_group(self, group: Group) -> "VAE":
        """The same model, whose tables are shared by the processes."""
        anchors, world = self.anchors, group.world
        if world > 1 and anchors is not None and anchors.count is None:
            raise ValueError(
                f"the number of anchors is found by one process, got {world}; say how many "
                "(--anchors 255), or start without torchrun"
            )
        if world > 1 and anchors is not None and not anchors.from_scratch:
            raise ValueError(
                f"dense tables are cut to anchors by one process, got {world}; train anchors from "
                "the start (--alone, from_scratch=True), or start without torchrun"
            )
        return self

    def reusing(self, found: Mapping[str, float]) -> "VAE":
        """The same model with this penalty and strength of the shortcut."""
        model = replace(self)
        object.__setattr__(model, "weight", Weight(**found) if found else None)
        return model

    def work(self, log: Interactions) -> float:
        """Multiply-adds of a training: rows read and moved, and the directions of the shortcut."""
        users = max(int((log.jagged.lengths > 0).sum()), 1)
        epochs = Training().options(users, 0).epochs
        rank = self.rank(log.items)
        directions = 40.0 * rank * log.pairs + 16.0 * rank**2 * log.items
        return training_work(log, epochs * users) + directions

    def fit(self, train: Interactions) -> FittedVAE:
        """Train on interactions, with the default training."""
        return self._train(train, FitOptions()).fitted

    def learn(self, log: Interactions, options: FitOptions) -> Learned:
        """Train on a log, all of it where the weight of the shortcut is known."""
        return self._train(log, options)

    def _train(self, log: Interactions, options: FitOptions) -> "_LearnedVAE":
        training, seed, progress = options.limited_training(), options.seed, options.progress
        group = Group.current()
        if training.time_budget is not None:
            (budget,) = group.agree(training.time_budget)
            training = replace(training, time_budget=budget)
        previous = options.previous
        weight = previous.weight if isinstance(previous, _LearnedVAE) else self.weight
        anchors = self.anchors if self.anchors and self.anchors.cuts(log.items) else None
        dense = None if anchors is None else self.without_anchors()
        with silence(not progress), phase("preparing the model"):
            model = (dense or self).network(log.items, seed)
            rank = self.rank(log.items)
            trial = Trial.of(log, seed=seed) if rank and weight is None else None
        learn = log if trial is None else trial.rest
        train_options = training.options(int((learn.jagged.lengths > 0).sum()), seed)
        if options.effort < 1:
            epochs = max(1, round(options.effort * train_options.epochs))
            train_options = replace(train_options, epochs=epochs)
        passed = train(
            model.to(options.device), learn, train_options, checkpoint=options.checkpoint,
            progress=progress,
        )  # fmt: skip
        model.cpu()
        if rank:
            with silence(not progress):
                # The log is part of the key, so that it lives as long as what was found.
                key = "directions", log, trial is None, rank, seed
                if key not in options.cache:
                    options.cache[key] = _directions(learn, rank, seed, group)
                directions = options.cache[key]
                if trial is not None:
                    weight = tuned_weight(model, directions, trial, seed=seed)
                weight = Weight(*group.agree(*astuple(weight or Weight())))
                with phase("computing the shortcut"):
                    model.shortcut = weight.of(directions, learn.users)
        fitted_dense = None
        if anchors is not None and dense is not None:
            fitted_dense, trained = FittedVAE(dense, model), model
            with silence(not progress), phase("cutting the tables to anchors"):
                model = AnchorVAE.from_dense(trained, anchors, learn, seed=seed)
        with silence(not progress), phase("finishing the tables"):
            model.finalize()
        return _LearnedVAE(FittedVAE(self, model), learn, passed, fitted_dense, weight=weight)

    def network(self, items: int, seed: int = 0) -> FastVAE:
        """Untrained network for this many items; several processes share its tables."""
        group = Group.current()
        sizes = self.hidden, self.latent
        if self.anchors is None and group.world == 1:
            tables: Tables = DenseTables(items, *sizes)
        elif self.anchors is None:
            tables = ShardedTables(items, *sizes, group)
        elif group.world == 1:
            tables = AnchoredTables(items, self.anchors, *sizes)
        else:
            tables = ShardedAnchoredTables(items, self.anchors, *sizes, group)
        return FastVAE(tables, layers=self.layers, encoder=self.encoder, seed=seed)

    def updated(self, fitted: Fitted, log: Interactions, added: Interactions) -> Fitted:
        """The fitted model with items of the log beyond its own, placed by their neighbours."""
        assert isinstance(fitted, FittedVAE)
        if log.items == fitted.items:
            return fitted
        return FittedVAE(self, with_more_items(fitted.model, log))

    def from_state(self, tensors: dict[str, Tensor], items: int) -> FittedVAE:
        """The fitted model with these parameters, tables and shortcut."""
        tables = self._saved_tables(tensors)
        model = FastVAE(tables, layers=self.layers, encoder=self.encoder)
        if "shortcut.table" in tensors:
            rows, scale = tensors.pop("shortcut.table"), tensors.pop("shortcut.scale")
            model.shortcut = Shortcut(rows, scale, tensors.pop("shortcut.strength").item())
        model.load_encoder_state(
            {name.removeprefix("vae."): value for name, value in tensors.items()}
        )
        return FittedVAE(self, model)

    def _saved_tables(self, tensors: dict[str, Tensor]) -> Tables:
        """Tables of a saved model, whose tensors are removed from `tensors`."""
        if self.anchors is None:
            return DenseTables.of(tensors.pop("vae.inputs"), tensors.pop("vae.items"))
        names = [name for name in tensors if name.startswith("table.")]
        packed = {name.removeprefix("table."): tensors.pop(name) for name in names}
        try:
            return AnchoredTables.unpack(packed, self.anchors, self.hidden, self.latent)
        except ValueError as error:
            raise ValueError(f"table cannot be used: {error}") from error


def _directions(log: Interactions, rank: int, seed: int, group: Group) -> Directions:
    """Return the directions of a log, which the processes share."""
    if group.world == 1:
        return Directions.find(log, rank, seed=seed)

    def blocks() -> Iterator[Interactions]:
        return (log.select(users) for users in torch.arange(log.users).split(BLOCK))

    return Directions.of_blocks(blocks, log.counts(), log.users, rank, seed=seed, group=group)


def _anchors_option(values: Mapping[str, Any]) -> Anchors | None:
    """Anchors of the command line; None without --anchors."""
    count, width, bits = values["anchors"], values["anchor_width"], values["anchor_bits"]
    if count is None:
        return None
    return Anchors(
        None if count == "auto" else count, width, 8 if bits is None else bits,
        from_scratch=values["alone"],
    )  # fmt: skip
