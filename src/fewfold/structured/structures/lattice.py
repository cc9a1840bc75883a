"""Paths through layers of states, in plain torch: the k best, the sum over all, and draws."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Lattice", "draw", "safe_logsumexp", "told"]


@dataclass(frozen=True, eq=False)
class Lattice:
    """Layers of S states, one of which is taken in each of the first `length` layers.

    Attributes:
        own: (rows, n, S) the score of each state.
        steps: (rows, n - 1, S, S) of each pair of neighbours, or (rows, 1, S, S) for all.
        start, stop: (rows, S) of the first and the last state.
        length: (rows,)
    """

    own: Tensor
    steps: Tensor
    start: Tensor
    stop: Tensor
    length: Tensor

    def step(self, layer: int) -> Tensor:
        """(rows, S, S) from a layer to the next."""
        return self.steps[:, layer if self.steps.shape[1] > 1 else 0]

    def k_best(self, k: int) -> tuple[Tensor, Tensor]:
        """The states (rows, k, n) of the k best paths, and their scores (rows, k)."""
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
        nothing = (self.length == 0).unsqueeze(1)  # is a path of its own, and the only one
        return found, torch.where(nothing, _only(k).to(values), values)

    def sums(self) -> list[Tensor]:
        """For each layer, (rows, S): the log sum of all paths up to each of its states."""
        found = [self.own[:, 0] + self.start]
        for j in range(1, self.own.shape[1]):
            ways = found[-1].unsqueeze(2) + self.step(j - 1)
            grown = safe_logsumexp(ways, 1) + self.own[:, j]
            found.append(torch.where((j < self.length).unsqueeze(1), grown, found[-1]))
        return found

    def log_partition(self) -> Tensor:
        """(rows,) the log sum of all paths."""
        total = safe_logsumexp(self.sums()[-1] + self.stop, 1)
        return torch.where(self.length == 0, 0.0, total)

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        """(count, rows, n) states of paths drawn in proportion to exp(score), last state first."""
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


def told(structures: Tensor, values: Tensor) -> Tensor:
    """Structures (rows, ...), all NaN where the value (rows,) is no number: NaN or +inf."""
    odd = values.isnan() | (values == math.inf)
    if not bool(odd.any()):
        return structures
    odd = odd.view(-1, *[1] * (structures.dim() - 1))
    return structures.to(values.dtype).masked_fill(odd, math.nan)


def draw(logits: Tensor, generator: torch.Generator | None) -> Tensor:
    """One of the last dimension, in proportion to exp(logit): the first of exponential clocks."""
    clocks = torch.empty_like(logits, memory_format=torch.contiguous_format)
    clocks.exponential_(generator=generator).clamp_(min=1e-300)
    return (logits - clocks.log()).argmax(-1)


def _only(k: int) -> Tensor:
    """Zero for the first of k, -inf for the rest."""
    values = torch.full((k,), -math.inf)
    values[0] = 0
    return values
