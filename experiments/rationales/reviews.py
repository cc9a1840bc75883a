"""Movie reviews as word ids and sentences, with the words that people marked as evidence."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from experiments import batch_indices, datasets
from experiments.translation.corpus import Vocabulary

CLASSES = ("NEG", "POS")
_POOL = 10  # batches that are sorted by number of sentences together
Review = tuple[list[list[str]], str, list[tuple[int, int]]]  # sentences, class, marked spans


@dataclass(frozen=True)
class Batch:
    """Some reviews.

    Attributes:
        words: (words,) ids of all reviews.
        first: (sentences,) where each sentence begins.
        mask: (n, longest) which sentences each review has.
        labels: (n,) classes.
    """

    words: Tensor
    first: Tensor
    mask: Tensor
    labels: Tensor

    def padded(self, values: Tensor) -> Tensor:
        """Return (n, longest, ...) with zeros, from one value of each sentence."""
        out = values.new_zeros(*self.mask.shape, *values.shape[1:])
        return out.index_put(self.mask.nonzero(as_tuple=True), values)


@dataclass(frozen=True)
class Reviews:
    """Reviews, each with its word ids, the sizes of its sentences, and its marked words."""

    words: list[Tensor]
    sizes: list[Tensor]
    labels: Tensor
    marked: list[Tensor]

    def __len__(self) -> int:
        return len(self.words)

    def batch(self, which: Sequence[int]) -> Batch:
        """Return some reviews."""
        sizes = [self.sizes[i] for i in which]
        joined = torch.cat(sizes)
        count = torch.tensor([len(one) for one in sizes])
        mask = torch.arange(int(count.max())) < count.unsqueeze(1)
        words = torch.cat([self.words[i] for i in which])
        return Batch(words, joined.cumsum(0) - joined, mask, self.labels[list(which)])

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield batches in random order, of reviews with about as many sentences."""
        lengths = [len(one) for one in self.sizes]
        yield from map(self.batch, batch_indices.shuffled(lengths, size, _POOL))

    def in_order(self, size: int) -> Iterator[Batch]:
        """Yield batches in the order of the reviews."""
        yield from map(self.batch, batch_indices.in_order(len(self), size))


@dataclass(frozen=True)
class Corpus:
    """Training, validation and test reviews, and their words."""

    vocabulary: Vocabulary
    train: Reviews
    valid: Reviews
    test: Reviews


def build(texts: dict[str, list[Review]], least: int) -> Corpus:
    """Return a corpus of the reviews of "train", "valid" and "test"."""
    lines = [sentence for sentences, _, _ in texts["train"] for sentence in sentences]
    vocabulary = Vocabulary(lines, least)
    return Corpus(vocabulary, **{part: _reviews(vocabulary, own) for part, own in texts.items()})


def _reviews(vocabulary: Vocabulary, reviews: list[Review]) -> Reviews:
    words, sizes, marked = [], [], []
    for sentences, _, spans in reviews:
        ids = [i for sentence in sentences for i in vocabulary.numbers(sentence)[:-1]]
        words.append(torch.tensor(ids))
        sizes.append(torch.tensor([len(sentence) for sentence in sentences]))
        evidence = torch.zeros(len(ids), dtype=torch.bool)
        for start, stop in spans:
            evidence[start:stop] = True
        marked.append(evidence)
    labels = torch.tensor([CLASSES.index(label) for _, label, _ in reviews])
    return Reviews(words, sizes, labels, marked)


def movies(least: int = 3) -> Corpus:
    """Load the movie reviews with rationales: 1,600 / 200 / 199, one sentence a line."""
    import pandas

    folder = datasets.DATA / "movie-rationales"
    table = pandas.read_parquet(folder / "reviews.parquet")
    evidence = pandas.read_parquet(folder / "evidence.parquet")
    spans = {
        docid: [*zip(own.start_token.tolist(), own.end_token.tolist(), strict=True)]
        for docid, own in evidence.groupby("docid")
    }
    texts = {}
    for part, split in {"train": "train", "valid": "val", "test": "test"}.items():
        rows = table[table.split == split]
        texts[part] = [
            (
                [line.split() for line in text.split("\n") if line.split()],
                label,
                spans.get(docid, []),
            )
            for docid, label, text in zip(rows.docid, rows.label, rows.text, strict=True)
        ]
    return build(texts, least)


def token_f1(chosen: Sequence[Tensor], marked: Sequence[Tensor]) -> float:
    """Return the mean over reviews of F1 of chosen words against marked ones.

    Reviews without marked words are left out; F1 is 0 where no marked word is chosen.
    """
    found = []
    for ours, theirs in zip(chosen, marked, strict=True):
        if theirs.any():
            found.append(2 * int((ours & theirs).sum()) / int(ours.sum() + theirs.sum()))
    return float(np.mean(found))
