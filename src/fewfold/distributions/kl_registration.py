"""The decorator that tells torch of a closed form of a divergence, with its types."""

from collections.abc import Callable
from typing import Any, TypeVar

from torch.distributions import register_kl

__all__ = ["divergence"]

_Formula = TypeVar("_Formula", bound=Callable[..., Any])


def divergence(p: type, q: type) -> Callable[[_Formula], _Formula]:
    """`torch.distributions.kl_divergence` of these two classes is the function below this."""
    register: Callable[[_Formula], _Formula] = register_kl(p, q)
    return register
