"""Classifiers of reviews that read selected sentences only."""

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fewfold as ff
from experiments.rationales.reviews import CLASSES, Batch
from experiments.rationales.selectors import BONUS, SELECTORS, SHARE

HOPFIELD = "Hopfield pooling"
METHODS = (*SELECTORS, HOPFIELD)


class Reader(nn.Module):
    """Base class: vectors of sentences from means of word embeddings, and a classifier."""

    def __init__(self, vocabulary: int, width: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(vocabulary, width) / 2)
        self.sentence = nn.Sequential(nn.Linear(width, width), nn.ReLU())
        self.judge = nn.Linear(width, len(CLASSES))
        self.dropout = nn.Dropout(dropout)

    def means(self, batch: Batch) -> Tensor:
        """Return the mean word vector (n, longest, width) of each sentence."""
        found = F.embedding_bag(batch.words, self.embedding, batch.first, mode="mean")
        return batch.padded(self.dropout(found))

    @abstractmethod
    def loss(self, batch: Batch) -> Tensor:
        """Return the loss of each review (n,)."""

    @abstractmethod
    def explained(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return scores of the classes (n, 2), from the selected sentences (n, longest) alone."""


class Selective(Reader):
    """A selector that sees neighbouring sentences, and a classifier of the weighted mean."""

    def __init__(self, vocabulary: int, width: int, dropout: float, method: str) -> None:
        super().__init__(vocabulary, width, dropout)
        self.selector = SELECTORS[method]
        self.around = nn.Linear(3 * width, width)
        self.score = nn.Linear(width, 1)

    def scores(self, means: Tensor) -> Tensor:
        """Return the score (n, longest) of each sentence, from it and those next to it."""
        wide = F.pad(means, (0, 0, 1, 1))
        windows = torch.cat([wide[:, :-2], means, wide[:, 2:]], -1)
        found: Tensor = self.score(self.around(windows).tanh()).squeeze(2)
        return found

    def classes(self, vectors: Tensor, weights: Tensor) -> Tensor:
        """Return scores (n, 2) of classes, from sentences (n, longest, width) and weights."""
        total = weights.sum(1, keepdim=True).clamp(min=1e-6)
        mean = ((weights / total).unsqueeze(1) @ vectors).squeeze(1)
        found: Tensor = self.judge(mean)
        return found

    def loss(self, batch: Batch) -> Tensor:
        means = self.means(batch)
        vectors = self.sentence(means)

        def cost(weights: Tensor, row: Tensor) -> Tensor:
            classes = self.classes(vectors[row], weights)
            return F.cross_entropy(classes, batch.labels[row], reduction="none")

        return self.selector.loss(self.scores(means), batch.mask, cost)

    def explained(self, batch: Batch) -> tuple[Tensor, Tensor]:
        means = self.means(batch)
        weights = self.selector.weights(self.scores(means), batch.mask)
        return self.classes(self.sentence(means), weights), weights > 0


@dataclass(frozen=True)
class ShareOfSentences(ff.Omega):
    """SparseMAP over sequential subsets of a share of the entries."""

    share: float = SHARE
    bonus: float = BONUS
    on_simplex = False

    def value(self, probs: Tensor, dim: int = -1) -> Tensor:
        return self.for_size(probs.shape[dim]).value(probs, dim)

    def argmax(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        return self.for_size(scores.shape[dim]).argmax(scores, dim, mask=mask)

    def for_size(self, size: int) -> ff.Omega:
        """Return the regulariser for `size` sentences."""
        k = math.ceil(self.share * size)
        return ff.SparseMAP(ff.structures.SequentialSubset(k, self.bonus))


class Pooled(Reader):
    """Hopfield pooling of sentences with SparseMAP over sequential subsets.

    The subsets of a review depend on its size, so that reviews are pooled one by one.
    """

    def __init__(self, vocabulary: int, width: int, dropout: float) -> None:
        super().__init__(vocabulary, width, dropout)
        self.pool = ff.HopfieldPooling(width, ShareOfSentences(), beta=1.0)

    def pooled(self, batch: Batch) -> Tensor:
        """Return scores (n, 2) of classes."""
        vectors, sizes = self.sentence(self.means(batch)), batch.mask.sum(1).tolist()
        found = [self.pool(own[:size]) for own, size in zip(vectors, sizes, strict=True)]
        classes: Tensor = self.judge(torch.cat(found))
        return classes

    def loss(self, batch: Batch) -> Tensor:
        return F.cross_entropy(self.pooled(batch), batch.labels, reduction="none")

    def explained(self, batch: Batch) -> tuple[Tensor, Tensor]:
        with ff.attention.watch_attention() as calls:
            classes = self.pooled(batch)
        rows = [call.support.to_dense(call.shape[-1]).flatten() for call in calls]
        weights = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        return classes, weights > 0


def reader(vocabulary: int, width: int, dropout: float, method: str) -> Reader:
    """Return an untrained classifier of this method."""
    if method == HOPFIELD:
        return Pooled(vocabulary, width, dropout)
    return Selective(vocabulary, width, dropout, method)
