"""Questions about torch's own state that depend on the device."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

__all__ = [
    "autocast_dtype", "autocasts", "check_values", "has_values", "loss_dtype", "without_autocast",
]  # fmt: skip


def autocast_dtype(like: Tensor) -> torch.dtype | None:
    """Return the dtype that autocast uses on the device of `like`, or None where it is off.

    Devices that autocast does not know, such as "meta", have none; torch raises an error for them.
    """
    device = like.device.type
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return None
    return torch.get_autocast_dtype(device)


def autocasts(like: Tensor) -> bool:
    """Return whether autocast is on for the device of `like`."""
    return autocast_dtype(like) is not None


def without_autocast(like: Tensor) -> AbstractContextManager[object]:
    """Return a context in which autocast is off for the device of `like`."""
    return torch.autocast(like.device.type, enabled=False) if autocasts(like) else nullcontext()


def loss_dtype(like: Tensor) -> torch.dtype:
    """Return the dtype of a loss of `like`: its own, and under autocast float32 at least."""
    return torch.promote_types(like.dtype, torch.float32) if autocasts(like) else like.dtype


def has_values(*tensors: Tensor) -> bool:
    """Return whether these tensors have numbers to look at, which "meta" tensors have not."""
    return not any(tensor.is_meta for tensor in tensors)


def check_values(tensor: Tensor, why: str, instead: str) -> None:
    """Raise for a "meta" tensor where shapes alone do not determine the result."""
    if tensor.is_meta:
        raise ValueError(f"{why}, and a tensor on device 'meta' has none; {instead}")
