"""Classifier of sentence pairs that compares each word with what it is aligned to."""

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fewfold as ff
from experiments.alignments.pairs import LABELS
from experiments.networks import perceptron
from experiments.translation.corpus import PAD

Weights = tuple[Tensor, Tensor]  # (n, P, H) of each premise word, (n, H, P) of each hypothesis word
REACH = 2  # steps of a sequence that are farther share one score


def each_word(omega: ff.Omega, scores: Tensor, mask: Tensor, steps: Tensor) -> Weights:
    """Align each word of both sentences on its own."""
    return omega.argmax(scores, mask=mask), omega.argmax(scores.mT, mask=mask.mT)


def sequence(scores: Tensor, mask: Tensor, steps: Tensor) -> Weights:
    """Align the words of each sentence as a sequence, with a score for each size of step."""

    def one(scores: Tensor, mask: Tensor) -> Tensor:
        place = torch.arange(scores.shape[-1])
        size = (place - place.unsqueeze(1)).clamp(-REACH, REACH) + REACH
        return ff.sparsemap(scores, ff.structures.Sequence(steps[size]), mask=mask)

    return one(scores, mask), one(scores.mT, mask.mT)


def assignment(scores: Tensor, mask: Tensor, steps: Tensor) -> Weights:
    """Align every word of the shorter sentence to a word of its own in the longer one."""
    rows, columns = scores.shape[1:]
    size = max(rows, columns)
    edges = (0, size - columns, 0, size - rows)
    scores, mask = F.pad(scores, edges), F.pad(mask, edges)
    longer = (mask.any(2).sum(1) > mask.any(1).sum(1))[:, None, None]
    scores, mask = (torch.where(longer, both.mT, both) for both in (scores, mask))
    found = ff.sparsemap(scores, ff.structures.Assignment(), mask=mask)
    found = torch.where(longer, found.mT, found)[:, :rows, :columns]
    return found, found.mT


def matching(scores: Tensor, mask: Tensor, steps: Tensor) -> Weights:
    """Align words that have a partner, each to at most one."""
    found = ff.sparsemap(scores, ff.structures.Matching(), mask=mask)
    return found, found.mT


METHODS: dict[str, Callable[[Tensor, Tensor, Tensor], Weights]] = {
    "softmax": partial(each_word, ff.Shannon()),
    "1.5-entmax": partial(each_word, ff.Tsallis(1.5)),
    "sparsemax": partial(each_word, ff.Gini()),
    "sequence": sequence,
    "assignment": assignment,
    "matching": matching,
}


class Aligner(nn.Module):
    """Convolution of three words, alignment, comparison of each word with its partners, pooling.

    The convolution is added to the embeddings, and the projection of words before they are compared
    begins as the identity, so that equal words score best from the start.

    Args:
        vocabulary: number of words.
        width: of embeddings, hidden vectors and comparisons.
        dropout: of embeddings and hidden vectors.
        method: one of `METHODS`.
    """

    def __init__(self, vocabulary: int, width: int, dropout: float, method: str) -> None:
        super().__init__()
        self.align = METHODS[method]
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=PAD)
        self.encoder = nn.Linear(3 * width, width)
        self.project = nn.Linear(width, width)
        nn.init.eye_(self.project.weight)
        self.steps = nn.Parameter(torch.zeros(2 * REACH + 1))
        self.compare = nn.Sequential(nn.Linear(4 * width, width), nn.ReLU())
        self.judge = perceptron(4 * width, width, len(LABELS))
        self.dropout = nn.Dropout(dropout)

    def encode(self, sentences: Tensor) -> Tensor:
        """Return hidden vectors (n, T, width) of padded ids (n, T)."""
        vectors = self.dropout(self.embedding(sentences))  # zero at padding
        around = F.pad(vectors, (0, 0, 1, 1))
        windows = torch.cat([around[:, :-2], vectors, around[:, 2:]], -1)
        return vectors + F.relu(self.encoder(windows))

    def scores(self, first: Tensor, second: Tensor) -> Tensor:
        """Return scores (n, P, H) of pairs of words from their hidden vectors."""
        one, two = self.project(first), self.project(second)
        return one @ two.mT / math.sqrt(one.shape[-1])

    def forward(self, premises: Tensor, hypotheses: Tensor) -> Tensor:
        """Return scores (n, 3) of the classes."""
        sides = premises, hypotheses
        first, second = (self.encode(side) for side in sides)
        masks = [side != PAD for side in sides]
        mask = masks[0].unsqueeze(2) & masks[1].unsqueeze(1)
        weights = self.align(self.scores(first, second), mask, self.steps)
        pooled = [
            self._pool(own, share @ other, known)
            for own, share, other, known in zip(
                (first, second), weights, (second, first), masks, strict=True
            )
        ]
        found: Tensor = self.judge(torch.cat(pooled, -1))
        return found

    def _pool(self, own: Tensor, partner: Tensor, known: Tensor) -> Tensor:
        """Return the mean and the maximum (n, 2 width) of the comparisons of a sentence."""
        both = torch.cat([own, partner, own - partner, own * partner], -1)
        compared = self.dropout(self.compare(both)) * known.unsqueeze(2)  # not negative
        mean = compared.sum(1) / known.sum(1, keepdim=True)
        return torch.cat([mean, compared.amax(1)], -1)
