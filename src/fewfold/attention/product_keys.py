"""The largest scores among all pairs of two sets of keys, found without forming the pairs."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fewfold._check import check_scores, whole_number

__all__ = ["ProductTopK", "product_topk"]


@dataclass(frozen=True)
class ProductTopK:
    """The k largest sums of each row.

    Attributes:
        scores: `(..., k)`, in descending order; differentiable.
        slots: `(..., k)` int64, the pairs (i, j) as `i * m + j`.
    """

    scores: Tensor
    slots: Tensor


def product_topk(first: Tensor, second: Tensor, k: int) -> ProductTopK:
    """Return the k largest of the n m sums `first_i + second_j` of each row, exactly.

    The pair of the i-th largest first and the j-th largest second score is exceeded or equalled by
    i j - 1 others, so that the k largest sums are among the pairs with i j <= k: about k log k of
    them, instead of n m. If several sums are equal to the k-th, some of them are returned.

    Args:
        first: `(..., n)`.
        second: `(..., m)`, with the same leading dimensions.
        k: from 1 to n m.

    Example:
        >>> import torch
        >>> from fewfold.attention import product_topk
        >>> product_topk(torch.tensor([0.0, 5.0, 3.0]), torch.tensor([1.0, 0.0]), 3)
        ProductTopK(scores=tensor([6., 5., 4.]), slots=tensor([2, 3, 4]))

    Reference: Lample, Sablayrolles, Ranzato, Denoyer and Jegou, "Large memory layers with product
    keys", 2019.
    """
    for name, scores in (("first", first), ("second", second)):
        check_scores(scores, name)
    if first.dim() == 0 or second.dim() == 0 or first.shape[:-1] != second.shape[:-1]:
        raise ValueError(
            "first and second must be (..., n) and (..., m) with the same leading dimensions, got "
            f"{tuple(first.shape)} and {tuple(second.shape)}"
        )
    n, m = first.shape[-1], second.shape[-1]
    if whole_number(k, "k") > n * m:
        raise ValueError(f"k must be at most the number of sums, {n} * {m} = {n * m}, got {k}")
    best, row = first.topk(min(k, n))
    other, column = second.topk(min(k, m))
    one, two = (torch.tensor(part, device=first.device) for part in _pairs(k, n, m))
    sums = best.index_select(-1, one) + other.index_select(-1, two)
    scores, place = sums.topk(k)
    slots = row.gather(-1, one[place]) * m + column.gather(-1, two[place])
    return ProductTopK(scores, slots)


def _pairs(k: int, n: int, m: int) -> tuple[list[int], list[int]]:
    """Ranks (i, j) below n and m, from 0, with (i + 1) (j + 1) <= k."""
    pairs = [(i, j) for i in range(min(k, n)) for j in range(min(k // (i + 1), m))]
    return [i for i, _ in pairs], [j for _, j in pairs]
