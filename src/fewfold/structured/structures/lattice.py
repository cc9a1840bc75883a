"""Paths through layers of states, in plain torch: k best paths, log-partition and sampling."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fewfold._random import exponential

__all__ = ["Lattice", "draw", "nan_where_invalid", "safe_logsumexp"]


@dataclass(frozen=True, eq=False)
class Lattice:
    """Layers of S states; a path takes one state in each of the first `length` layers.

    Attributes:
        own: (rows, n, S) score of each state.
        steps: (rows, n - 1, S, S) transition scores per layer, or (rows, 1, S, S) for all layers.
        start, stop: (rows, S) scores of the first and of the last state.
        length: (rows,) number of layers.
    """

    own: Tensor
    steps: Tensor
    start: Tensor
    stop: Tensor
    length: Tensor

    def step(self, layer: int) -> Tensor:
        """Transition scores from a layer to the next, (rows, S, S)."""
        return self.steps[:, layer if self.steps.shape[1] > 1 else 0]

    def k_best(self, k: int) -> tuple[Tensor, Tensor]:
        """States (rows, k, n) of the k best paths, and their scores (rows, k)."""
        rows, n, states = self.own.shape
        lists = self.own.new_full((rows, states, k), -math.inf)
        lists[:, :, 0] = self.own[:, 0] + self.start
        stay = torch.arange(states * k).view(states, k).expand(rows, -1, -1)
        back = [stay]
        for j in range(1, n):
            ways = lists.unsqueeze(3) + self.step(j - 1).unsqueeze(2)
            best = ways.flatten(1, 2).topk(k, 1)
            live = (j < self.length).view(-1, 1, 1)
            grown = best.values.transpose(1, 2) + self.own[:, j].unsqueeze(2)
            lists = torch.where(live, grown, lists)
            back.append(torch.where(live, best.indices.transpose(1, 2), stay))
        values, way = (lists + self.stop.unsqueeze(2)).flatten(1).topk(k, 1)
        found = torch.empty(rows, k, n, dtype=torch.int64)
        for j in range(n - 1, -1, -1):
            found[:, :, j] = way // k
            way = back[j].flatten(1).gather(1, way)
        empty = (self.length == 0).unsqueeze(1)  # the empty path is the only one
        return found, torch.where(empty, _one_zero(k).to(values), values)

    def sums(self) -> list[Tensor]:
        """Forward log-sums: for each layer, (rows, S) over all paths that end in each state."""
        found = [self.own[:, 0] + self.start]
        for j in range(1, self.own.shape[1]):
            ways = found[-1].unsqueeze(2) + self.step(j - 1)
            grown = safe_logsumexp(ways, 1) + self.own[:, j]
            found.append(torch.where((j < self.length).unsqueeze(1), grown, found[-1]))
        return found

    def log_partition(self) -> Tensor:
        """Log of the sum of exp(score) over all paths, (rows,)."""
        total = safe_logsumexp(self.sums()[-1] + self.stop, 1)
        return torch.where(self.length == 0, 0.0, total)

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        """Draw paths with probability proportional to exp(score), states (count, rows, n).

        Backward sampling: the last state is drawn first.
        """
        rows, n, _ = self.own.shape
        sums, row = self.sums(), torch.arange(rows)
        state = draw((sums[-1] + self.stop).expand(count, -1, -1), generator)
        found = torch.empty(count, rows, n, dtype=torch.int64)
        for j in range(n - 1, -1, -1):
            if j + 1 < n:
                into = self.step(j).transpose(1, 2)[row, state]
                before = draw(sums[j] + into, generator)
                state = torch.where(j + 1 < self.length, before, state)
            found[:, :, j] = state
        return found


def safe_logsumexp(values: Tensor, dim: int) -> Tensor:
    """Log-sum-exp whose gradient is zero, not NaN, where all values are -inf."""
    top = values.detach().amax(dim, keepdim=True)
    top = torch.where(top.isfinite(), top, 0.0)
    total = (values - top).exp().sum(dim)
    none = total == 0
    return torch.where(none, -math.inf, torch.where(none, 1.0, total).log() + top.squeeze(dim))


def nan_where_invalid(structures: Tensor, values: Tensor) -> Tensor:
    """Replace structures (rows, ...) by NaN where their value (rows,) is NaN or +inf."""
    invalid = values.isnan() | (values == math.inf)
    if not bool(invalid.any()):
        return structures
    invalid = invalid.view(-1, *[1] * (structures.dim() - 1))
    return structures.to(values.dtype).masked_fill(invalid, math.nan)


def draw(logits: Tensor, generator: torch.Generator | None) -> Tensor:
    """Sample an index of the last dimension from softmax(logits), by an exponential race."""
    clocks = exponential(logits.shape, logits.device, dtype=logits.dtype, generator=generator)
    return (logits - clocks.clamp_(min=1e-300).log()).argmax(-1)


def _one_zero(k: int) -> Tensor:
    """Zero for the first of k entries, -inf for the rest."""
    values = torch.full((k,), -math.inf)
    values[0] = 0
    return values
