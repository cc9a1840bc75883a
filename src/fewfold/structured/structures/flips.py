"""The k cheapest subsets of priced elements, for the k best bit vectors."""

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["MAX_LISTED", "cheapest_sets"]

MAX_LISTED = 32  # up to this k the candidate subsets are enumerated once for all prices


def cheapest_sets(price: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k cheapest subsets.

    Args:
        price: (rows, n) ascending, non-negative; inf excludes an element.
        k: at most `MAX_LISTED`.

    Returns:
        Subsets (rows, k, n) bool, and their costs (rows, k), ascending; inf where there are fewer.

    Example:
        >>> import torch
        >>> sets, costs = cheapest_sets(torch.tensor([[1.0, 2.0, 4.0]]), 4)
        >>> sets.int().tolist()
        [[[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0]]]
        >>> costs
        tensor([[0., 1., 2., 3.]])
    """
    possible = _candidate_sets(k, price.shape[1]).to(price.device)
    costs = torch.where(possible, price.unsqueeze(1), 0.0).sum(-1)
    found, which = costs.topk(min(k, len(possible)), 1, largest=False)
    missing = k - found.shape[1]
    return possible[F.pad(which, (0, missing))], F.pad(found, (0, missing), value=math.inf)


@functools.cache
def _candidate_sets(k: int, size: int) -> Tensor:
    """Subsets (m, size) bool that fewer than k others dominate, whatever the ascending prices are.

    A subset dominates another if it can be reached from it by repeatedly dropping the first
    element or replacing an element by the one before it.
    """
    found, edge = {0}, [0]
    while edge:
        edge = [s for s in {up for s in edge for up in _costlier(s, size)} if _is_candidate(s, k)]
        found.update(edge)
    sets = torch.tensor(sorted(found)).unsqueeze(1)
    return (sets >> torch.arange(size)) & 1 > 0


def _costlier(s: int, size: int) -> list[int]:
    """Bit masks one step costlier: the first element added, or an element moved up by one."""
    moved = [s + (1 << i) for i in range(size - 1) if s >> i & 3 == 1]
    return moved if s & 1 or not size else [s | 1, *moved]


def _is_candidate(s: int, k: int) -> bool:
    """Whether fewer than k subsets dominate this bit mask."""
    below, edge = {s}, [s]
    while edge and len(below) <= k:
        edge = [t for t in {down for u in edge for down in _cheaper(u)} if t not in below]
        below.update(edge)
    return len(below) <= k


def _cheaper(s: int) -> list[int]:
    """Bit masks one step cheaper: the first element dropped, or an element moved down by one."""
    moved = [s - (1 << i) for i in range(s.bit_length() - 1) if s >> i & 3 == 2]
    return [s & ~1, *moved] if s & 1 else moved
