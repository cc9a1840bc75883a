"""The k best structures by partitioning the solution space, and the kernels for trees."""

import heapq
import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from fewfold._native import dispatch

__all__ = ["best_trees", "k_best_by_partition"]

Solve = Callable[[list[int], list[int]], tuple[Tensor, float] | None]


def k_best_by_partition(solve: Solve, k: int) -> list[tuple[Tensor, float]]:
    """The k best structures as codes (slots,) and their values, best first.

    Lawler's partition: all structures other than the best either lack its first part, or have it
    and lack the second, and so on. The best of each of these disjoint sets is computed.

    Args:
        solve: returns the best structure with some forced and some forbidden parts, or None.
        k: number of structures.
    """
    order = itertools.count()  # breaks ties between equal values
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
    """Codes (rows, k, slots) and values (rows, k) of the k best trees, by a kernel."""
    rows = len(scores)
    codes = torch.full((rows, k, slots), -1, dtype=torch.int32)
    values = torch.full((rows, k), -math.inf, dtype=torch.float64)
    request = dispatch.kernel("BestTrees")(
        scores, rows, scores[0].numel() if rows else 0, slots, k, codes, values, dispatch.threads()
    )
    kernel(request, *arguments)
    return codes, values
