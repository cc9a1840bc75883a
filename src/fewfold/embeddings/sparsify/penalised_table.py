"""L1 penalty on the transform of one table, applied at every step or when a row is next read."""

import torch
from torch import Tensor

from fewfold.embeddings.relations.relations import Relations
from fewfold.embeddings.sparsify.collapse import CollapseCheck
from fewfold.embeddings.sparsify.optimizer_state import group_of, reset_entries, step_sizes
from fewfold.embeddings.sparsify.regrow import regrow as regrow_rows
from fewfold.embeddings.sparsify.schedules import Narrowing, Regrow
from fewfold.embeddings.sparsify.top_entries import TopEntries
from fewfold.embeddings.table.embedding import AnchorEmbedding
from fewfold.optim.l1_penalty import Penalty, shrink_
from fewfold.optim.row_optimizer import RowOptimizer

__all__ = ["DeferredPenalty", "PenalisedTable"]


class PenalisedTable:
    """Applies the proximal step to one table, before and after each step of the optimiser.

    With a dense gradient all rows are shrunk after every step. With a sparse one only the rows that
    have a gradient are; the penalty of the others is accumulated and applied by `apply_deferred`,
    which the table calls before it reads them.
    """

    def __init__(
        self,
        table: AnchorEmbedding,
        optimizer: torch.optim.Optimizer,
        keep: int | Narrowing | None,
        regrow: Regrow | None,
        relations: Relations | None,
    ) -> None:
        self.table, self.optimizer, self.regrow = table, optimizer, regrow
        self.relations = relations
        self.limit = None if keep is None else TopEntries(keep)
        self._deferred: DeferredPenalty | None = None  # from the first sparse gradient on
        self._rows: Tensor | None = None  # rows of the sparse gradient of this step
        self._inactive: Tensor | None = None  # entries of anchors out of use, before this step
        self._collapse, self._l1 = CollapseCheck(table), 0.0
        self.attach()

    def attach(self) -> None:
        """Make the table call `apply_deferred` before it reads rows, if penalties are deferred."""
        callback = None if self._deferred is None else self.apply_deferred
        self.table.attached.set_before_read(callback)

    @property
    def _param(self) -> Tensor:
        return self.table.transform

    def begin(self, step: int) -> None:
        """Prepare the forward pass of a step: record gradients if rows regrow in it."""
        if self.regrow is not None and self.regrow.due(step):
            self.table.attached.start_recording()

    def before(self, l1: float) -> None:
        """Prepare the step of the optimiser, after the backward pass."""
        grad = self._param.grad
        self._rows = self._inactive = None
        if isinstance(self.optimizer, RowOptimizer):
            self.optimizer.penalties.pop(self._param, None)
        if grad is None or grad.layout is torch.strided:
            if grad is not None:
                self.apply_deferred(None)  # deferred penalties use the step sizes before this step
            if self._has_inactive():
                self._inactive = self._param[:, self.table.active :].clone()
            return
        if not isinstance(self.optimizer, RowOptimizer):
            raise TypeError(
                "sparse gradients of an anchor table need an optimiser of fewfold.optim; write "
                "fewfold.optim.Adam instead of "
                f"{type(self.optimizer).__name__}, or sparse=False"
            )
        self._rows = grad._indices()[0]  # may repeat: equal values are written for each
        if self._deferred is None:
            self._deferred = DeferredPenalty(len(self._param), self._param.device)
            self.attach()
        self.apply_deferred(self._rows)
        if self._has_inactive():
            self._inactive = self._param[self._rows, self.table.active :]
        if self.relations is None and l1:  # the optimiser shrinks rows in the pass that moves them
            self.optimizer.penalties[self._param] = Penalty(l1, self.table.signed)

    def _has_inactive(self) -> bool:
        return self.table.active < len(self.table.anchors)

    def after(self, l1: float, step: int) -> None:
        """Apply the penalty, the limit on non-zeros and regrowth after the optimiser's step."""
        if self._rows is not None:
            if self.relations is not None or not (l1 or self.table.signed):
                self._shrink(l1, self._rows)
        elif self._param.grad is not None:
            self._shrink(l1, None)
        if self._deferred is not None:
            lr = float(group_of(self.optimizer, self._param)["lr"])
            self._deferred.add(l1 * lr, paid=self._rows)
        if self._inactive is not None:  # entries of anchors out of use do not change
            rows = slice(None) if self._rows is None else self._rows
            self._param[rows, self.table.active :] = self._inactive
        if self.limit is not None:
            if self.limit.compares(step):  # with rows whose penalty may be deferred
                self.apply_deferred(None)
            in_use = self._param[:, : self.table.active]
            self.limit.enforce(in_use, self._rows, step)
        if self.regrow is not None and self.regrow.due(step):
            self._regrow(l1)
        self._l1 = l1
        if self._collapse.due(step):
            self.apply_deferred(self._collapse.rows())
            self._collapse.look(l1)

    def _shrink(self, l1: float, rows: Tensor | None) -> None:
        self._shrink_by(l1 * step_sizes(self.optimizer, self._param, rows), rows)

    def _shrink_by(self, by: Tensor | float, rows: Tensor | None) -> None:
        """Soft-threshold rows by `by`, except for the entries that `relations` exempt."""
        param, slots = self._param, self.table.slots
        values = param if rows is None else param[rows]
        by = torch.as_tensor(by, dtype=param.dtype, device=param.device)
        if self.relations is not None:
            row_slots = slots if slots is None or rows is None else slots[rows]
            by = torch.where(self.relations.exempt(row_slots, rows), 0, by)
        shrink_(values, by, signed=self.table.signed)
        if not self.table.signed:  # also where the threshold is zero
            values.clamp_(min=0)
        if rows is not None:
            param[rows] = values

    @torch.no_grad()
    def apply_deferred(self, ids: Tensor | None) -> None:
        """Apply the deferred penalty to the rows of `ids`, or to all rows if None."""
        if self._deferred is None or not self._deferred.any:
            return
        if not isinstance(self.optimizer, RowOptimizer):
            return
        rows, amount = self._deferred.collect(ids)
        if not len(rows):
            return
        active = self.table.active
        inactive = self._param[rows, active:] if self._has_inactive() else None
        if self.relations is None:
            self.optimizer.soften(self._param, rows, amount, signed=self.table.signed)
        else:
            unit_steps = self.optimizer.rates(self._param, rows, lr=1.0)
            self._shrink_by(unit_steps * amount.to(self._param.dtype).unsqueeze(1), rows)
        if inactive is not None:
            self._param[rows, active:] = inactive
        if ids is None:
            self._collapse.look(self._l1)

    def _regrow(self, l1: float) -> None:
        recorded = self.table.attached.take_recorded(self.table.anchors)
        if recorded is None or self.regrow is None:
            return
        row, place = regrow_rows(
            self.table, *recorded, below=self.regrow.below, l1=l1, among=self.fixed_places()
        )
        reset_entries(self.optimizer, self._param, row, place)

    def fixed_places(self) -> Tensor | None:
        """Mask of the entries that a finished `Narrowing` left, or None."""
        return None if self.limit is None else self.limit.fixed

    def restart(self, fixed: Tensor | None) -> None:
        """Restore the state after loading: no penalty is deferred."""
        if self._deferred is not None:
            self._deferred = DeferredPenalty(len(self._param), self._param.device)
        if self.limit is not None:
            self.limit.fixed = fixed


class DeferredPenalty:
    """Penalty of each row that is not applied yet: the sum of l1 * lr since its last update."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self._paid = torch.zeros(rows, dtype=torch.int32, device=device)  # steps applied per row
        self._sums = torch.zeros(1024, dtype=torch.float64)  # prefix sums of l1 * lr
        self._now = 0

    @property
    def any(self) -> bool:
        """Whether a penalty has been added at all."""
        return self._now > 0

    def add(self, amount: float, *, paid: Tensor | None) -> None:
        """Add the penalty of one step; it is already applied to the rows `paid` (None: to none)."""
        if amount == 0:
            return
        if self._now + 1 == len(self._sums):
            self._sums = torch.cat([self._sums, torch.zeros_like(self._sums)])
        self._sums[self._now + 1] = self._sums[self._now] + amount
        self._now += 1
        if paid is not None:
            self._paid[paid] = self._now

    def collect(self, ids: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the rows of `ids` (None: of all) with a deferred penalty, and the penalty, (n,).

        They count as up to date from now on.
        """
        if ids is None:
            rows = (self._paid != self._now).nonzero().squeeze(1)
        else:
            ids = ids.flatten()
            rows = ids[self._paid[ids] != self._now].unique()
        since = self._paid[rows].to("cpu", torch.int64)
        amount = (self._sums[self._now] - self._sums[since]).to(rows.device)
        self._paid[rows] = self._now
        return rows[amount > 0], amount[amount > 0]
