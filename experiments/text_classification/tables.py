"""The word tables that are compared: dense, anchored and other compact ones."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import torch
from torch import Tensor, nn

import fewfold as ff
from experiments import datasets
from experiments.text_classification.corpora import PADDING, Corpus
from fewfold.embeddings.coding.spread_rows import spread_rows

# Sizes of the first values, chosen on validation parts: words that are seen once or twice stay
# close to zero, and the most frequent words, if they are anchors, do not drown the others.
_DENSE, _WEIGHT = 0.02, 0.05

# Which words are anchors: numbers (K,).
Choice = Callable[[Corpus, int, torch.Generator], Tensor]
# What is known of words and anchors.
Knowledge = Callable[[Corpus, Tensor], ff.embeddings.Relations]


class Table(Protocol):
    """Builder of the table of a method."""

    def make(self, corpus: Corpus, dim: int, generator: torch.Generator) -> nn.Module:
        """Return an embedding of ids (n,) to vectors (n, dim), zero for the padding."""
        ...


# Which words are anchors


def frequent(corpus: Corpus, count: int, generator: torch.Generator) -> Tensor:
    """Select the most frequent words; the vocabulary is sorted by frequency."""
    return torch.arange(1, count + 1)


def drawn(corpus: Corpus, count: int, generator: torch.Generator) -> Tensor:
    """Select random words."""
    return 1 + torch.randperm(len(corpus.vocabulary) - 1, generator=generator)[:count]


def spread(corpus: Corpus, count: int, generator: torch.Generator) -> Tensor:
    """Select words with different document profiles: the seeds of k-means++.

    Features are the first 32 singular vectors of words by documents, TF-IDF, scaled to length one.
    Words with fewer than five occurrences are left out: each of them is far from everything.
    """
    import scipy.sparse
    from scipy.sparse.linalg import svds

    words = torch.cat(corpus.train.words)
    document = torch.arange(len(corpus.train)).repeat_interleave(
        torch.tensor([len(one) for one in corpus.train.words])
    )
    shape = (len(corpus.vocabulary), len(corpus.train))
    counts = scipy.sparse.coo_matrix((torch.ones(len(words)), (words, document)), shape).tocsr()
    rare = 1 + counts.astype(bool).sum(1)
    weighted = counts.multiply(torch.log(torch.tensor(len(corpus.train) / rare)).numpy()).tocsr()
    first = torch.rand(min(shape), generator=generator, dtype=torch.float64).numpy()
    left, values, _ = svds(weighted, k=min(32, min(shape) - 1), v0=first)
    features = nn.functional.normalize(torch.from_numpy(left * values), dim=1)
    common = (corpus.counts >= 5).nonzero().squeeze(1)
    common = common[common != PADDING]
    return common[spread_rows(features[common], count, generator)]


def tf_idf(corpus: Corpus, count: int, generator: torch.Generator) -> Tensor:
    """Select the words with the largest tf-idf, summed over the training part."""
    scores = ff.embeddings.TfIdf.of(corpus.train.words, len(corpus.vocabulary)).scores()
    scores[PADDING] = -torch.inf
    return scores.topk(count).indices


# What is known of them


@dataclass(frozen=True)
class Near:
    """Relations from co-occurrence: words near an anchor, for the most informative anchors."""

    width: int = 2
    least: int = 5

    def __call__(self, corpus: Corpus, anchors: Tensor) -> ff.embeddings.Relations:
        return ff.embeddings.Relations.from_cooccurrence(
            corpus.train.words, objects=len(corpus.vocabulary), anchors=anchors,
            least=self.least, width=self.width,
        )  # fmt: skip


def wordnet(corpus: Corpus, anchors: Tensor) -> ff.embeddings.Relations:
    """Return synonyms, hypernyms, hyponyms and antonyms as relations."""
    return ff.embeddings.Relations.from_wordnet(
        corpus.vocabulary, wordnet_folder(), anchors=anchors
    )


@cache
def _unpacked() -> TemporaryDirectory[str]:
    import tarfile

    folder = TemporaryDirectory()
    with tarfile.open(datasets.DATA / "wordnet" / "wordnet-3.0-dict.tar.xz") as archive:
        archive.extractall(folder.name, filter="data")
    return folder


def wordnet_folder() -> Path:
    """Return the folder of WordNet's database files, unpacked once for the process."""
    return Path(_unpacked().name) / "dict"


# Tables


@dataclass(frozen=True)
class Dense:
    """Dense table."""

    def make(self, corpus: Corpus, dim: int, generator: torch.Generator) -> nn.Module:
        return dense(corpus, dim, generator)


def dense(corpus: Corpus, dim: int, generator: torch.Generator) -> nn.Embedding:
    """Return a new table with a vector per word."""
    return _embedding(len(corpus.vocabulary), dim, _DENSE, generator)


@dataclass(frozen=True)
class Anchored:
    """Anchor table whose anchors are selected words."""

    anchors: int = 20
    choice: Choice = frequent
    knowledge: Knowledge | None = None
    l1: float = 1e-5
    keep: int | None = 8  # non-zeros in a row, in the end

    def make(self, corpus: Corpus, dim: int, generator: torch.Generator) -> ff.AnchorEmbedding:
        table = ff.AnchorEmbedding(
            len(corpus.vocabulary), dim, padding_idx=PADDING, anchors=self.anchors,
            generator=generator,
        )  # fmt: skip
        chosen = self.chosen(corpus)
        with torch.no_grad():
            table.transform.mul_(_WEIGHT)
            table.transform[chosen] = _WEIGHT * torch.eye(self.anchors)
        return table

    def chosen(self, corpus: Corpus) -> Tensor:
        """Return the words that are anchors."""
        return self.choice(corpus, self.anchors, torch.Generator().manual_seed(0))

    def relations(self, corpus: Corpus) -> ff.embeddings.Relations | None:
        """Return the relations, if any."""
        return None if self.knowledge is None else self.knowledge(corpus, self.chosen(corpus))


@dataclass(frozen=True)
class Mixed:
    """Sum of softmax mixtures over several sets of anchors: softmax(T) A, with T sparse.

    Anchors start with a mean of zero, so that a word without entries is zero and not their mean.
    """

    mixtures: int = 2
    anchors: int = 5
    l1: float = 1e-5

    def make(
        self, corpus: Corpus, dim: int, generator: torch.Generator
    ) -> ff.embeddings.AnchorMixture:
        table = ff.embeddings.AnchorMixture(
            len(corpus.vocabulary), dim, padding_idx=PADDING, mixtures=self.mixtures,
            anchors=self.anchors, generator=generator,
        )  # fmt: skip
        with torch.no_grad():
            for part in table.tables:
                part.transform.mul_(_WEIGHT)
                part.anchors.sub_(part.anchors.mean(0))
        return table


@dataclass(frozen=True)
class LowRank:
    """Low-rank table, `times` smaller than the dense one."""

    times: int = 40

    def make(self, corpus: Corpus, dim: int, generator: torch.Generator) -> nn.Module:
        words = len(corpus.vocabulary)
        rank = max(1, words * dim // self.times // (words + dim))
        inner = _embedding(words, rank, _DENSE, generator)
        outer = nn.Linear(rank, dim, bias=False)
        with torch.no_grad():
            outer.weight.normal_(generator=generator)
        return nn.Sequential(inner, outer)


@dataclass(frozen=True)
class Rows:
    """Vectors of the most frequent words; the others share vectors or have none.

    A table `times` smaller, of which `shared` is the part that is shared by hashing.
    """

    times: int = 40
    shared: float = 0.0
    choice: Choice = frequent

    def make(self, corpus: Corpus, dim: int, generator: torch.Generator) -> nn.Module:
        words = len(corpus.vocabulary)
        rows = max(2, words // self.times)
        own = rows - int(rows * self.shared)
        place = torch.full((words,), words)
        chosen = self.choice(corpus, own - 1, generator)  # row 0 is that of the padding
        place[PADDING], place[chosen] = PADDING, torch.arange(1, own)
        bucket = torch.zeros(words, dtype=torch.int64)  # that of the padding, which stays zero
        if own < rows:
            bucket = own + torch.randint(rows - own, (words,), generator=generator)
        return _Placed(
            torch.where(place < own, place, bucket), _embedding(rows, dim, _DENSE, generator)
        )


class _Placed(nn.Module):
    def __init__(self, place: Tensor, table: nn.Embedding) -> None:
        super().__init__()
        self.register_buffer("place", place)
        self.table = table

    def forward(self, words: Tensor) -> Tensor:
        vectors: Tensor = self.table(self.get_buffer("place")[words])
        return vectors


def _embedding(rows: int, dim: int, std: float, generator: torch.Generator) -> nn.Embedding:
    table = nn.Embedding(rows, dim, padding_idx=PADDING)
    with torch.no_grad():
        table.weight.normal_(0, std, generator=generator)
        table.weight[PADDING] = 0
    return table


def size(table: nn.Module) -> int:
    """Number of parameters as published; for anchor tables the anchors and the non-zeros."""
    if isinstance(table, ff.AnchorEmbedding | ff.embeddings.AnchorMixture):
        return table.size()
    return sum(param.numel() for param in table.parameters())
