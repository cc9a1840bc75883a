"""The k best structures by parting what is left, and what the kernels of trees ask for."""

import heapq
import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from fewfold import _native

__all__ = ["best_trees", "k_best_by_partition"]

Solve = Callable[[list[int], list[int]], tuple[Tensor, float] | None]


def k_best_by_partition(solve: Solve, k: int) -> list[tuple[Tensor, float]]:
    """The k best structures as codes (slots,) and their values, the best first.

    The best of a set is known, and all others in it either lack its first part, or have that and
    lack its second, and so on: disjoint sets, the best of each of which is found in turn.

    Args:
        solve: the best structure that has some parts and lacks others; None if there is none.
        k: how many.
    """
    order = itertools.count()  # between equal values
    heap: list[tuple[float, int, Tensor, list[int], list[int]]] = []
    found: list[tuple[Tensor, float]] = []

    def consider(forced: list[int], forbidden: list[int]) -> None:
        best = solve(forced, forbidden)
        if best is not None:
            heapq.heappush(heap, (-best[1], next(order), best[0], forced, forbidden))

    consider([], [])
    while heap and len(found) < k:
        value, _, code, forced, forbidden = heapq.heappop(heap)
        found.append((code, -value))
        free = [part for part in code.tolist() if part >= 0 and part not in forced]
        for place, part in enumerate(free):
            consider(forced + free[:place], [*forbidden, part])
    return found


def best_trees(
    kernel: Callable[..., None], scores: Tensor, slots: int, k: int, *arguments: object
) -> tuple[Tensor, Tensor]:
    """Codes (rows, k, slots) and values (rows, k) of the k best, by a kernel."""
    assert _native.kernels is not None
    rows = len(scores)
    codes = torch.full((rows, k, slots), -1, dtype=torch.int32)
    values = torch.full((rows, k), -math.inf, dtype=torch.float64)
    request = _native.kernels.BestTrees(
        scores, rows, scores[0].numel() if rows else 0, slots, k, codes, values, _native.threads()
    )
    kernel(request, *arguments)
    return codes, values
