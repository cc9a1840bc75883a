"""Groups of equal neighbours on a chain under penalties on the jumps between them.

For a row y the problem is

    min_x  1/2 sum_i (x_i - y_i)^2 + sum_i up * [x_{i+1} - x_i]_+ + down * [x_i - x_{i+1}]_+

Total variation has up = down = strength. Non-increasing regression has up = inf and down = 0.
The solution is constant on groups of neighbours. Given the groups and the signs of the jumps
between them it is a mean over each group, which `fuse` computes in differentiable operations. This
module finds the groups on detached values.

The groups are found by recursive splitting. Whether x_i > b, for all i at once, is a two-label
problem on the chain, solved by one pass of messages clamped to [-up, down]. With b the mean of a
segment, the labels either split the segment or prove it constant, so that no group is decided by
comparing floats for equality.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["fuse", "numbered", "over_batch", "running", "solver_dtype", "split"]

_BLOCK = 32  # entries per block of the message pass
_STEPS = 22  # doublings when the exported length is symbolic: rows of up to 2^22 entries


def solver_dtype(rows: Tensor) -> torch.dtype:
    """float64 where the device has it: long sums in float32 are too inexact to find the groups."""
    return rows.dtype if rows.device.type == "mps" else torch.float64


def split(
    values: Tensor, begin: Tensor, force: Tensor | None, pull: Tensor
) -> tuple[Tensor, Tensor]:
    """Find the groups of many concatenated chains.

    Args:
        values: (m,) entries of all chains.
        begin: (m,) bool, whether an entry is the first of its chain.
        force: (m,) penalty of jumps in both directions (total variation); None for non-increasing
            regression.
        pull: (m,) number of jumps to neighbours outside the chains, +1 for a higher neighbour and
            -1 for a lower one.

    Returns:
        Whether each entry is the first of its group, and its pull including jumps between groups.
    """
    pull = pull.clone()
    begins, pulls = begin.clone(), pull.clone()
    place = torch.arange(values.shape[0], device=values.device)
    while place.numel():
        segment = begin.cumsum(0) - 1
        label = _above_mean(
            values if force is None else values + force * pull, begin, segment, force
        )
        rise = label[1:].to(values.dtype) - label[:-1].to(values.dtype)
        rise = rise.masked_fill(begin[1:], 0.0)
        pull[:-1] += rise
        pull[1:] -= rise
        broken = torch.zeros_like(begin)
        broken[1:] = rise != 0
        begin = begin | broken
        begins[place], pulls[place] = begin, pull
        # Only segments that were split in this round can be split again.
        active = torch.zeros_like(begin).index_fill(0, segment[broken], True)[segment]
        place, values, begin, pull = place[active], values[active], begin[active], pull[active]
        force = None if force is None else force[active]
    return begins, pulls


def _above_mean(values: Tensor, begin: Tensor, segment: Tensor, force: Tensor | None) -> Tensor:
    """Return for every entry whether its solution lies above the mean of its segment."""
    total = torch.zeros_like(values).index_add(0, segment, values)
    size = torch.bincount(segment, minlength=values.shape[0])
    excess = values - (total / size)[segment]
    # A jump up costs -low, a jump down costs high.
    high = torch.zeros_like(values) if force is None else force
    low = torch.full_like(values, -math.inf) if force is None else -force
    message = _reflect(excess, low, high, begin)
    balance = message.roll(1).masked_fill(begin, 0.0) + excess
    end = begin.roll(-1)  # begin[0] is true, so end[-1] is true
    # A balance outside the clamp decides the label; otherwise the right neighbour does.
    decided = end | (balance > high) | (balance < low)
    yes = torch.where(end, balance > 0, balance > high)
    return yes[_next_true(decided)]


def _next_true(flags: Tensor) -> Tensor:
    """Return the index of the first true flag at or after each position; the last must be true."""
    where = flags.nonzero().squeeze(-1)
    rank = flags.cumsum(0) - flags.long()
    return where[rank]


def _reflect(step: Tensor, low: Tensor, high: Tensor, begin: Tensor) -> Tensor:
    """Return m_i = clamp(m_{i-1} + step_i, low_i, high_i), restarted from 0 where `begin`."""
    fixed = step.clamp(low, high)
    return _scan(step, torch.where(begin, fixed, low), torch.where(begin, fixed, high))


def _scan(step: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Compose the functions m -> clamp(m + step, low, high) from the left, starting at 0.

    Such functions are closed under composition: blocks are composed in parallel, their results
    scanned recursively, and every entry computed from the value that enters its block.
    """
    size = step.shape[0]
    blocks = -(-size // _BLOCK)
    pad = blocks * _BLOCK - size

    def lay(flat: Tensor, fill: float) -> Tensor:
        padded = torch.nn.functional.pad(flat, (0, pad), value=fill)
        return padded.view(blocks, _BLOCK).t().contiguous()

    steps = lay(step, 0.0)
    lows, highs = lay(low, -math.inf), lay(high, math.inf)
    ends = torch.stack([lows, highs], 1)  # (_BLOCK, 2, blocks)
    for i in range(1, min(_BLOCK, size)):
        torch.add(ends[i - 1], steps[i], out=ends[i])
        torch.clamp(ends[i], lows[i], highs[i], out=ends[i])
    sums = steps.cumsum(0)
    enter = torch.zeros_like(sums[0])
    if blocks > 1:
        enter[1:] = _scan(sums[-1], ends[-1, 0], ends[-1, 1])[:-1]
    out = torch.minimum(torch.maximum(enter + sums, ends[:, 0]), ends[:, 1])
    return out.t().reshape(-1)[:size]


def numbered(begins: Tensor, line: Tensor) -> Tensor:
    """Return the group number of each entry, counted from 0 within its line."""
    number = begins.cumsum(0)
    newline = torch.ones_like(begins)
    newline[1:] = line[1:] != line[:-1]
    return number - number[newline][newline.cumsum(0) - 1]


def fuse(rows: Tensor, strength: Tensor, group: Tensor, pull: Tensor) -> Tensor:
    """Replace every entry by the mean of `rows + strength * pull` over its group.

    Entries with a negative group become -inf.
    """
    grouped = group >= 0
    index = group.clamp(min=0)
    pulled = torch.where(grouped, rows + strength * pull, 0.0)
    zeros = torch.zeros_like(pulled)
    total = zeros.scatter_add(-1, index, pulled)
    count = zeros.scatter_add(-1, index, grouped.to(pulled.dtype))
    mean = total / count.clamp(min=1.0)
    return torch.where(grouped, mean.gather(-1, index), -math.inf)


def running(values: Tensor, join: Callable[[Tensor, Tensor], Tensor], fill: float) -> Tensor:
    """Reduce each entry with all entries after it by `join`, whose neutral element is `fill`.

    Uses shifts of doubling length, because exported graphs have no cumulative maximum.
    """
    size = values.shape[-1]
    steps = _STEPS if isinstance(size, torch.SymInt) else max(int(size) - 1, 0).bit_length()
    index = torch.arange(size, device=values.device)
    for step in range(steps):
        later = index + 2**step
        shifted = values.index_select(-1, torch.where(later < size, later, 0))
        values = join(values, torch.where(later < size, shifted, fill))
    return values


def over_batch(find: Callable[[Tensor, Tensor], Any]) -> Callable[..., tuple[Any, tuple[int, int]]]:
    """Return the vmap rule of `find`: the vmapped dimension becomes a batch dimension."""

    def rule(
        info: Any, dims: tuple[int | None, int | None], rows: Tensor, strength: Tensor
    ) -> tuple[Any, tuple[int, int]]:
        lead = [
            value.unsqueeze(0).expand(info.batch_size, *value.shape)
            if dim is None
            else value.movedim(dim, 0)
            for value, dim in zip((rows, strength), dims, strict=True)
        ]
        return find(*lead), (0, 0)

    return rule
