"""Groups of the proximal operator of OSCAR on the simplex, by isotonic regression.

Where all entries are non-negative, the sum of pairwise maxima is `sum_r (n - 1 - r) x_(r)` over the
ranks r = 0, 1, ... of the n entries in descending order. The solution on the simplex is invariant
to a constant added to the scores, so they can be shifted until no entry reaches zero, and the
constant n - 1 cancels in the same way. What remains, for scores of any sign, is the non-increasing
regression of `z_(r) + strength * r`.
"""

import math

import torch
from torch import Tensor

from fewfold._torch import NO_CUDA_GRAPH
from fewfold.maps.grouped.chain import numbered, over_batch, running, split
from fewfold.maps.native_threshold import groups

__all__ = ["oscar_groups", "oscar_groups_closed"]


@torch.library.custom_op("fewfold::oscar_groups", mutates_args=(), **NO_CUDA_GRAPH)
def oscar_groups(rows: Tensor, strength: Tensor) -> tuple[Tensor, Tensor]:
    """Return the group of every entry (negative: no group), and its rank as the pull.

    Rows lie along the last dimension with maximum 0 and -inf at masked entries; `strength`
    broadcasts against them. Entries more than 1 below the maximum of the solution get no group:
    sparsemax gives them probability 0.

    It is a registered operator on detached inputs, so that its control flow may depend on the data
    under any transform.
    """
    found = groups("oscar_groups", rows, strength)
    if found is not None:
        return found
    ordered, order = rows.sort(-1, descending=True)
    rank = torch.arange(rows.shape[-1], device=rows.device)
    tilt = strength.nan_to_num(0.0).clamp(min=0)
    tilted = ordered + tilt * rank
    # The maximum of the solution is at least 0 and the threshold of sparsemax within 1 of it. The
    # entries of the solution above a level are those up to the maximum of the cumulative excess
    # over it; 0.25 allows for rounding.
    last = (tilted + 1.25).cumsum(-1).argmax(-1, keepdim=True)
    near = (rank <= last).reshape(-1).nonzero().squeeze(-1)
    line = near // rows.shape[-1]
    begin = near == line * rows.shape[-1]
    values = tilted.reshape(-1)[near]
    begins, _ = split(values, begin, None, torch.zeros_like(values))
    begins = begins | (tilt.reshape(-1)[line] == 0)  # without a penalty each entry is its own group
    group = torch.full(rows.shape, -1, dtype=torch.long, device=rows.device)
    group.view(-1)[near] = numbered(begins, line)
    back = torch.empty_like(order).scatter_(-1, order, rank.expand(order.shape))
    return group.gather(-1, back), back.to(rows.dtype)


@oscar_groups.register_fake
def _(rows: Tensor, strength: Tensor) -> tuple[Tensor, Tensor]:
    return rows.new_empty(rows.shape, dtype=torch.long), rows.new_empty(rows.shape)


oscar_groups.register_vmap(over_batch(oscar_groups))


def oscar_groups_closed(rows: Tensor, strength: Tensor) -> tuple[Tensor, Tensor]:
    """`oscar_groups` without data-dependent control flow, for export.

    Memory is quadratic in the length of a row. Entry i of a non-increasing regression is the
    maximum of entry i + 1 and the smallest mean over [a, i].
    """
    size = rows.shape[-1]
    rank = torch.arange(size, device=rows.device)
    ordered, order = rows.sort(-1, descending=True)
    tilt = strength.nan_to_num(0.0).clamp(min=0)
    unmasked = ordered > -math.inf
    # Lower entries cannot be in the support; clamping them keeps sums accurate.
    floor = -2 - tilt * size
    values = torch.maximum(ordered, floor) + tilt * rank
    total = values.cumsum(-1)
    sums = total.unsqueeze(-1) - (total - values).unsqueeze(-2)  # over [a, i] at (i, a)
    length = rank.unsqueeze(-1) - rank + 1
    means = torch.where(length > 0, sums / length.clamp(min=1), math.inf)
    low = torch.where(unmasked, means.amin(-1), -math.inf)
    right = torch.nn.functional.pad(
        running(low, torch.maximum, -math.inf), (0, 1), value=-math.inf
    )[..., 1:]
    breaks = (low > right) | (tilt == 0)
    begins = torch.nn.functional.pad(breaks.long(), (1, 0))[..., :-1]
    group = torch.where(unmasked, begins.cumsum(-1), -1)
    back = order.sort(-1)[1]
    return group.gather(-1, back), back.to(rows.dtype)
