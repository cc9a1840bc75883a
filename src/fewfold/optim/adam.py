"""Row-wise Adam and Yogi: two moments, bias-corrected by the number of updates of each row."""

from typing import Any

import torch
from torch import Tensor

from fewfold._check import fraction, non_negative_number
from fewfold._native import dispatch
from fewfold.optim.row_optimizer import Params, RowOptimizer

__all__ = ["Adam", "Yogi"]


class _Moments(RowOptimizer):
    """Base class of rules with two moments, stored together in `memory`, (rows, 2, ...).

    They are adjacent because every update reads both. With one second moment per row, `memory` is
    the first moment (rows, ...), if there is one, and `square` the second (rows,).
    """

    _counts_updates = True

    def _check_group(self, group: dict[str, Any]) -> None:
        for name in ("lr", "weight_decay", "eps"):
            non_negative_number(group[name], name)
        betas = group["betas"]
        if not (isinstance(betas, (tuple, list)) and len(betas) == 2):
            raise TypeError(f"betas must be two numbers, got {betas!r}; write betas=(0.9, 0.999)")
        for place, beta in enumerate(betas):
            fraction(beta, f"betas[{place}]")

    def _kernel_options(self, group: dict[str, Any]) -> dict[str, float]:
        beta1, beta2 = map(float, group["betas"])
        return {"beta1": beta1, "beta2": beta2, "eps": float(group["eps"])}

    def _initial_memory(self, param: Tensor, group: dict[str, Any]) -> Tensor | None:
        shape = param.shape if param.dim() else (1,)
        if not self._has_row_moment(group):
            shape = (shape[0], 2, *shape[1:])
        elif not float(group["betas"][0]):
            return None  # the first moment is the gradient itself
        if param.is_cpu:
            return dispatch.table(*shape, dtype=param.dtype).zero_()
        return param.new_zeros(shape)

    def _update_rows(
        self, weight: Tensor, grad: Tensor, state: dict[str, Tensor], group: dict[str, Any]
    ) -> None:
        beta1, beta2 = map(float, group["betas"])
        each = (-1, *[1] * (weight.dim() - 1))
        if self._has_row_moment(group):
            mean, row_square = state.get("memory"), state["square"]
            size = grad.reshape(len(grad), -1).square().mean(1).sqrt()
            self._update_moment(row_square, size, 1 - beta2)
            square = row_square.view(each)
        else:
            mean, square = state["memory"].unbind(1)
            self._update_moment(square, grad, 1 - beta2)
        mean = grad if mean is None else mean.lerp_(grad, 1 - beta1)
        age = state["step"].add_(1).double().view(each)
        step = (float(group["lr"]) / (1 - beta1**age)).to(weight.dtype)
        root = (1 - beta2**age).sqrt().to(weight.dtype)
        weight.sub_(step * mean / self._denominator(square, root, group))

    def _step_sizes(
        self, state: dict[str, Tensor], group: dict[str, Any], lr: float
    ) -> Tensor | float:
        if "step" not in state:
            return 0.0
        beta1, beta2 = map(float, group["betas"])
        square = state["square"] if self._has_row_moment(group) else state["memory"][:, 1]
        each = (-1, *[1] * (square.dim() - 1))
        age = state["step"].double().view(each)
        step = (lr / (1 - beta1**age)).to(square.dtype)
        root = (1 - beta2**age).sqrt().to(square.dtype)
        moved = (age > 0) & (square > 0)  # no step size without a gradient so far
        return torch.where(moved, step / self._denominator(square, root, group), 0)

    def _denominator(self, square: Tensor, root: Tensor, group: dict[str, Any]) -> Tensor:
        """Divisor of the corrected mean; `root` is sqrt(1 - b2^t)."""
        return square.sqrt() / root + float(group["eps"])

    def _update_moment(self, square: Tensor, grad: Tensor, part: float) -> None:
        """Update the second moment by the square of the gradient, in place."""
        raise NotImplementedError


class Adam(_Moments):
    """Adam that updates only the rows that have a gradient.

    The `t`-th update of a row `w` whose gradients in this step sum to `g` is
    `w - lr * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)` with the moments
    `m = b1 m + (1 - b1) g` and `v = b2 v + (1 - b2) g^2` of the row.

    The moments and the count of a row without a gradient do not change: the result is that of a
    separate `torch.optim.Adam` for every row, called when the row is used. The bias correction of
    `torch.optim.SparseAdam` counts the steps of the whole table instead, so that the first updates
    of a row that is first used late are several times as large as `lr`.

    Args:
        params: parameters, or groups of them; the first dimension counts rows.
        lr: the learning rate.
        betas: `(b1, b2)`, each in [0, 1).
        eps: added to the denominator.
        weight_decay: L2 penalty, `weight_decay * w` is added to `g`; updated rows only.
        decoupled_weight_decay: shrink `w` by `lr * weight_decay` instead, as AdamW does.
        maximize: maximise the objective instead.
        by_row: one second moment per row, an average of the mean of its `g^2`. Halves the state and
            reads and writes a third less; the update of a row is parallel to its `m`. With `b1 = 0`
            the state is `v` and `t`, two numbers per row.

    Example:
        >>> import torch, fewfold as ff
        >>> table = torch.nn.Embedding(1000, 2, sparse=True)
        >>> _ = torch.nn.init.ones_(table.weight)
        >>> optimizer = ff.optim.Adam(table.parameters(), lr=0.1)
        >>> table(torch.tensor([7, 7, 3])).sum().backward()
        >>> optimizer.step()
        >>> table.weight[[3, 7, 8]].detach()
        tensor([[0.9000, 0.9000],
                [0.9000, 0.9000],
                [1.0000, 1.0000]])

    Reference: Kingma, Ba (2015), "Adam: a method for stochastic optimization".
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        decoupled_weight_decay: bool = False,
        maximize: bool = False,
        by_row: bool = False,
    ) -> None:
        options = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize,
            "by_row": by_row,
        }
        super().__init__(params, options)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("by_row", False)

    def _has_row_moment(self, group: dict[str, Any]) -> bool:
        return bool(group["by_row"])

    def _kernel(self, group: dict[str, Any]) -> str:
        if not group["by_row"]:
            return "adam"
        return "adam_by_row" if float(group["betas"][0]) else "scale_by_row"

    def _update_on_gpu(
        self,
        table: Tensor,
        index: Tensor | None,
        grad: Tensor,
        state: dict[str, Tensor],
        group: dict[str, Any],
    ) -> bool:
        if group["by_row"]:
            return False
        memory = state["memory"]
        run = dispatch.triton_kernel("row_adam", table, memory, grad)
        if run is None or memory.dtype != table.dtype or not table.is_contiguous():
            return False
        beta1, beta2 = map(float, group["betas"])
        run(
            table, memory, state["step"], index, grad.contiguous(), lr=float(group["lr"]),
            betas=(beta1, beta2), eps=float(group["eps"]),
            weight_decay=float(group["weight_decay"]), maximize=bool(group["maximize"]),
            decoupled=bool(group["decoupled_weight_decay"]),
        )  # fmt: skip
        return True

    def _update_moment(self, square: Tensor, grad: Tensor, part: float) -> None:
        square.mul_(1 - part).addcmul_(grad, grad, value=part)


class Yogi(_Moments):
    """Yogi that updates only the rows that have a gradient.

    Adam with an additive second moment, `v = v - (1 - b2) sign(v - g^2) g^2`. It decays more slowly
    than Adam's after large gradients, which helps where gradients are rare. The `t`-th update of a
    row is `w - lr_t m / (sqrt(v) + eps)`, as in the paper, and `lr_t` has Adam's bias correction:
    `lr_t = lr sqrt(1 - b2^t) / (1 - b1^t)`.

    Args:
        params: parameters, or groups of them; the first dimension counts rows.
        lr: the learning rate.
        betas: `(b1, b2)`, each in [0, 1).
        eps: added to the denominator.
        initial_accumulator_value: initial `v`.
        weight_decay: L2 penalty, `weight_decay * w` is added to `g`; updated rows only.
        decoupled_weight_decay: shrink `w` by `lr * weight_decay` instead.
        maximize: maximise the objective instead.
        adam_eps: add `eps` to the corrected root, `sqrt(v / (1 - b2^t)) + eps`, as in
            `fewfold.optim.Adam`. In the first updates it then counts for up to 1 / sqrt(1 - b2)
            times less. States that were saved without this option are continued with it.

    Example:
        >>> import torch, fewfold as ff
        >>> table = torch.nn.Embedding(1000, 2, sparse=True)
        >>> _ = torch.nn.init.ones_(table.weight)
        >>> optimizer = ff.optim.Yogi(table.parameters(), lr=0.1)
        >>> (table(torch.tensor(4)) * torch.tensor([1.0, -3.0])).sum().backward()
        >>> optimizer.step()
        >>> table.weight[[4, 5]].detach()
        tensor([[0.9031, 1.0990],
                [1.0000, 1.0000]])

    Reference: Zaheer, Reddi, Sachan, Kale, Kumar (2018), "Adaptive methods for nonconvex
    optimization".
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-2,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-3,
        initial_accumulator_value: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        decoupled_weight_decay: bool = False,
        maximize: bool = False,
        adam_eps: bool = False,
    ) -> None:
        options = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "initial_accumulator_value": initial_accumulator_value,
            "weight_decay": weight_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize,
            "adam_eps": adam_eps,
        }
        super().__init__(params, options)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("adam_eps", True)  # from before there was a choice

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        non_negative_number(group["initial_accumulator_value"], "initial_accumulator_value")

    def _kernel(self, group: dict[str, Any]) -> str:
        return "yogi"

    def _kernel_options(self, group: dict[str, Any]) -> dict[str, float]:
        return {**super()._kernel_options(group), "adam_eps": bool(group["adam_eps"])}

    def _denominator(self, square: Tensor, root: Tensor, group: dict[str, Any]) -> Tensor:
        if group["adam_eps"]:
            return super()._denominator(square, root, group)
        return (square.sqrt() + float(group["eps"])) / root

    def _initial_memory(self, param: Tensor, group: dict[str, Any]) -> Tensor | None:
        memory = super()._initial_memory(param, group)
        if memory is not None and group["initial_accumulator_value"]:
            memory[:, 1] = float(group["initial_accumulator_value"])
        return memory

    def _update_moment(self, square: Tensor, grad: Tensor, part: float) -> None:
        power = grad * grad
        square.addcmul_(torch.sign(square - power), power, value=-part)
