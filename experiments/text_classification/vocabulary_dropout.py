"""Variational vocabulary dropout: words whose vector drowns in noise are not in the vocabulary."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from experiments.text_classification.corpora import Corpus
from experiments.text_classification.selection import (
    SelectiveTable,
    best_words,
    dropout_divergence,
    masked,
)
from experiments.text_classification.tables import dense


@dataclass(frozen=True)
class VocabularyDropout:
    """Dense table; in training the vector of a word is multiplied by noise N(1, alpha_w).

    alpha_w is learned under the variational bound with a log-uniform prior; in the end the words
    with the least noise stay, one in `times`. The divergence counts fully from half of the steps
    on.

    Reference: Chen, Su, Shen, Xiong and Klein, How large a vocabulary does text classification
    need? A variational approach to vocabulary selection (2019).
    """

    times: int = 20
    first: float = -3.0  # log alpha

    def make(self, corpus: Corpus, dim: int, generator: torch.Generator) -> nn.Module:
        return _Noisy(dense(corpus, dim, generator), self, len(corpus.train))


class _Noisy(SelectiveTable):
    def __init__(self, vectors: nn.Embedding, method: VocabularyDropout, texts: int) -> None:
        super().__init__(vectors)
        self.method, self.texts = method, texts
        self.log_alpha = nn.Parameter(torch.full((vectors.num_embeddings,), method.first))

    def forward(self, words: Tensor) -> Tensor:
        found: Tensor = self.vectors(words)
        if not self.training:
            return found
        size = (self.log_alpha[words].clamp(max=4) / 2).exp()
        noise = torch.randn(len(words))
        return found * (1 + size * noise).unsqueeze(1)

    def penalty(self, progress: float) -> Tensor:
        return min(1.0, 2 * progress) / self.texts * dropout_divergence(self.log_alpha).sum()

    @torch.no_grad()
    def selected(self) -> tuple[nn.Module, int]:
        return masked(self.vectors.weight, best_words(-self.log_alpha, self.method.times))
