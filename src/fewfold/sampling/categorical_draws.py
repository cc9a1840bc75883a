"""Sampling from categorical distributions with explicit probabilities."""

import math

import torch
from torch import Tensor

from fewfold.sampling.batch_part import BatchPart, uniform_rows
from fewfold.sampling.proposal import Given, check_ids

__all__ = ["GivenExact", "draw_places"]


def draw_places(
    probs: Tensor, n: int, generator: torch.Generator | None, part: BatchPart | None = None
) -> Tensor:
    """Sample `n` columns per row of probabilities (rows, k) with replacement: (rows, n)."""
    cumulative = probs.double().cumsum(1)
    chance = uniform_rows((len(probs), n), probs.device, generator, part)
    place = torch.searchsorted(cumulative, chance * cumulative[:, -1:], right=True)
    return place.clamp_(max=probs.shape[1] - 1)


class GivenExact(Given):
    """Exact softmax of logits (queries, items), for small catalogues and for comparison."""

    def __init__(self, logits: Tensor, *, shared: bool) -> None:
        log_q = logits.double().log_softmax(1)
        if not log_q.isfinite().all():
            raise ValueError("queries must be finite, and so must their scores")
        if shared:
            log_q = log_q.logsumexp(0, keepdim=True) - math.log(max(len(log_q), 1))
        self.shared = shared
        self._log_q = log_q

    def sample(self, n: int, *, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        ids = draw_places(self._log_q.exp(), n, generator, None if self.shared else self.part)
        log_q = self._log_q.gather(1, ids).float()
        return (ids[0], log_q[0]) if self.shared else (ids, log_q)

    def log_prob(self, ids: Tensor, row: Tensor | None = None) -> Tensor:
        check_ids(ids, self._log_q.shape[1])
        if self.shared:
            return self._log_q[0, ids].float()
        if row is None:
            return self._log_q.gather(1, ids).float()
        return self._log_q[row, ids].float()
