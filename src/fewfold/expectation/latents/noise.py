"""Random noise for sampling and relaxation."""

import torch
from torch import Tensor

from fewfold._torch import under_vmap

__all__ = ["exponential", "gumbel", "logistic", "uniform"]


def uniform(
    shape: tuple[int, ...] | torch.Size, like: Tensor, generator: torch.Generator | None
) -> Tensor:
    """Uniform noise, at least float32, since half precision is too coarse near 0."""
    wide = torch.promote_types(like.dtype, torch.float32)
    return torch.rand(shape, dtype=wide, device=like.device, generator=generator)


def gumbel(
    shape: tuple[int, ...] | torch.Size, like: Tensor, generator: torch.Generator | None
) -> Tensor:
    """Standard Gumbel noise."""
    return -exponential(shape, like, generator).log()


def exponential(
    shape: tuple[int, ...] | torch.Size, like: Tensor, generator: torch.Generator | None
) -> Tensor:
    """Standard exponential noise, bounded away from 0."""
    if under_vmap():  # vmap supports factory functions only, not in-place sampling
        point = torch.rand(shape, dtype=like.dtype, device=like.device, generator=generator)
        return -torch.log1p(-point).clamp(max=-torch.finfo(like.dtype).tiny)
    drawn = torch.empty(shape, dtype=like.dtype, device=like.device)
    return drawn.exponential_(generator=generator).clamp_(min=torch.finfo(like.dtype).tiny)


def logistic(
    shape: tuple[int, ...] | torch.Size, like: Tensor, generator: torch.Generator | None
) -> Tensor:
    """Standard logistic noise."""
    point = uniform(shape, like, generator)
    return point.logit(eps=torch.finfo(point.dtype).eps).to(like.dtype)
