"""Pairs of a premise and a hypothesis as word ids, and the parts of the available corpora."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from experiments import batch_indices, datasets
from experiments.translation.corpus import PAD, Vocabulary

LABELS = ("entailment", "neutral", "contradiction")
_WORD = re.compile(r"\w+|[^\w\s]")
_POOL = 20  # batches that are sorted by length together
_HELD = 10  # one in so many premises of the first corpus is held out for validation
Pair = tuple[str, str, str]  # premise, hypothesis and label
Batch = tuple[Tensor, Tensor, Tensor]


def words(text: str) -> list[str]:
    """Split a sentence into words and signs, in lower case."""
    return _WORD.findall(text.lower())


@dataclass(frozen=True)
class Pairs:
    """Pairs of sentences as lists of ids, and their classes."""

    premises: list[list[int]]
    hypotheses: list[list[int]]
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, which: Sequence[int]) -> Batch:
        """Return padded premises (n, P) and hypotheses (n, H), and classes (n,)."""
        first, second = (
            pad_sequence(
                [torch.tensor(side[i]) for i in which], batch_first=True, padding_value=PAD
            )
            for side in (self.premises, self.hypotheses)
        )
        return first, second, self.labels[list(which)]

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield batches in random order, of pairs whose premises are about as long."""
        lengths = [len(one) for one in self.premises]
        yield from map(self.batch, batch_indices.shuffled(lengths, size, _POOL))

    def in_order(self, size: int) -> Iterator[Batch]:
        """Yield batches in the order of the pairs."""
        yield from map(self.batch, batch_indices.in_order(len(self), size))


@dataclass(frozen=True)
class Corpus:
    """Training, validation and test pairs; `revised` are test pairs with a changed sentence."""

    vocabulary: Vocabulary
    train: Pairs
    valid: Pairs
    test: Pairs
    revised: Pairs


def build(texts: dict[str, list[Pair]], least: int) -> Corpus:
    """Return a corpus of the parts "train", "valid", "test" and "revised"."""
    lines = [words(text) for pair in texts["train"] for text in pair[:2]]
    vocabulary = Vocabulary(lines, least)

    def ids(text: str) -> list[int]:
        return vocabulary.numbers(words(text))[:-1]  # without the end

    parts = {
        name: Pairs(
            [ids(premise) for premise, _, _ in pairs],
            [ids(hypothesis) for _, hypothesis, _ in pairs],
            torch.tensor([LABELS.index(label) for _, _, label in pairs]),
        )
        for name, pairs in texts.items()
    }
    return Corpus(vocabulary, **parts)


def split(development: list[Pair], more: list[Pair], test: list[Pair]) -> dict[str, list[Pair]]:
    """Hold out one in ten premises of the first list; return training, validation and test pairs.

    No premise of the validation or test part is in the training part.
    """
    premises = [*dict.fromkeys(_key(pair) for pair in development)]
    tested = {_key(pair) for pair in test}
    held = set(premises[::_HELD]) - tested
    return {
        "train": [p for p in (*development, *more) if _key(p) not in held | tested],
        "valid": [pair for pair in development if _key(pair) in held],
        "test": test,
    }


def _key(pair: Pair) -> tuple[str, ...]:
    return tuple(words(pair[0]))


def snli(least: int = 2) -> Corpus:
    """Load the development and test pairs of SNLI, and counterfactually augmented pairs.

    The training part of SNLI is not available: of its development part nine in ten premises are
    for training, with the training part of the augmented pairs, and one for validation.
    """
    import pandas

    folder = datasets.DATA / "nli"
    own = pandas.read_parquet(folder / "esnli_dev_test.parquet")
    augmented = pandas.read_parquet(folder / "cad_nli.parquet")

    def pairs(table: "pandas.DataFrame") -> list[Pair]:
        columns = ["premise", "hypothesis", "label"]
        return [*table[columns].itertuples(index=False, name=None)]

    texts = split(
        pairs(own[own.split == "dev"]),
        pairs(augmented[augmented.split == "train"]),
        pairs(own[own.split == "test"]),
    )
    changed = (augmented.split == "test") & (augmented.part != "original")
    return build({**texts, "revised": pairs(augmented[changed])}, least)
