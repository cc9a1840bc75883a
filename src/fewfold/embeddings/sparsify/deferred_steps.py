"""What rows owe from the steps in which they were not touched."""

import torch
from torch import Tensor

__all__ = ["Debts"]


class Debts:
    """What every row owes: the sum of l1 times lr over the steps since it last paid."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self._paid = torch.zeros(rows, dtype=torch.int32, device=device)  # up to which step
        self._sums = torch.zeros(1024, dtype=torch.float64)  # of all before a step
        self._now = 0

    @property
    def any(self) -> bool:
        """Whether anybody can owe anything yet."""
        return self._now > 0

    def add(self, amount: float, *, paid: Tensor | None) -> None:
        """One more step; the rows `paid` have done so already, None: nobody has."""
        if amount == 0:
            return
        if self._now + 1 == len(self._sums):
            self._sums = torch.cat([self._sums, torch.zeros_like(self._sums)])
        self._sums[self._now + 1] = self._sums[self._now] + amount
        self._now += 1
        if paid is not None:
            self._paid[paid] = self._now

    def collect(self, ids: Tensor | None) -> tuple[Tensor, Tensor]:
        """Those of these rows that owe something (n,), and how much (n,); they pay now."""
        if ids is None:
            rows = (self._paid != self._now).nonzero().squeeze(1)
        else:
            ids = ids.flatten()
            rows = ids[self._paid[ids] != self._now].unique()
        since = self._paid[rows].to("cpu", torch.int64)
        owed = (self._sums[self._now] - self._sums[since]).to(rows.device)
        self._paid[rows] = self._now
        return rows[owed > 0], owed[owed > 0]
