"""Proximal optimisers: a step of an optimiser followed by soft thresholding of the transforms."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, overload

import torch
from torch import Tensor, nn

from fewfold._check import non_negative_number, whole_number
from fewfold.embeddings.relations.relations import Relations
from fewfold.embeddings.sparsify.optimizer_state import check_optimizer
from fewfold.embeddings.sparsify.penalised_table import PenalisedTable
from fewfold.embeddings.sparsify.schedules import Narrowing, Regrow, Schedule
from fewfold.embeddings.table.embedding import AnchorEmbedding

__all__ = ["Proximal", "proximal"]


def proximal(
    optimizer: torch.optim.Optimizer,
    tables: AnchorEmbedding | Iterable[AnchorEmbedding],
    *,
    l1: float | Schedule = 1e-6,
    keep: int | Narrowing | None = None,
    regrow: Regrow | None = None,
    relations: Relations | Sequence[Relations | None] | None = None,
) -> "Proximal":
    """Wrap an optimiser so that its steps end with the proximal step of an L1 penalty.

    After a step of the optimiser, every entry of a transform T is replaced by the solution of

        min_t  (t - T_ij)^2 / (2 eta_ij) + l1 abs(t),    t >= 0 unless the table is signed,

    where eta_ij is the step size of the optimiser for that entry: lr for SGD, lr over the root of
    the second moment for Adam. So T_ij becomes max(T_ij - l1 eta_ij, 0), which is often exactly 0.

    With dense gradients this updates all rows at every step. With sparse ones (`sparse=True` and an
    optimiser of `fewfold.optim`) a step updates the rows that have a gradient; the penalty of the
    others is deferred and applied before they are next read, with the same result. A row that never
    had a gradient has no step size and does not change.

    All methods of a table (lookup, `weight`, `rows`, `nonzeros`, `state_dict`, copying) apply the
    deferred penalty first. Reading the bare parameter `table.transform`, or another module that
    shares it, does not: call `apply_deferred` of the returned optimiser before.

    Args:
        optimizer: SGD, Adam or AdamW of torch, or any of `fewfold.optim`, which has the transforms
            among its parameters. Use the returned optimiser in its place.
        tables: one table or several.
        l1: the penalty, or a schedule that maps the number of steps to it, such as `Warmup`.
        keep: maximum number of non-zeros per row, of which the largest stay; or a `Narrowing`.
        regrow: exchange of anchors in tables of fixed width; None for none.
        relations: pairs of rows and anchors that are not penalised; one, or one per table.

    Returns:
        A `torch.optim.Optimizer`, also for learning-rate schedulers.

    Example:
        >>> import torch, fewfold as ff
        >>> _ = torch.manual_seed(0)
        >>> table = ff.AnchorEmbedding(100, 8, anchors=4)
        >>> optimizer = ff.proximal(torch.optim.Adam(table.parameters(), lr=0.01), table, l1=3e-3)
        >>> before = table.nonzeros()
        >>> for _ in range(20):
        ...     optimizer.zero_grad()
        ...     table(torch.arange(100)).square().mean().backward()
        ...     optimizer.step()
        >>> table.nonzeros() < before
        True

    Reference: Liang, Zaheer, Wang, Ahmed, "Anchor & Transform: learning sparse embeddings for large
    vocabularies", 2021.
    """
    if isinstance(optimizer, Proximal):
        raise TypeError("the optimiser is already proximal; give all tables in one call")
    check_optimizer(optimizer)
    each = [tables] if isinstance(tables, nn.Module) else list(tables)
    related = relations if isinstance(relations, Sequence) else [relations] * len(each)
    if len(related) != len(each):
        raise ValueError(f"relations must be one per table, {len(each)}, got {len(related)}")
    if not callable(l1):
        non_negative_number(l1, "l1")
    if keep is not None and not isinstance(keep, Narrowing):
        whole_number(keep, "keep")
    _check_tables(each, optimizer, regrow)
    parts = []
    for table, known in zip(each, related, strict=True):
        _check_relations(table, known)
        parts.append(PenalisedTable(table, optimizer, keep, regrow, known))
    return Proximal(optimizer, parts, l1)


def _check_tables(
    tables: list[AnchorEmbedding], optimizer: torch.optim.Optimizer, regrow: Regrow | None
) -> None:
    """Raise unless the tables are distinct and their transforms are parameters of the optimiser."""
    if len({id(table) for table in tables}) < len(tables):
        raise ValueError("a table must be given once, or its penalty counts twice")
    for table in tables:
        if not isinstance(table, AnchorEmbedding):
            raise TypeError(f"tables must be AnchorEmbedding, got {type(table).__name__}")
    if len({id(table.transform) for table in tables}) < len(tables):
        raise ValueError("tables that share a transform must be given once, as one of them")
    params = {id(param) for group in optimizer.param_groups for param in group["params"]}
    for table in tables:
        if id(table.transform) not in params:
            raise ValueError(
                "the optimiser does not have the table's transform; write "
                "Adam(model.parameters()), and wrap the optimiser after `narrow`"
            )
        if regrow is not None and table.slots is None:
            raise ValueError("regrow is for tables of fixed width; write width=8, or leave it out")


def _check_relations(table: AnchorEmbedding, known: Relations | None) -> None:
    """Raise unless relations have as many objects and anchors as the table."""
    size = (table.num_embeddings, len(table.anchors))
    if known is not None and (known.objects, len(known.anchors)) != size:
        raise ValueError(
            f"relations must be of {table.num_embeddings} objects and {len(table.anchors)} "
            f"anchors, as the table is, got {known.objects} and {len(known.anchors)}"
        )


class Proximal(torch.optim.Optimizer):
    """Optimiser with proximal steps on anchor tables; created by `proximal`."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, parts: list[PenalisedTable], l1: float | Schedule
    ) -> None:
        super().__init__(optimizer.param_groups, dict(optimizer.defaults))
        self.inner, self._parts, self.l1 = optimizer, parts, l1
        self._steps = 0
        self._share()
        for part in parts:
            part.begin(0)

    def _share(self) -> None:
        """Use the parameter groups and the state of the inner optimiser."""
        self.param_groups, self.state = self.inner.param_groups, self.inner.state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group to the inner optimiser."""
        if hasattr(self, "inner"):
            self.inner.add_param_group(param_group)
        else:  # called by the base constructor: the inner optimiser has the group
            self.param_groups.append(param_group)

    def __getstate__(self) -> dict[str, Any]:
        self.apply_deferred()  # a copy has no deferred penalty, whatever is restored first
        own = {name: getattr(self, name) for name in ("inner", "_parts", "l1", "_steps")}
        return {**super().__getstate__(), **own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._share()
        for part in self._parts:
            part.attach()
            part.begin(self._steps)

    @property
    def steps(self) -> int:
        """Number of steps taken."""
        return self._steps

    def apply_deferred(self) -> None:
        """Apply all deferred penalties; needed before reading a bare `transform`."""
        for part in self._parts:
            part.apply_deferred(None)

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Perform a step of the inner optimiser and the proximal step of each table."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        l1 = float(self.l1(self._steps) if callable(self.l1) else self.l1)
        if not 0 <= l1 < math.inf:
            raise ValueError(
                f"l1 must be finite and at least 0, got {l1} at step {self._steps}; look at what "
                "the schedule returns"
            )
        with torch.no_grad():
            for part in self._parts:
                part.before(l1)
            self.inner.step()
            for part in self._parts:
                part.after(l1, self._steps)
        self._steps += 1
        for part in self._parts:
            part.begin(self._steps)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients of all parameters."""
        self.inner.zero_grad(set_to_none)

    def winners(self) -> list[Tensor | None]:
        """Return for each table the mask of places fixed by a `Narrowing`, or None."""
        return [part.fixed_places() for part in self._parts]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the inner optimiser, the steps taken and the fixed places.

        Applies all deferred penalties first.
        """
        self.apply_deferred()
        own = {"steps": self._steps, "winners": self.winners()}
        return {**self.inner.state_dict(), "proximal": own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state returned by `state_dict`."""
        rest = dict(state_dict)
        own = rest.pop("proximal", None)
        if own is None:
            raise ValueError(
                "the state_dict is not that of a proximal optimiser: it has no entry 'proximal'; "
                "load it into the optimiser before wrapping it"
            )
        self.inner.load_state_dict(rest)
        self._share()
        self._steps = own["steps"]
        for part, winners in zip(self._parts, own["winners"], strict=True):
            part.restart(winners)
            part.begin(self._steps)

    def __repr__(self) -> str:
        l1 = self.l1 if callable(self.l1) else f"{self.l1:g}"
        return f"Proximal(l1={l1}, {len(self._parts)} tables, {self.inner!r})"
