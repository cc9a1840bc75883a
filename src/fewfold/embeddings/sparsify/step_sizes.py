"""The step size an optimiser takes at each entry."""

from typing import Any

import torch
from torch import Tensor

from fewfold.optim.row_optimizer import RowOptimizer

__all__ = ["check_optimizer", "rates"]

_MOMENTS = (torch.optim.Adam, torch.optim.AdamW)


def check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Raise unless the step sizes of this optimiser are known."""
    if not isinstance(optimizer, (RowOptimizer, torch.optim.SGD, *_MOMENTS)):
        raise TypeError(
            "the optimiser must be SGD, Adam or AdamW of torch.optim, or one of fewfold.optim, "
            f"got {type(optimizer).__name__}"
        )


def rates(
    optimizer: torch.optim.Optimizer, param: Tensor, rows: Tensor | None = None
) -> Tensor | float:
    """Step sizes at all entries of a parameter, or of some of its rows; a number if all alike."""
    if isinstance(optimizer, RowOptimizer):
        return optimizer.rates(param, rows)
    group = _group(optimizer, param)
    if isinstance(optimizer, torch.optim.SGD):
        return float(group["lr"])
    state = optimizer.state.get(param)
    if not state:
        return 0.0
    square = state["max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"]
    beta1, beta2 = (float(beta) for beta in group["betas"])
    age = float(state["step"])
    step = float(group["lr"]) / (1 - beta1**age)
    root = (square if rows is None else square[rows]).sqrt() / (1 - beta2**age) ** 0.5
    # Where no gradient ever was, lr / eps would be the step size, and wipe everything out.
    return torch.where(root > 0, step / (root + group["eps"]), 0)


def _group(optimizer: torch.optim.Optimizer, param: Tensor) -> dict[str, Any]:
    for group in optimizer.param_groups:
        if any(other is param for other in group["params"]):
            return group
    raise ValueError("the optimiser does not have this parameter")
