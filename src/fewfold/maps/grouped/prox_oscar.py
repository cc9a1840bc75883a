"""Groups of the proximal operator of OSCAR on the simplex: sort, tilt by the rank, regress.

Where all entries are non-negative, the sum of pairwise maxima is `sum_r (n - 1 - r) x_(r)` over the
ranks r = 0, 1, ... of the n entries in descending order. Adding a constant to the scores changes
nothing on the simplex, so scores can be taken large enough that no entry reaches zero, and the
constant n - 1 drops out in the same way: what is left is the non-increasing regression of
`z_(r) + strength * r`, whatever the signs of the scores and whatever n.
"""

import math

import torch
from torch import Tensor

from fewfold.maps.grouped.chain import numbered, over_batch, running, split
from fewfold.maps.native_threshold import groups

__all__ = ["oscar_groups", "oscar_groups_closed"]


@torch.library.custom_op(
    "fewfold::oscar_groups", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,)
)
def oscar_groups(rows: Tensor, strength: Tensor) -> tuple[Tensor, Tensor]:
    """The group of every entry (negative: no group), and its rank, which pulls it up.

    Rows lie along the last dimension with their largest entry at 0 and -inf where dropped;
    `strength` broadcasts against them. What ends up more than 1 below the largest entry of the
    answer gets no group: sparsemax gives it 0.

    Being an operator of its own, on constants, it may look at the data under any transform.
    """
    found = groups("oscar_groups", rows, strength)
    if found is not None:
        return found
    ordered, order = rows.sort(-1, descending=True)
    rank = torch.arange(rows.shape[-1], device=rows.device)
    tilt = strength.nan_to_num(0.0).clamp(min=0)
    tilted = ordered + tilt * rank
    # The largest entry of the answer is at least 0 and the threshold of sparsemax within 1 of it.
    # Above any level lie the entries up to where the sum of what exceeds it is largest; the
    # quarter is room for rounding.
    last = (tilted + 1.25).cumsum(-1).argmax(-1, keepdim=True)
    near = (rank <= last).reshape(-1).nonzero().squeeze(-1)
    line = near // rows.shape[-1]
    begin = near == line * rows.shape[-1]
    values = tilted.reshape(-1)[near]
    begins, _ = split(values, begin, None, torch.zeros_like(values))
    begins = begins | (tilt.reshape(-1)[line] == 0)  # without a penalty ties stay separate
    group = torch.full(rows.shape, -1, dtype=torch.long, device=rows.device)
    group.view(-1)[near] = numbered(begins, line)
    back = torch.empty_like(order).scatter_(-1, order, rank.expand(order.shape))
    return group.gather(-1, back), back.to(rows.dtype)


@oscar_groups.register_fake
def _(rows: Tensor, strength: Tensor) -> tuple[Tensor, Tensor]:
    return rows.new_empty(rows.shape, dtype=torch.long), rows.new_empty(rows.shape)


oscar_groups.register_vmap(over_batch(oscar_groups))


def oscar_groups_closed(rows: Tensor, strength: Tensor) -> tuple[Tensor, Tensor]:
    """The same as `oscar_groups`, in plain operations without control flow, for exporters.

    Takes memory quadratic in the length of a row. Entry i of a non-increasing regression is the
    larger of entry i + 1 and of the smallest mean over [a, i].
    """
    size = rows.shape[-1]
    rank = torch.arange(size, device=rows.device)
    ordered, order = rows.sort(-1, descending=True)
    tilt = strength.nan_to_num(0.0).clamp(min=0)
    kept = ordered > -math.inf
    # An entry lower than this has no group above 1 below the top. Sums stay exact.
    floor = -2 - tilt * size
    values = torch.maximum(ordered, floor) + tilt * rank
    total = values.cumsum(-1)
    sums = total.unsqueeze(-1) - (total - values).unsqueeze(-2)  # over [a, i] at (i, a)
    length = rank.unsqueeze(-1) - rank + 1
    means = torch.where(length > 0, sums / length.clamp(min=1), math.inf)
    low = torch.where(kept, means.amin(-1), -math.inf)
    right = torch.nn.functional.pad(
        running(low, torch.maximum, -math.inf), (0, 1), value=-math.inf
    )[..., 1:]
    breaks = (low > right) | (tilt == 0)
    begins = torch.nn.functional.pad(breaks.long(), (1, 0))[..., :-1]
    group = torch.where(kept, begins.cumsum(-1), -1)
    back = order.sort(-1)[1]
    return group.gather(-1, back), back.to(rows.dtype)
