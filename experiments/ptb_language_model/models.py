"""The language model, its tables, and the training of each."""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fewfold as ff
from experiments.language_model.run import batches
from fewfold.embeddings.coding.sparse_coding import learn_dictionary, nearest_code

State = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Budget:
    """Training settings, the same for every method."""

    epochs: float = 2
    batch: int = 20
    length: int = 35
    width: int = 256
    samples: int = 1000  # words drawn for a batch, by popularity
    lr: float = 1e-2
    rate: float = 3.0  # times lr is what the rows of the table learn with
    warmup: float = 0.1  # share of the steps with a rising learning rate; then it falls to 0
    dropout: float = 0.1
    clip: float = 1.0


@dataclass(frozen=True)
class Dense:
    """Dense table."""


@dataclass(frozen=True)
class LowRank:
    """Low-rank table."""

    rank: int
    shared_rate: float = 0.1  # times lr is what the matrix learns with


@dataclass(frozen=True)
class Anchored:
    """Anchor table, sparsified from a dense one during training."""

    anchors: int
    keep: int  # non-zeros per word, on average
    after: float = 0.75  # share of the steps with the dense table; 1: nothing is trained after it
    shared_rate: float = 0.1  # times lr is what the anchors learn with


@dataclass(frozen=True)
class Nearest:
    """Post-training code of the dense table by the nearest of its most frequent rows."""

    anchors: int
    width: int


@dataclass(frozen=True)
class KSvd:
    """Post-training code of the dense table by anchors learned with k-SVD."""

    anchors: int
    width: int


@dataclass(frozen=True)
class Axes:
    """Post-training code of the dense table: its largest entries in its principal axes."""

    keep: int  # per word, on average


Coded = Nearest | KSvd | Axes
Method = Dense | LowRank | Anchored | Nearest | KSvd | Axes


class Factors(nn.Module):
    """Low-rank embedding."""

    def __init__(self, words: int, width: int, rank: int) -> None:
        super().__init__()
        self.codes = nn.Embedding(words, rank, sparse=True)
        self.basis = nn.Parameter(torch.empty(rank, width))
        nn.init.orthogonal_(self.basis, gain=(width / rank) ** 0.5)
        nn.init.normal_(self.codes.weight, std=0.1)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the vectors of ids of any shape."""
        vectors: Tensor = self.codes(ids) @ self.basis
        return vectors


class LanguageModel(nn.Module):
    """Two-layer LSTM language model with tied embeddings.

    The score of a word is its row . state + its bias. The bias begins as the log of the word's
    frequency, so that before any training the model is nearly the unigram one.
    """

    def __init__(self, table: nn.Module, counts: Tensor, budget: Budget) -> None:
        super().__init__()
        self.table = table
        self.bias = nn.Parameter(((counts + 0.5) / counts.sum()).log())
        self.lstm = nn.LSTM(budget.width, budget.width, 2)
        self.dropout = nn.Dropout(budget.dropout)
        for parameter in self.lstm.parameters():
            nn.init.uniform_(parameter, -0.05, 0.05)

    def rows(self, ids: Tensor) -> Tensor:
        """Return the vectors of words with their biases appended."""
        return torch.cat([self.table(ids), self.bias[ids].unsqueeze(-1)], -1)

    def forward(self, words: Tensor, state: State | None) -> tuple[Tensor, State]:
        """Return queries (length * batch, width + 1) after each of the words (length, batch)."""
        hidden, (h, c) = self.lstm(self.dropout(self.table(words)), state)
        queries = F.pad(self.dropout(hidden), (0, 1), value=1.0)
        return queries.flatten(0, 1), (h.detach(), c.detach())


def table_of(method: Method, words: int, width: int) -> nn.Module:
    """Return the embedding for this many words."""
    if isinstance(method, LowRank):
        return Factors(words, width, method.rank)
    table = nn.Embedding(words, width, sparse=True)
    nn.init.normal_(table.weight, std=0.1)
    return table


def principal_axes(table: Tensor) -> Tensor:
    """Return orthonormal principal axes (d, d) of rows (words, d), by descending variance."""
    ascending: Tensor = torch.linalg.eigh(table.T @ table).eigenvectors
    return ascending.flip(1)


def optimizers_of(
    model: LanguageModel, method: Method, budget: Budget
) -> list[torch.optim.Optimizer]:
    """Return an optimiser for looked-up rows and one for the rest, from this step on."""
    table, betas, lr = model.table, (0.9, 0.99), budget.rate * budget.lr
    groups: list[dict[str, Any]] = [{"params": [model.bias, *model.lstm.parameters()]}]
    if isinstance(table, ff.AnchorEmbedding) and isinstance(method, Anchored):
        groups.append({"params": [table.anchors], "lr": method.shared_rate * budget.lr})
        inner = ff.optim.Adam([table.transform], lr, betas)
        # As many as there are: the places of the non-zeros are fixed by the first step.
        same = ff.embeddings.Narrowing(method.keep, method.keep, over=1, together=True)
        first: torch.optim.Optimizer = ff.proximal(inner, table, l1=0.0, keep=same)
    elif isinstance(table, Factors) and isinstance(method, LowRank):
        groups.append({"params": [table.basis], "lr": method.shared_rate * budget.lr})
        first = ff.optim.Adam([table.codes.weight], lr, betas)
    else:
        first = ff.optim.Adam(table.parameters(), lr, betas)
    return [first, torch.optim.Adam(groups, budget.lr, betas, fused=True)]


def coded(table: Tensor, method: Coded, seed: int) -> tuple[Tensor, int]:
    """Return the post-training code of a dense table, and its number of parameters."""
    if isinstance(method, Axes):
        anchors = principal_axes(table).T
        full = table @ anchors.T
        largest = full.abs().flatten().topk(method.keep * len(table)).values
        full = full * (full.abs() >= largest[-1])
        return full @ anchors, anchors.numel() + int(full.count_nonzero())
    if isinstance(method, KSvd):
        generator = torch.Generator().manual_seed(seed)
        found = learn_dictionary(
            table, method.anchors, method.width, signed=True, generator=generator
        )
        anchors, weights, slots = found.anchors, found.weights, found.slots
    else:
        anchors = table[: method.anchors]
        weights, slots = nearest_code(table, anchors, method.width)
    made = (weights.unsqueeze(1) @ anchors[slots]).squeeze(1)
    return made, anchors.numel() + int(weights.count_nonzero())


def size(table: nn.Module) -> int:
    """Number of parameters; for an anchor table the anchors and the non-zeros."""
    if isinstance(table, ff.AnchorEmbedding):
        return table.size()
    return sum(parameter.numel() for parameter in table.parameters())


@torch.no_grad()
def perplexity(model: LanguageModel, tokens: Tensor, budget: Budget) -> float:
    """Return the perplexity under the full softmax."""
    model.eval()
    rows = model.rows(torch.arange(len(model.bias)))
    state, total, count = None, 0.0, 0
    for words, after in batches(tokens, budget.batch, budget.length):
        queries, state = model(words, state)
        for some, their in zip(queries.split(128), after.split(128), strict=True):
            total += F.cross_entropy(some @ rows.T, their, reduction="sum").item()
        count += len(after)
    model.train()
    return math.exp(total / count)
