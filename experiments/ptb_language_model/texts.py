"""Penn Treebank and WikiText-2 as word ids."""

import gzip
import lzma
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from experiments import datasets


@dataclass(frozen=True)
class Text:
    """A corpus as word ids, by descending frequency in the training part."""

    name: str
    words: int
    train: Tensor  # (tokens,) int64
    valid: Tensor
    test: Tensor
    vocabulary: tuple[str, ...] = ()

    @property
    def counts(self) -> Tensor:
        """Word counts of the training part."""
        return torch.bincount(self.train, minlength=self.words).float()


def _text(name: str, read: Callable[[str], str]) -> Text:
    train, *others = (read(p).replace("\n", " <eos> ").split() for p in ("train", "valid", "test"))
    number = {word: i for i, (word, _) in enumerate(Counter(train).most_common())}
    parts = (torch.tensor([number[word] for word in part]) for part in (train, *others))
    return Text(name, len(number), *parts, vocabulary=tuple(number))


def ptb() -> Text:
    """Load Penn Treebank: 10,000 words, 929,589 training tokens."""
    folder = datasets.DATA / "ptb"
    return _text("ptb", lambda part: gzip.open(folder / f"ptb.{part}.txt.gz", "rt").read())


def wikitext2() -> Text:
    """Load WikiText-2: 33,278 words, 2,088,628 training tokens."""

    def read(part: str) -> str:
        path = datasets.DATA / "wikitext-2" / f"wiki.{part}.tokens.xz"
        return lzma.open(path, "rt", encoding="utf8").read()

    return _text("wikitext2", read)
