"""Row-wise stochastic gradient descent with momentum."""

from typing import Any

import torch
from torch import Tensor

from fewfold._check import fraction, non_negative_number
from fewfold.optim.row_optimizer import Params, RowOptimizer

__all__ = ["SGD"]


class SGD(RowOptimizer):
    """SGD that updates only the rows that have a gradient.

    The update of a row `w` whose gradients in this step sum to `g` is `w - lr * b` with the
    momentum buffer `b = momentum * b + g + weight_decay * w`; `nesterov` uses
    `g + weight_decay * w + momentum * b` in its place. The buffer of a row without a gradient does
    not change and the row does not decay: the result is that of a separate `torch.optim.SGD` for
    every row, called when the row is used.

    Args:
        params: parameters, or groups of them; the first dimension counts rows.
        lr: the learning rate.
        momentum: in [0, 1); without momentum there is no state.
        weight_decay: L2 penalty, on updated rows only.
        nesterov: use Nesterov momentum; needs `momentum > 0`.
        maximize: maximise the objective instead.

    Example:
        >>> import torch, fewfold as ff
        >>> table = torch.nn.Embedding(1000, 2, sparse=True)
        >>> _ = torch.nn.init.ones_(table.weight)
        >>> optimizer = ff.optim.SGD(table.parameters(), lr=0.1)
        >>> table(torch.tensor([7, 7, 3])).sum().backward()
        >>> optimizer.step()
        >>> table.weight[[3, 7, 8]].detach()
        tensor([[0.9000, 0.9000],
                [0.8000, 0.8000],
                [1.0000, 1.0000]])
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        *,
        nesterov: bool = False,
        maximize: bool = False,
    ) -> None:
        options = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
        }
        super().__init__(params, options)

    def _check_group(self, group: dict[str, Any]) -> None:
        non_negative_number(group["lr"], "lr")
        non_negative_number(group["weight_decay"], "weight_decay")
        fraction(group["momentum"], "momentum")
        if group["nesterov"] and not group["momentum"]:
            raise ValueError(
                "nesterov needs a momentum above 0, got momentum=0; write momentum=0.9"
            )

    def _kernel(self, group: dict[str, Any]) -> str:
        return "momentum" if group["momentum"] else "sgd"

    def _kernel_options(self, group: dict[str, Any]) -> dict[str, float]:
        return {"beta1": float(group["momentum"]), "nesterov": bool(group["nesterov"])}

    def _initial_memory(self, param: Tensor, group: dict[str, Any]) -> Tensor | None:
        if not group["momentum"]:
            return None
        return torch.zeros_like(param, memory_format=torch.contiguous_format)

    def _update_rows(
        self, weight: Tensor, grad: Tensor, state: dict[str, Tensor], group: dict[str, Any]
    ) -> None:
        if group["momentum"]:
            memory = state["memory"].view_as(grad)
            memory.mul_(group["momentum"]).add_(grad)
            grad = grad.add(memory, alpha=group["momentum"]) if group["nesterov"] else memory
        weight.add_(grad, alpha=-float(group["lr"]))

    def _step_sizes(
        self, state: dict[str, Tensor], group: dict[str, Any], lr: float
    ) -> Tensor | float:
        return lr
