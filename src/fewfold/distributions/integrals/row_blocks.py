"""Apply a row-wise function in cache-sized blocks of rows, with several threads."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

__all__ = ["CHUNK", "by_rows"]

CHUNK = 2**15 - 1  # entries of a block: fits in the cache, below the size torch parallelises


def by_rows(function: Callable[..., Tensor], *rows: Tensor) -> Tensor:
    """Compute `function(*rows)` of a row-wise function, in blocks of rows.

    For many small operations, giving each thread its own rows is faster than splitting every
    operation among all threads. If gradients are needed, a single thread is used.

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
    parts = list(zip(*(tensor.split(size) for tensor in rows), strict=True))
    threads = min(torch.get_num_threads(), len(parts))
    needs_grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in rows)
    if threads < 2 or needs_grad:
        return torch.cat([function(*part) for part in parts])

    def work(part: tuple[Tensor, ...]) -> Tensor:
        with torch.no_grad():  # the grad mode is local to each thread
            return function(*part)

    with ThreadPoolExecutor(threads) as pool:
        return torch.cat(list(pool.map(work, parts)))
