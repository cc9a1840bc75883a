"""Base class of structures with a dynamic program: one recursion, evaluated in any semiring."""

import math
from abc import abstractmethod

import torch
from torch import Tensor

from fewfold.structured.structures.batch_rows import clone_if_inference, flatten_with_grad
from fewfold.structured.structures.lattice import nan_where_invalid
from fewfold.structured.structures.semirings import BEST, LOG_SUM, KBestRing, SampleRing, Semiring
from fewfold.structured.structures.structure import Structure

__all__ = ["DynamicProgram", "present_first"]


class DynamicProgram(Structure):
    """A structure with a dynamic program that derives every structure in exactly one way."""

    @abstractmethod
    def inside(self, scores: Tensor, ring: Semiring) -> Tensor:
        """Reduce the values of all structures of each row in a semiring; self is flat.

        Args:
            scores: `(rows, *event)` float64, -inf where a part cannot be used.
            ring: see `fewfold.structured.structures.semirings`.

        Returns:
            (rows,), or (k, rows) for the k best; -inf where no structure is feasible.
        """

    def plain_best(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        parts, values = self._parts_by_gradient(scores, BEST)
        return nan_where_invalid(parts[0], values[0]), values[0] != -math.inf

    def _k_best_parts(self, scores: Tensor, k: int, event: torch.Size) -> tuple[Tensor, Tensor]:
        parts, values = self._parts_by_gradient(scores, KBestRing(k))
        missing = values == -math.inf
        parts &= ~missing.view(*missing.shape, *[1] * len(event))
        return parts.transpose(0, 1).flatten(0, 1), values.T

    def log_partition(self, scores: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Log of the sum of exp(score) over all structures; its gradient is the marginals.

        Args:
            scores: `(..., *event)`.
            mask: as in `sparsemap`.

        Returns:
            (...,), differentiable in the scores and the additional scores; -inf where no
            structure is feasible.
        """
        rows, flat, batch = flatten_with_grad(self, scores, mask)
        flat = flat.with_additional([value.double() for value in flat.additional])
        total = flat.inside(rows.double(), LOG_SUM)
        return total.view(batch).to(scores.dtype)

    def _draws(self, scores: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
        many = self.select_rows(torch.arange(len(scores)).repeat(n))
        parts, _ = many._parts_by_gradient(
            scores.expand(n, *scores.shape).flatten(0, 1), SampleRing(generator)
        )
        return parts[0]

    def _parts_by_gradient(self, scores: Tensor, ring: Semiring) -> tuple[Tensor, Tensor]:
        """Values (k, rows), and the parts `(k, rows, *event)` of each, read off its gradient."""
        with torch.inference_mode(False), torch.enable_grad():
            own = clone_if_inference(scores).detach().requires_grad_()
            structure = self.with_additional(
                [clone_if_inference(value).detach() for value in self.additional]
            )
            values = structure.inside(own, ring)
            values = values if values.dim() > 1 else values.unsqueeze(0)
            parts = [
                torch.autograd.grad(one.sum(), own, retain_graph=place + 1 < len(values))[0] > 0.5
                for place, one in enumerate(values)
            ]
        return torch.stack(parts), values.detach()


def present_first(present: Tensor) -> tuple[Tensor, Tensor]:
    """Stable order (rows, n) that puts present elements first, and their number (rows,)."""
    return present.long().argsort(dim=1, descending=True, stable=True), present.sum(1)
