"""Classifier of sets of words with attention."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

import fewfold as ff
from experiments import batch_indices
from experiments.rationales.reviews import CLASSES, Reviews
from experiments.translation.corpus import PAD, UNKNOWN

MAPS: dict[str, ff.Omega] = {
    "softmax": ff.Shannon(),
    "1.5-entmax": ff.Tsallis(1.5),
    "sparsemax": ff.Gini(),
}


@dataclass(frozen=True)
class Sets:
    """Reviews as their distinct known words, with those of them that people marked."""

    words: list[Tensor]
    marked: list[Tensor]
    labels: Tensor

    def __len__(self) -> int:
        return len(self.words)

    def batch(self, which: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return padded words (n, longest) and classes (n,)."""
        words = pad_sequence([self.words[i] for i in which], batch_first=True, padding_value=PAD)
        return words, self.labels[list(which)]

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches in random order."""
        yield from map(self.batch, batch_indices.shuffled([0] * len(self), size, 1))

    def in_order(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches in the order of the reviews."""
        yield from map(self.batch, batch_indices.in_order(len(self), size))


def sets(reviews: Reviews) -> Sets:
    """Return reviews as sets of words; the unknown word is left out."""

    def known(words: Tensor) -> Tensor:
        return words[words != UNKNOWN].unique()

    words = [known(own) for own in reviews.words]
    pairs = zip(reviews.words, reviews.marked, strict=True)
    marked = [
        torch.isin(some, own[chosen]) for (own, chosen), some in zip(pairs, words, strict=True)
    ]
    return Sets(words, marked, reviews.labels)


class Classifier(nn.Module):
    """Attention over the words of a set, and a linear layer.

    Args:
        vocabulary: number of words.
        width: of embeddings and hidden vectors.
        dropout: of embeddings.
        omega: regulariser of attention.
    """

    def __init__(self, vocabulary: int, width: int, dropout: float, omega: ff.Omega) -> None:
        super().__init__()
        self.omega = omega
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=PAD)
        self.key = nn.Linear(width, width)
        self.query = nn.Linear(width, 1, bias=False)
        self.value = nn.Linear(width, width)
        self.judge = nn.Linear(width, len(CLASSES))
        self.dropout = nn.Dropout(dropout)

    def attend(self, vectors: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights (n, longest) and values (n, longest, width) of embedded words."""
        scores = self.query(self.key(vectors).tanh()).squeeze(2)
        return self.omega.argmax(scores, mask=mask), F.relu(self.value(vectors))

    def classes(self, vectors: Tensor, mask: Tensor) -> Tensor:
        """Return scores (n, 2) of the classes from embedded words (n, longest, width)."""
        weights, values = self.attend(vectors, mask)
        found: Tensor = self.judge((weights.unsqueeze(1) @ values).squeeze(1))
        return found

    def forward(self, words: Tensor) -> Tensor:
        """Return scores (n, 2) of the classes from padded words (n, longest)."""
        return self.classes(self.dropout(self.embedding(words)), words != PAD)


@torch.no_grad()
def decisions(model: Classifier, reviews: Sets) -> Tensor:
    """Return the class (n,) that is decided for each review."""
    return torch.cat([model(words).argmax(1) for words, _ in reviews.in_order(64)])
