"""Groups of the proximal operator of total variation, `min 1/2 ||x - z||^2 + strength * TV(x)`."""

import math

import torch
from torch import Tensor

from fewfold.maps.grouped.chain import numbered, over_batch, running, split
from fewfold.maps.native_threshold import groups

__all__ = ["tv_groups", "tv_groups_closed"]


@torch.library.custom_op("fewfold::tv_groups", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
def tv_groups(rows: Tensor, strength: Tensor) -> tuple[Tensor, Tensor]:
    """The group of every entry (negative: no group), and how many jumps pull it up.

    Rows lie along the last dimension with their largest entry at 0 and -inf where dropped, so that
    neighbours across a gap are adjacent; `strength` broadcasts against them. What ends up more
    than 1 below the largest entry of the answer gets no group: sparsemax gives it 0.

    Being an operator of its own, on constants, it may look at the data under any transform.
    """
    found = groups("tv_groups", rows, strength)
    if found is not None:
        return found
    kept = rows > -math.inf
    force = strength.nan_to_num(0.0).clamp(min=0)
    # The largest entry of the answer is at least -2 * force and the threshold of sparsemax within
    # 1 of it. What lies 2 * force below that is a wall: lower than all that matters however high
    # its neighbours, so that they feel it no matter its score. The quarter is room for rounding.
    near = (rows >= -1.25 - 4 * force).reshape(-1).nonzero().squeeze(-1)
    line = near // rows.shape[-1]
    rank = kept.reshape(-1).cumsum(0)[near] - 1
    number = kept.sum(-1).reshape(-1)
    first = number.cumsum(0) - number
    begin, end = torch.ones_like(near, dtype=torch.bool), torch.ones_like(near, dtype=torch.bool)
    begin[1:] = (rank[1:] - rank[:-1] > 1) | (line[1:] != line[:-1])
    end[:-1] = begin[1:]
    wall_left = begin & (rank > first[line])
    wall_right = end & (rank < (first + number)[line] - 1)
    forces = force.reshape(-1)[line]
    walls = wall_left.to(rows.dtype) + wall_right.to(rows.dtype)
    begins, pull = split(rows.reshape(-1)[near], begin, forces, -walls)
    begins = begins | (forces == 0)  # without a penalty ties stay separate, as in sparsemax
    group = torch.full(rows.shape, -1, dtype=torch.long, device=rows.device)
    group.view(-1)[near] = numbered(begins, line)
    pulls = torch.zeros(rows.shape, dtype=rows.dtype, device=rows.device)
    pulls.view(-1)[near] = pull
    return group, pulls


@tv_groups.register_fake
def _(rows: Tensor, strength: Tensor) -> tuple[Tensor, Tensor]:
    return rows.new_empty(rows.shape, dtype=torch.long), rows.new_empty(rows.shape)


tv_groups.register_vmap(over_batch(tv_groups))


def tv_groups_closed(rows: Tensor, strength: Tensor) -> tuple[Tensor, Tensor]:
    """The same as `tv_groups`, in plain operations without control flow, for exporters.

    Takes memory quadratic in the length of a row. The last entry of the answer for a row that
    ends at i, pushed from the right by v, is a maximum of minima of means over [a, i]:

        max_c min( (S(c, i) - strength - v) / (i - c + 1),
                   min_{c < a <= i} (S(a, i) + strength - v) / (i - a + 1) )

    without the `- strength` at c = 0. With v = strength and v = -strength these are the bounds
    within which entry i follows entry i + 1.
    """
    size = rows.shape[-1]
    index = torch.arange(size, device=rows.device)
    kept = rows > -math.inf
    order = torch.where(kept, index, index + size).sort(-1)[1]
    number = kept.sum(-1, keepdim=True)
    force = strength.nan_to_num(0.0).clamp(min=0)
    # Lower than this nothing depends on how low, and sums stay exact.
    values = torch.maximum(rows, -4 * force - 2).gather(-1, order)
    low, high = _bounds(values, force, index == number - 1)
    inside = index < number
    low = torch.where(inside, low, -math.inf)
    follow = _clip_backwards(low, torch.where(inside, high, math.inf))
    right = torch.nn.functional.pad(follow, (0, 1), value=0.0)[..., 1:]
    rise = (right > high).to(rows.dtype) - (right < low).to(rows.dtype)
    rise = torch.where(index < number - 1, rise, 0.0)
    before = torch.nn.functional.pad(rise, (1, 0), value=0.0)[..., :-1]
    begins = (before != 0) | (force == 0)
    group = torch.where(begins & (index > 0), 1, 0).cumsum(-1)
    back = order.sort(-1)[1]
    return torch.where(kept, group.gather(-1, back), -1), (rise - before).gather(-1, back)


def _bounds(values: Tensor, force: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """What entry i is when its right neighbour is far below, and far above; equal at the last."""
    size = values.shape[-1]
    index = torch.arange(size, device=values.device)
    total = values.cumsum(-1)
    sums = total.unsqueeze(-1) - (total - values).unsqueeze(-2)  # over [a, i] at (i, a)
    length = index.unsqueeze(-1) - index + 1
    valid = length > 0
    length = length.clamp(min=1)
    push = torch.where(last, 0.0, force).unsqueeze(-1)
    wall = force.unsqueeze(-1)
    restart = torch.where(index > 0, wall, 0.0)

    def bound(right: Tensor) -> Tensor:
        floor = torch.where(valid, (sums - restart - right) / length, -math.inf)
        roof = torch.where(valid, (sums + wall - right) / length, math.inf)
        rest = torch.nn.functional.pad(roof, (0, 1), value=math.inf)[..., 1:]
        return torch.minimum(floor, running(rest, torch.minimum, math.inf)).amax(-1)

    return bound(push), bound(-push)


def _clip_backwards(low: Tensor, high: Tensor) -> Tensor:
    """x_i = clamp(x_{i+1}, low_i, high_i) for all i: a maximum of minima."""
    index = torch.arange(low.shape[-1], device=low.device)
    later = index >= index.unsqueeze(-1)  # (i, d): d >= i
    # The lowest roof among i, ..., d - 1, as a running minimum from the left.
    roofs = torch.where(later, high.unsqueeze(-2), math.inf)
    before = torch.nn.functional.pad(roofs, (1, 0), value=math.inf)[..., :-1]
    roof = running(before.flip(-1), torch.minimum, math.inf).flip(-1)
    return torch.where(later, torch.minimum(low.unsqueeze(-2), roof), -math.inf).amax(-1)
