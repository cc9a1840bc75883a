"""Baselines: what a drawn cost is compared with, so that its gradient varies less."""

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from fewfold._torch import under_vmap

__all__ = ["Baseline", "Learned", "LeaveOneOut", "RunningMean", "SelfCritic"]


class Baseline(nn.Module):
    """What each of some drawn costs is compared with; it must not depend on that draw.

    `extra` draws are made beside those that have a weight, for the baseline alone.
    """

    extra = 0

    def forward(self, costs: Tensor, scored: int, context: Tensor | None) -> Tensor:
        """`(rows, scored)`, or what broadcasts to it, for costs (rows, scored + extra)."""
        raise NotImplementedError


class RunningMean(Baseline):
    """The mean of the costs of all batches before this one.

    It has a state, which is in its `state_dict`, and changes only in training mode and while
    gradients are recorded.

    Example:
        >>> import torch, fewfold as ff
        >>> baseline = ff.expectation.RunningMean()
        >>> estimator = ff.ScoreFunction(baseline=baseline)
        >>> scores = torch.zeros(2, 3, requires_grad=True)
        >>> out = ff.expect(lambda atoms, row: torch.full(atoms.shape, 4.0), scores, estimator)
        >>> baseline.mean
        tensor(4.)
    """

    mean: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """A model in half precision keeps a mean that many small steps can move."""
        super()._apply(fn, recurse)
        self.mean = self.mean.to(torch.promote_types(self.mean.dtype, torch.float32))
        return self

    def forward(self, costs: Tensor, scored: int, context: Tensor | None) -> Tensor:
        used = self.mean.to(costs, copy=True).expand(costs.shape)
        if self.training and torch.is_grad_enabled() and costs.numel():
            if under_vmap():
                raise RuntimeError(
                    "a RunningMean changes with every call, which torch.func.vmap does not allow; "
                    "write baseline.eval() to keep its mean, or LeaveOneOut()"
                )
            mean = costs.detach().mean().to(self.mean)
            if bool(mean.isfinite()):  # one bad batch is not remembered for ever
                self.count += 1
                self.mean += (mean - self.mean) / self.count
        return used


class SelfCritic(Baseline):
    """The cost of one more draw, which costs one more call."""

    extra = 1

    def forward(self, costs: Tensor, scored: int, context: Tensor | None) -> Tensor:
        return costs[:, scored:].expand(-1, scored)


class LeaveOneOut(Baseline):
    """The mean of the costs of the other draws of the same row; for two draws or more."""

    def forward(self, costs: Tensor, scored: int, context: Tensor | None) -> Tensor:
        others = (costs.sum(1, keepdim=True) - costs) / (scored - 1)
        return torch.where(costs.isinf(), 0.0, others)


class Learned(Baseline):
    """What a network expects the cost to be, given the `context` of each row.

    It learns with the rest: its squared error is a part of `Expectation.loss`. Its parameters must
    be in the optimiser: `estimator.baseline.parameters()`.

    Args:
        network: `(rows, ...)` context to (rows,) or (rows, 1).

    Reference: Mnih and Gregor, "Neural variational inference and learning in belief networks",
    2014.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, costs: Tensor, scored: int, context: Tensor | None) -> Tensor:
        if under_vmap():
            raise RuntimeError(
                "a Learned baseline learns by autograd from whole batches, not inside "
                "torch.func.vmap; give expect the whole batch, or write LeaveOneOut()"
            )
        if context is None:
            raise ValueError(
                "a Learned baseline looks at the context of each row; write expect(..., context=x)"
            )
        found: Tensor = self.network(context)
        if found.numel() != len(costs):
            raise ValueError(
                f"the network of a baseline must return one number for each of {len(costs)} rows, "
                f"got shape {tuple(found.shape)}"
            )
        return found.reshape(-1, 1).expand(-1, scored)
