"""Row-wise Adagrad."""

from typing import Any

import torch
from torch import Tensor

from fewfold._check import non_negative_number
from fewfold.optim.row_optimizer import Params, RowOptimizer

__all__ = ["Adagrad"]


class Adagrad(RowOptimizer):
    """Adagrad that updates only the rows that have a gradient.

    With `g` the sum of the gradients of a row `w` in this step, plus `weight_decay * w`, the update
    is `w - lr * g / (sqrt(s) + eps)` with `s = s + g^2`: rarely used rows have large step sizes.
    Without weight decay the result is that of `torch.optim.Adagrad`, where a gradient of zero
    changes nothing; with it, only updated rows decay.

    Args:
        params: parameters, or groups of them; the first dimension counts rows.
        lr: the learning rate.
        weight_decay: L2 penalty, on updated rows only.
        initial_accumulator_value: initial `s`.
        eps: added to the denominator.
        maximize: maximise the objective instead.

    Example:
        >>> import torch, fewfold as ff
        >>> table = torch.nn.Embedding(1000, 1, sparse=True)
        >>> _ = torch.nn.init.zeros_(table.weight)
        >>> optimizer = ff.optim.Adagrad(table.parameters(), lr=0.1)
        >>> for rows in ([5, 6], [5, 9]):
        ...     optimizer.zero_grad()
        ...     table(torch.tensor(rows)).sum().backward()
        ...     optimizer.step()
        >>> table.weight[[5, 6, 9], 0].detach()
        tensor([-0.1707, -0.1000, -0.1000])

    Reference: Duchi, Hazan, Singer (2011), "Adaptive subgradient methods for online learning and
    stochastic optimization".
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-2,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
    ) -> None:
        options = {
            "lr": lr,
            "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value,
            "eps": eps,
            "maximize": maximize,
        }
        super().__init__(params, options)

    def _check_group(self, group: dict[str, Any]) -> None:
        for name in ("lr", "weight_decay", "initial_accumulator_value", "eps"):
            non_negative_number(group[name], name)

    def _kernel(self, group: dict[str, Any]) -> str:
        return "adagrad"

    def _kernel_options(self, group: dict[str, Any]) -> dict[str, float]:
        start = float(group["initial_accumulator_value"])
        return {"eps": float(group["eps"]), "initial": start}

    def _initial_memory(self, param: Tensor, group: dict[str, Any]) -> Tensor | None:
        start = float(group["initial_accumulator_value"])
        if start == 0:  # pages of zeros take no memory until they are written
            return torch.zeros_like(param, memory_format=torch.contiguous_format)
        return torch.full_like(param, start, memory_format=torch.contiguous_format)

    def _update_rows(
        self, weight: Tensor, grad: Tensor, state: dict[str, Tensor], group: dict[str, Any]
    ) -> None:
        total = state["memory"].view_as(grad).addcmul_(grad, grad)
        weight.addcdiv_(grad, total.sqrt().add_(group["eps"]), value=-float(group["lr"]))

    def _step_sizes(
        self, state: dict[str, Tensor], group: dict[str, Any], lr: float
    ) -> Tensor | float:
        total = state.get("memory")
        if total is None:
            return 0.0
        moved = total > float(group["initial_accumulator_value"])
        return torch.where(moved, lr / (total.sqrt() + float(group["eps"])), 0)
