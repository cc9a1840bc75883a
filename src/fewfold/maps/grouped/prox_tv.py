"""Groups of the proximal operator of total variation, `min 1/2 ||x - z||^2 + strength * TV(x)`."""

import math

import torch
from torch import Tensor

from fewfold._torch import NO_CUDA_GRAPH
from fewfold.maps.grouped.chain import numbered, over_batch, running, split
from fewfold.maps.native_threshold import groups

__all__ = ["tv_groups", "tv_groups_closed"]


@torch.library.custom_op("fewfold::tv_groups", mutates_args=(), **NO_CUDA_GRAPH)
def tv_groups(rows: Tensor, strength: Tensor) -> tuple[Tensor, Tensor]:
    """Return the group of every entry (negative: no group), and its pull from adjacent jumps.

    Rows lie along the last dimension with maximum 0 and -inf at masked entries, across which
    neighbours are adjacent; `strength` broadcasts against them. Entries more than 1 below the
    maximum of the solution get no group: sparsemax gives them probability 0.

    It is a registered operator on detached inputs, so that its control flow may depend on the data
    under any transform.
    """
    found = groups("tv_groups", rows, strength)
    if found is not None:
        return found
    unmasked = rows > -math.inf
    force = strength.nan_to_num(0.0).clamp(min=0)
    # The maximum of the solution is at least -2 * force and the threshold of sparsemax within 1 of
    # it. An entry another 2 * force below is a wall: it stays below the threshold for any values of
    # its neighbours, and pulls them down regardless of its score. 0.25 allows for rounding.
    near = (rows >= -1.25 - 4 * force).reshape(-1).nonzero().squeeze(-1)
    line = near // rows.shape[-1]
    rank = unmasked.reshape(-1).cumsum(0)[near] - 1
    number = unmasked.sum(-1).reshape(-1)
    first = number.cumsum(0) - number
    begin, end = torch.ones_like(near, dtype=torch.bool), torch.ones_like(near, dtype=torch.bool)
    begin[1:] = (rank[1:] - rank[:-1] > 1) | (line[1:] != line[:-1])
    end[:-1] = begin[1:]
    wall_left = begin & (rank > first[line])
    wall_right = end & (rank < (first + number)[line] - 1)
    forces = force.reshape(-1)[line]
    walls = wall_left.to(rows.dtype) + wall_right.to(rows.dtype)
    begins, pull = split(rows.reshape(-1)[near], begin, forces, -walls)
    begins = begins | (forces == 0)  # without a penalty each entry is its own group
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
    """`tv_groups` without data-dependent control flow, for export.

    Memory is quadratic in the length of a row. The last entry of the solution for a row that ends
    at i, with a force v from the right, is a maximum of minima of means over [a, i]:

        max_c min( (S(c, i) - strength - v) / (i - c + 1),
                   min_{c < a <= i} (S(a, i) + strength - v) / (i - a + 1) )

    without the `- strength` at c = 0. With v = strength and v = -strength these are the lower and
    upper bounds to which entry i clamps entry i + 1.
    """
    size = rows.shape[-1]
    index = torch.arange(size, device=rows.device)
    unmasked = rows > -math.inf
    order = torch.where(unmasked, index, index + size).sort(-1)[1]
    number = unmasked.sum(-1, keepdim=True)
    force = strength.nan_to_num(0.0).clamp(min=0)
    # Entries below this are walls whatever their score; clamping them keeps sums accurate.
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
    return torch.where(unmasked, group.gather(-1, back), -1), (rise - before).gather(-1, back)


def _bounds(values: Tensor, force: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """Values of entry i for a right neighbour far below and far above; equal at the last entry."""
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
    """Return x_i = clamp(x_{i+1}, low_i, high_i) for all i, as a maximum of minima."""
    index = torch.arange(low.shape[-1], device=low.device)
    later = index >= index.unsqueeze(-1)  # (i, d): d >= i
    # The smallest upper bound among i, ..., d - 1, as a running minimum from the left.
    roofs = torch.where(later, high.unsqueeze(-2), math.inf)
    before = torch.nn.functional.pad(roofs, (1, 0), value=math.inf)[..., :-1]
    roof = running(before.flip(-1), torch.minimum, math.inf).flip(-1)
    return torch.where(later, torch.minimum(low.unsqueeze(-2), roof), -math.inf).amax(-1)
