"""The Gaussian latent of a FastVAE: sampled queries and their divergence from the prior."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from fewfold._native import dispatch
from fewfold.sampling.batch_part import BatchPart

__all__ = ["LOG_VAR", "append_one", "sample_latent"]

LOG_VAR = -8.0, 4.0  # smallest and largest log variance


def append_one(latent: Tensor) -> Tensor:
    """Append a column of ones, which meets the bias of the items."""
    return F.pad(latent, (0, 1), value=1.0)


def sample_latent(
    posterior: Tensor, generator: torch.Generator | None, part: BatchPart | None = None
) -> tuple[Tensor, Tensor]:
    """Sample queries from the posterior; return them and the divergence from the prior, (rows,)."""
    noise = _noise(posterior, generator, part)
    if dispatch.ready(posterior):
        sample: tuple[Tensor, Tensor] = _Latent.apply(posterior, noise)
        return sample
    mean, log_var = posterior.tensor_split(2, 1)
    log_var = log_var.clamp(*LOG_VAR)
    divergence = (mean.square() + log_var.exp() - 1 - log_var).sum(1) / 2
    return append_one(mean + noise * (log_var / 2).exp()), divergence


def _noise(posterior: Tensor, generator: torch.Generator | None, part: BatchPart | None) -> Tensor:
    """Return normal numbers, (rows, latent), for these rows of a batch."""
    rows, width = posterior.shape
    whole = posterior.new_empty(rows if part is None else part.rows, width // 2)
    whole.normal_(generator=generator)
    return whole if part is None else whole[part.slice(rows)]


class _Latent(torch.autograd.Function):
    """`sample_latent` with a backward pass of its own: fewer small operations per step."""

    @staticmethod
    def forward(ctx: Any, posterior: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, raw = posterior.tensor_split(2, 1)
        log_var = raw.clamp(*LOG_VAR)
        deviation = (log_var / 2).exp_()
        spread = noise * deviation
        variance = deviation.square_()
        queries = mean.new_ones(len(mean), mean.shape[1] + 1)
        torch.add(mean, spread, out=queries[:, :-1])
        divergence = (torch.addcmul(variance, mean, mean) - log_var - 1).sum(1) / 2
        ctx.save_for_backward(posterior, log_var, spread, variance)
        return queries, divergence

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by: Tensor, divergence_by: Tensor) -> tuple[Tensor | None, ...]:
        posterior, log_var, spread, variance = ctx.saved_tensors
        mean, raw = posterior.tensor_split(2, 1)
        grad = torch.empty_like(posterior)
        to_mean, to_log_var = grad.tensor_split(2, 1)
        divergence_by = divergence_by.unsqueeze(1)
        torch.addcmul(by[:, :-1], mean, divergence_by, out=to_mean)
        torch.addcmul(by[:, :-1] * spread, variance - 1, divergence_by, out=to_log_var)
        to_log_var.mul_((raw == log_var) / 2)  # no gradient where it was clamped
        return grad, None
