"""Convolutional sentence classifier over any table of word vectors."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTHS = (3, 4, 5)


class TextCNN(nn.Module):
    """Convolutions over three, four and five words, max pooling over time, one linear layer.

    What a filter says to a word at each of its places is worked out once for the different words of
    a batch, and added up where they stand. That is a third of the work of a convolution over all
    places, with the same result, and a maximum has its gradient from one place.

    Args:
        table: ids (n,) to vectors (n, dim); that of word 0, the padding, is zero.
        dim: of the vectors.
        classes: how many.
        filters: of each of the three widths.
        dropout: on the maxima.

    Reference: Kim, "Convolutional neural networks for sentence classification", 2014.
    """

    def __init__(
        self, table: nn.Module, dim: int, classes: int, filters: int = 100, dropout: float = 0.5
    ) -> None:
        super().__init__()
        self.table = table
        convolutions = [nn.Conv1d(dim, filters, n) for n in WIDTHS]  # for their first values
        taps = [layer.weight.detach().permute(1, 2, 0) for layer in convolutions]
        self.taps = nn.Parameter(torch.cat(taps, 1).contiguous())  # (dim, 3 + 4 + 5, filters)
        biases = [layer.bias for layer in convolutions if layer.bias is not None]
        self.bias = nn.Parameter(torch.cat(biases).detach())
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(len(WIDTHS) * filters, classes)

    def forward(self, words: Tensor) -> Tensor:
        """Return logits (batch, classes)."""
        words = F.pad(words, (0, max(0, max(WIDTHS) - words.shape[1])))
        different, place = words.unique(return_inverse=True)
        responses = self.table(different) @ self.taps.flatten(1)
        maxima: Tensor = _Maxima.apply(responses.view(-1, self.taps.shape[2]), place)
        scores: Tensor = self.output(self.dropout((maxima + self.bias).relu()))
        return scores


class _Maxima(torch.autograd.Function):
    """Filter responses summed over the words they cover, maximised over positions.

    Row 12 word + tap of the responses is what all filters say to the word at that tap.
    """

    @staticmethod
    def forward(ctx: Any, responses: Tensor, place: Tensor) -> Tensor:
        first, maxima, winners = place * sum(WIDTHS), [], []
        for width in WIDTHS:
            length = place.shape[1] - width + 1
            total = F.embedding(first[:, :length], responses)
            for tap in range(1, width):
                total += F.embedding(first[:, tap : tap + length] + tap, responses)
            best = total.max(1)
            maxima.append(best.values)
            winners += [first.gather(1, best.indices + tap) + tap for tap in range(width)]
            first = first + width
        ctx.save_for_backward(torch.stack(winners))  # (12, batch, filters) rows
        ctx.shape = responses.shape
        return torch.cat(maxima, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (winners,) = ctx.saved_tensors
        parts = gradient.split(ctx.shape[1], 1)
        of_tap = [part for part, n in zip(parts, WIDTHS, strict=True) for _ in range(n)]
        gathered = gradient.new_zeros(ctx.shape)
        return gathered.scatter_add_(0, winners.flatten(0, 1), torch.cat(of_tap)), None
