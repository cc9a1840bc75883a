"""Work on rows, a few at a time: in the cache, and by as many threads as torch may use."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

__all__ = ["CHUNK", "by_rows"]

CHUNK = 2**15 - 1  # entries at a time: in the cache, and too few for torch to wake its threads


def by_rows(function: Callable[..., Tensor], *rows: Tensor) -> Tensor:
    """`function(*rows)`, which treats every row alone, a few rows at a time.

    Many small operations are shared better by giving each thread rows of its own than by splitting
    every operation among all threads; what must be differentiated stays in one.

    Args:
        function: of tensors (n, K) that returns (n,).
        rows: (m, K) each.

    Returns:
        (m,).

    Example:
        >>> import torch
        >>> by_rows(lambda a: a.sum(-1), torch.ones(3, 2))
        tensor([2., 2., 2.])
    """
    size = max(1, CHUNK // max(rows[0].shape[-1], 1))
    parts = list(zip(*(given.split(size) for given in rows), strict=True))
    threads = min(torch.get_num_threads(), len(parts))
    learns = torch.is_grad_enabled() and any(given.requires_grad for given in rows)
    if threads < 2 or learns:
        return torch.cat([function(*part) for part in parts])

    def work(part: tuple[Tensor, ...]) -> Tensor:
        with torch.no_grad():  # a thread does not inherit it
            return function(*part)

    with ThreadPoolExecutor(threads) as pool:
        return torch.cat(list(pool.map(work, parts)))
