"""Dependency trees: the head of every word is another word or the root."""

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fewfold._native import dispatch
from fewfold.structured.sparsemap.sparsemap_operator import registered
from fewfold.structured.structures.arborescence import best_heads, draw_heads, log_total
from fewfold.structured.structures.batch_rows import flatten_with_grad
from fewfold.structured.structures.native_factors import NativeFactors
from fewfold.structured.structures.partition_kbest import best_trees, k_best_by_partition
from fewfold.structured.structures.projective import inside
from fewfold.structured.structures.semirings import best_of, log_sum_of, sample_of
from fewfold.structured.structures.structure import Structure

__all__ = ["DependencyTree"]


@registered
@dataclass(frozen=True)
class DependencyTree(Structure):
    """Trees over n words; scores are `(..., n, n)`.

    [h, m] is the score of the arc from head h to word m, and the diagonal [m, m] that of the arc
    from the root to m. Every word is connected to the root.

    A word whose incoming arcs are all masked is absent, and cannot be a head. So sentences of a
    batch may differ in length.

    Args:
        projective: whether arcs must not cross: the descendants of a word form a contiguous span.
        single_root: whether exactly one word is attached to the root.

    Example:
        >>> import torch, fewfold as ff
        >>> scores = torch.tensor([[0.9, 0.6, 0.3], [0.4, 0.7, 0.5], [0.1, 0.2, 0.4]])
        >>> ff.sparsemap(scores, DependencyTree())
        tensor([[0.7500, 0.4333, 0.2333],
                [0.2500, 0.5333, 0.4333],
                [0.0000, 0.0333, 0.3333]])

    References: Edmonds, "Optimum branchings", 1967; Eisner, "Three new probabilistic models for
    dependency parsing", 1996; Koo, Globerson, Carreras and Collins, "Structured prediction models
    via the matrix-tree theorem", 2007.
    """

    _: KW_ONLY
    projective: bool = False
    single_root: bool = False

    event_dim: ClassVar[int] = 2
    has_factor_kernel: ClassVar[bool] = True

    def check(self, event: torch.Size) -> None:
        if event[0] != event[1] or not event[0]:
            raise ValueError(
                "scores of a dependency tree must be square, by head and word with the root on the "
                f"diagonal, got {tuple(event)}"
            )

    def slots(self, event: torch.Size) -> Tensor:
        return torch.arange(event[0]).repeat(event[0])

    def width(self, event: torch.Size) -> int:
        return event[0]

    def plain_best(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        if self.projective:
            return self._plain_projective(scores)
        found = torch.zeros_like(scores, dtype=torch.bool)
        feasible = torch.ones(len(scores), dtype=torch.bool)
        for row, own in enumerate(scores):
            present = (~(own == -math.inf).all(0)).nonzero()[:, 0]
            heads = best_heads(own[present][:, present].tolist(), self.single_root)
            feasible[row] = heads is not None
            if heads:
                found[row, present[heads], present] = True
        return found, feasible

    def _plain_projective(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            own = scores.detach().requires_grad_()
            value = inside(own, self.single_root, best_of)
            (grad,) = torch.autograd.grad(value.sum(), own)
        return grad > 0.5, value.detach() != -math.inf

    def native(self, request: Any, scores: Tensor) -> tuple[Any, ...] | None:
        found: tuple[Any, ...] = dispatch.kernel("sparsemap_dependencies")(
            request, self.projective, self.single_root
        )
        return found

    def native_best(self, scores: Tensor) -> tuple[Tensor, Tensor] | None:
        if not dispatch.enabled():
            return None
        codes, values = self._k_best(scores, 1)
        return codes[:, 0], values[:, 0].nan_to_num(nan=0.0, neginf=-math.inf)

    def _k_best(self, scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
        n = scores.shape[1]
        if dispatch.enabled():
            kernel = dispatch.kernel("best_dependencies")
            return best_trees(kernel, scores, n, k, self.projective, self.single_root)
        codes = torch.full((len(scores), k, n), -1, dtype=torch.int32)
        values = torch.full((len(scores), k), -math.inf, dtype=torch.float64)
        for row, own in enumerate(scores):
            present = (~(own == -math.inf).all(0)).nonzero()[:, 0]
            for place, (code, value) in enumerate(self._ranked(own[present][:, present], k)):
                head, word = present[code // len(present)], present[code % len(present)]
                codes[row, place, word] = (head * n + word).int()
                values[row, place] = value
        return codes, values

    def _ranked(self, scores: Tensor, k: int) -> list[tuple[Tensor, float]]:
        """The k best trees of one instance without absent words."""
        n = len(scores)

        def solve(forced: list[int], forbidden: list[int]) -> tuple[Tensor, float] | None:
            allowed = scores.clone()
            for part in forced:
                allowed[torch.arange(n) != part // n, part % n] = -math.inf
            allowed.view(-1)[forbidden] = -math.inf
            if bool(
                (allowed == -math.inf).all(0).any()
            ):  # plain_best would treat that word as absent
                return None
            best, feasible = self.plain_best(allowed.unsqueeze(0))
            code = self.codes(best, scores.shape)[0]
            return (code, float(scores.flatten()[code].sum())) if feasible else None

        return k_best_by_partition(solve, k) if n else [(torch.zeros(0, dtype=torch.int64), 0.0)]

    def add_factors(self, factors: NativeFactors) -> Tensor | None:
        words, options = factors.event[0], (self.projective, self.single_root)
        factors.graph.add_dependencies(factors.uses(), words, *options)
        return None

    def count(self, event: torch.Size) -> int:
        n = event[0]
        if not self.projective:
            return int(n ** (n - 1) if self.single_root else (n + 1) ** (n - 1))
        if self.single_root:
            return math.comb(3 * n - 2, n - 1) // n
        return math.comb(3 * n, n) // (2 * n + 1)

    def enumerate(self, event: torch.Size) -> Tensor:
        n = event[0]
        words = torch.arange(n)
        heads = torch.cartesian_prod(*[words] * n).view(-1, n)
        last = heads
        for _ in range(n):
            last = last.gather(1, heads)
        keep = (heads.gather(1, last) == last).all(1)
        roots = heads == words
        if self.single_root:
            keep &= roots.sum(1) == 1
        if self.projective:
            first, second = torch.where(roots, -1, heads), words.expand_as(heads)
            low, high = torch.minimum(first, second), torch.maximum(first, second)
            inner = (low.unsqueeze(2) < low.unsqueeze(1)) & (low.unsqueeze(1) < high.unsqueeze(2))
            keep &= ~(inner & (high.unsqueeze(2) < high.unsqueeze(1))).any(2).any(1)
        return torch.nn.functional.one_hot(heads[keep], n).transpose(1, 2).bool()

    def log_partition(self, scores: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Log of the sum of exp(score) over all trees; its gradient is the marginals.

        Args:
            scores: `(..., n, n)`.
            mask: as in `sparsemap`.

        Returns:
            (...,), -inf where there is no tree.
        """
        rows, _, batch = flatten_with_grad(self, scores, mask)
        if self.projective:
            total = inside(rows.double(), self.single_root, log_sum_of)
        else:
            total = log_total(rows.double(), self.single_root)
        return total.view(batch).to(scores.dtype)

    def _draws(self, scores: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
        every = scores.expand(n, *scores.shape).flatten(0, 1)
        if self.projective:
            with torch.enable_grad():
                own = every.clone().requires_grad_()
                value = inside(own, self.single_root, sample_of(generator))
                (grad,) = torch.autograd.grad(value.sum(), own)
            found = grad > 0.5
        else:
            heads = draw_heads(every, self.single_root, generator)
            found = torch.nn.functional.one_hot(heads, scores.shape[1]).transpose(1, 2).bool()
        return found & (every > -math.inf)
