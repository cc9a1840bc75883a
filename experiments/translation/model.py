"""Recurrent translation model whose attention and output probabilities may be sparse."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import fewfold as ff
from experiments.translation.corpus import BEGIN, PAD
from experiments.unigram import log_alpha

State = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Method:
    """The alphas of the entmax of the output layer and of attention; 1 is softmax."""

    output: float
    attention: float


@dataclass(frozen=True)
class Memory:
    """Encoded source sentences: keys and values (n, S, width), mask (n, 1, S)."""

    keys: Tensor
    values: Tensor
    mask: Tensor

    def repeat(self, count: int) -> "Memory":
        """Return `count` copies of the memory of a single sentence."""
        return Memory(*(t.expand(count, -1, -1) for t in (self.keys, self.values, self.mask)))


class Translator(nn.Module):
    """Bidirectional GRU encoder, and two GRU layers as decoder with attention between them.

    The second layer reads what the first attends to, so that training needs no loop over words. The
    output layer shares the table of target words; its bias begins as that of the unigram model with
    these `counts`.
    """

    def __init__(
        self, source: int, counts: Tensor, width: int, dropout: float, method: Method
    ) -> None:
        super().__init__()
        self.method, self.omega = method, ff.Tsallis(method.attention)
        self.source = nn.Embedding(source, width, padding_idx=PAD)
        self.target = nn.Embedding(len(counts), width, padding_idx=PAD)
        for table in (self.source, self.target):
            nn.init.normal_(table.weight, std=width**-0.5)
        self.encoder = nn.GRU(width, width // 2, bidirectional=True, batch_first=True)
        self.key, self.value = (nn.Linear(width, width) for _ in range(2))
        self.start = nn.Linear(width, 2 * width)
        self.first = nn.GRU(width, width, batch_first=True)
        self.second = nn.GRU(2 * width, width, batch_first=True)
        self.join = nn.Linear(2 * width, width)
        self.bias = nn.Parameter(log_alpha(counts / counts.sum(), method.output))
        self.dropout = nn.Dropout(dropout)

    def encode(self, source: Tensor) -> tuple[Memory, State]:
        """Return the memory of padded ids (n, S), and the state of the decoder before any word."""
        mask = source != PAD
        vectors = self.dropout(self.source(source))
        packed = pack_padded_sequence(vectors, mask.sum(1), batch_first=True, enforce_sorted=False)
        hidden, _ = pad_packed_sequence(self.encoder(packed)[0], batch_first=True)
        hidden = self.dropout(hidden)
        mean = hidden.sum(1) / mask.sum(1, keepdim=True)
        first, second = self.start(mean).tanh().unsqueeze(0).chunk(2, -1)
        state = first.contiguous(), second.contiguous()
        return Memory(self.key(hidden), self.value(hidden), mask.unsqueeze(1)), state

    def decode(self, words: Tensor, state: State, memory: Memory) -> tuple[Tensor, State, Tensor]:
        """Return hidden vectors (n, T, width) behind words (n, T), the state, and the queries."""
        queries, first = self.first(self.dropout(self.target(words)), state[0])
        found = ff.sparse_attention(
            queries, memory.keys, memory.values, self.omega, mask=memory.mask
        )
        hidden, second = self.second(torch.cat([queries, found], -1), state[1])
        joined = self.join(torch.cat([hidden, found], -1)).tanh()
        return self.dropout(joined), (first, second), queries

    def loss(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the mean entmax loss of the words of padded targets that end with END."""
        memory, state = self.encode(source)
        taken = target != PAD
        hidden = self.decode(shifted(target), state, memory)[0][taken]
        return ff.entmax_loss(self.scores(hidden), target[taken], self.method.output)

    def scores(self, hidden: Tensor) -> Tensor:
        """Return the scores (..., target words) of the next word."""
        return F.linear(hidden, self.target.weight, self.bias)

    def probs(self, hidden: Tensor) -> Tensor:
        """Return the probabilities (..., target words) of the next word."""
        return ff.entmax(self.scores(hidden), self.method.output)

    def step(self, words: Tensor, state: State, memory: Memory) -> tuple[Tensor, State]:
        """Return the log-probabilities (n, target words) behind words (n,), and the state.

        Padding and begin, which no text has, are given none.
        """
        hidden, state, _ = self.decode(words.unsqueeze(1), state, memory)
        log_probs = self.probs(hidden[:, 0]).log()
        log_probs[:, [PAD, BEGIN]] = -torch.inf
        return log_probs, state


def shifted(target: Tensor) -> Tensor:
    """Return the words that come before each word of targets (n, T)."""
    return F.pad(target[:, :-1], (1, 0), value=BEGIN)
