"""Projections on simple polytopes of bits in a weighted norm, and the faces they lie on.

All functions work by row: the point y and the weights w are (rows, bits) float64, and

    z = argmin  sum_i w_i (z_i - y_i)^2 / 2 - (additional score)   over the polytope.

y = -inf fixes a bit at 0 and y = +inf at 1.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Face", "nearest_linear", "nearest_or_out", "nearest_pair"]


@dataclass(frozen=True, eq=False)
class Face:
    """The face of the polytope on which a projection lies.

    Attributes:
        free: (rows, bits) bool, bits that are not fixed at 0 or 1.
        normal: (rows, bits) float, normal of the tight constraint; 0 in rows without one.
        tied: (rows, bits) bool, free bits that stay equal to each other.
        weights: (rows, bits) weights of the norm.
    """

    free: Tensor
    normal: Tensor
    tied: Tensor
    weights: Tensor

    @property
    def converged(self) -> Tensor:
        """Whether each row is optimal, (rows,) bool: always, as the projection is exact."""
        return torch.ones(len(self.free), dtype=torch.bool)

    def push(self, change: Tensor) -> Tensor:
        """Directional derivative of z along `change` of y: the weighted projection on the face."""
        own = torch.where(self.free, change, 0.0)
        normal = torch.where(self.free, self.normal, 0.0)
        length = (normal.square() / self.weights).sum(1, keepdim=True)
        by = (normal * own).sum(1, keepdim=True) / torch.where(length > 0, length, 1.0)
        own = own - normal / self.weights * by
        weights = torch.where(self.tied, self.weights, 0.0)
        total = weights.sum(1, keepdim=True)
        mean = (weights * own).sum(1, keepdim=True) / torch.where(total > 0, total, 1.0)
        return torch.where(self.tied, mean, own)


def nearest_linear(
    y: Tensor, w: Tensor, costs: Tensor, bound: Tensor, equal: bool
) -> tuple[Tensor, Face]:
    """Projection on [0, 1]^n with <costs, z> <= bound, or == bound.

    z = clip(y - x costs / w, 0, 1), where the multiplier x is 0 or makes the bound tight.

    Args:
        y, w: (rows, n).
        costs: (rows, n), of either sign.
        bound: (rows,).
        equal: whether the constraint is an equality.
    """
    clipped = y.clamp(0, 1)
    total = (costs * clipped).sum(1)
    tight = torch.ones_like(total, dtype=torch.bool) if equal else total > bound
    projected = _project_on_hyperplane(y, w, costs, bound)
    z = torch.where(tight.unsqueeze(1), projected, clipped)
    free = (z > 0) & (z < 1)
    normal = torch.where(tight.unsqueeze(1), costs, 0.0)
    return z, Face(free, normal, torch.zeros_like(free), w)


def _project_on_hyperplane(y: Tensor, w: Tensor, costs: Tensor, bound: Tensor) -> Tensor:
    """z = clip(y - x costs / w, 0, 1) with <costs, z> = bound, or as close as possible."""
    moves = (costs != 0) & y.isfinite()
    rate = torch.where(moves, costs / w, 1.0)
    way = torch.where(moves, 2 / rate.abs(), 0.0).amax(1, keepdim=True)
    y = _shift_near_solution(y, rate, costs, bound, way)
    # <costs, z> decreases in x and is linear between breakpoints, where a bit reaches 0 or 1
    breakpoints = torch.stack([y / rate, (y - 1) / rate], 2)
    breakpoints = torch.where(
        moves.unsqueeze(2), breakpoints, 0.0
    )  # fixed bits have no breakpoints
    first, last = breakpoints.clamp(-way.unsqueeze(2), way.unsqueeze(2)).sort(2).values.unbind(2)
    slope = torch.where(moves, costs * rate, 0.0)
    where, order = torch.cat([first, last], 1).sort(1)
    falls = torch.cat([slope, -slope], 1).gather(1, order).cumsum(1)
    steps = torch.where(where.diff(dim=1) > 0, falls[:, :-1] * where.diff(dim=1), 0.0)
    highest = (costs * torch.where(moves, y + way * rate, y).clamp(0, 1)).sum(1, keepdim=True)
    values = torch.cat([highest, highest - steps.cumsum(1)], 1)  # <costs, z> at each breakpoint
    place = (values >= bound.unsqueeze(1)).sum(1, keepdim=True)
    here = where.gather(1, (place - 1).clamp(min=0))
    after = where.gather(1, place.clamp(max=where.shape[1] - 1))
    middle = torch.where(place == 0, where[:, :1] - 1, (here + after) / 2)
    inside = moves & (first < middle) & (middle < last)
    fixed = (y - middle * torch.where(moves, rate, 0.0)).clamp(0, 1)
    rest = bound - torch.where(inside, 0.0, costs * fixed).sum(1)
    length = torch.where(inside, slope, 0.0).sum(1)
    own = torch.where(inside, costs * y, 0.0).sum(1)
    x = torch.where(length > 0, (own - rest) / torch.where(length > 0, length, 1.0), middle[:, 0])
    return torch.where(moves, (y - x.unsqueeze(1) * rate).clamp(0, 1), y.clamp(0, 1))


def _shift_near_solution(
    y: Tensor, rate: Tensor, costs: Tensor, bound: Tensor, way: Tensor
) -> Tensor:
    """Return y - x rate for an approximate multiplier x, so that large y lose no accuracy.

    x solves the problem in which bits jump between 0 and 1, so its error is less than `way`.
    """
    moves = (costs != 0) & y.isfinite()
    most = (costs * torch.where(moves, (costs > 0).to(y), y.clamp(0, 1))).sum(1, keepdim=True)
    for _ in range(10):  # each pass removes the rounding error of the last
        where, order = torch.where(moves, y / rate, 0.0).sort(1)
        falls = torch.where(moves, costs.abs(), 0.0).gather(1, order).cumsum(1)
        place = (most - falls >= bound.unsqueeze(1)).sum(1, keepdim=True)
        x = where.gather(1, place.clamp(max=y.shape[1] - 1))
        y = torch.where(moves, y - x * rate, y)
        if not bool((x.abs() > 1e3 * way).any()):
            break
    return y


def nearest_or_out(y: Tensor, w: Tensor) -> tuple[Tensor, Face]:
    """Projection on the polytope of OR with output z_n: z_i <= z_n <= 1, z_n <= sum_i z_i.

    Without the last constraint, inputs larger than the output are tied to it at their weighted
    mean. If the output then exceeds the sum of the inputs, the last constraint is tight.
    """
    inputs, order = y[:, :-1].sort(1, descending=True)
    weights = w[:, :-1].gather(1, order)
    sums = torch.cat([w[:, -1:], weights], 1).cumsum(1)
    pulled = torch.cat([w[:, -1:] * y[:, -1:], weights * inputs], 1).cumsum(1)
    means = pulled / sums
    joins = (inputs > means[:, :-1]).to(torch.int64).cumprod(1)  # inputs in descending order
    count = joins.sum(1, keepdim=True)
    mean = means.gather(1, count)
    tied = torch.zeros_like(y, dtype=torch.bool)
    tied[:, :-1] = joins.bool().gather(1, order.argsort(1))
    tied[:, -1:] = count > 0
    z = torch.where(tied, mean, y).clamp(0, 1)
    costs = torch.ones_like(y)
    costs[:, -1] = -1
    short = (costs * z).sum(1, keepdim=True) < 0
    summed = _project_on_hyperplane(y, w, costs, y.new_zeros(len(y)))
    z = torch.where(short, summed, z)
    free = (z > 0) & (z < 1)
    return z, Face(free, torch.where(short, costs, 0.0), tied & free & ~short, w)


def nearest_pair(y: Tensor, w: Tensor, score: Tensor) -> tuple[Tensor, Face]:
    """Projection for two bits with a score (rows,) for both being on.

    A positive score raises the lower bit, at most to the other; a negative score acts in the same
    way on the first bit and the negated second bit.
    """
    flipped = score < 0
    size = score.abs()
    up_first = torch.where(flipped, y[:, 0], y[:, 0] + size / w[:, 0])
    second = torch.where(flipped, 1 - y[:, 1], y[:, 1])
    first = torch.where(flipped, y[:, 0] - size / w[:, 0], y[:, 0])
    up_second = second + size / w[:, 1]
    above, below = first > up_second, second > up_first
    both = (w[:, 0] * up_first + w[:, 1] * second) / (w[:, 0] + w[:, 1])
    one = torch.where(above, first, torch.where(below, up_first, both)).clamp(0, 1)
    two = torch.where(above, up_second, torch.where(below, second, both)).clamp(0, 1)
    z = torch.stack([one, torch.where(flipped, 1 - two, two)], 1)
    free = torch.stack([(one > 0) & (one < 1), (two > 0) & (two < 1)], 1)
    sign = torch.where(flipped, 1.0, -1.0).to(y)
    normal = torch.stack([torch.ones_like(sign), sign], 1)
    separate = (above | below).unsqueeze(1)
    return z, Face(free, torch.where(separate, 0.0, normal), torch.zeros_like(free), w)
