"""Base class of the row-wise optimisers: reads gradients, updates rows by kernel or in torch."""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, overload

import torch
from torch import Tensor

from fewfold._native import dispatch
from fewfold.optim.l1_penalty import Penalty, shrink_
from fewfold.optim.row_tensors import (
    RowGradient,
    check_param,
    check_state,
    read_gradient,
    refuse_row,
    select_rows,
    sum_repeats,
)

__all__ = ["RowOptimizer"]


class RowOptimizer(torch.optim.Optimizer):
    """Optimiser that updates the rows that have a gradient, and no others.

    A subclass implements the update rule in plain torch (`_update_rows`) and names the kernel that
    computes the same (`_kernel`, `_kernel_options`). The rows of a parameter in `penalties` are
    soft-thresholded when they are updated.
    """

    _counts_updates: ClassVar[bool] = False
    """Whether the state has the number of updates of each row."""

    penalties: dict[Tensor, Penalty]
    """L1 penalties by parameter; empty by default."""

    def __init__(self, params: "Params", defaults: dict[str, Any]) -> None:
        self.penalties = {}
        super().__init__(params, defaults)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "penalties": self.penalties}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.setdefault("penalties", {})

    def _kernel(self, group: dict[str, Any]) -> str:
        """Name of the kernel of the update rule."""
        raise NotImplementedError

    def _has_row_moment(self, group: dict[str, Any]) -> bool:
        """Whether there is one second moment per row instead of one per entry."""
        return False

    def _kernel_options(self, group: dict[str, Any]) -> dict[str, float]:
        """Options of the kernel besides learning rate, weight decay and sign."""
        raise NotImplementedError

    def _initial_memory(self, param: Tensor, group: dict[str, Any]) -> Tensor | None:
        """Initial state `memory`, (rows, ...), or None if the rule needs none."""
        raise NotImplementedError

    def _update_rows(
        self, weight: Tensor, grad: Tensor, state: dict[str, Tensor], group: dict[str, Any]
    ) -> None:
        """Update rows of the parameter and of its state in place."""
        raise NotImplementedError

    def _update_on_gpu(
        self,
        table: Tensor,
        index: Tensor | None,
        grad: Tensor,
        state: dict[str, Tensor],
        group: dict[str, Any],
    ) -> bool:
        """Update distinct rows in place by a GPU kernel; return False if there is none."""
        return False

    def _step_sizes(
        self, state: dict[str, Tensor], group: dict[str, Any], lr: float
    ) -> Tensor | float:
        """Step size of each row or entry for this state; 0 without a gradient so far."""
        raise NotImplementedError

    def _check_group(self, group: dict[str, Any]) -> None:
        """Raise unless the options of a parameter group are valid."""
        raise NotImplementedError

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state from any device; torch leaves the numbers of updates where they are."""
        super().load_state_dict(state_dict)
        for param, state in self.state.items():
            for name, value in state.items():
                if isinstance(value, Tensor):
                    state[name] = value.to(param.device)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group; options it lacks are the defaults of the optimiser."""
        params = param_group["params"]
        if not isinstance(params, (Tensor, set)):  # the base class raises for sets
            params = list(params)
            for entry in params:
                check_param(entry[1] if isinstance(entry, tuple) else entry)
        elif isinstance(params, Tensor):
            check_param(params)
        self._check_group({**self.defaults, **param_group})
        param_group["params"] = params
        super().add_param_group(param_group)

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update every row that has a gradient; return the loss of the closure, called first."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self._update_param(param, read_gradient(param.grad), group)
        return loss

    @torch.no_grad()
    def rates(
        self, param: Tensor, rows: Tensor | None = None, *, lr: float | None = None
    ) -> Tensor:
        """Return the step size of each entry of a parameter for the current state.

        SGD: `lr`; Adagrad: `lr / (sqrt(s) + eps)`, 0 where no gradient ever was; Adam:
        `lr / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps)`, 0 in a row without an update; Yogi, unless
        `adam_eps=True`: `lr sqrt(1 - b2^t) / (1 - b1^t) / (sqrt(v) + eps)`.

        Args:
            param: a parameter of this optimiser.
            rows: (n,) which rows; all of them if None.
            lr: used instead of the learning rate of the group.

        Returns:
            A tensor that broadcasts to (n, *param.shape[1:]).
        """
        group = self._group(param)
        return self._step_sizes_of(param, rows, group, float(group["lr"]) if lr is None else lr)

    @torch.no_grad()
    def soften(self, param: Tensor, rows: Tensor | None, by: Tensor, *, signed: bool) -> None:
        """Soft-threshold rows by `by[i]` times their step size at `lr = 1`.

        Applies the L1 penalty of several steps at once: `by` is the sum of `l1 * lr` over them.
        Rows that never had a gradient do not change.

        Args:
            param: a parameter of this optimiser.
            rows: (n,) int64, no row twice; all of them if None.
            by: (n,) threshold of each row.
            signed: whether entries may be negative; otherwise the results are clamped at zero.
        """
        group = self._group(param)
        table = param.unsqueeze(0) if param.dim() == 0 else param
        count = len(table) if rows is None else len(rows)
        if by.shape != (count,):
            raise ValueError(f"by must be one number per row, ({count},), got {tuple(by.shape)}")
        state, by = self.state.get(param, {}), by.to(param.dtype)
        if not state and not self._step_sizes(state, group, 1.0):
            return
        if count and _kernels_support(param, by, state):
            update = self._kernel_update(group, 1.0, signed=signed)
            bad = self._call("pay", param, rows, by, state, group, update)
            if rows is not None and bad >= 0:
                raise _row_error(rows[bad], len(table))
            return
        if rows is not None and ((rows < 0) | (rows >= len(table))).any():
            raise _row_error(rows[(rows < 0) | (rows >= len(table))][0], len(table))
        weight = select_rows(table, rows)
        by = by.to(weight).view(-1, *[1] * (weight.dim() - 1))
        shrink_(weight, by * self._step_sizes_of(param, rows, group, 1.0), signed=signed)
        if rows is not None:
            table.index_copy_(0, rows, weight.to(table.dtype))
        elif weight is not table:
            table.copy_(weight)

    def _step_sizes_of(
        self, param: Tensor, rows: Tensor | None, group: dict[str, Any], lr: float
    ) -> Tensor:
        state = {
            name: select_rows(whole, rows) for name, whole in self.state.get(param, {}).items()
        }
        return _broadcastable(
            self._step_sizes(state, group, lr),
            select_rows(param[:0] if param.dim() else param, None),
        )

    def _group(self, param: Tensor) -> dict[str, Any]:
        """Return the parameter group of a parameter."""
        for group in self.param_groups:
            if any(param is one for one in group["params"]):
                return group
        raise ValueError(
            f"a parameter of shape {tuple(param.shape)} is not one of this optimiser's; "
            "write optimizer.add_param_group({'params': [param]})"
        )

    def _update_param(self, param: Tensor, gradient: RowGradient, group: dict[str, Any]) -> None:
        if gradient.values.numel() == 0:
            return
        rows = param.shape[0] if param.dim() else 1
        gradient.check(rows, tuple(param.shape[1:]))
        state = self._state(param, group)
        check_state(
            param,
            rows,
            state,
            slots=2 if self._counts_updates and not self._has_row_moment(group) else 1,
        )
        if not self._update_by_kernel(param, gradient, state, group):
            self._update_in_torch(param, gradient, state, group)

    def _state(self, param: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        """Return the state of a parameter; created with its first gradient."""
        state: dict[str, Tensor] = self.state[param]
        if self._counts_updates and "step" not in state:
            rows = param.shape[0] if param.dim() else 1
            state["step"] = torch.zeros(rows, dtype=torch.int32, device=param.device)
        if "memory" not in state:
            memory = self._initial_memory(param, group)
            if memory is not None:
                state["memory"] = memory
        if self._has_row_moment(group):
            # At least float32: one number per row needs little memory.
            half = param.dtype in (torch.float16, torch.bfloat16)
            dtype = torch.float32 if half else param.dtype
            rows = param.shape[0] if param.dim() else 1
            old = state.get("square")
            state["square"] = param.new_zeros(rows, dtype=dtype) if old is None else old.to(dtype)
        return state

    def _update_by_kernel(
        self,
        param: Tensor,
        gradient: RowGradient,
        state: dict[str, Tensor],
        group: dict[str, Any],
    ) -> bool:
        """Update rows by the kernel; return False if it does not support these tensors."""
        index, values = gradient.index, gradient.values
        rows = param.shape[0] if param.dim() else 1
        if not _kernels_support(param, values, state):
            return False
        if rows.bit_length() + len(values).bit_length() > 64:
            return False  # the kernel sorts rows and positions as one number
        penalty = self.penalties.get(param)
        charge = {} if penalty is None else {"l1": penalty.l1, "signed": penalty.signed}
        update = self._kernel_update(group, float(group["lr"]), **charge)
        bad = self._call("touch", param, index, values, state, group, update)
        if index is not None and bad >= 0:
            raise refuse_row(int(index[bad]), rows)
        return True

    def _call(
        self,
        name: str,
        param: Tensor,
        index: Tensor | None,
        values: Tensor,
        state: dict[str, Tensor],
        group: dict[str, Any],
        update: Any,
    ) -> int:
        """Run a kernel on the rows of `index`, or all; return where a row is invalid, or -1."""
        rows = param.shape[0] if param.dim() else 1
        memory, step, square = state.get("memory", param), state.get("step"), state.get("square")
        values = values.contiguous()
        if index is not None:
            index = index.contiguous()
        run = dispatch.kernel(f"{name}_{self._kernel(group)}", param.dtype)
        bad: int = run(
            index, values, len(values), rows, param.numel() // rows, param, memory, step, square,
            update, dispatch.threads(),
        )  # fmt: skip
        # The kernel bypasses autograd, which must still detect graphs that saved the old values.
        torch.autograd.graph.increment_version(param)
        return bad

    def _kernel_update(self, group: dict[str, Any], lr: float, **charge: float) -> Any:
        """Return the options of a step as the struct of the kernels."""
        decay = float(group["weight_decay"])
        decoupled = group.get("decoupled_weight_decay", False)
        return dispatch.kernel("Update")(
            lr=lr,
            decay=0.0 if decoupled else decay,
            shrink=1 - lr * decay if decoupled else 1.0,
            maximize=bool(group["maximize"]),
            **self._kernel_options(group),
            **charge,
        )

    def _update_in_torch(
        self,
        param: Tensor,
        gradient: RowGradient,
        state: dict[str, Tensor],
        group: dict[str, Any],
    ) -> None:
        """Update rows in plain torch: gather, update, scatter."""
        table = param.unsqueeze(0) if param.dim() == 0 else param
        index, values = sum_repeats(gradient, len(table))
        penalty = self.penalties.get(param)
        plain = penalty is None or not penalty.l1
        if plain and self._update_on_gpu(table, index, values, state, group):
            return
        tables = {"weight": table, **state}
        rows = {name: select_rows(whole, index) for name, whole in tables.items()}
        weight, grad = rows["weight"], values.to(rows["weight"].dtype)
        if group["maximize"]:
            grad = -grad
        if group["weight_decay"] and group.get("decoupled_weight_decay", False):
            weight.mul_(1 - float(group["lr"]) * float(group["weight_decay"]))
        elif group["weight_decay"]:
            grad = grad.add(weight, alpha=float(group["weight_decay"]))
        self._update_rows(weight, grad, rows, group)
        if penalty is not None and penalty.l1:
            rate = _broadcastable(self._step_sizes(rows, group, float(group["lr"])), weight)
            shrink_(weight, penalty.l1 * rate, signed=penalty.signed)
        for name, whole in tables.items():
            if index is not None:
                whole.index_copy_(0, index, rows[name].to(whole.dtype))
            elif rows[name] is not whole:
                whole.copy_(rows[name])


def _broadcastable(rate: Tensor | float, like: Tensor) -> Tensor:
    """Append dimensions to step sizes so that they broadcast with `like`."""
    rate = torch.as_tensor(rate, dtype=like.dtype, device=like.device)
    return rate.view(*rate.shape, *[1] * (like.dim() - rate.dim()))


def _row_error(row: Tensor, rows: int) -> ValueError:
    return ValueError(f"rows must be between 0 and {rows - 1}, got {int(row)}")


def _kernels_support(param: Tensor, values: Tensor, state: dict[str, Tensor]) -> bool:
    """Whether the tensors are contiguous and have the same dtype, one with kernels."""
    memory, step, square = state.get("memory", param), state.get("step"), state.get("square")
    return (
        dispatch.ready(param, values, memory)
        and param.dtype == values.dtype == memory.dtype
        and param.is_contiguous()
        and all(t is None or t.is_contiguous() for t in (memory, step, square))
        and (square is None or square.dtype == param.dtype)
    )


Params = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]
