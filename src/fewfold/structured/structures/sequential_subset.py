"""Subsets of k of n ordered bits, with scores for adjacent bits that are both on."""

import itertools
import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from fewfold._check import whole_number
from fewfold._native import dispatch
from fewfold.structured.sparsemap.sparsemap_operator import registered
from fewfold.structured.structures.batch_rows import flatten_with_grad
from fewfold.structured.structures.lattice import Lattice, draw, nan_where_invalid, safe_logsumexp
from fewfold.structured.structures.native_factors import NativeFactors
from fewfold.structured.structures.structure import Structure

__all__ = ["SequentialSubset"]


@registered
@dataclass(frozen=True, eq=False, repr=False)
class SequentialSubset(Structure):
    """k of n ordered bits, with a bonus for adjacent bits that are both on; scores `(..., n)`.

    The score of bits y is

        sum_i scores[i] y_i + sum_i bonus[i] y_i y_(i+1).

    A masked bit is off and still separates its neighbours.

    Args:
        k: number of bits that are on.
        bonus: a number, (n - 1,), or `(..., n - 1)` that broadcasts to the batch; a tensor gets a
            gradient. A negative bonus penalises adjacent bits, and -inf forbids them.
        at_most: whether fewer than k bits may be on.

    Example:
        >>> import torch, fewfold as ff
        >>> scores = torch.tensor([0.4, 0.1, -0.2, 0.3, 0.35])
        >>> ff.sparsemap(scores, ff.structures.SequentialSubset(2, bonus=0.25))
        tensor([0.4625, 0.4625, 0.0000, 0.5375, 0.5375])
    """

    k: int
    bonus: float | Tensor = 0.0
    _: KW_ONLY
    at_most: bool = False

    has_factor_kernel: ClassVar[bool] = True
    additional_names: ClassVar[tuple[str, ...]] = ("bonus",)

    def __post_init__(self) -> None:
        whole_number(self.k, "k", 0)
        if isinstance(self.bonus, (int, float)):  # stored as a tensor, like all additional scores
            given = torch.tensor(float(self.bonus), dtype=torch.float64)
            object.__setattr__(self, "bonus", given)
        elif not isinstance(self.bonus, Tensor) or not self.bonus.is_floating_point():
            got = self.bonus.dtype if isinstance(self.bonus, Tensor) else type(self.bonus).__name__
            raise TypeError(
                f"bonus must be a number or a floating-point tensor, got {got}; write "
                "torch.as_tensor(bonus, dtype=torch.float32)"
            )

    def check(self, event: torch.Size) -> None:
        n = event[0]
        if not n:
            raise ValueError("scores of SequentialSubset must have at least one bit, got none")
        if self.k > n and not self.at_most:
            raise ValueError(f"k must be at most the {n} bits there are, got {self.k}")
        shape = self._bonus.shape
        if shape and shape[-1] not in (1, n - 1):
            raise ValueError(
                f"bonus must be one number or end in n - 1 = {n - 1}, got shape {tuple(shape)}"
            )

    def flat(self, batch: torch.Size, event: torch.Size) -> Self:
        wanted = (*batch, event[0] - 1)
        try:
            wide = self._bonus.expand(wanted)
        except RuntimeError:
            raise ValueError(
                f"bonus must broadcast to {wanted}, got shape {tuple(self._bonus.shape)}"
            ) from None
        return replace(self, bonus=wide.reshape(batch.numel(), event[0] - 1))

    def additional_score(self, codes: Tensor, row: Tensor, event: torch.Size) -> Tensor:
        both = (codes[:, 1:] >= 0) & (codes[:, :-1] >= 0)
        return torch.where(both, self._bonus[row], 0.0).sum(1)

    def additional_score_vjp(
        self, by: Tensor, codes: Tensor, row: Tensor, batch: torch.Size, event: torch.Size
    ) -> tuple[Tensor, ...] | None:
        """Gradient of `<by, additional_score>` with respect to the bonus; self is not flat."""
        both = (codes[:, 1:] >= 0) & (codes[:, :-1] >= 0)
        own = torch.where(both, by.unsqueeze(1), 0.0)
        grad = own.new_zeros(batch.numel(), event[0] - 1).index_add_(0, row, own)
        grad = grad.view(*batch, event[0] - 1).sum_to_size(self._bonus.shape)
        return (grad.to(self._bonus),)

    def plain_best(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        codes, values = self._plain_k_best(scores, 1)
        value = values[:, 0].masked_fill(self._bonus.isnan().any(1), math.nan)  # even if k is 0
        return nan_where_invalid(codes[:, 0] >= 0, value), ~(value == -math.inf)

    def native(self, request: Any, scores: Tensor) -> tuple[Any, Any, Any] | None:
        found: tuple[Any, Any, Any] = dispatch.kernel("sparsemap_subsets")(
            request, self._subsets(scores)
        )
        return found

    def native_best(self, scores: Tensor) -> tuple[Tensor, Tensor] | None:
        if not dispatch.enabled():
            return None
        rows, n = scores.shape
        codes, values = torch.empty(rows, n, dtype=torch.int32), scores.new_empty(rows)
        dispatch.kernel("best_subsets")(
            scores, rows, self._subsets(scores), codes, values, dispatch.threads()
        )
        return codes, values.masked_fill(values == math.inf, math.nan)  # +inf becomes NaN

    def add_factors(self, factors: NativeFactors) -> Tensor | None:
        subsets = self._subsets(torch.empty(0, *factors.event))
        factors.graph.add_subsets(factors.uses(), subsets)
        return None

    def count(self, event: torch.Size) -> int:
        return sum(math.comb(event[0], ones) for ones in range(self._least, self.k + 1))

    def enumerate(self, event: torch.Size) -> Tensor:
        every = torch.tensor(list(itertools.product([False, True], repeat=event[0])))
        ones = every.sum(1)
        return every[(self._least <= ones) & (ones <= self.k)]

    def _k_best(self, scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
        if not dispatch.enabled():
            return self._plain_k_best(scores, k)
        rows, n = scores.shape
        codes, values = torch.empty(rows, k, n, dtype=torch.int32), scores.new_empty(rows, k)
        dispatch.kernel("k_best_subsets")(
            scores, rows, self._subsets(scores), k, codes, values, dispatch.threads()
        )
        return codes, values

    def log_partition(self, scores: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Log of the sum of exp(score) over all subsets; its gradient is the marginals.

        Args:
            scores: `(..., n)`.
            mask: as in `sparsemap`.

        Returns:
            (...,), differentiable in the scores and the bonus.
        """
        rows, flat, batch = flatten_with_grad(self, scores, mask)
        return flat._total(flat._log_sums(rows)[-1], rows).view(batch).to(scores.dtype)

    def _draws(self, scores: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
        sums = self._log_sums(scores)
        weights = safe_logsumexp(sums[-1], 0)
        weights[:, : self._least] = -math.inf
        ones, row = draw(weights.expand(n, -1, -1), generator), torch.arange(len(scores))
        found = torch.zeros(n, *scores.shape, dtype=torch.bool)
        right = scores.new_zeros(1)
        for i in range(scores.shape[1] - 1, -1, -1):
            off, on = (part[row, ones] for part in sums[i + 1])
            bit = draw(torch.stack([off, on + right], -1), generator).bool()
            bit &= scores[:, i] > -math.inf
            found[:, :, i] = bit
            ones = (ones - bit.long()).clamp(min=0)
            right = torch.where(bit, self._bonus[:, i - 1], 0.0) if i else right
        return found

    @property
    def _bonus(self) -> Tensor:
        assert isinstance(self.bonus, Tensor)
        return self.bonus

    @property
    def _least(self) -> int:
        return 0 if self.at_most else self.k

    def _subsets(self, scores: Tensor) -> Any:
        bonus = self._bonus
        return dispatch.kernel("Subsets")(
            scores.shape[1],
            min(self.k, scores.shape[1]),
            self.at_most,
            bonus,
            bonus.stride(0),
            bonus.stride(1),
        )

    def _log_sums(self, scores: Tensor) -> list[Tensor]:
        """For the first 0, 1, ... bits: log-sums (2, rows, k + 1) with the last bit off and on."""
        rows, n = scores.shape
        start = torch.full((2, rows, self.k + 1), -math.inf).to(scores)
        start[0, :, 0] = 0
        found = [start]
        never = start[1, :, :1]
        for i in range(n):
            off, on = found[-1]
            near = on + self._bonus[:, i - 1 : i] if i else on
            less = safe_logsumexp(torch.stack([off, near])[:, :, :-1], 0) + scores[:, i : i + 1]
            found.append(torch.stack([safe_logsumexp(found[-1], 0), torch.cat([never, less], 1)]))
        return found

    def _total(self, sums: Tensor, scores: Tensor) -> Tensor:
        total = safe_logsumexp(safe_logsumexp(sums, 0)[:, self._least :], 1)
        return torch.where((scores == -math.inf).all(1), 0.0, total)

    def _plain_k_best(self, scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k best paths over states 2 * (ones so far) + (last bit)."""
        rows, n = scores.shape
        state = torch.arange(2 * self.k + 2)
        on, ones = state % 2 == 1, state // 2
        follows = ones == ones.unsqueeze(1) + on.long()
        both = on.unsqueeze(1) & on
        steps = torch.where(both, self._bonus[:, :, None, None], 0.0)
        steps = steps.masked_fill(~follows, -math.inf)
        start = torch.where((state == 0) | (state == 3), 0.0, -math.inf).double()
        stop = torch.where(ones >= self._least, 0.0, -math.inf).double()
        own = torch.where(on, scores.unsqueeze(2), 0.0)
        length = torch.where((scores == -math.inf).all(1), 0, n)
        lattice = Lattice(own, steps, start.expand(rows, -1), stop.expand(rows, -1), length)
        paths, values = lattice.k_best(k)
        bits = (paths % 2 == 1) & (length > 0).view(-1, 1, 1)
        bits &= (values > -math.inf).unsqueeze(2)
        return torch.where(bits, torch.arange(n), -1), values
