"""Sparse variational dropout: entries that drown in noise are zero."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from experiments.text_classification.corpora import PADDING, Corpus
from experiments.text_classification.selection import SelectiveTable, dropout_divergence, masked
from experiments.text_classification.tables import dense

_PARTS = 8  # the divergence of one part of the rows, at random, stands for that of all


@dataclass(frozen=True)
class SparseVariationalDropout:
    """Dense table; each entry has additive noise in training whose variance is learned.

    The bound has a log-uniform prior. Entries whose variance is more than exp(3) times their square
    are zero in the end. With `words`, each word also has a factor with noise of its own, and
    loses all entries with it. Only the table has noise; the original gives it to all weights.
    The divergence counts fully from half of the steps on.

    References: Molchanov, Ashukha and Vetrov, Variational dropout sparsifies deep neural networks
    (2017). Chirkova, Lobacheva and Vetrov, Bayesian compression for natural language processing
    (2018).
    """

    words: bool = False
    first: float = -10.0  # log variance
    limit: float = 3.0  # log of variance over square

    def make(self, corpus: Corpus, dim: int, generator: torch.Generator) -> nn.Module:
        return _Noisy(dense(corpus, dim, generator), self, len(corpus.train))


class _Noisy(SelectiveTable):
    def __init__(self, vectors: nn.Embedding, method: SparseVariationalDropout, texts: int) -> None:
        super().__init__(vectors)
        self.method, self.texts = method, texts
        self.log_variance = nn.Parameter(torch.full_like(vectors.weight, method.first))
        self.factor = self.factor_log_variance = None
        if method.words:
            self.factor = nn.Parameter(torch.ones(vectors.num_embeddings, 1))
            self.factor_log_variance = nn.Parameter(torch.full_like(self.factor, method.first))

    def forward(self, words: Tensor) -> Tensor:
        vectors: Tensor = self.vectors(words)
        if self.training:
            vectors = vectors + _noise(self.log_variance[words]) * (words != PADDING).unsqueeze(1)
        if self.factor is None or self.factor_log_variance is None:
            return vectors
        factor = self.factor[words]
        if self.training:
            factor = factor + _noise(self.factor_log_variance[words])
        return vectors * factor

    def penalty(self, progress: float) -> Tensor:
        count = -(-len(self.log_variance) // _PARTS)
        start = int(torch.randint(_PARTS, ())) * count
        rows = slice(start, start + count)
        total = _PARTS * dropout_divergence(self._log_alpha(rows)).sum()
        if self.factor is not None and self.factor_log_variance is not None:
            alpha = self.factor_log_variance - _log_square(self.factor)
            total = total + dropout_divergence(alpha).sum()
        return min(1.0, 2 * progress) / self.texts * total

    def _log_alpha(self, rows: slice) -> Tensor:
        return self.log_variance[rows] - _log_square(self.vectors.weight[rows])

    @torch.no_grad()
    def selected(self) -> tuple[nn.Module, int]:
        vectors, limit = self.vectors.weight, self.method.limit
        kept = self._log_alpha(slice(None)) < limit
        if self.factor is not None and self.factor_log_variance is not None:
            kept &= self.factor_log_variance - _log_square(self.factor) < limit
            vectors = vectors * self.factor
        return masked(vectors, kept)


def _noise(log_variance: Tensor) -> Tensor:
    return (log_variance / 2).exp() * torch.randn_like(log_variance)


def _log_square(values: Tensor) -> Tensor:
    return (values.square() + 1e-12).log()
