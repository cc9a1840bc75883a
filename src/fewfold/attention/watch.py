"""Looking over the shoulder of attention, wherever in a model it is."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch

from fewfold.attention.shapes import Layout
from fewfold.support import Support

__all__ = ["Attended", "is_watched", "note", "watch_attention"]


@dataclass(frozen=True, eq=False)
class Attended:
    """What one call of `sparse_attention` attended to.

    Attributes:
        support: atoms are positions of keys; rows are the queries, `(..., heads, L)` flattened.
        shape: `(..., heads, L, S)`, of the weights.
    """

    support: Support
    shape: torch.Size

    def head(self, *index: int) -> Support:
        """The support of one head, one index for each dimension before the queries."""
        *batch, queries, _ = self.shape
        if len(index) != len(batch) or any(
            not -n <= i < n for i, n in zip(index, batch, strict=True)
        ):
            raise ValueError(f"a head has an index in each of {tuple(batch)}, got {index}")
        first = 0
        for i, n in zip(index, batch, strict=True):
            first = first * n + i % n
        whole, first = self.support, first * queries
        mine = (whole.row >= first) & (whole.row < first + queries)
        return Support(whole.weights[mine], whole.atoms[mine], whole.row[mine] - first, queries)

    @property
    def density(self) -> float:
        """The share of all pairs of a query and a key that has any weight."""
        return len(self.support.weights) / max(self.shape.numel(), 1)


_LISTENERS: ContextVar[tuple[list[Attended], ...]] = ContextVar("listeners", default=())


@contextmanager
def watch_attention() -> Iterator[list[Attended]]:
    """Collect what every call of `sparse_attention` within attends to, in the order of the calls.

    It works for whatever calls it: `MultiheadAttention`, the Hopfield modules (a call for each
    step), models of Hugging Face after `register_attention`. Weights come without gradient and
    before dropout. What is compiled or under a transform of `torch.func` is not seen.

    Example:
        >>> import torch, fewfold as ff
        >>> attention = ff.MultiheadAttention(8, 2, ff.Gini())
        >>> with ff.attention.watch_attention() as calls:
        ...     out = attention(torch.randn(3, 5, 8), is_causal=True)
        >>> calls[0].shape, calls[0].head(2, 1).counts[0]
        (torch.Size([3, 2, 5, 5]), tensor(1))
    """
    calls: list[Attended] = []
    token = _LISTENERS.set((*_LISTENERS.get(), calls))
    try:
        yield calls
    finally:
        _LISTENERS.reset(token)


def is_watched() -> bool:
    """Whether anybody looks."""
    return not torch.compiler.is_compiling() and bool(_LISTENERS.get())


def note(support: Support, layout: Layout) -> None:
    """Tell those who look."""
    for calls in _LISTENERS.get():
        calls.append(Attended(support, layout.shape))
