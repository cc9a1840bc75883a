"""Entmax loss of crowded rows, whose support is a large part of all classes, in bounded memory.

The threshold is found by Newton's method. Every step, and the backward pass, recomputes the scores
in chunks of classes. At alpha = 1 all rows are crowded.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fewfold.losses.linear.candidates import BLOCK, Layer, widen
from fewfold.losses.named import entmax_loss
from fewfold.maps.entropies import Tsallis

__all__ = ["crowded_losses"]

_SAMPLE = 8192  # number of classes from which the initial guess is computed
_MOST = 2**40  # upper bound on the number of classes


def crowded_losses(
    rows: Tensor,
    layer: Layer,
    index: Tensor,
    alpha: float | Tensor,
    sparse_grad: bool,
    chunk_size: int | None,
) -> Tensor:
    """Entmax loss of every row against its class, for alpha of at least 1."""
    learned = alpha if isinstance(alpha, Tensor) else None
    number = float(alpha.detach()) if isinstance(alpha, Tensor) else alpha
    losses: Tensor = _CrowdedLoss.apply(
        rows, layer.weight, layer.bias, learned, index, number, sparse_grad, chunk_size
    )
    return losses


class _Solution(NamedTuple):
    """Probabilities are [1 + c (s - shift)]_+^(1/c) / total with c = alpha - 1."""

    shift: Tensor
    total: Tensor  # infinite for a row of only -inf

    @property
    def dead(self) -> Tensor:
        """Mask of rows of only -inf, which have no gradient."""
        return self.total.isinf().squeeze(1)

    def part(self, block: slice) -> "_Solution":
        """Return the solution of a slice of rows."""
        return _Solution(self.shift[block], self.total[block])

    def probs(self, scores: Tensor, c: float) -> Tensor:
        """Probabilities of a chunk of scores, which is overwritten."""
        return _weights(scores.sub_(self.shift), c)[0].div_(self.total)


class _CrowdedLoss(torch.autograd.Function):
    """Loss of crowded rows; the backward pass recomputes the scores in chunks."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        learned: Tensor | None,
        index: Tensor,
        alpha: float,
        sparse_grad: bool,
        chunk_size: int | None,
    ) -> Tensor:
        layer = Layer(weight, bias)
        losses, solutions = [], []
        for start in range(0, max(len(rows), 1), BLOCK):
            block = rows[start : start + BLOCK]
            solution, conjugate = _solve(block, layer, alpha, chunk_size)
            given = layer.at(block, index[start : start + BLOCK])
            losses.append(conjugate - (given - solution.shift.squeeze(1)))
            solutions.append(solution)
        solved = [torch.cat(part) for part in zip(*solutions, strict=True)]
        ctx.save_for_backward(rows, weight, bias, learned, index, *solved)
        ctx.alpha, ctx.sparse_grad, ctx.chunk_size = alpha, sparse_grad, chunk_size
        return torch.cat(losses)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight, bias, learned, index, *solved = ctx.saved_tensors
        inputs = (rows, weight, bias, learned)
        wanted = ctx.needs_input_grad[:4]
        if torch.is_grad_enabled():  # a second derivative: needs all scores
            scores = F.linear(widen(rows), widen(weight), None if bias is None else widen(bias))
            alpha = ctx.alpha if learned is None else learned
            losses = entmax_loss(scores, index, alpha, reduction="none", ignore_index=-1)
            chosen = [value for value, needed in zip(inputs, wanted, strict=True) if needed]
            found = iter(torch.autograd.grad(losses, chosen, grads[0], create_graph=True))
            return *(next(found) if needed else None for needed in wanted), *(None,) * 4
        solution = _Solution(*solved)
        grad = torch.where(solution.dead, 0.0, grads[0])
        sums = _Gradients(*inputs, wanted, ctx.sparse_grad)
        step = sums.layer.step(min(len(rows), BLOCK), ctx.chunk_size)
        for start in range(0, len(weight), step):
            sums.add(start, step, index, grad, solution, ctx.alpha)
        return *sums.result(), None, None, None, None


class _Gradients:
    """Accumulate gradients of rows, weight, bias and alpha over chunks of classes."""

    def __init__(
        self,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        learned: Tensor | None,
        wanted: tuple[bool, ...],
        sparse_grad: bool,
    ) -> None:
        self.layer = Layer(weight, bias)
        self._rows, self._learned = rows, learned if wanted[3] else None
        self._wanted, self._sparse = wanted, sparse_grad
        wide = widen(rows[:0]).dtype
        self._to_rows = torch.zeros_like(rows, dtype=wide)
        self._to_bias = rows.new_zeros(len(weight), dtype=wide)
        self._to_alpha = rows.new_zeros((), dtype=torch.float64)
        dense = wanted[1] and not sparse_grad
        self._to_weight = torch.zeros_like(weight, dtype=wide) if dense else None
        self._values: list[Tensor] = []  # rows of the sparse gradient
        self._touched: list[Tensor] = []  # their indices

    def add(
        self,
        start: int,
        step: int,
        index: Tensor,
        grads: Tensor,
        solution: _Solution,
        alpha: float,
    ) -> None:
        """Add the gradients of one chunk of classes, in blocks of rows."""
        layer = self.layer.part(start, start + step)
        size = len(layer.weight)
        if self._to_weight is not None:
            to_weight = self._to_weight[start : start + size]
        else:
            to_weight = self._to_rows.new_zeros(layer.weight.shape)
        touched = torch.zeros(size, dtype=torch.bool, device=layer.weight.device)
        for first in range(0, len(self._rows), BLOCK):
            block = slice(first, first + BLOCK)
            rows, grad = widen(self._rows[block]), grads[block].unsqueeze(1)
            probs = solution.part(block).probs(layer.scores(rows), alpha - 1)
            if self._learned is not None:
                self._to_alpha -= _slope(self._learned, probs, grad)
            column = index[block] - start
            own = ((column >= 0) & (column < size)).nonzero().squeeze(1)
            if self._sparse:
                touched |= (probs > 0).any(0)
                touched[column[own]] = True
            delta = probs.mul_(grad)
            delta[own, column[own]] -= grad[own, 0]
            self._to_rows[block].addmm_(delta, widen(layer.weight))
            self._to_bias[start : start + size] += delta.sum(0)
            if self._wanted[1]:
                to_weight.addmm_(delta.t(), rows)
        if self._sparse:
            nonzero = touched.nonzero().squeeze(1)
            self._touched.append(nonzero + start)
            self._values.append(to_weight[nonzero].to(layer.weight.dtype))

    def result(self) -> tuple[Tensor | None, ...]:
        """Return the gradients in the dtypes of the inputs; None where not needed."""
        weight = self.layer.weight
        to_weight = None if self._to_weight is None else self._to_weight.to(weight.dtype)
        if self._sparse:
            to_weight = torch.sparse_coo_tensor(
                torch.cat(self._touched).unsqueeze(0),
                torch.cat(self._values),
                weight.shape,
                is_coalesced=True,
                check_invariants=False,
            )
        to_alpha = None if self._learned is None else self._to_alpha.to(self._learned)
        every = (
            self._to_rows.to(weight.dtype),
            to_weight,
            self._to_bias.to(weight.dtype),
            to_alpha,
        )
        return tuple(
            value if needed else None for value, needed in zip(every, self._wanted, strict=True)
        )


def _slope(learned: Tensor, probs: Tensor, grad: Tensor) -> Tensor:
    """Sum over rows of grad times the derivative of Omega(p) with respect to alpha."""
    with torch.enable_grad():
        alpha = learned.detach().to(probs.dtype).requires_grad_()
        value = (Tsallis(alpha).value(probs) * grad.squeeze(1)).sum()
        slope: Tensor = torch.autograd.grad(value, alpha)[0].double()
    return slope


def _solve(
    hidden: Tensor, layer: Layer, alpha: float, chunk_size: int | None
) -> tuple[_Solution, Tensor]:
    """Solve for the probabilities of all classes; also return max_p <p, s - shift> - Omega(p)."""
    c = alpha - 1
    classes = layer.weight.shape[0]
    stride = max(classes // _SAMPLE, 1)
    part = Layer(layer.weight[::stride], None if layer.bias is None else layer.bias[::stride])
    sample = part.scores(hidden)
    start = sample.amax(1, keepdim=True)
    # Start below the root: from there Newton's method converges monotonically, from above its first
    # step may go far below.
    goal = 1.5 / stride if stride > 1 else 1.0
    guess, _ = _find_shift(lambda at: _measure([sample - at], c), start, c, goal)
    guess = torch.where(guess.isfinite(), guess, 0.0)  # the sample may contain only -inf

    def measure(at: Tensor) -> _Measure:
        return _measure((scores.sub_(at) for _, scores in layer.chunks(hidden, chunk_size)), c)

    shift, (total, _, product, _) = _find_shift(measure, guess, c, 1.0)
    # As y - 1 = c (s - shift), Omega of the weights is their product with s - shift over alpha. The
    # other terms correct for a total that is not exactly 1.
    log = total.log()
    value = product / alpha * (-alpha * log).exp() + _ratio(c, log) / alpha
    conjugate = (product / total - value).squeeze(1)
    dead = shift == -math.inf  # loss +inf without gradient
    solution = _Solution(
        shift.masked_fill(dead, 0.0), total.to(shift.dtype).masked_fill(dead, math.inf)
    )
    return solution, conjugate.to(shift.dtype).masked_fill(dead.squeeze(1), math.inf)


class _Measure(NamedTuple):
    """Sums over the classes, in float64."""

    total: Tensor  # of the weights
    slope: Tensor  # of minus their derivatives by the shift
    product: Tensor  # of the weights times score less shift
    top: Tensor  # the largest score less shift


def _measure(chunks: Iterable[Tensor], c: float) -> _Measure:
    """Return the sums over all classes, given chunks of the scores less the shift."""
    sums: list[Tensor] = []
    for gaps in chunks:
        weights, slopes = _weights(gaps, c)
        part = [weights.sum(1), slopes.sum(1), (weights * gaps.nan_to_num(neginf=0.0)).sum(1)]
        part = [value.double() for value in part] + [gaps.amax(1)]
        if sums:
            part = [*map(torch.add, sums[:3], part[:3]), torch.maximum(sums[3], part[3])]
        sums = part
    return _Measure(*(value.unsqueeze(1) for value in sums))


def _find_shift(
    measure: Callable[[Tensor], _Measure], at: Tensor, c: float, goal: float
) -> tuple[Tensor, _Measure]:
    """Return the shift at which the weights of each row sum to `goal`, and the sums there.

    Newton's method on the power c of the sum. For c <= 1 that is convex, so that every step lands
    below the root. For larger c the steps are restricted to a bracket.
    """
    low = high = at
    eps = torch.finfo(at.dtype).eps
    for attempt in range(100):
        found = measure(at)
        if attempt == 0:
            low = at + found.top
            high = low - _ratio(c, math.log(_MOST / goal))
        enough = found.total >= goal
        low = torch.where(enough, torch.maximum(low, at), low)
        high = torch.where(enough, high, torch.minimum(high, at))
        step = -found.total / found.slope * _ratio(c, (found.total / goal).log())
        newton = at + step.to(at.dtype)
        if c > 1:
            newton = torch.where((newton > low) & (newton < high), newton, (low + high) / 2)
        # If all weights are zero or overflow, restart at the largest score.
        then = torch.where(newton.isfinite(), torch.maximum(newton, low), low)
        # NaN compares false and counts as converged.
        if not bool(((then - at).abs() > 4 * eps * (1 + at.abs())).any()):
            break
        at = then
    return at, found


def _weights(gaps: Tensor, c: float) -> tuple[Tensor, Tensor]:
    """Return unnormalised probabilities y^(1/c), y = [1 + c gap]_+, and slopes y^(1/c - 1)."""
    if c == 0:
        weights = gaps.exp()
        return weights, weights
    y = torch.add(1.0, gaps, alpha=c).clamp_(min=0)
    power = 1 / c - 1
    if power in (0.0, 1.0, 3.0):  # alpha = 2, 1.5 and 1.25 need neither logarithm nor exponential
        slopes = torch.ones_like(y).masked_fill_(y == 0, 0.0) if power == 0 else y**power
    else:
        slopes = y.log().mul_(power).exp_().masked_fill_(y == 0, 0.0)
    return slopes * y, slopes


def _ratio(c: float, a: Any) -> Any:
    """Return `(exp(-c a) - 1) / c`, which is `-a` at c = 0."""
    if c == 0:
        return -a
    return math.expm1(-c * a) / c if isinstance(a, float) else torch.expm1(-c * a) / c
