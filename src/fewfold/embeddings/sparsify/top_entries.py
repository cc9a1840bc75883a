"""At most so many non-zeros in each row of a transform."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fewfold.embeddings.sparsify.schedules import Narrowing

__all__ = ["Winners", "cut_rows"]


class Winners:
    """Keeps the largest entries of rows, and their places once a narrowing has come to its end."""

    def __init__(self, keep: int | Narrowing) -> None:
        self.keep = keep
        self.fixed: Tensor | None = None
        """bool, of the transform's shape"""

    def compares(self, step: int) -> bool:
        """Whether all rows are looked at in this step."""
        if isinstance(self.keep, int) or self.fixed is not None:
            return False
        done = step >= self.keep.after + self.keep.over
        return done or (step >= self.keep.after and step % self.keep.every == 0)

    @torch.no_grad()
    def enforce(self, transform: Tensor, rows: Tensor | None, step: int) -> None:
        """Set all other entries to zero, in these rows or in all."""
        if self.fixed is not None:
            more = max(transform.shape[1] - self.fixed.shape[1], 0)  # anchors that joined later
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
    """The largest of each row."""
    some = transform if rows is None else transform[rows]
    if count >= some.shape[1]:
        return
    best = some.abs().topk(count, 1).indices
    kept = torch.zeros_like(some).scatter_(1, best, some.gather(1, best))
    if rows is None:
        transform.copy_(kept)
    else:
        transform[rows] = kept


def _cut_table(transform: Tensor, count: int) -> None:
    """The largest of all, so many per row on average."""
    sizes = transform.abs().flatten()
    number = count * len(transform)
    if torch.count_nonzero(sizes) > number:
        kept = torch.zeros_like(sizes, dtype=torch.bool)
        kept[sizes.topk(number, sorted=False).indices] = True
        transform.mul_(kept.view_as(transform))


def cut_rows(transform: Tensor, counts: Tensor) -> None:
    """The largest of each row, which has a number of its own."""
    if len(counts) != len(transform):
        raise ValueError(f"shares must be one per row, {len(transform)}, got {len(counts)}")
    order = transform.abs().argsort(dim=1, descending=True, stable=True)
    place = torch.arange(transform.shape[1], device=transform.device)
    kept = place < counts.to(transform.device).unsqueeze(1)
    transform.mul_(torch.zeros_like(transform, dtype=torch.bool).scatter_(1, order, kept))
