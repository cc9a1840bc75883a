"""Linear-chain sequences: one state per position, with transition scores."""

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from fewfold._check import check_scores
from fewfold._native import dispatch
from fewfold.structured.sparsemap.sparsemap_operator import registered
from fewfold.structured.structures.batch_rows import expand_to_batch, flatten_with_grad
from fewfold.structured.structures.lattice import Lattice, nan_where_invalid
from fewfold.structured.structures.native_factors import NativeFactors
from fewfold.structured.structures.structure import Structure

__all__ = ["Sequence"]


@registered
@dataclass(frozen=True, eq=False, repr=False)
class Sequence(Structure):
    """One of S states at each of n positions; scores are `(..., n, S)`.

    The score of a sequence y is

        start[y_1] + sum_i scores[i, y_i] + sum_i transitions[i, y_i, y_(i+1)] + stop[y_n].

    A position whose states are all masked is absent: the positions before and after it become
    adjacent, with the transition out of the left one. So sequences of a batch may differ in length.

    Args:
        transitions: (S, S), from row to column, for all positions of all instances. A tensor with
            more dimensions needs `by_position`. -inf forbids a transition. None: all zero.
        by_position: meaning of the dimensions before (S, S). False: they broadcast to the batch,
            `(*batch, S, S)`. True: the last of them is the position, the others broadcast to the
            batch, `(..., n - 1, S, S)`; [i] is the step from position i to i + 1.
        start: (S,) or (..., S), scores of the state of the first position.
        stop: (S,) or (..., S), scores of the state of the last position.

    Example:
        >>> import torch, fewfold as ff
        >>> scores = torch.tensor([[0.5, 0.0], [-0.3, 0.2], [0.1, 0.4], [0.6, -0.2]])
        >>> stay = torch.tensor([[0.3, -0.3], [-0.3, 0.3]])
        >>> ff.sparsemap(scores, ff.structures.Sequence(stay))
        tensor([[0.5500, 0.4500],
                [0.5500, 0.4500],
                [0.5500, 0.4500],
                [0.6000, 0.4000]])

    Reference: Viterbi, "Error bounds for convolutional codes and an asymptotically optimum decoding
    algorithm", 1967.
    """

    transitions: Tensor | None = None
    _: KW_ONLY
    by_position: bool | None = None
    start: Tensor | None = None
    stop: Tensor | None = None

    event_dim: ClassVar[int] = 2
    has_factor_kernel: ClassVar[bool] = True
    additional_names: ClassVar[tuple[str, ...]] = ("transitions", "start", "stop")
    layout_names: ClassVar[tuple[str, ...]] = ("by_position",)

    def __post_init__(self) -> None:
        for name in self.additional_names:
            value = getattr(self, name)
            if value is not None:
                check_scores(value, name)
        if self.transitions is None:
            return
        shape = tuple(self.transitions.shape)
        if self.by_position is None and len(shape) > 2:
            raise ValueError(
                f"transitions of shape {shape} may belong to instances or to positions; write "
                "by_position=True for (..., n - 1, S, S), or by_position=False for (*batch, S, S)"
            )
        if self.by_position and len(shape) < 3:
            raise ValueError(
                f"by_position=True needs transitions (..., n - 1, S, S), got {shape}; leave "
                "by_position out where one table serves all positions"
            )

    def check(self, event: torch.Size) -> None:
        n, states = event
        if not n or not states:
            raise ValueError(f"a sequence must have positions and states, got {tuple(event)}")
        wanted = {"transitions": (states, states), "start": (states,), "stop": (states,)}
        for name, shape in wanted.items():
            value = getattr(self, name)
            if value is not None and value.shape[-len(shape) :] != shape:
                raise ValueError(
                    f"{name} must end in {shape} for {states} states, got {tuple(value.shape)}"
                )
        tables = self.transitions
        if tables is not None and self.by_position and tables.shape[-3] not in (1, n - 1):
            raise ValueError(
                f"transitions by position must end in (n - 1 = {n - 1}, {states}, {states}) for "
                f"{n} positions, got {tuple(tables.shape)}; write by_position=False if the first "
                "dimensions are the batch"
            )

    def slots(self, event: torch.Size) -> Tensor:
        return torch.arange(event[0]).repeat_interleave(event[1])

    def width(self, event: torch.Size) -> int:
        return event[0]

    def flat(self, batch: torch.Size, event: torch.Size) -> Self:
        return replace(
            self,
            transitions=expand_to_batch(self._tables(), batch, 3, "transitions"),
            by_position=True,
            start=expand_to_batch(self.start, batch, 1, "start"),
            stop=expand_to_batch(self.stop, batch, 1, "stop"),
        )

    def additional_score(self, codes: Tensor, row: Tensor, event: torch.Size) -> Tensor:
        n, states = event
        position = torch.arange(n)
        there = codes >= 0
        state = (codes - position * states).clamp(min=0)
        last = torch.where(there, position, -1).cummax(1).values
        left = torch.nn.functional.pad(last[:, :-1], (1, 0), value=-1)
        total = torch.zeros(len(codes), dtype=torch.float64)
        if self.transitions is not None and n > 1:
            before = left.clamp(min=0)
            which = before if self.transitions.shape[1] > 1 else torch.zeros_like(before)
            step = self.transitions[row.unsqueeze(1), which, state.gather(1, before), state]
            total = total + torch.where(there & (left >= 0), step, 0.0).sum(1)
        if self.start is not None:
            first = self.start[row.unsqueeze(1), state]
            total = total + torch.where(there & (left < 0), first, 0.0).sum(1)
        if self.stop is not None:
            end = last[:, -1:]
            final = self.stop[row, state.gather(1, end.clamp(min=0))[:, 0]]
            total = total + torch.where(end[:, 0] >= 0, final, 0.0)
        return total

    def additional_score_vjp(
        self, by: Tensor, codes: Tensor, row: Tensor, batch: torch.Size, event: torch.Size
    ) -> tuple[Tensor, ...] | None:
        """Gradient of `<by, additional_score>` by a kernel, or None without kernels.

        Args:
            by: (m,) the gradient with respect to the additional score of each structure.
            codes: as in `additional_score`, int32 or int64.
            row, event: as in `additional_score`.
            batch: the shape of the batch.

        Returns:
            The gradient of each of the additional scores.
        """
        if not dispatch.enabled():
            return None
        n, states = event
        at: list[Tensor | int | None] = []
        found = []
        tables = self._tables()
        ends = ((1, self.start, self.start), (1, self.stop, self.stop))
        for own, value, wide in ((3, self.transitions, tables), *ends):
            if value is None or wide is None:
                at += [None, *[0] * (own // 2 + 1)]
                continue
            shape, rows = wide.shape[-own:], batch.numel() if wide.dim() > own else 1
            grad = torch.zeros(rows, *shape, dtype=torch.float64)
            at += [grad, grad.stride(0) if rows > 1 else 0]
            at += [grad.stride(1) if shape[0] > 1 else 0] if own == 3 else []
            lead = batch if wide.dim() > own else torch.Size()
            found.append((grad, value, lead + shape, wide.shape))
        codes, row, by = codes.int().contiguous(), row.contiguous(), by.contiguous()
        dispatch.kernel("pull_sequences")(codes, row, by, len(codes), n, states, batch.numel(), *at)
        return tuple(
            grad.view(shape).sum_to_size(wide).view(value.shape).to(value)
            for grad, value, shape, wide in found
        )

    def plain_best(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        codes, values = self._plain_k_best(scores, 1)
        best = self.dense(codes[:, 0], scores.shape[1:])
        return nan_where_invalid(best, values[:, 0]), ~(values[:, 0] == -math.inf)

    def native(self, request: Any, scores: Tensor) -> tuple[Any, ...] | None:
        chains = self._chains(scores)
        found: tuple[Any, ...] = dispatch.kernel("sparsemap_sequences")(request, chains)
        return found

    def native_best(self, scores: Tensor) -> tuple[Tensor, Tensor] | None:
        if not dispatch.enabled():
            return None
        rows, n, _ = scores.shape
        chains = self._chains(scores)
        codes, values = torch.empty(rows, n, dtype=torch.int32), scores.new_empty(rows)
        dispatch.kernel("best_sequences")(scores, rows, chains, codes, values, dispatch.threads())
        return codes, values.masked_fill(values == math.inf, math.nan)  # +inf becomes NaN

    def add_factors(self, factors: NativeFactors) -> Tensor | None:
        chains = self._chains(torch.empty(0, *factors.event))
        factors.graph.add_sequences(factors.uses(), chains)
        return None

    def count(self, event: torch.Size) -> int:
        return int(event[1] ** event[0])

    def enumerate(self, event: torch.Size) -> Tensor:
        n, states = event
        numbers = torch.arange(states**n).unsqueeze(1) // states ** torch.arange(n) % states
        return torch.nn.functional.one_hot(numbers, states).bool()

    def _k_best(self, scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
        if not dispatch.enabled():
            return self._plain_k_best(scores, k)
        rows, n, _ = scores.shape
        chains = self._chains(scores)
        codes, values = torch.empty(rows, k, n, dtype=torch.int32), scores.new_empty(rows, k)
        dispatch.kernel("k_best_sequences")(
            scores, rows, chains, k, codes, values, dispatch.threads()
        )
        return codes, values

    def log_partition(self, scores: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Log of the sum of exp(score) over all sequences; its gradient is the marginals.

        Args:
            scores: `(..., n, S)`.
            mask: as in `sparsemap`.

        Returns:
            (...,), differentiable in the scores and the additional scores.
        """
        rows, flat, batch = flatten_with_grad(self, scores, mask)
        lattice, _ = flat._lattice(rows)
        return lattice.log_partition().view(batch).to(scores.dtype)

    def _draws(self, scores: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
        lattice, order = self._lattice(scores)
        codes = _codes(lattice.sample(n, generator), lattice.length, order, scores.shape[2])
        return self.dense(codes.flatten(0, 1), scores.shape[1:])

    def _tables(self) -> Tensor | None:
        """Transitions with a position dimension, `(..., n - 1 or 1, S, S)`."""
        tables = self.transitions
        return tables if tables is None or self.by_position else tables.unsqueeze(-3)

    def _plain_k_best(self, scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
        lattice, order = self._lattice(scores)
        states, values = lattice.k_best(k)
        codes = _codes(states.transpose(0, 1), lattice.length, order, scores.shape[2])
        none = (values == -math.inf).unsqueeze(2)
        return codes.transpose(0, 1).masked_fill(none, -1), values

    def _lattice(self, scores: Tensor) -> tuple[Lattice, Tensor]:
        """Lattice with the present positions first, and the position (rows, n) of each layer."""
        rows, n, states = scores.shape
        there = ~(scores == -math.inf).all(2)
        order = there.long().argsort(dim=1, descending=True, stable=True)
        own = scores.gather(1, order.unsqueeze(2).expand(-1, -1, states))
        none = scores.new_zeros(1).expand(rows, states)
        steps = none.view(rows, 1, states, 1).expand(-1, -1, -1, states)
        if self.transitions is not None:
            steps = self.transitions
            if steps.shape[1] > 1:
                steps = steps[torch.arange(rows).unsqueeze(1), order[:, :-1].clamp(max=n - 2)]
        start = none if self.start is None else self.start
        stop = none if self.stop is None else self.stop
        return Lattice(own, steps, start, stop, there.sum(1)), order

    def _chains(self, scores: Tensor) -> Any:
        """The additional scores in the form the kernels take."""
        _, n, states = scores.shape
        at: list[Tensor | int | None] = []
        tables = self.transitions
        if tables is None:
            at += [None, 0, 0]
        else:
            if tables.stride()[2:] != (states, 1):
                tables = tables.contiguous()
            at += [tables, tables.stride(0)]
            at.append(tables.stride(1) if tables.shape[1] > 1 else 0)
        for value in (self.start, self.stop):
            if value is not None and value.stride(1) != 1:
                value = value.contiguous()
            at += [None, 0] if value is None else [value, value.stride(0)]
        return dispatch.kernel("Chains")(n, states, *at)


def _codes(states: Tensor, length: Tensor, order: Tensor, size: int) -> Tensor:
    """Convert states by layer to codes by position, both (m, rows, n)."""
    there = torch.arange(states.shape[2]) < length.unsqueeze(1)
    codes = torch.where(there, order * size + states, -1)
    return torch.empty_like(codes).scatter_(2, order.expand_as(codes), codes)
