"""Parts of a batch that draw the random numbers that they would draw in the whole batch."""

from typing import NamedTuple

import torch
from torch import Tensor

from fewfold._random import rand

__all__ = ["BatchPart", "uniform_rows"]


class BatchPart(NamedTuple):
    """Where consecutive rows are in a batch, so that its random numbers do not depend on the parts.

    Attributes:
        first: number of the first row in the batch.
        rows: number of rows of the whole batch.
    """

    first: int
    rows: int

    def slice(self, count: int) -> slice:
        """Return the slice of the whole batch that these `count` rows are."""
        return slice(self.first, self.first + count)


def uniform_rows(
    shape: tuple[int, ...],
    device: torch.device,
    generator: torch.Generator | None,
    part: BatchPart | None,
    dim: int = 0,
) -> Tensor:
    """Return uniform float64 numbers of this shape, of which `dim` counts rows of a batch."""
    if part is None:
        return rand(shape, device, dtype=torch.float64, generator=generator)
    whole = (*shape[:dim], part.rows, *shape[dim + 1 :])
    found = rand(whole, device, dtype=torch.float64, generator=generator)
    return found.narrow(dim, part.first, shape[dim])
