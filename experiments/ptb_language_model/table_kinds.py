"""Word tables that are trained from the start, and codes of a table that has been trained.

Each kind is one dataclass. A `Trained` makes a table and the optimiser of its rows; an `After` is
made of the model that a `Trained` led to.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fewfold as ff
from experiments.compact_tables import HashedEmbedding
from experiments.ptb_language_model.axes import anchored, sensitivity
from experiments.ptb_language_model.models import Coded, Factors, coded, size
from experiments.ptb_language_model.regularised_lstm import RegularisedLanguageModel, Settings
from experiments.ptb_language_model.texts import Text
from experiments.text_classification.tables import wordnet_folder
from fewfold.embeddings import Clusters, Frequent, RandomBasis, Relations, cooccurrence_features
from fewfold.embeddings.initial.initial_anchors import AnchorInitialisation, initialise_anchors

_STD = 0.1  # of the first vectors
_BETAS = (0.9, 0.99)


@dataclass
class Made:
    """A table, the optimiser of its rows, and the parameters that all rows share."""

    table: nn.Module
    rows: torch.optim.Optimizer
    shared: list[nn.Parameter] = field(default_factory=list)


class Kind(ABC):
    """A kind of table."""

    @property
    @abstractmethod
    def begins(self) -> "Trained":
        """What is trained first."""

    @abstractmethod
    def finish(self, model: RegularisedLanguageModel, text: Text, seed: int) -> int:
        """Make the table of the trained model, if it is another; return its number of values."""


class Trained(Kind):
    """A table that is trained from the start."""

    @property
    def begins(self) -> "Trained":
        return self

    def finish(self, model: RegularisedLanguageModel, text: Text, seed: int) -> int:
        return size(model.table)

    @abstractmethod
    def make(self, text: Text, settings: Settings, seed: int) -> Made:
        """Return a new table and its optimiser."""


@dataclass(frozen=True)
class DenseTable(Trained):
    """Dense table."""

    def make(self, text: Text, settings: Settings, seed: int) -> Made:
        table = nn.Embedding(text.words, settings.width, sparse=True)
        nn.init.normal_(table.weight, std=_STD)
        return Made(table, _adam(table.weight, settings))


@dataclass(frozen=True)
class LowRankTable(Trained):
    """Product of two matrices."""

    rank: int

    def make(self, text: Text, settings: Settings, seed: int) -> Made:
        table = Factors(text.words, settings.width, self.rank)
        return Made(table, _adam(table.codes.weight, settings), [table.basis])


@dataclass(frozen=True)
class HashedTable(Trained):
    """Vectors of the most frequent words; the others share vectors at random."""

    keep: int
    buckets: int = 1000

    def make(self, text: Text, settings: Settings, seed: int) -> Made:
        table = _SparseHashed(
            text.counts, settings.width, keep=self.keep, buckets=self.buckets,
            generator=torch.Generator().manual_seed(seed),
        )  # fmt: skip
        with torch.no_grad():
            table.vectors.mul_(_STD)
        return Made(table, _adam(table.vectors, settings))


class _SparseHashed(HashedEmbedding):
    """Hashed table with sparse gradients."""

    def forward(self, input: Tensor) -> Tensor:
        return F.embedding(self.place[input], self.vectors, sparse=True)


@dataclass(frozen=True)
class AnchorTable(Trained):
    """Anchors and a transform T >= 0 under the proximal step of an L1 penalty from the start."""

    anchors: int
    initial: Literal["random", "frequency", "clustering"] = "random"
    wordnet: bool = False  # whether entries of related words and anchors are not penalised
    l1: float = 1e-6

    def make(self, text: Text, settings: Settings, seed: int) -> Made:
        generator = torch.Generator().manual_seed(seed)
        table = ff.AnchorEmbedding(text.words, settings.width, sparse=True, anchors=self.anchors)
        chosen = initialise_anchors(table, self._method(text, generator), generator)
        with torch.no_grad():
            table.anchors.mul_(_STD)
        relations = None
        if self.wordnet:
            relations = Relations.from_wordnet(text.vocabulary, wordnet_folder(), anchors=chosen)
        rows = ff.proximal(_adam(table.transform, settings), table, l1=self.l1, relations=relations)
        return Made(table, rows, [table.anchors])

    def _method(self, text: Text, generator: torch.Generator) -> AnchorInitialisation:
        if self.initial == "frequency":
            return Frequent(text.counts)
        if self.initial == "clustering":
            return Clusters(cooccurrence_features(text.train, text.words, generator=generator))
        return RandomBasis()


@dataclass(frozen=True)
class After(Kind):
    """A code of the table of a trained model, without further training."""

    of: Trained

    @property
    def begins(self) -> Trained:
        return self.of


@dataclass(frozen=True)
class Cut(After):
    """The entries of a dense table in its principal axes with the largest effect on the loss."""

    anchors: int
    keep: int  # per word, on average

    def finish(self, model: RegularisedLanguageModel, text: Text, seed: int) -> int:
        metric = sensitivity(model, text.train, model.settings, seed)
        table = model.table.get_parameter("weight").detach()
        model.table = anchored(table, self.anchors, self.keep, metric=metric, counts=text.counts)
        return model.table.size()


@dataclass(frozen=True)
class Code(After):
    """A code of a dense table that looks at its vectors only."""

    by: Coded

    def finish(self, model: RegularisedLanguageModel, text: Text, seed: int) -> int:
        table = model.table.get_parameter("weight")
        table.data, parameters = coded(table.detach(), self.by, seed)
        return parameters


@dataclass(frozen=True)
class Largest(After):
    """The largest entries of the transform of an anchor table, times the norm of their anchor."""

    keep: int  # per word, on average

    @torch.no_grad()
    def finish(self, model: RegularisedLanguageModel, text: Text, seed: int) -> int:
        table = model.table
        if not isinstance(table, ff.AnchorEmbedding):
            raise TypeError(f"the model must have an anchor table, got {type(table).__name__}")
        effect = table.transform.abs() * table.anchors.norm(dim=1)
        number = min(self.keep * len(effect), effect.numel())
        least = effect.flatten().topk(number).values[-1]
        table.transform.masked_fill_(effect < least, 0.0)
        return table.size()


def _adam(rows: nn.Parameter, settings: Settings) -> ff.optim.Adam:
    return ff.optim.Adam([rows], settings.rate * settings.lr, _BETAS)
