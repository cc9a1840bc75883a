"""Upper limit on the number of non-zeros in the rows of a transform."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fewfold.embeddings.sparsify.schedules import Narrowing

__all__ = ["TopEntries", "cut_rows"]


class TopEntries:
    """Keeps the largest entries of rows; fixes their places when a `Narrowing` has ended."""

    def __init__(self, keep: int | Narrowing) -> None:
        self.keep = keep
        self.fixed: Tensor | None = None
        """bool mask of the transform's shape; None until the places are fixed"""

    def compares(self, step: int) -> bool:
        """Whether `enforce` reads all rows at this step."""
        if isinstance(self.keep, int) or self.fixed is not None:
            return False
        done = step >= self.keep.after + self.keep.over
        return done or (step >= self.keep.after and step % self.keep.every == 0)

    @torch.no_grad()
    def enforce(self, transform: Tensor, rows: Tensor | None, step: int) -> None:
        """Set all but the largest entries to zero, in `rows` or in all rows if None."""
        if self.fixed is not None:
            more = max(transform.shape[1] - self.fixed.shape[1], 0)  # anchors added since
            fixed = F.pad(self.fixed, (0, more), value=True)[:, : transform.shape[1]]
            if rows is None:
                transform.mul_(fixed)
            else:
                transform[rows] *= fixed[rows]
            return
        if isinstance(self.keep, int):
            _cut(transform, rows, self.keep)
            return
        done = step >= self.keep.after + self.keep.over
        if self.compares(step):
            if self.keep.shares is not None:
                cut_rows(transform, self.keep.of_rows(step))
            elif self.keep.together:
                _cut_table(transform, self.keep(step))
            else:
                _cut(transform, None, self.keep(step))
        if done:
            self.fixed = transform != 0


def _cut(transform: Tensor, rows: Tensor | None, count: int) -> None:
    """Keep the `count` largest entries of each row."""
    values = transform if rows is None else transform[rows]
    if count >= values.shape[1]:
        return
    best = values.abs().topk(count, 1).indices
    largest = torch.zeros_like(values).scatter_(1, best, values.gather(1, best))
    if rows is None:
        transform.copy_(largest)
    else:
        transform[rows] = largest


def _cut_table(transform: Tensor, count: int) -> None:
    """Keep the largest entries of the whole table, `count` per row on average."""
    sizes = transform.abs().flatten()
    number = count * len(transform)
    if torch.count_nonzero(sizes) > number:
        mask = torch.zeros_like(sizes, dtype=torch.bool)
        mask[sizes.topk(number, sorted=False).indices] = True
        transform.mul_(mask.view_as(transform))


def cut_rows(transform: Tensor, counts: Tensor) -> None:
    """Keep the `counts[v]` largest entries of each row v."""
    if len(counts) != len(transform):
        raise ValueError(f"shares must be one per row, {len(transform)}, got {len(counts)}")
    order = transform.abs().argsort(dim=1, descending=True, stable=True)
    rank = torch.arange(transform.shape[1], device=transform.device)
    mask = rank < counts.to(transform.device).unsqueeze(1)
    transform.mul_(torch.zeros_like(transform, dtype=torch.bool).scatter_(1, order, mask))
