"""Step sizes and per-entry state of optimisers: those of `torch.optim` and of `fewfold.optim`."""

from typing import Any

import torch
from torch import Tensor

from fewfold.optim.row_optimizer import RowOptimizer

__all__ = ["check_optimizer", "group_of", "reset_entries", "step_sizes"]

_ADAM = (torch.optim.Adam, torch.optim.AdamW)


def check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Raise TypeError unless `step_sizes` supports this optimiser."""
    if not isinstance(optimizer, (RowOptimizer, torch.optim.SGD, *_ADAM)):
        raise TypeError(
            "the optimiser must be SGD, Adam or AdamW of torch.optim, or one of fewfold.optim, "
            f"got {type(optimizer).__name__}"
        )


def group_of(optimizer: torch.optim.Optimizer, param: Tensor) -> dict[str, Any]:
    """Return the parameter group of `param`."""
    for group in optimizer.param_groups:
        if any(other is param for other in group["params"]):
            return group
    raise ValueError("the optimiser no longer has the table's transform; wrap it again")


def step_sizes(
    optimizer: torch.optim.Optimizer, param: Tensor, rows: Tensor | None = None
) -> Tensor | float:
    """Return the step size of each entry of `param` or of some rows; a number if uniform."""
    if isinstance(optimizer, RowOptimizer):
        return optimizer.rates(param, rows)
    group = group_of(optimizer, param)
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
    # Entries without a gradient so far have no step size: lr / eps would set them to zero at once.
    return torch.where(root > 0, step / (root + group["eps"]), 0)


def reset_entries(
    optimizer: torch.optim.Optimizer, param: Tensor, row: Tensor, place: Tensor
) -> None:
    """Reset the optimiser state of the entries `param[row, place]` to its initial value."""
    start = float(group_of(optimizer, param).get("initial_accumulator_value", 0))
    for value in optimizer.state.get(param, {}).values():
        if not isinstance(value, Tensor):
            continue
        if value.shape == param.shape:
            value[row, place] = start
        elif value.dim() == 3 and value.shape[::2] == param.shape:  # (rows, 2, width): two moments
            value[row, 0, place] = 0
            value[row, 1, place] = start
