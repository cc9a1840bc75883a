"""Baselines: control variates that reduce the variance of score-function gradients."""

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from fewfold._torch import under_vmap

__all__ = ["Baseline", "Learned", "LeaveOneOut", "RunningMean", "SelfCritic"]


class Baseline(nn.Module):
    """Base class of baselines, which are subtracted from the costs of samples.

    The baseline of a sample must not depend on that sample.
    """

    #: Number of additional samples per row, with weight zero, that only the baseline sees.
    extra = 0

    #: Smallest number of samples per row that the baseline supports.
    min_samples = 1

    def forward(self, costs: Tensor, scored: int, context: Tensor | None) -> Tensor:
        """Return baselines broadcastable to `(rows, scored)`, for costs (rows, scored + extra)."""
        raise NotImplementedError


class RunningMean(Baseline):
    """Mean cost of all previous batches.

    The mean is stored in the `state_dict` and updated only in training mode with gradients enabled.

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
        """Keep the mean in at least float32, so that small updates are not rounded away."""
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
            counts = mean.isfinite()  # a batch with infinite costs is skipped
            self.count += counts
            self.mean += torch.where(counts, (mean - self.mean) / self.count, 0.0)
        return used


class SelfCritic(Baseline):
    """Cost of one additional sample of the same row; one more evaluation of the cost per row."""

    extra = 1

    def forward(self, costs: Tensor, scored: int, context: Tensor | None) -> Tensor:
        return costs[:, scored:].expand(-1, scored)


class LeaveOneOut(Baseline):
    """Mean cost of the other samples of the same row; needs at least two samples."""

    min_samples = 2

    def forward(self, costs: Tensor, scored: int, context: Tensor | None) -> Tensor:
        others = (costs.sum(1, keepdim=True) - costs) / (scored - 1)
        return torch.where(costs.isinf(), 0.0, others)


class Learned(Baseline):
    """Cost predicted by a network from the `context` of each row.

    The network is trained by its squared error, a term of `Expectation.loss`. Add its parameters
    to the optimiser: `estimator.baseline.parameters()`.

    Args:
        network: maps the context `(rows, ...)` to (rows,) or (rows, 1).

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
                "a Learned baseline needs the context of each row; write expect(..., context=x)"
            )
        found: Tensor = self.network(context)
        if found.numel() != len(costs):
            raise ValueError(
                f"the network of a baseline must return one number for each of {len(costs)} rows, "
                f"got shape {tuple(found.shape)}"
            )
        return found.reshape(-1, 1).expand(-1, scored)
