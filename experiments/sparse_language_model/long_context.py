"""Language model that also attends to its last words, and to a memory of all words before them."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fewfold as ff
from experiments.language_model.run import LanguageModel, Text


@dataclass(frozen=True)
class Context:
    """What a model sees besides the state of its GRU.

    Attributes:
        window: number of last words that it attends to by 1.5-entmax; 0 for none.
        functions: number of basis functions of the continuous memory of the words before them; 0
            for no memory.
    """

    window: int = 0
    functions: int = 0


class LongContext(nn.Module):
    """Adds to hidden vectors what they attend to in the past, chunk by chunk.

    As in the infinity-former, truncated parabolas placed by the scores of query and signal read the
    memory, and no gradient flows into vectors of earlier chunks. A vector that leaves the window
    is in the memory from the next chunk on.

    Reference: Martins, Marinho and Martins, "Infinity-former: infinite memory transformer", 2022.
    """

    def __init__(self, dim: int, context: Context) -> None:
        super().__init__()
        if context.window < 1:
            raise ValueError(f"window must be at least 1, got {context.window}")
        self.window = context.window
        self.query, self.key, self.value, self.out = (nn.Linear(dim, dim) for _ in range(4))
        self.memory: ff.ContinuousMemory | None = None
        if context.functions:
            basis = ff.continuous.GaussianBasis.grid(context.functions, [0.01, 0.05])
            self.memory = ff.ContinuousMemory(basis)
            self.reader = ff.ContinuousAttention(dim, basis, locator=ff.continuous.SignalHeads())
        self.recent: Tensor | None = None

    def forget(self) -> None:
        """Drop the past, before another text."""
        self.recent = None
        if self.memory is not None:
            self.memory.forget()

    def forward(self, hidden: Tensor) -> Tensor:
        """Return (n, T, dim) for the next vectors (n, T, dim) of n texts, and remember them."""
        every = hidden if self.recent is None else torch.cat([self.recent, hidden], 1)
        before, length = every.shape[1] - hidden.shape[1], hidden.shape[1]
        age = torch.arange(length).unsqueeze(1) + before - torch.arange(before + length)
        mask = (age >= 0) & (age < self.window)
        found: Tensor = self.out(
            ff.sparse_attention(self.query(hidden), self.key(every), self.value(every), mask=mask)
        )
        if self.memory is not None:
            if self.memory.signal is not None:
                found = found + self.reader(hidden, self.memory.signal)
            self._remember(every.detach()[:, : -self.window])
        self.recent = every.detach()[:, -self.window :]
        return hidden + found

    def _remember(self, leaving: Tensor) -> None:
        """Move the vectors that leave the window into the memory."""
        if self.memory is not None and leaving.shape[1]:
            self.memory.update(leaving)


class LongLanguageModel(LanguageModel):
    """The GRU language model with a `LongContext` before its output layer."""

    def __init__(self, text: Text, width: int, dropout: float, context: Context) -> None:
        super().__init__(text, width, dropout, sparse=False)
        self.context = LongContext(width - 1, context)

    def forward(self, words: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return queries as `LanguageModel` does; without a state the past is forgotten."""
        if state is None:
            self.context.forget()
        vectors = F.embedding(words, self.table)[..., :-1]
        hidden, state = self.gru(self.dropout(vectors), state)
        seen = self.context(hidden.transpose(0, 1)).transpose(0, 1)
        queries = F.pad(self.dropout(seen), (0, 1), value=1.0)
        return queries.flatten(0, 1), state.detach()


def build(text: Text, width: int, dropout: float, context: Context) -> LanguageModel:
    """Return an untrained model, without a `LongContext` if the context has no window."""
    if context.window:
        return LongLanguageModel(text, width, dropout, context)
    return LanguageModel(text, width, dropout, sparse=False)
