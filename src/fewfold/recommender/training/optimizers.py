"""Optimisers of a training and their learning rate."""

import math

import torch
from torch import Tensor

from fewfold import optim
from fewfold.recommender.models.fastvae.network import FastVAE

__all__ = ["build_optimizers", "relative_rate"]

_WARM = 100  # steps over which the learning rate rises
_LEAST = 0.02  # of the learning rate at the end
_SHARED = 0.1  # of the learning rate, for parameters that move the vectors of all items


def build_optimizers(
    model: FastVAE, lr: float, steps: int, counts: Tensor
) -> dict[str, torch.optim.Optimizer]:
    """Return the optimisers of the row parameters ("tables") and of all others ("others").

    Each parameter group has a `share` of the learning rate.
    """
    shared = model.tables.shared_parameters
    excluded = [*model.tables.row_parameters, *shared]
    others = [p for p in model.parameters() if all(p is not e for e in excluded)]
    groups = [{"params": others, "share": 1.0}]
    if shared:
        groups.append({"params": shared, "share": _SHARED})
    tables = [{"params": model.tables.row_parameters, "share": 1.0}]
    rows = optim.Adam(tables, lr=lr, betas=(0.0, 0.99), by_row=True)
    return {
        "tables": model.tables.row_optimizer(rows, steps, counts),
        "others": torch.optim.Adam(groups, lr=lr, betas=(0.9, 0.99), fused=True),
    }


def relative_rate(step: int, steps: int) -> float:
    """Return the learning rate of a step relative to the highest: linear warm-up, then a cosine."""
    fall = (1 + math.cos(math.pi * step / steps)) / 2
    return min(1.0, (step + 1) / _WARM) * (fall * (1 - _LEAST) + _LEAST)
