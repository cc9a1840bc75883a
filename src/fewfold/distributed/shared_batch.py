"""Rows of a batch, of which each process has a share: collectives with a gradient.

Both are linear, and each is the transpose of the other.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fewfold.distributed.group import Group

__all__ = ["all_rows", "own_sums"]


def own_sums(group: Group, terms: Tensor, name: str) -> Tensor:
    """Return the sums over processes of the rows of this one; gradients are gathered.

    Args:
        group: the processes.
        terms: (rows, ...) of this process, for the rows of all.
        name: of the traffic.
    """
    sums: Tensor = _OwnSums.apply(terms, group, name)
    return sums


def all_rows(group: Group, own: Tensor, every: Tensor, name: str) -> Tensor:
    """Return the rows of all processes; their gradients are summed over processes.

    Args:
        group: the processes.
        own: the rows of this process, which get the gradient.
        every: (rows, ...) the rows of all processes, gathered before.
        name: of the traffic of the gradient.
    """
    rows: Tensor = _AllRows.apply(own, every, group, name)
    return rows


class _OwnSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, terms: Tensor, group: Group, name: str) -> Tensor:
        ctx.group, ctx.name, ctx.counts = group, name, group.shares(len(terms))
        return group.scatter_sums(terms, ctx.counts, name)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        every = ctx.group.gather(grad, ctx.counts, f"{ctx.name}, gradients")
        return every, None, None


class _AllRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, every: Tensor, group: Group, name: str) -> Tensor:
        ctx.group, ctx.name = group, name
        return every.view_as(every)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        counts = ctx.group.shares(len(grad))
        return ctx.group.scatter_sums(grad, counts, ctx.name), None, None, None
