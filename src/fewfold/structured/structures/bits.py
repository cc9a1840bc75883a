"""Subsets of bits: all subsets, those of size k, and those of size at most k."""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fewfold._check import check_temperature, whole_number
from fewfold._native import dispatch
from fewfold._random import multinomial, rand
from fewfold.maps.ksubset import ksubset
from fewfold.structured.sparsemap.sparsemap_operator import registered
from fewfold.structured.structures.batch_rows import divide_by_temperature
from fewfold.structured.structures.bit_polytopes import ClosedForm
from fewfold.structured.structures.flips import MAX_LISTED, cheapest_sets
from fewfold.structured.structures.native_factors import LinearConstraint
from fewfold.structured.structures.score_errors import raise_infeasible, raise_invalid_scores

__all__ = ["Bits", "Budget", "Choice", "KSubset"]


class Choice(ClosedForm):
    """Sets of bits with a bound on the number of bits that are on."""

    def bounds(self, size: int) -> tuple[int, int]:
        """Minimum and maximum number of bits that are on, out of `size`."""
        raise NotImplementedError

    def constraint(self, size: int) -> LinearConstraint:
        least, most = self.bounds(size)
        return LinearConstraint(torch.ones(size, dtype=torch.float64), float(most), least == most)

    def plain_best(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        allowed = (scores > -math.inf).sum(1)
        least, most = self.bounds(scores.shape[1])
        ones = (scores > 0).sum(1).clamp(least, most)
        rank = scores.argsort(1, descending=True).argsort(1)
        empty = allowed == 0
        best = (rank < ones.unsqueeze(1)) & ~empty.unsqueeze(1)
        return best, empty | (allowed >= least)

    def native(self, request: Any, scores: Tensor) -> tuple[Any, Any, Any] | None:
        found: tuple[Any, Any, Any] = dispatch.kernel("sparsemap_choices")(
            request, *self.bounds(scores.shape[1])
        )
        return found

    def enumerate(self, event: torch.Size) -> Tensor:
        every = torch.tensor(list(itertools.product([False, True], repeat=event[0])))
        least, most = self.bounds(event[0])
        ones = every.sum(1)
        return every[(least <= ones) & (ones <= most)]

    def count(self, event: torch.Size) -> int:
        least, most = self.bounds(event[0])
        if (least, most) == (0, event[0]):
            return 1 << event[0]
        return sum(math.comb(event[0], ones) for ones in range(least, most + 1))

    def _k_best_parts(self, scores: Tensor, k: int, event: torch.Size) -> tuple[Tensor, Tensor]:
        """Dynamic program over bits: the k best prefixes per number of ones; O(size * most * k)."""
        rows, size = scores.shape
        least, most = self.bounds(size)
        counted = (least, most) != (0, size)  # without a bound the number of ones is irrelevant
        lists = scores.new_full((rows, most + 1 if counted else 1, k), -math.inf)
        lists[:, 0, 0] = 0
        steps = []
        for i in range(size):
            with_it = lists + scores[:, i, None, None]
            if counted:
                with_it = torch.cat(
                    [torch.full_like(with_it[:, :1], -math.inf), with_it[:, :-1]], 1
                )
            lists, chosen = torch.cat([lists, with_it], 2).topk(k, 2)
            steps.append(chosen)
        final = lists[:, least if counted else 0 :].flatten(1).topk(k, 1)
        values, place = final
        ones, rank = (least if counted else 0) + place // k, place % k
        bits = torch.zeros(rows, k, size, dtype=torch.bool)
        row = torch.arange(rows).unsqueeze(1)
        for i in range(size - 1, -1, -1):
            rank = steps[i][row, ones, rank]
            on = rank >= k
            bits[:, :, i] = on
            rank = rank - on.long() * k
            ones = (ones - (on & counted).long()).clamp(min=0)  # entries beyond the last structure
        absent = (scores == -math.inf).all(1)
        values[absent] = -math.inf
        values[absent, 0] = 0  # the empty set is the only structure
        bits &= (values > -math.inf).unsqueeze(2) & ~absent.view(-1, 1, 1)
        return bits.flatten(0, 1), values

    def log_partition(self, scores: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Log of the sum of exp(score) over all structures; its gradient is the marginals."""
        rows = scores if mask is None else scores.masked_fill(~mask, -math.inf)
        self.event_of(rows)
        least, most = self.bounds(rows.shape[-1])
        if (least, most) == (0, rows.shape[-1]):
            return torch.nn.functional.softplus(rows).sum(-1)
        sums = _log_sums_by_count(rows, most)[-1]
        absent = (rows == -math.inf).all(
            -1
        )  # without available bits the empty set is the only structure
        return torch.where(absent, 0.0, sums[..., least : most + 1].logsumexp(-1))

    @torch.no_grad()
    def sample(
        self, scores: Tensor, n: int, *, mask: Tensor | None = None,
        generator: torch.Generator | None = None, temperature: float = 1.0,
    ) -> Tensor:  # fmt: skip
        """Draw n structures with probability proportional to exp(score / temperature), bool."""
        check_temperature(temperature)
        rows = scores if mask is None else scores.masked_fill(~mask, -math.inf)
        rows, _ = divide_by_temperature(rows, self, temperature)
        self.event_of(rows)
        least, most = self.bounds(rows.shape[-1])
        allowed = (rows > -math.inf).sum(-1)
        raise_invalid_scores(self.invalid_rows(rows.reshape(allowed.numel(), rows.shape[-1])), self)
        raise_infeasible(((allowed < least) & (allowed > 0)).flatten(), self)
        rows = rows.masked_fill((allowed == 0).unsqueeze(-1), 0.0)  # cleared again below
        sums = _log_sums_by_count(rows, most)
        probs = sums[-1][..., least : most + 1].softmax(-1).expand(n, *sums[-1].shape[:-1], -1)
        left = least + _draw_index(probs, generator)
        found = torch.zeros(n, *rows.shape, dtype=torch.bool, device=rows.device)
        for i in range(rows.shape[-1] - 1, -1, -1):
            before = torch.cat([torch.full_like(sums[i][..., :1], -math.inf), sums[i]], -1)
            before = before.expand(n, *before.shape)
            at = left.unsqueeze(-1)
            on = before.gather(-1, at)[..., 0] + rows[..., i]  # the bits before hold one fewer
            off = before.gather(-1, at + 1)[..., 0]
            chance = torch.sigmoid(on - off)
            point = rand(chance.shape, chance.device, dtype=chance.dtype, generator=generator)
            draw = point < chance
            found[..., i] = draw
            left = left - draw.long()
        return found & (allowed > 0).unsqueeze(-1)


def _log_sums_by_count(scores: Tensor, most: int) -> list[Tensor]:
    """For the first 0, 1, 2, ... bits: log-sums over subsets with c ones, c up to `most`."""
    start = scores.new_full((*scores.shape[:-1], most + 1), -math.inf)
    start[..., 0] = 0
    sums = [start]
    for i in range(scores.shape[-1]):
        both = torch.stack([sums[-1][..., 1:], sums[-1][..., :-1] + scores[..., i : i + 1]])
        # where both are -inf the gradient would be NaN; torch.logaddexp has second derivatives of
        # NaN where one is -inf
        never = (both == -math.inf).all(0)
        grown = both.masked_fill(never, 0).logsumexp(0).masked_fill(never, -math.inf)
        sums.append(torch.cat([sums[-1][..., :1], grown], -1))
    return sums


def _draw_index(probs: Tensor, generator: torch.Generator | None) -> Tensor:
    """Sample an index of the last dimension."""
    flat = probs.reshape(-1, probs.shape[-1])
    return multinomial(flat, 1, generator=generator).view(probs.shape[:-1])


@registered
@dataclass(frozen=True, repr=False)
class Bits(Choice):
    """Independent bits: all subsets of the parts.

    SparseMAP is clip(t, 0, 1), and with `on_off` clip((1 + t) / 2, 0, 1).

    Args:
        on_off: whether "off" counts as a part with score 0; the regulariser is then the sum of
            `(mu^2 + (1 - mu)^2) / 2`.

    Example:
        >>> import torch, fewfold as ff
        >>> scores = torch.tensor([1.5, -0.4, 0.3])
        >>> ff.sparsemap(scores, ff.structures.Bits())
        tensor([1.0000, 0.0000, 0.3000])
        >>> ff.sparsemap(scores, ff.structures.Bits(on_off=True))
        tensor([1.0000, 0.3000, 0.6500])
    """

    on_off: bool = False

    def check_factor(self) -> None:
        if self.on_off:
            raise ValueError("Bits(on_off=True) does not constrain shared bits; write Bits()")

    def bounds(self, size: int) -> tuple[int, int]:
        return 0, size

    def _k_best_parts(self, scores: Tensor, k: int, event: torch.Size) -> tuple[Tensor, Tensor]:
        """Flip bits of the best subset: only its k - 1 least certain bits can change."""
        price, which = scores.abs().topk(min(k - 1, scores.shape[1]), 1, largest=False)
        if k <= MAX_LISTED:
            sets, costs = cheapest_sets(price, k)
            flips, values = sets.flatten(0, 1), -costs
        else:
            flips, values = super()._k_best_parts(-price, k, torch.Size([price.shape[1]]))
        bits = (scores > 0).repeat_interleave(k, 0)
        which = which.repeat_interleave(k, 0)
        bits.scatter_(1, which, bits.gather(1, which) ^ flips)
        values = values + scores.clamp(min=0).sum(1, keepdim=True)
        found = values > -math.inf
        return (bits if found.all() else bits & found.view(-1, 1)), values

    @property
    def scale(self) -> float:
        return 2.0 if self.on_off else 1.0

    def encode_scores(self, scores: Tensor) -> Tensor:
        return (scores + 1) / 2 if self.on_off else scores

    def decode_objective(self, objective: Tensor, event: torch.Size) -> Tensor:
        return 2 * objective - event[0] / 2 if self.on_off else objective

    def regulariser(self, marginals: Tensor) -> Tensor:
        half = marginals.square().sum(1) / 2
        return half + (1 - marginals).square().sum(1) / 2 if self.on_off else half

    def differentiable_marginals(self, scores: Tensor) -> Tensor | None:
        return None if _has_non_finite(scores) else scores.clamp(0, 1)

    def project(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        marginals = scores.clamp(0, 1).masked_fill(_invalid(scores), math.nan)
        return _closed_form_result(marginals)

    def project_jvp(self, scores: Tensor, marginals: Tensor, change: Tensor) -> Tensor:
        return torch.where((marginals > 0) & (marginals < 1), change, 0.0)


@registered
@dataclass(frozen=True, repr=False)
class KSubset(Choice):
    """Subsets of exactly k parts; SparseMAP is `ksubset`.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.sparsemap(torch.tensor([0.9, 0.8, 0.3, -0.5]), ff.structures.KSubset(2))
        tensor([0.9000, 0.8000, 0.3000, 0.0000])
    """

    k: int

    def __post_init__(self) -> None:
        whole_number(self.k, "k", 0)

    def check(self, event: torch.Size) -> None:
        if self.k > event[0]:
            raise ValueError(f"k must be at most the {event[0]} parts there are, got {self.k}")

    def bounds(self, size: int) -> tuple[int, int]:
        return self.k, self.k

    def differentiable_marginals(self, scores: Tensor) -> Tensor | None:
        return None if _has_non_finite(scores) else ksubset(scores, self.k)

    def project(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
        allowed = (scores > -math.inf).sum(1)
        if bool(((allowed < self.k) & (allowed > 0)).any()) or bool(_invalid(scores).any()):
            return None  # the active set reports the error
        return _closed_form_result(ksubset(scores, self.k))

    def project_jvp(self, scores: Tensor, marginals: Tensor, change: Tensor) -> Tensor:
        return _centred(change, (marginals > 0) & (marginals < 1))


@registered
@dataclass(frozen=True, repr=False)
class Budget(Choice):
    """Subsets of at most k parts.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.sparsemap(torch.tensor([0.9, 0.8, 0.3, -0.5]), ff.structures.Budget(1))
        tensor([0.5500, 0.4500, 0.0000, 0.0000])
    """

    k: int

    def __post_init__(self) -> None:
        whole_number(self.k, "k", 0)

    def bounds(self, size: int) -> tuple[int, int]:
        return 0, min(self.k, size)

    def differentiable_marginals(self, scores: Tensor) -> Tensor | None:
        if _has_non_finite(scores):
            return None
        clipped = scores.clamp(0, 1)
        tight = clipped.detach().sum(-1, keepdim=True) > self.k  # never if k >= size
        if not bool(tight.any()):
            return clipped
        return torch.where(tight, ksubset(scores, self.k), clipped)

    def project(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
        if bool(_invalid(scores).any()):
            return None
        return _closed_form_result(ksubset(scores, min(self.k, scores.shape[1]), at_most=True))

    def project_jvp(self, scores: Tensor, marginals: Tensor, change: Tensor) -> Tensor:
        free = (marginals > 0) & (marginals < 1)
        tight = scores.clamp(0, 1).sum(1, keepdim=True) > self.k
        return torch.where(tight, _centred(change, free), torch.where(free, change, 0.0))


def _has_non_finite(scores: Tensor) -> bool:
    """Whether some scores are infinite or NaN, which maps may treat differently."""
    return not bool(scores.detach().sum().isfinite())


def _invalid(scores: Tensor) -> Tensor:
    """Whether each row has a NaN or +inf, (rows, 1)."""
    return (scores.isnan() | (scores == math.inf)).any(1, keepdim=True)


def _closed_form_result(marginals: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Marginals with a gap of zero, no iterations, and convergence unless NaN."""
    rows = len(marginals)
    fine = ~marginals.isnan().any(1)
    return marginals, marginals.new_zeros(rows), torch.zeros(rows, dtype=torch.int64), fine


def _centred(change: Tensor, free: Tensor) -> Tensor:
    """Subtract the mean over the free entries; zero elsewhere."""
    own = torch.where(free, change, 0.0)
    mean = own.sum(1, keepdim=True) / free.sum(1, keepdim=True).clamp(min=1)
    return torch.where(free, own - mean, 0.0)
