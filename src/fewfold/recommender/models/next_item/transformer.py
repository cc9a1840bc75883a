"""The recipe of the next-item transformer: settings, training, tensors of a saved model."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from fewfold._check import jagged, positive_number, whole_number
from fewfold._progress import phase, silence
from fewfold._tensors import Found, Spec
from fewfold.recommender.interactions import Interactions, Jagged
from fewfold.recommender.models.fastvae.tables import append_means
from fewfold.recommender.models.model import FitOptions, Fitted, Learned, Model
from fewfold.recommender.models.model_options import TRANSFORMER, setting
from fewfold.recommender.models.nearest_items import nearest_known_items
from fewfold.recommender.models.next_item.fitted_transformer import FittedTransformer
from fewfold.recommender.models.next_item.next_item_network import NextItemNetwork
from fewfold.recommender.models.next_item.next_item_run import (
    HeldOut,
    NextItemRun,
    default_objective,
)
from fewfold.recommender.models.registry import register
from fewfold.recommender.training.train import run_training
from fewfold.recommender.training.train_options import Epoch, TrainOptions

__all__ = ["Transformer"]

_POSITIONS = 1024  # of a step
_LR = 3e-2  # of the table
_PATIENCE = 4  # epochs without a better validation
_WANTED = 2_500_000  # positions that all epochs read together, within the following limits
_EPOCHS = 5, 60  # fewest and most
_DROPOUT = 0.25, 0.5  # of large and of small logs
_LARGE = 400_000  # interactions


@register
@dataclass(frozen=True)
class Transformer(Model):
    """A causal transformer that predicts the next item of a user; see `NextItemNetwork`.

    It needs a log with times. Training draws items for its softmax, so that steps cost the same at
    any number of items. Of `Training` it takes epochs and time budget; it holds out the last item
    of a twentieth of the users, at most 2,048, and keeps the weights of the epoch that ranks these
    best.

    Attributes:
        width: of the item vectors.
        layers: number of blocks.
        heads: of attention; they divide the width.
        length: number of last items that are read.
        dropout: share of entries that are set to zero in training; by default 0.5 for logs of
            fewer than 400,000 interactions, which are read more often, and otherwise 0.25.
        scale: of the cosines, the inverse temperature of their softmax.
        alpha: of the entmax that makes attention weights; 1 is softmax.
        correction: let a query leave the average of its items' vectors.

    Example:
        >>> import torch, fewfold as ff
        >>> from fewfold.recommender import Jagged, Transformer, Training
        >>> from fewfold.recommender.models.model import FitOptions
        >>> days = Jagged(torch.arange(7).repeat(30), torch.arange(0, 211, 7))
        >>> options = FitOptions(Training(epochs=30), progress=False)
        >>> fitted = Transformer(width=16).fit_sequences(days, 7, options)
        >>> fitted.rank(Jagged(torch.tensor([0, 1, 2]), torch.tensor([0, 3])), 1).ids
        tensor([[3]])
    """

    name: ClassVar[str] = "transformer"
    colour: ClassVar[str] = "#21918c"
    extendable: ClassVar[bool] = True
    update_note: ClassVar[str] = "new items take the mean of the vectors of their nearest items"
    ordered: ClassVar[bool] = True
    completable: ClassVar[bool] = True
    resumable: ClassVar[bool] = True
    width: int = field(default=96, metadata=setting(TRANSFORMER["width"], "width {}"))
    layers: int = field(default=1, metadata=setting(TRANSFORMER["layers"], "layers {}"))
    heads: int = 2
    length: int = field(default=50, metadata=setting(TRANSFORMER["length"], "length {}"))
    dropout: float | None = field(
        default=None, metadata=setting(TRANSFORMER["dropout"], "dropout {:g}")
    )
    scale: float = 16.0
    alpha: float = 1.0
    correction: bool = True

    def __post_init__(self) -> None:
        positive_number(self.scale, "scale")
        if not 1 <= self.alpha <= 2:
            raise ValueError(
                f"alpha must be between 1 (softmax) and 2 (sparsemax), got {self.alpha}"
            )
        NextItemNetwork.check(
            width=self.width, layers=self.layers, heads=self.heads, length=self.length,
            dropout=self.dropout or 0.0,
        )  # fmt: skip

    def work(self, log: Interactions) -> float:
        """Multiply-adds of a training: the blocks, the sampled softmax and rows of the table."""
        blocks = 36.0 * self.layers * self.width**2 + 3000.0 * self.width
        return _epochs(log.jagged) * log.pairs * (blocks + 80_000)

    def fit(self, train: Interactions) -> FittedTransformer:
        """Train on interactions with times, with the default training."""
        return self._train(train.in_order(), train.items, FitOptions())[0]

    def fit_sequences(
        self, sequences: Jagged, items: int, options: FitOptions | None = None
    ) -> FittedTransformer:
        """Train on sequences, oldest item first, in which items may be repeated.

        Args:
            sequences: items of each user or session, by number.
            items: number of items.
            options: epochs, time budget, seed, checkpoint, progress.
        """
        return self._train(sequences, items, options or FitOptions())[0]

    def learn(self, log: Interactions, options: FitOptions) -> Learned:
        """Train on a log with times."""
        why = self.unsuitable(log)
        if why:
            raise ValueError(f"a Transformer cannot be fitted to this log: {why}")
        fitted, epochs = self._train(log.in_order(), log.items, options)
        return Learned(fitted, log, epochs)

    def _train(
        self, sequences: Jagged, items: int, options: FitOptions
    ) -> tuple[FittedTransformer, list[Epoch]]:
        sequences = _checked(sequences, items)
        with silence(not options.progress), phase("preparing the model"):
            held = HeldOut.draw(sequences, options.seed)
            network = self.network(items, options.seed, dropout=_dropout(held.rest))
        training = options.limited_training()
        epochs = training.epochs or _epochs(held.rest)
        # Vectors start at random: after a quarter of the epochs they say too little of the model.
        epochs = max(1, round(math.sqrt(options.effort) * epochs))
        settings = TrainOptions(
            epochs, _positions(held.rest), _LR, patience=max(_PATIENCE, epochs // 4),
            seed=options.seed, time_budget=training.time_budget,
        )  # fmt: skip

        def prepare() -> NextItemRun:
            return NextItemRun(network, held, default_objective(items), settings, options.progress)

        network.to(options.device)
        passed = run_training(prepare, options.checkpoint, progress=options.progress)
        network.cpu()
        network.fit_start(torch.bincount(sequences.values, minlength=items))
        return FittedTransformer(self, network), passed

    def network(self, items: int, seed: int = 0, *, dropout: float = 0.0) -> NextItemNetwork:
        """Untrained network for this many items, with this dropout unless the model has its own."""
        return NextItemNetwork(
            items, width=self.width, layers=self.layers, heads=self.heads, length=self.length,
            dropout=dropout if self.dropout is None else self.dropout, scale=self.scale,
            alpha=self.alpha, correction=self.correction, seed=seed,
        )  # fmt: skip

    def layout(self, found: Found, items: int) -> Iterator[tuple[str, Spec]]:
        """Yield name and specification of each tensor.

        Args:
            found: names in the file.
            items: number of items.
        """
        width, length = self.width, self.length
        yield "table", Spec((items, width))
        yield "start", Spec((width,))
        yield from _norm_layout("norm", width)
        if self.correction:
            yield from _linear_layout("beyond", width, width)
        yield from _linear_layout("average.projections", width, 2 * width)
        yield "average.distance", Spec((1, length))
        for number in range(self.layers):
            block = f"blocks.{number}"
            yield f"{block}.distance", Spec((self.heads, length))
            yield from _norm_layout(f"{block}.attention_norm", width)
            yield from _norm_layout(f"{block}.linear_norm", width)
            yield from _linear_layout(f"{block}.projections", width, 3 * width)
            yield from _linear_layout(f"{block}.attended", width, width)
            yield from _linear_layout(f"{block}.hidden", width, 2 * width)
            yield from _linear_layout(f"{block}.output", 2 * width, width)

    def largest(self, ranges: Mapping[str, tuple[float, float]], items: int) -> float:
        """Upper bound of all scores and intermediate values, from the range of each tensor."""
        size = {name: max(abs(low), abs(high)) for name, (low, high) in ranges.items()}
        root = math.sqrt(self.width)

        def normed(name: str) -> float:
            return root * size[f"{name}.weight"] + size[f"{name}.bias"]

        def linear(name: str, into: float, width: int) -> float:
            return width * size[f"{name}.weight"] * into + size[f"{name}.bias"]

        found, x = [self.scale, root * size["start"], items * root * size["table"]], root
        for number in range(self.layers):
            block = f"blocks.{number}"
            parts = linear(f"{block}.projections", normed(f"{block}.attention_norm"), self.width)
            x += linear(f"{block}.attended", parts, self.width)
            hidden = linear(f"{block}.hidden", normed(f"{block}.linear_norm"), self.width)
            x += linear(f"{block}.output", hidden, 2 * self.width)
            found += [self.width * parts**2 + size[f"{block}.distance"], hidden, x]
        last = normed("norm")
        parts = linear("average.projections", last, self.width)
        found += [self.width * parts**2 + size["average.distance"]]
        if "beyond.weight" in size:
            found += [1 + linear("beyond", last, self.width)]
        return max(found) if all(map(math.isfinite, found)) else math.inf

    def updated(self, fitted: Fitted, log: Interactions, added: Interactions) -> Fitted:
        """The fitted model with items of the log beyond its own, placed by their neighbours."""
        if log.items == fitted.items:
            return fitted
        near, weights = nearest_known_items(log, fitted.items)
        state = fitted.state()
        state["table"] = append_means(state["table"], near, weights)
        return self.from_state(state, log.items)

    def from_state(self, tensors: dict[str, Tensor], items: int) -> FittedTransformer:
        """The fitted model with these tensors."""
        network = self.network(1)  # its table is replaced, not drawn
        network.table = nn.Parameter(tensors["table"])
        network.load_state_dict(tensors, assign=True)
        return FittedTransformer(self, network)


def _checked(sequences: Jagged, items: int) -> Jagged:
    """Return the sequences; raise unless offsets and item numbers are valid."""
    whole_number(items, "items")
    values, offsets = jagged(*sequences, rows=len(sequences.offsets) - 1)
    if len(values) and not 0 <= int(values.min()) <= int(values.max()) < items:
        raise ValueError(
            f"sequences must hold item numbers between 0 and {items - 1}, "
            f"got {int(values.min())} to {int(values.max())}"
        )
    return Jagged(values, offsets)


def _positions(sequences: Jagged) -> int:
    """Return the positions of a step: fewer for a small log, so that an epoch has several."""
    return max(64, min(_POSITIONS, len(sequences.values) // 16))


def _epochs(sequences: Jagged) -> int:
    """Return the number of epochs for sequences of so many items."""
    fewest, most = _EPOCHS
    return max(fewest, min(most, _WANTED // max(len(sequences.values), 1)))


def _dropout(sequences: Jagged) -> float:
    """Return the dropout for sequences of so many items."""
    large, small = _DROPOUT
    return large if len(sequences.values) >= _LARGE else small


def _linear_layout(name: str, into: int, out: int) -> Iterator[tuple[str, Spec]]:
    yield f"{name}.weight", Spec((out, into))
    yield f"{name}.bias", Spec((out,))


def _norm_layout(name: str, width: int) -> Iterator[tuple[str, Spec]]:
    yield f"{name}.weight", Spec((width,))
    yield f"{name}.bias", Spec((width,))
