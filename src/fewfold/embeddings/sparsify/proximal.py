"""Optimisers that keep the transforms of anchor tables sparse."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, overload

import torch
from torch import Tensor, nn

from fewfold._check import non_negative_number, whole_number
from fewfold.embeddings.relations.relations import Relations
from fewfold.embeddings.sparsify.penalised_table import Penalised
from fewfold.embeddings.sparsify.schedules import Narrowing, Regrow, Schedule
from fewfold.embeddings.sparsify.step_sizes import check_optimizer
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
    """An optimiser that also shrinks the transforms of these tables, to exact zeros.

    After a step of the optimiser, every entry of a transform T solves

        min_t  (t - T_ij)^2 / (2 eta_ij) + l1 abs(t),    t >= 0 unless the table is signed,

    where eta_ij is the step size the optimiser itself uses there: lr for SGD, lr over the root of
    the second moment for Adam. So T_ij becomes max(T_ij - l1 eta_ij, 0).

    With dense gradients this happens to all rows at every step. With sparse ones (`sparse=True` and
    an optimiser of `fewfold.optim`) a row is touched only when it is used; what it owes from the
    steps between is taken off before it is next read, and the answer is the same. A row without any
    gradient so far has no step size, and is left as it is.

    Everything a table offers (a lookup, `weight`, `rows`, `nonzeros`, `state_dict`, a copy) is such
    a read; the bare parameter `table.transform` is not, nor is another module that shares it, and
    what these see may still owe. Call `settle` of what is returned first.

    Args:
        optimizer: SGD, Adam or AdamW of torch, or any of `fewfold.optim`, which has the transforms
            among its parameters. It is used from now on through what is returned.
        tables: one or several.
        l1: the penalty, or what gives it from the number of the step: see `Warmup`.
        keep: at most so many non-zeros per row, the largest; or a `Narrowing`.
        regrow: how rows of a fixed width find other anchors; None: they keep theirs.
        relations: pairs of rows and anchors that are not penalised; one, or one per table.

    Returns:
        An optimiser, with `step`, `zero_grad`, `state_dict` and what schedulers want.

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
    some = [tables] if isinstance(tables, nn.Module) else list(tables)
    related = relations if isinstance(relations, Sequence) else [relations] * len(some)
    if len(related) != len(some):
        raise ValueError(f"relations must be one per table, {len(some)}, got {len(related)}")
    if not callable(l1):
        non_negative_number(l1, "l1")
    if keep is not None and not isinstance(keep, Narrowing):
        whole_number(keep, "keep")
    if len({id(table) for table in some}) < len(some):
        raise ValueError("a table must be given once, or its penalty counts twice")
    held = {id(param): group for group in optimizer.param_groups for param in group["params"]}
    for table in some:
        if not isinstance(table, AnchorEmbedding):
            raise TypeError(f"tables must be AnchorEmbedding, got {type(table).__name__}")
    if len({id(table.transform) for table in some}) < len(some):
        raise ValueError("tables that share a transform must be given once, as one of them")
    parts = []
    for table, its in zip(some, related, strict=True):
        if id(table.transform) not in held:
            raise ValueError(
                "the optimiser does not have the table's transform; write "
                "Adam(model.parameters()), and wrap the optimiser after `narrow`"
            )
        if its is not None and (its.objects, len(its.anchors)) != (
            table.num_embeddings,
            len(table.anchors),
        ):
            raise ValueError(
                f"relations must be of {table.num_embeddings} objects and {len(table.anchors)} "
                f"anchors, as the table is, got {its.objects} and {len(its.anchors)}"
            )
        if regrow is not None and table.slots is None:
            raise ValueError("regrow is for tables of fixed width; write width=8, or leave it out")
        parts.append(Penalised(table, optimizer, keep, regrow, its))
    return Proximal(optimizer, parts, l1)


class Proximal(torch.optim.Optimizer):
    """An optimiser and the tables it keeps sparse; made by `proximal`."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, parts: list["Penalised"], l1: float | Schedule
    ) -> None:
        super().__init__(optimizer.param_groups, dict(optimizer.defaults))
        self.inner, self._parts, self.l1 = optimizer, parts, l1
        self._steps = 0
        self._share()
        for part in parts:
            part.begin(0)

    def _share(self) -> None:
        """One set of groups and states, whoever is asked for them."""
        self.param_groups, self.state = self.inner.param_groups, self.inner.state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters to the optimiser."""
        if hasattr(self, "inner"):
            self.inner.add_param_group(param_group)
        else:  # while this is being made: the group exists
            self.param_groups.append(param_group)

    def __getstate__(self) -> dict[str, Any]:
        self.settle()  # a copy that owes nothing cannot be given its tables in the wrong order
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
        """How many have been taken."""
        return self._steps

    def settle(self) -> None:
        """Bring all rows of all tables up to date, for whoever reads a bare `transform`."""
        for part in self._parts:
            part.settle(None)

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """A step of the optimiser, and then the penalty."""
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
        """Forget the gradients."""
        self.inner.zero_grad(set_to_none)

    def winners(self) -> list[Tensor | None]:
        """Of each table the places a `Narrowing` left it, bool, once they are fixed."""
        return [part.winners_state() for part in self._parts]

    def state_dict(self) -> dict[str, Any]:
        """The optimiser's, and how many steps were taken; rows are brought up to date first."""
        self.settle()
        own = {"steps": self._steps, "winners": self.winners()}
        return {**self.inner.state_dict(), "proximal": own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take it back."""
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
