"""One table under a penalty: shrunk with every step, or when a row is next read."""

import torch
from torch import Tensor

from fewfold.embeddings.relations.relations import Relations
from fewfold.embeddings.sparsify.collapse import CollapseCheck
from fewfold.embeddings.sparsify.deferred_steps import Debts
from fewfold.embeddings.sparsify.regrow import regrow as regrow_rows
from fewfold.embeddings.sparsify.schedules import Narrowing, Regrow
from fewfold.embeddings.sparsify.step_sizes import rates
from fewfold.embeddings.sparsify.top_entries import Winners
from fewfold.embeddings.table.embedding import AnchorEmbedding
from fewfold.optim.l1_penalty import Penalty, shrink_
from fewfold.optim.row_optimizer import RowOptimizer

__all__ = ["Penalised"]


class Penalised:
    """One table, and what is owed to it."""

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
        self.winners = None if keep is None else Winners(keep)
        self._debts: Debts | None = None
        self._rows: Tensor | None = None
        self._aside: Tensor | None = None
        self._collapse, self._l1 = CollapseCheck(table), 0.0
        self.attach()

    def attach(self) -> None:
        """Be asked by the table before it is read."""
        self.table.attached.settle_with(self.settle)

    @property
    def _param(self) -> Tensor:
        return self.table.transform

    def _lr(self) -> float:
        for group in self.optimizer.param_groups:
            if any(param is self._param for param in group["params"]):
                return float(group["lr"])
        raise ValueError("the optimiser no longer has the table's transform; wrap it again")

    def begin(self, step: int) -> None:
        """Before the forward pass of a step."""
        if self.regrow is not None and self.regrow.due(step):
            self.table.attached.start()

    def before(self, l1: float) -> None:
        """Before the optimiser moves anything."""
        grad = self._param.grad
        self._rows = self._aside = None
        if isinstance(self.optimizer, RowOptimizer):
            self.optimizer.penalties.pop(self._param, None)
        if grad is None or grad.layout is torch.strided:
            if grad is not None:
                self.settle(None)  # while the step sizes are those they owe by
            if self._partly():
                self._aside = self._param[:, self.table.active :].clone()
            return
        if not isinstance(self.optimizer, RowOptimizer):
            raise TypeError(
                "sparse gradients of an anchor table want an optimiser of fewfold.optim; write "
                "fewfold.optim.Adam in the place of "
                f"{type(self.optimizer).__name__}, or sparse=False"
            )
        self._rows = grad._indices()[0]  # repeats do no harm: each is the same
        if self._debts is None:
            self._debts = Debts(len(self._param), self._param.device)
        self.settle(self._rows)
        if self._partly():
            self._aside = self._param[self._rows, self.table.active :]
        if self.relations is None and l1:  # the rows that move are shrunk in the same visit
            self.optimizer.penalties[self._param] = Penalty(l1, self.table.signed)

    def _partly(self) -> bool:
        return self.table.active < len(self.table.anchors)

    def after(self, l1: float, step: int) -> None:
        """After it has."""
        if self._rows is not None:
            if self.relations is not None or not (l1 or self.table.signed):
                self._shrink(l1, self._rows)
        elif self._param.grad is not None:
            self._shrink(l1, None)
        if self._debts is not None:
            self._debts.add(l1 * self._lr(), paid=self._rows)
        if self._aside is not None:  # anchors not in use stay as they were
            every = slice(None) if self._rows is None else self._rows
            self._param[every, self.table.active :] = self._aside
        if self.winners is not None:
            if self.winners.compares(step):  # with rows that may still owe
                self.settle(None)
            in_use = self._param[:, : self.table.active]
            self.winners.enforce(in_use, self._rows, step)
        if self.regrow is not None and self.regrow.due(step):
            self._regrow(l1)
        self._l1 = l1
        if self._collapse.due(step):
            self.settle(self._collapse.rows())
            self._collapse.look(l1)

    def _shrink(self, l1: float, rows: Tensor | None) -> None:
        by = l1 * rates(self.optimizer, self._param, rows)
        self._shrink_by(by, rows)

    def _shrink_by(self, by: Tensor | float, rows: Tensor | None) -> None:
        param, slots = self._param, self.table.slots
        some = param if rows is None else param[rows]
        by = torch.as_tensor(by, dtype=param.dtype, device=param.device)
        if self.relations is not None:
            theirs = slots if slots is None or rows is None else slots[rows]
            by = torch.where(self.relations.exempt(theirs, rows), 0, by)
        shrink_(some, by, signed=self.table.signed)
        if not self.table.signed:  # also where nothing is taken off
            some.clamp_(min=0)
        if rows is not None:
            param[rows] = some

    @torch.no_grad()
    def settle(self, ids: Tensor | None) -> None:
        """Take off what these rows owe from the steps in which they had no gradient."""
        if self._debts is None or not self._debts.any:
            return
        if not isinstance(self.optimizer, RowOptimizer):
            return
        rows, owed = self._debts.collect(ids)
        if not len(rows):
            return
        active = self.table.active
        aside = self._param[rows, active:] if self._partly() else None
        if self.relations is None:
            self.optimizer.soften(self._param, rows, owed, signed=self.table.signed)
        else:
            each = self.optimizer.rates(self._param, rows, lr=1.0)
            self._shrink_by(each * owed.to(self._param.dtype).unsqueeze(1), rows)
        if aside is not None:
            self._param[rows, active:] = aside
        if ids is None:
            self._collapse.look(self._l1)

    def _regrow(self, l1: float) -> None:
        seen = self.table.attached.take(self.table.anchors)
        if seen is None or self.regrow is None:
            return
        row, place = regrow_rows(
            self.table, *seen, below=self.regrow.below, l1=l1, among=self.winners_state()
        )
        _forget(self.optimizer, self._param, row, place)

    def winners_state(self) -> Tensor | None:
        """Which places are left, once they are fixed."""
        return None if self.winners is None else self.winners.fixed

    def restart(self, winners: Tensor | None) -> None:
        """As after loading: all rows are up to date."""
        if self._debts is not None:
            self._debts = Debts(len(self._param), self._param.device)
        if self.winners is not None:
            self.winners.fixed = winners


def _forget(optimizer: torch.optim.Optimizer, param: Tensor, row: Tensor, place: Tensor) -> None:
    """What the optimiser remembers of entries that have become others: as at its start."""
    start = 0.0
    for group in optimizer.param_groups:
        if any(other is param for other in group["params"]):
            start = float(group.get("initial_accumulator_value", 0))
    for value in optimizer.state.get(param, {}).values():
        if not isinstance(value, Tensor):
            continue
        if value.shape == param.shape:
            value[row, place] = start
        elif value.dim() == 3 and value.shape[::2] == param.shape:  # two moments side by side
            value[row, 0, place] = 0
            value[row, 1, place] = start
