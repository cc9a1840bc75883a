"""What every optimiser of rows shares: reading gradients, the choice of path, the visit."""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, overload

import torch
from torch import Tensor

from fewfold import _native
from fewfold.optim.gradient import RowGradient, read, refuse_row

__all__ = ["RowOptimizer"]

_SUFFIX = {torch.float32: "f32", torch.float64: "f64"}


class RowOptimizer(torch.optim.Optimizer):
    """An optimiser that changes the rows that have a gradient, and nothing else.

    A rule says how (`_advance`, in plain torch on rows) and with which numbers the kernel named by
    `_kernel` does the same.
    """

    _age: ClassVar[bool] = False
    """Whether the rule counts how often a row was touched."""

    def _kernel(self, group: dict[str, Any]) -> str:
        raise NotImplementedError

    def _by_row(self, group: dict[str, Any]) -> bool:
        """Whether one second moment serves a whole row."""
        return False

    def _numbers(self, group: dict[str, Any]) -> dict[str, float]:
        """What the kernel reads beside the learning rate, the decay and the sign."""
        raise NotImplementedError

    def _remember(self, param: Tensor, group: dict[str, Any]) -> Tensor | None:
        """What the rule remembers, (rows, ...), for rows that were never touched."""
        raise NotImplementedError

    def _advance(
        self, weight: Tensor, grad: Tensor, state: dict[str, Tensor], group: dict[str, Any]
    ) -> None:
        """Change `weight` and `state`, rows of both, in place."""
        raise NotImplementedError

    def _check(self, group: dict[str, Any]) -> None:
        """Raise unless the options of a group make sense."""
        raise NotImplementedError

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with options of their own; the others are the optimiser's."""
        params = param_group["params"]
        if not isinstance(params, (Tensor, set)):  # torch refuses sets, which have no order
            params = list(params)
            for entry in params:
                _check_param(entry[1] if isinstance(entry, tuple) else entry)
        elif isinstance(params, Tensor):
            _check_param(params)
        self._check({**self.defaults, **param_group})
        param_group["params"] = params
        super().add_param_group(param_group)

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Move every row that has a gradient. A closure is called first and its loss returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self._visit(param, read(param.grad), group)
        return loss

    def _visit(self, param: Tensor, gradient: RowGradient, group: dict[str, Any]) -> None:
        if gradient.values.numel() == 0:
            return
        rows = param.shape[0] if param.dim() else 1
        gradient.check(rows, tuple(param.shape[1:]))
        state = self._state(param, group)
        _check_state(param, rows, state, slots=2 if self._age and not self._by_row(group) else 1)
        if not self._visit_natively(param, gradient, state, group):
            self._visit_plainly(param, gradient, state, group)

    def _state(self, param: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        """The state of a parameter, made when its first gradient comes."""
        state: dict[str, Tensor] = self.state[param]
        if self._age and "step" not in state:
            rows = param.shape[0] if param.dim() else 1
            state["step"] = torch.zeros(rows, dtype=torch.int32, device=param.device)
        if "memory" not in state:
            memory = self._remember(param, group)
            if memory is not None:
                state["memory"] = memory
        if self._by_row(group):
            # One number per row: there is no reason for it to be half a number.
            half = param.dtype in (torch.float16, torch.bfloat16)
            dtype = torch.float32 if half else param.dtype
            rows = param.shape[0] if param.dim() else 1
            kept = state.get("square")
            state["square"] = param.new_zeros(rows, dtype=dtype) if kept is None else kept.to(dtype)
        return state

    def _visit_natively(
        self,
        param: Tensor,
        gradient: RowGradient,
        state: dict[str, Tensor],
        group: dict[str, Any],
    ) -> bool:
        """One pass of the kernel, if there is one for these; whether there was."""
        memory, step, square = state.get("memory", param), state.get("step"), state.get("square")
        if not _native.ready(param, gradient.values, memory):
            return False
        if not (param.dtype == gradient.values.dtype == memory.dtype and param.is_contiguous()):
            return False
        if not all(t is None or t.is_contiguous() for t in (memory, step, square)):
            return False
        if square is not None and square.dtype != param.dtype:
            return False
        rows = param.shape[0] if param.dim() else 1
        index, values = gradient.index, gradient.values.contiguous()
        if rows.bit_length() + len(values).bit_length() > 64:
            return False  # the kernel sorts rows and positions as one number
        if index is not None:
            index = index.contiguous()
        kernels: Any = _native.kernels
        run = getattr(kernels, f"touch_{self._kernel(group)}_{_SUFFIX[param.dtype]}")
        bad = run(
            0 if index is None else index.data_ptr(), values.data_ptr(), len(values), rows,
            param.numel() // rows, param.data_ptr(), memory.data_ptr(),
            0 if step is None else step.data_ptr(), 0 if square is None else square.data_ptr(),
            self._update(group), _native.threads(),
        )  # fmt: skip
        if index is not None and bad >= 0:
            raise refuse_row(int(index[bad]), rows)
        # The kernel writes behind autograd's back, which must still notice a graph gone stale.
        torch.autograd.graph.increment_version(param)
        return True

    def _update(self, group: dict[str, Any]) -> Any:
        """The numbers of a step, as the kernels take them."""
        lr, decay = float(group["lr"]), float(group["weight_decay"])
        apart = group.get("decoupled_weight_decay", False)
        kernels: Any = _native.kernels
        return kernels.Update(
            lr=lr,
            decay=0.0 if apart else decay,
            shrink=1 - lr * decay if apart else 1.0,
            maximize=bool(group["maximize"]),
            **self._numbers(group),
        )

    def _visit_plainly(
        self,
        param: Tensor,
        gradient: RowGradient,
        state: dict[str, Tensor],
        group: dict[str, Any],
    ) -> None:
        """The same in plain torch: take the rows out, change them, put them back."""
        table = param.unsqueeze(0) if param.dim() == 0 else param
        index, values = _summed(gradient, len(table))
        tables = {"weight": table, **state}
        rows = {name: _take(whole, index) for name, whole in tables.items()}
        weight, grad = rows["weight"], values.to(rows["weight"].dtype)
        if group["maximize"]:
            grad = -grad
        if group["weight_decay"] and group.get("decoupled_weight_decay", False):
            weight.mul_(1 - float(group["lr"]) * float(group["weight_decay"]))
        elif group["weight_decay"]:
            grad = grad.add(weight, alpha=float(group["weight_decay"]))
        self._advance(weight, grad, rows, group)
        for name, whole in tables.items():
            if index is not None:
                whole.index_copy_(0, index, rows[name].to(whole.dtype))
            elif rows[name] is not whole:
                whole.copy_(rows[name])


def _check_param(param: Any) -> None:
    if isinstance(param, Tensor) and not param.is_floating_point():
        raise TypeError(
            f"parameters must have a real floating-point dtype, got {param.dtype}; for a complex "
            "one write torch.view_as_real(param)"
        )


def _check_state(param: Tensor, rows: int, state: dict[str, Tensor], *, slots: int) -> None:
    """Raise unless the state is that of a parameter of this shape: a kernel would write beyond."""
    memory, step, square = state.get("memory"), state.get("step"), state.get("square")
    if step is not None and (step.shape != (rows,) or step.dtype != torch.int32):
        raise _foreign("step", step, param)
    if square is not None and square.shape != (rows,):
        raise _foreign("square", square, param)
    if memory is not None and (
        memory.numel() != slots * param.numel() or (memory.dim() and len(memory) != rows)
    ):
        raise _foreign("memory", memory, param)


def _foreign(name: str, came: Tensor, param: Tensor) -> ValueError:
    return ValueError(
        f"the state {name!r} of shape {tuple(came.shape)} and dtype {came.dtype} does not belong "
        f"to a parameter of shape {tuple(param.shape)} and these options; load the state_dict that "
        "was saved with them"
    )


def _summed(gradient: RowGradient, rows: int) -> tuple[Tensor | None, Tensor]:
    """Each row once, with the sum of its gradients."""
    index, values = gradient.index, gradient.values
    if index is None:
        return None, values
    low, high = (int(end) for end in torch.aminmax(index))
    if low < 0 or high >= rows:
        raise refuse_row(low if low < 0 else high, rows)
    size = (rows, *values.shape[1:])
    total = torch.sparse_coo_tensor(index.unsqueeze(0), values, size, check_invariants=False)
    total = total.coalesce()
    return total.indices()[0], total.values()


def _take(whole: Tensor, index: Tensor | None) -> Tensor:
    """The rows of a table, its own memory if all of it; half precision is computed in single."""
    rows = whole if index is None else whole.index_select(0, index)
    return rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows


Params = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]
