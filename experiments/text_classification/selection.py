"""Base class of dense tables from which training removes words or entries."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from experiments.text_classification.corpora import PADDING


class SelectiveTable(nn.Module, ABC):
    """Table with a vector per word in training, of which `selected` keeps a part.

    Args:
        vectors: the initial table (words, dim), zero for the padding.
    """

    def __init__(self, vectors: nn.Embedding) -> None:
        super().__init__()
        self.vectors = vectors

    def forward(self, words: Tensor) -> Tensor:
        """Return vectors (n, dim)."""
        found: Tensor = self.vectors(words)
        return found

    def penalty(self, progress: float) -> Tensor:
        """Return what is added to the mean loss of a text, after a share of the steps."""
        return self.vectors.weight.new_zeros(())

    def after_step(self, lr: float) -> None:
        """Change the table after a step of the optimiser."""

    @abstractmethod
    def selected(self) -> tuple[nn.Module, int]:
        """Return the table that is stored, without noise, and its number of values."""


@torch.no_grad()
def masked(vectors: Tensor, mask: Tensor) -> tuple[nn.Embedding, int]:
    """Return the table of the entries in a mask (words, 1) or (words, dim), and their number."""
    table = nn.Embedding.from_pretrained(vectors * mask, padding_idx=PADDING)
    return table, int(mask.expand_as(vectors).sum())


def best_words(scores: Tensor, times: int) -> Tensor:
    """Return a mask (words, 1) of the words with the largest scores, one in `times`.

    Example:
        >>> best_words(torch.tensor([9.0, 1.0, 4.0, 3.0]), times=4).flatten().tolist()
        [False, False, True, False]
    """
    scores = scores.index_fill(0, torch.tensor([PADDING]), -torch.inf)
    chosen = scores.topk(max(1, len(scores) // times)).indices
    return torch.zeros_like(scores, dtype=torch.bool).index_fill_(0, chosen, True).unsqueeze(1)


def dropout_divergence(log_alpha: Tensor) -> Tensor:
    """Return the divergence of Gaussian dropout from the log-uniform prior, per element.

    It falls to zero as the variance alpha of the multiplicative noise grows: what is not needed
    drowns in noise.

    Example:
        >>> dropout_divergence(torch.tensor([-5.0, 0.0, 10.0])).round(decimals=2)
        tensor([3.12, 0.43, 0.00])

    Reference: Molchanov, Ashukha and Vetrov, Variational dropout sparsifies deep neural networks
    (2017), equation 14.
    """
    rise = 0.63576 * torch.sigmoid(1.87320 + 1.48695 * log_alpha)
    return 0.63576 - rise + 0.5 * torch.nn.functional.softplus(-log_alpha)
