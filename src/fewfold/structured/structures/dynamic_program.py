"""Structures that a dynamic program sums over: one recursion answers every question."""

import math
from abc import abstractmethod

import torch
from torch import Tensor

from fewfold.structured.structures.lattice import told
from fewfold.structured.structures.semirings import BEST, LOG_SUM, Drawn, KBestRing, Semiring
from fewfold.structured.structures.sequence import live
from fewfold.structured.structures.structure import Structure, kept

__all__ = ["Program", "front"]


class Program(Structure):
    """A structure with a dynamic program in which every structure is made in exactly one way."""

    @abstractmethod
    def inside(self, scores: Tensor, ring: Semiring) -> Tensor:
        """What all structures of each row come to in a semiring; self is flat.

        Args:
            scores: `(rows, *event)` float64, -inf where a part cannot be used.
            ring: see `fewfold.structured.structures.semirings`.

        Returns:
            (rows,), or (k, rows) for the k best; -inf where there is none.
        """

    def plain_best(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        parts, values = self._traced(scores, BEST)
        return told(parts[0], values[0]), values[0] != -math.inf

    def _k_best_parts(self, scores: Tensor, k: int, event: torch.Size) -> tuple[Tensor, Tensor]:
        parts, values = self._traced(scores, KBestRing(k))
        none = values == -math.inf
        parts &= ~none.view(*none.shape, *[1] * len(event))
        return parts.transpose(0, 1).flatten(0, 1), values.T

    def log_partition(self, scores: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Log of the sum of exp(score) over all structures; its gradient are the marginals.

        Args:
            scores: `(..., *event)`.
            mask: as in `sparsemap`.

        Returns:
            (...,), differentiable in the scores and the additional ones; -inf where there is none.
        """
        rows, made, batch = live(self, scores, mask)
        made = made.with_additional([value.double() for value in made.additional])
        total = made.inside(rows.double(), LOG_SUM)
        return total.view(batch).to(scores.dtype)

    def _draws(self, scores: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
        many = self.rows(torch.arange(len(scores)).repeat(n))
        parts, _ = many._traced(scores.expand(n, *scores.shape).flatten(0, 1), Drawn(generator))
        return parts[0]

    def _traced(self, scores: Tensor, ring: Semiring) -> tuple[Tensor, Tensor]:
        """`(k, rows, *event)` bool, the parts of each result, and (k, rows) their values."""
        with torch.inference_mode(False), torch.enable_grad():
            own = kept(scores).detach().requires_grad_()
            made = self.with_additional([kept(value).detach() for value in self.additional])
            values = made.inside(own, ring)
            values = values if values.dim() > 1 else values.unsqueeze(0)
            parts = [
                torch.autograd.grad(one.sum(), own, retain_graph=place + 1 < len(values))[0] > 0.5
                for place, one in enumerate(values)
            ]
        return torch.stack(parts), values.detach()


def front(there: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, n) an order with those that are there in front, and (rows,) how many these are."""
    return there.long().argsort(dim=1, descending=True, stable=True), there.sum(1)
