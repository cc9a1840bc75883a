"""The language model with the published regularisation: locked dropout and dropped weights."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.ptb_language_model.models import LanguageModel, State


@dataclass(frozen=True)
class Settings:
    """Training settings, the same for every table; the dropout and penalties are published."""

    least: int = 20  # epochs
    most: int = 60
    patience: int = 4  # epochs without a better validation perplexity after which training stops
    enough: float = 0.001  # share by which a better one must be below the best
    factor: float = 0.5  # of the learning rate after an epoch that is not better
    batch: int = 20
    length: int = 70
    width: int = 256
    samples: int | None = 1000  # words drawn for a batch, by popularity; None: the full softmax
    lr: float = 1e-2
    rate: float = 3.0  # times lr is what the rows of the table learn with
    clip: float = 0.25
    dropout: float = 0.4  # of states under the softmax
    word: float = 0.1  # of words at the input
    input: float = 0.4  # of units of their vectors
    between: float = 0.25  # of units between the layers
    weight: float = 0.5  # of hidden-to-hidden weights
    decay: float = 1.2e-6
    activation: float = 2.0  # penalty of squared activations
    change: float = 1.0  # penalty of their squared changes from word to word


class DropLSTM(nn.Module):
    """Two LSTM layers with dropped hidden-to-hidden weights, and locked dropout between them.

    Args:
        width: of inputs and states.
        weight: probability that a hidden-to-hidden weight is dropped, for a whole batch.
        between: probability that a unit of the first layer is dropped, at all positions.

    Reference: Merity, Keskar and Socher, Regularizing and optimizing LSTM language models (2018).
    """

    def __init__(self, width: int, weight: float, between: float) -> None:
        super().__init__()
        self.weight, self.between = weight, between
        self.layers = nn.ModuleList([nn.LSTM(width, width), nn.LSTM(width, width)])

    def forward(self, input: Tensor, state: State | None) -> tuple[Tensor, State]:
        """Return hidden states (length, batch, width) and the last states, as `nn.LSTM` does."""
        if state is None:
            zero = input.new_zeros(len(self.layers), *input.shape[1:])
            state = (zero, zero)
        last: list[tuple[Tensor, Tensor]] = []
        for depth, layer in enumerate(self.layers):
            if depth:
                input = locked(input, self.between if self.training else 0.0)
            before, recurrent, *biases = layer.all_weights[0]
            recurrent = F.dropout(recurrent, self.weight, self.training)
            first = (state[0][depth : depth + 1], state[1][depth : depth + 1])
            input, *its = torch.lstm(
                input, first, [before, recurrent, *biases], True, 1, 0.0, self.training, False,
                False,
            )  # fmt: skip
            last.append((its[0], its[1]))
        return input, (torch.cat([h for h, _ in last]), torch.cat([c for _, c in last]))


class RegularisedLanguageModel(LanguageModel):
    """Tied LSTM language model, regularised as published."""

    def __init__(self, table: nn.Module, counts: Tensor, settings: Settings) -> None:
        super().__init__(table, counts, settings)
        self.settings = settings
        self.lstm = DropLSTM(settings.width, settings.weight, settings.between)
        for parameter in self.lstm.parameters():
            nn.init.uniform_(parameter, -0.05, 0.05)

    def forward(self, words: Tensor, state: State | None) -> tuple[Tensor, State]:
        """Return queries (length * batch, width + 1) after each of the words (length, batch)."""
        queries, state, _ = self.regularised(words, state)
        return queries, state

    def regularised(self, words: Tensor, state: State | None) -> tuple[Tensor, State, Tensor]:
        """Return queries, the state, and the penalty of activations and of their changes."""
        drop = self.settings if self.training else Settings(word=0.0, input=0.0, dropout=0.0)
        vectors = self.table(words)
        if drop.word:  # a word is dropped at all its places
            keep = 1 - drop.word
            kept = torch.rand(len(self.bias)) < keep
            vectors = vectors * (kept[words] / keep).unsqueeze(-1)
        hidden, (h, c) = self.lstm(locked(vectors, drop.input), state)
        dropped = locked(hidden, drop.dropout)
        penalty = self.settings.activation * dropped.square().mean()
        if len(hidden) > 1:
            penalty = penalty + self.settings.change * hidden.diff(dim=0).square().mean()
        queries = F.pad(dropped, (0, 1), value=1.0)
        return queries.flatten(0, 1), (h.detach(), c.detach()), penalty


def locked(input: Tensor, p: float) -> Tensor:
    """Drop units (length, batch, width) of a column at all positions alike."""
    if not p:
        return input
    return input * F.dropout(torch.ones_like(input[:1]), p)
