"""Labelled texts as word ids."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from experiments import datasets

PADDING = 0
_WORD = re.compile(r"\w+")
_HELD = {"valid": 0.1, "test": 0.2}  # shares, where a corpus comes without a split


@dataclass(frozen=True)
class Texts:
    """Documents, each a list of word ids, and their classes."""

    words: list[Tensor]
    labels: Tensor

    def __len__(self) -> int:
        return len(self.words)

    def select(self, rows: Tensor) -> "Texts":
        """Return a subset."""
        return Texts([self.words[row] for row in rows.tolist()], self.labels[rows])

    def batches(
        self, size: int, generator: torch.Generator | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield padded words (batch, longest) and labels; shuffled if a generator is given.

        Documents of like length go together: padding costs as much as words.
        """
        lengths = torch.tensor([len(words) for words in self.words])
        order = torch.arange(len(self))
        if generator is not None:
            order = torch.randperm(len(self), generator=generator)
        pools = order.split(size * 32)
        chunks = [part for pool in pools for part in pool[lengths[pool].argsort()].split(size)]
        if generator is not None:
            turns = torch.randperm(len(chunks), generator=generator).tolist()
            chunks = [chunks[turn] for turn in turns]
        for chunk in chunks:
            lists = [self.words[row] for row in chunk.tolist()]
            padded = torch.nn.utils.rnn.pad_sequence(lists, batch_first=True, padding_value=PADDING)
            yield padded, self.labels[chunk]


@dataclass(frozen=True)
class Corpus:
    """Training, validation and test texts; `vocabulary` lists the words, the first is padding."""

    train: Texts
    valid: Texts
    test: Texts
    vocabulary: list[str]
    classes: int

    @property
    def counts(self) -> Tensor:
        """Word counts of the training part."""
        return torch.bincount(torch.cat(self.train.words), minlength=len(self.vocabulary))


def corpus(
    texts: Sequence[str], labels: Sequence[str], parts: Sequence[str], *, length: int = 100
) -> Corpus:
    """Build a corpus of lower-case words, texts cut to `length`, without words unseen in training.

    `parts` are "train", "valid" and "test", and the vocabulary is that of "train".
    """
    tokens = [_WORD.findall(text.lower())[:length] for text in texts]
    seen = Counter(
        word for words, part in zip(tokens, parts, strict=True) if part == "train" for word in words
    )
    vocabulary = ["", *(word for word, _ in seen.most_common())]
    number = {word: n for n, word in enumerate(vocabulary)}
    classes = {name: n for n, name in enumerate(sorted(set(labels)))}
    # A text of unknown words alone is padding.
    known = [
        torch.tensor([number[w] for w in words if w in number] or [PADDING]) for words in tokens
    ]
    target = torch.tensor([classes[label] for label in labels])

    def part(name: str) -> Texts:
        rows = [row for row, its in enumerate(parts) if its == name]
        return Texts([known[row] for row in rows], target[rows])

    return Corpus(part("train"), part("valid"), part("test"), vocabulary, len(classes))


def load(name: str, *, length: int = 100, seed: int = 0) -> Corpus:
    """Load a corpus by name; a tenth of its training part is for validation."""
    import pandas

    folder = "ag-news-partial" if name == "ag_news_partial" else "text-classification"
    table = pandas.read_parquet(datasets.DATA / folder / f"{name}.parquet")
    generator = torch.Generator().manual_seed(seed)
    parts = table["split"].replace({"dev": "valid", "val": "valid", "all": "train"}).to_numpy(str)
    for held, share in _HELD.items():
        if held in parts:
            continue
        rows = (parts == "train").nonzero()[0]
        chosen = torch.randperm(len(rows), generator=generator)[: int(share * len(rows))]
        parts[rows[chosen.numpy()]] = held
    return corpus(list(table["text"]), list(table["label"].astype(str)), list(parts), length=length)
