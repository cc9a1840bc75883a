"""Random tensors on any device: a generator draws where it is, and what it drew is moved.

torch wants the generator on the device of the result. Here it may be elsewhere, so that one seeded
on the CPU gives the same numbers for tensors on every device.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = [
    *("bernoulli", "exponential", "generator_on", "multinomial", "normal_"),
    *("rand", "randint", "randn", "random_words", "randperm", "standard_gamma"),
]

Generator = torch.Generator | None


def _source(generator: Generator, device: torch.device) -> torch.device:
    """Return the device on which numbers for `device` are drawn."""
    return device if generator is None else generator.device


def rand(
    shape: Sequence[int],
    device: torch.device,
    *,
    dtype: torch.dtype | None = None,
    generator: Generator = None,
) -> Tensor:
    """Return uniform numbers in [0, 1).

    Example:
        >>> import torch
        >>> from fewfold._random import rand
        >>> rand((2,), torch.device("meta"), generator=torch.Generator()).device
        device(type='meta')
    """
    source = _source(generator, device)
    return torch.rand(shape, dtype=dtype, device=source, generator=generator).to(device)


def randn(
    shape: Sequence[int],
    device: torch.device,
    *,
    dtype: torch.dtype | None = None,
    generator: Generator = None,
) -> Tensor:
    """Return standard normal numbers."""
    source = _source(generator, device)
    return torch.randn(shape, dtype=dtype, device=source, generator=generator).to(device)


def exponential(
    shape: Sequence[int], device: torch.device, *, dtype: torch.dtype, generator: Generator = None
) -> Tensor:
    """Return standard exponential numbers."""
    drawn = torch.empty(shape, dtype=dtype, device=_source(generator, device))
    return drawn.exponential_(generator=generator).to(device)


def randint(
    high: int, shape: Sequence[int], device: torch.device, *, generator: Generator = None
) -> Tensor:
    """Return whole numbers from 0 to high - 1, int64."""
    source = _source(generator, device)
    return torch.randint(high, shape, device=source, generator=generator).to(device)


def randperm(count: int, device: torch.device, *, generator: Generator = None) -> Tensor:
    """Return the numbers from 0 to count - 1 in random order, int64."""
    source = _source(generator, device)
    return torch.randperm(count, device=source, generator=generator).to(device)


def multinomial(
    probs: Tensor, count: int, *, replacement: bool = False, generator: Generator = None
) -> Tensor:
    """Return columns of (rows, n) or (n,) probabilities, `count` for each row, int64."""
    if generator is None or generator.device == probs.device:
        return torch.multinomial(probs, count, replacement, generator=generator)
    moved = probs.to(generator.device)
    return torch.multinomial(moved, count, replacement, generator=generator).to(probs.device)


def normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Generator = None
) -> Tensor:
    """Fill a tensor with normal numbers, in place; return it."""
    if generator is None or generator.device == tensor.device:
        return tensor.normal_(mean, std, generator=generator)
    drawn = torch.empty(tensor.shape, dtype=tensor.dtype, device=generator.device)
    return tensor.copy_(drawn.normal_(mean, std, generator=generator))


def bernoulli(
    shape: Sequence[int], chance: float, device: torch.device, *, dtype: torch.dtype,
    generator: Generator = None,
) -> Tensor:  # fmt: skip
    """Return ones with this chance, and zeros."""
    drawn = torch.empty(shape, dtype=dtype, device=_source(generator, device))
    return drawn.bernoulli_(chance, generator=generator).to(device)


def generator_on(device: torch.device) -> torch.Generator | None:
    """Return a new generator of a device; None for the CPU, and where torch has none."""
    if device.type == "cpu":
        return None
    try:
        return torch.Generator(device)
    except (RuntimeError, NotImplementedError):
        return None


def random_words(count: int, device: torch.device, *, generator: Generator = None) -> Tensor:
    """Return int64 numbers of 63 random bits."""
    drawn = torch.empty(count, dtype=torch.int64, device=_source(generator, device))
    return drawn.random_(generator=generator).to(device)


def standard_gamma(order: Tensor, *, generator: Generator = None) -> Tensor:
    """Return gamma numbers of these orders, differentiable in them."""
    if generator is None or generator.device == order.device:
        drawn: Tensor = torch._standard_gamma(order, generator=generator)
    else:
        drawn = torch._standard_gamma(order.to(generator.device), generator=generator)
    return drawn.to(order.device)
