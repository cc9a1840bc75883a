"""Multi30k as word ids, and its batches."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from experiments import batch_indices, datasets
from experiments.translation.bleu import tokens

PAD, BEGIN, END, UNKNOWN = range(4)
_POOL = 20  # batches that are sorted by length together


class Vocabulary:
    """Words that occur at least `least` times, behind padding, begin, end and the unknown word."""

    def __init__(self, lines: Sequence[Sequence[str]], least: int) -> None:
        counts = Counter(word for line in lines for word in line)
        known = sorted(word for word, count in counts.items() if count >= least)
        self.words = ["<pad>", "<s>", "</s>", "<unk>", *known]
        self._number = {word: i for i, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def numbers(self, line: Sequence[str]) -> list[int]:
        """Return the ids of a line, with the end behind it."""
        return [*(self._number.get(word, UNKNOWN) for word in line), END]

    def line(self, numbers: Sequence[int]) -> list[str]:
        """Return the words of ids, up to the end."""
        numbers = list(numbers)
        stop = numbers.index(END) if END in numbers else len(numbers)
        return [self.words[i] for i in numbers[:stop]]


@dataclass(frozen=True)
class Part:
    """Sentence pairs: ids of both sides, and the target as words."""

    source: list[list[int]]
    target: list[list[int]]
    references: list[list[str]]

    def __len__(self) -> int:
        return len(self.source)

    def batch(self, which: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return source and target ids of some pairs, (pairs, longest), padded."""
        source, target = (
            pad_sequence(
                [torch.tensor(side[i]) for i in which], batch_first=True, padding_value=PAD
            )
            for side in (self.source, self.target)
        )
        return source, target

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches in random order, of pairs whose targets are about as long."""
        lengths = [len(one) for one in self.target]
        yield from map(self.batch, batch_indices.shuffled(lengths, size, _POOL))

    def in_order(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches in the order of the pairs."""
        yield from map(self.batch, batch_indices.in_order(len(self), size))


@dataclass(frozen=True)
class Corpus:
    """Training, validation and test pairs with their vocabularies."""

    source: Vocabulary
    target: Vocabulary
    train: Part
    valid: Part
    test: Part

    def counts(self) -> Tensor:
        """Return how often each target word occurs in the training part, and half for none."""
        words = torch.tensor([word for line in self.train.target for word in line])
        return torch.bincount(words, minlength=len(self.target)).float().clamp(min=0.5)


def build(texts: dict[str, tuple[list[list[str]], list[list[str]]]], least: int) -> Corpus:
    """Return a corpus of the tokenised lines (source, target) of "train", "valid" and "test"."""
    source, target = (Vocabulary(lines, least) for lines in texts["train"])
    parts = {
        name: Part(
            [source.numbers(line) for line in theirs], [target.numbers(line) for line in ours], ours
        )
        for name, (theirs, ours) in texts.items()
    }
    return Corpus(source, target, **parts)


def multi30k(source: str = "de", target: str = "en", least: int = 2) -> Corpus:
    """Load Multi30k, task 1, in lower case: 29,000 / 1,014 / 1,000 pairs (test of 2016)."""
    import pandas

    table = pandas.read_parquet(datasets.DATA / "multi30k" / "task1.parquet")
    names = {"train": "train", "valid": "val", "test": "test_2016_flickr"}
    texts = {}
    for part, split in names.items():
        rows = table[table.split == split]
        sides = ([tokens(text.lower()) for text in rows[side]] for side in (source, target))
        texts[part] = (next(sides), next(sides))
    return build(texts, least)
