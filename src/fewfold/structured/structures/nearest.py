"""Nearest points of simple polytopes of bits, in a weighted norm, and the faces they lie on.

All work on rows: y, the point to be near to, and w, the weights, are (rows, bits) float64, and

    z = argmin  sum_i w_i (z_i - y_i)^2 / 2 - (additional score)   over the polytope.

A y of -inf, or +inf, holds its bit at 0, or 1.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Face", "nearest_linear", "nearest_or_out", "nearest_pair"]


@dataclass(frozen=True, eq=False)
class Face:
    """Where a nearest point can go when y moves a little.

    Attributes:
        free: (rows, bits) bool, bits that are not held at 0 or 1.
        normal: (rows, bits) float, a direction it cannot go to; 0 in rows that have none.
        tied: (rows, bits) bool, free bits that stay equal to each other.
        weights: (rows, bits).
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
        """By how much z moves as y moves by `change`: the weighted projection on the face."""
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
    """The nearest z in [0, 1]^n with <costs, z> <= bound, or equal to it.

    z = clip(y - x costs / w, 0, 1), where x is 0 or makes the bound tight.

    Args:
        y, w: (rows, n).
        costs: (rows, n), of either sign.
        bound: (rows,).
        equal: whether the bound must be met.
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
    """z = clip(y - x costs / w, 0, 1) with <costs, z> = bound, or as near to it as there is."""
    moves = (costs != 0) & y.isfinite()
    rate = torch.where(moves, costs / w, 1.0)
    way = torch.where(moves, 2 / rate.abs(), 0.0).amax(1, keepdim=True)
    y = _shift_near_solution(y, rate, costs, bound, way)
    # <costs, z> falls as x grows, and is linear between the x at which a bit leaves 0 or 1
    turns = torch.stack([y / rate, (y - 1) / rate], 2)
    turns = torch.where(moves.unsqueeze(2), turns, 0.0)  # those of others change nothing
    first, last = turns.clamp(-way.unsqueeze(2), way.unsqueeze(2)).sort(2).values.unbind(2)
    slope = torch.where(moves, costs * rate, 0.0)
    where, order = torch.cat([first, last], 1).sort(1)
    falls = torch.cat([slope, -slope], 1).gather(1, order).cumsum(1)
    steps = torch.where(where.diff(dim=1) > 0, falls[:, :-1] * where.diff(dim=1), 0.0)
    highest = (costs * torch.where(moves, y + way * rate, y).clamp(0, 1)).sum(1, keepdim=True)
    values = torch.cat([highest, highest - steps.cumsum(1)], 1)  # <costs, z> at each turn
    place = (values >= bound.unsqueeze(1)).sum(1, keepdim=True)
    here = where.gather(1, (place - 1).clamp(min=0))
    after = where.gather(1, place.clamp(max=where.shape[1] - 1))
    middle = torch.where(place == 0, where[:, :1] - 1, (here + after) / 2)
    inside = moves & (first < middle) & (middle < last)
    held = (y - middle * torch.where(moves, rate, 0.0)).clamp(0, 1)
    rest = bound - torch.where(inside, 0.0, costs * held).sum(1)
    length = torch.where(inside, slope, 0.0).sum(1)
    own = torch.where(inside, costs * y, 0.0).sum(1)
    x = torch.where(length > 0, (own - rest) / torch.where(length > 0, length, 1.0), middle[:, 0])
    return torch.where(moves, (y - x.unsqueeze(1) * rate).clamp(0, 1), y.clamp(0, 1))


def _shift_near_solution(
    y: Tensor, rate: Tensor, costs: Tensor, bound: Tensor, way: Tensor
) -> Tensor:
    """y - x rate with an x near to the answer, so that nothing is lost however large y is.

    It would be the answer if bits, as they leave 0 or come to it, went all the way at once; so it
    is off by less than the longest `way`.
    """
    moves = (costs != 0) & y.isfinite()
    most = (costs * torch.where(moves, (costs > 0).to(y), y.clamp(0, 1))).sum(1, keepdim=True)
    for _ in range(10):  # each leaves a rounding of the last
        where, order = torch.where(moves, y / rate, 0.0).sort(1)
        falls = torch.where(moves, costs.abs(), 0.0).gather(1, order).cumsum(1)
        place = (most - falls >= bound.unsqueeze(1)).sum(1, keepdim=True)
        x = where.gather(1, place.clamp(max=y.shape[1] - 1))
        y = torch.where(moves, y - x * rate, y)
        if not bool((x.abs() > 1e3 * way).any()):
            break
    return y


def nearest_or_out(y: Tensor, w: Tensor) -> tuple[Tensor, Face]:
    """The nearest z whose last bit is the "or" of the others: z_i <= z_n <= 1, z_n <= sum z_i.

    First without the last condition: inputs that are larger than the output share its value, a
    weighted mean. If that leaves an output above the sum of the inputs, they are equal.
    """
    inputs, order = y[:, :-1].sort(1, descending=True)
    weights = w[:, :-1].gather(1, order)
    sums = torch.cat([w[:, -1:], weights], 1).cumsum(1)
    pulled = torch.cat([w[:, -1:] * y[:, -1:], weights * inputs], 1).cumsum(1)
    means = pulled / sums
    joins = (inputs > means[:, :-1]).to(torch.int64).cumprod(1)  # the largest first
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
    """Two bits, with a score (rows,) for both being on.

    A positive score pulls the lower of the two up, at most to the other; with a negative one the
    same is true of the first bit and of the second one's opposite.
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
    apart = (above | below).unsqueeze(1)
    return z, Face(free, torch.where(apart, 0.0, normal), torch.zeros_like(free), w)
