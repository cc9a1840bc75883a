"""What every optimiser of rows shares: reading gradients, the choice of path, the visit."""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, overload

import torch
from torch import Tensor

from fewfold._native import dispatch
from fewfold.optim.l1_penalty import Penalty, shrink_
from fewfold.optim.row_gradient import RowGradient, read, refuse_row, summed
from fewfold.optim.row_state import check_param, check_state, take

__all__ = ["RowOptimizer"]


class RowOptimizer(torch.optim.Optimizer):
    """An optimiser that changes the rows that have a gradient, and nothing else.

    A rule says how (`_advance`, in plain torch on rows) and with which numbers the kernel named by
    `_kernel` does the same. A parameter in `penalties` is shrunk as its rows move.
    """

    _age: ClassVar[bool] = False
    """Whether the rule counts how often a row was touched."""

    penalties: dict[Tensor, Penalty]
    """The parameters whose rows pay for their size; empty unless filled."""

    def __init__(self, params: "Params", defaults: dict[str, Any]) -> None:
        self.penalties = {}
        super().__init__(params, defaults)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "penalties": self.penalties}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.setdefault("penalties", {})

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

    def _rate(self, state: dict[str, Tensor], group: dict[str, Any], lr: float) -> Tensor | float:
        """The step size of each row, or number, of these parts of the state; 0 if never touched."""
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
                check_param(entry[1] if isinstance(entry, tuple) else entry)
        elif isinstance(params, Tensor):
            check_param(params)
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

    @torch.no_grad()
    def rates(
        self, param: Tensor, rows: Tensor | None = None, *, lr: float | None = None
    ) -> Tensor:
        """The step size of each number of a parameter, by the state it is in.

        SGD: `lr`; Adagrad: `lr / (sqrt(s) + eps)`, 0 where no gradient ever was; Adam and Yogi:
        `lr / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps)`, 0 in a row never touched.

        Args:
            param: a parameter of this optimiser.
            rows: (n,) which rows; all of them if None.
            lr: in the place of the learning rate that is set.

        Returns:
            A tensor that broadcasts to (n, *param.shape[1:]).
        """
        group = self._group(param)
        return self._rates(param, rows, group, float(group["lr"]) if lr is None else lr)

    @torch.no_grad()
    def soften(self, param: Tensor, rows: Tensor | None, by: Tensor, *, signed: bool) -> None:
        """Shrink rows by `by[i]` times their step size at `lr = 1`; rows never touched stay.

        A penalty that came due while a row was not read is paid here, in one step: `by` is the sum
        of `l1 * lr` over those steps.

        Args:
            param: a parameter of this optimiser.
            rows: (n,) int64, no row twice; all of them if None.
            by: (n,) what each row owes.
            signed: shrink towards zero from both sides; otherwise the numbers end at or above zero.
        """
        group = self._group(param)
        table = param.unsqueeze(0) if param.dim() == 0 else param
        count = len(table) if rows is None else len(rows)
        if by.shape != (count,):
            raise ValueError(f"by must be one number per row, ({count},), got {tuple(by.shape)}")
        state, by = self.state.get(param, {}), by.to(param.dtype)
        if not state and not self._rate(state, group, 1.0):
            return
        if count and _fit_for_kernels(param, by, state):
            update = self._update(group, 1.0, signed=signed)
            bad = self._call("pay", param, rows, by, state, group, update)
            if rows is not None and bad >= 0:
                raise _refuse(rows[bad], len(table))
            return
        if rows is not None and ((rows < 0) | (rows >= len(table))).any():
            raise _refuse(rows[(rows < 0) | (rows >= len(table))][0], len(table))
        weight = take(table, rows)
        by = by.to(weight).view(-1, *[1] * (weight.dim() - 1))
        shrink_(weight, by * self._rates(param, rows, group, 1.0), signed=signed)
        if rows is not None:
            table.index_copy_(0, rows, weight.to(table.dtype))
        elif weight is not table:
            table.copy_(weight)

    def _rates(
        self, param: Tensor, rows: Tensor | None, group: dict[str, Any], lr: float
    ) -> Tensor:
        state = {name: take(whole, rows) for name, whole in self.state.get(param, {}).items()}
        return _spread(
            self._rate(state, group, lr), take(param[:0] if param.dim() else param, None)
        )

    def _group(self, param: Tensor) -> dict[str, Any]:
        """The options of a parameter."""
        for group in self.param_groups:
            if any(param is one for one in group["params"]):
                return group
        raise ValueError(
            f"a parameter of shape {tuple(param.shape)} is not one of this optimiser's; "
            "write optimizer.add_param_group({'params': [param]})"
        )

    def _visit(self, param: Tensor, gradient: RowGradient, group: dict[str, Any]) -> None:
        if gradient.values.numel() == 0:
            return
        rows = param.shape[0] if param.dim() else 1
        gradient.check(rows, tuple(param.shape[1:]))
        state = self._state(param, group)
        check_state(param, rows, state, slots=2 if self._age and not self._by_row(group) else 1)
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
        index, values = gradient.index, gradient.values
        rows = param.shape[0] if param.dim() else 1
        if not _fit_for_kernels(param, values, state):
            return False
        if rows.bit_length() + len(values).bit_length() > 64:
            return False  # the kernel sorts rows and positions as one number
        penalty = self.penalties.get(param)
        charge = {} if penalty is None else {"l1": penalty.l1, "signed": penalty.signed}
        update = self._update(group, float(group["lr"]), **charge)
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
        """A kernel on the rows of an index, or all; where in it a row is none, or -1."""
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
        # The kernel writes behind autograd's back, which must still notice a graph gone stale.
        torch.autograd.graph.increment_version(param)
        return bad

    def _update(self, group: dict[str, Any], lr: float, **charge: float) -> Any:
        """The numbers of a step, as the kernels take them."""
        decay = float(group["weight_decay"])
        apart = group.get("decoupled_weight_decay", False)
        return dispatch.kernel("Update")(
            lr=lr,
            decay=0.0 if apart else decay,
            shrink=1 - lr * decay if apart else 1.0,
            maximize=bool(group["maximize"]),
            **self._numbers(group),
            **charge,
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
        index, values = summed(gradient, len(table))
        tables = {"weight": table, **state}
        rows = {name: take(whole, index) for name, whole in tables.items()}
        weight, grad = rows["weight"], values.to(rows["weight"].dtype)
        if group["maximize"]:
            grad = -grad
        if group["weight_decay"] and group.get("decoupled_weight_decay", False):
            weight.mul_(1 - float(group["lr"]) * float(group["weight_decay"]))
        elif group["weight_decay"]:
            grad = grad.add(weight, alpha=float(group["weight_decay"]))
        self._advance(weight, grad, rows, group)
        penalty = self.penalties.get(param)
        if penalty is not None and penalty.l1:
            rate = _spread(self._rate(rows, group, float(group["lr"])), weight)
            shrink_(weight, penalty.l1 * rate, signed=penalty.signed)
        for name, whole in tables.items():
            if index is not None:
                whole.index_copy_(0, index, rows[name].to(whole.dtype))
            elif rows[name] is not whole:
                whole.copy_(rows[name])


def _spread(rate: Tensor | float, like: Tensor) -> Tensor:
    """A rate per row, or number, or one for all, with as many dimensions as its weights."""
    rate = torch.as_tensor(rate, dtype=like.dtype, device=like.device)
    return rate.view(*rate.shape, *[1] * (like.dim() - rate.dim()))


def _refuse(row: Tensor, rows: int) -> ValueError:
    return ValueError(f"rows must be between 0 and {rows - 1}, got {int(row)}")


def _fit_for_kernels(param: Tensor, values: Tensor, state: dict[str, Tensor]) -> bool:
    """Whether all of these are of one dtype that has kernels, and whole in memory."""
    memory, step, square = state.get("memory", param), state.get("step"), state.get("square")
    return (
        dispatch.ready(param, values, memory)
        and param.dtype == values.dtype == memory.dtype
        and param.is_contiguous()
        and all(t is None or t.is_contiguous() for t in (memory, step, square))
        and (square is None or square.dtype == param.dtype)
    )


Params = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]
