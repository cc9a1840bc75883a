"""A typed version of `torch.distributions.register_kl`."""

from collections.abc import Callable
from typing import Any, TypeVar

from torch.distributions import register_kl

__all__ = ["divergence"]

_Formula = TypeVar("_Formula", bound=Callable[..., Any])


def divergence(p: type, q: type) -> Callable[[_Formula], _Formula]:
    """Register the decorated function as `torch.distributions.kl_divergence` of two classes."""
    register: Callable[[_Formula], _Formula] = register_kl(p, q)
    return register
