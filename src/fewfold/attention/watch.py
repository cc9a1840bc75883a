"""Recording of the attention supports computed inside a model."""

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
    """Recorded attention weights of one call of `sparse_attention`.

    Attributes:
        support: atoms are positions of keys; rows are the queries, `(..., heads, L)` flattened.
        shape: shape of the weights, `(..., heads, L, S)`.
    """

    support: Support
    shape: torch.Size

    def head(self, *index: int) -> Support:
        """Support of one head, given by one index per batch dimension."""
        *batch, queries, _ = self.shape
        if len(index) != len(batch) or any(
            not -n <= i < n for i, n in zip(index, batch, strict=True)
        ):
            raise ValueError(f"a head has an index in each of {tuple(batch)}, got {index}")
        first = 0
        for i, n in zip(index, batch, strict=True):
            first = first * n + i % n
        whole, first = self.support, first * queries
        of_head = (whole.row >= first) & (whole.row < first + queries)
        return Support(
            whole.weights[of_head], whole.atoms[of_head], whole.row[of_head] - first, queries
        )

    @property
    def density(self) -> float:
        """Fraction of the pairs (query, key) with nonzero weight."""
        return len(self.support.weights) / max(self.shape.numel(), 1)


_LISTENERS: ContextVar[tuple[list[Attended], ...]] = ContextVar("listeners", default=())


@contextmanager
def watch_attention() -> Iterator[list[Attended]]:
    """Context manager that records the support of every call of `sparse_attention`, in order.

    Records calls made by `MultiheadAttention`, by the Hopfield modules (one per step) and by
    Hugging Face models after `register_attention`. Weights are detached and taken before dropout.
    Calls that are compiled or under a transform of `torch.func` are not recorded.

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
    """Whether a `watch_attention` context is active."""
    return not torch.compiler.is_compiling() and bool(_LISTENERS.get())


def note(support: Support, layout: Layout) -> None:
    """Append a support to the records of all active contexts."""
    for calls in _LISTENERS.get():
        calls.append(Attended(support, layout.shape))
