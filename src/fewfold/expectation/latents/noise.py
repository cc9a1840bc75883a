"""Random noise for sampling and relaxation."""

import torch
from torch import Tensor

from fewfold import _random
from fewfold._torch import under_vmap

__all__ = ["exponential", "gumbel", "logistic", "uniform"]


def uniform(
    shape: tuple[int, ...] | torch.Size, like: Tensor, generator: torch.Generator | None
) -> Tensor:
    """Uniform noise, at least float32, since half precision is too coarse near 0."""
    wide = torch.promote_types(like.dtype, torch.float32)
    return _random.rand(shape, like.device, dtype=wide, generator=generator)


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
        point = _random.rand(shape, like.device, dtype=like.dtype, generator=generator)
        return -torch.log1p(-point).clamp(max=-torch.finfo(like.dtype).tiny)
    drawn = _random.exponential(shape, like.device, dtype=like.dtype, generator=generator)
    return drawn.clamp_(min=torch.finfo(like.dtype).tiny)


def logistic(
    shape: tuple[int, ...] | torch.Size, like: Tensor, generator: torch.Generator | None
) -> Tensor:
    """Standard logistic noise."""
    point = uniform(shape, like, generator)
    return point.logit(eps=torch.finfo(point.dtype).eps).to(like.dtype)
