"""Questions about torch's own state that depend on the device."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

__all__ = [
    "autocast_dtype", "autocasts", "check_values", "has_values", "loss_dtype", "under_vmap",
    "without_autocast",
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
    """Return whether values can be read: not of "meta" tensors, and not inside torch.func.vmap."""
    return not any(tensor.is_meta for tensor in tensors) and not under_vmap()


def under_vmap() -> bool:
    """Return whether torch.func.vmap is active, inside which nothing can depend on values."""
    if not torch._C._are_functorch_transforms_active():
        return False
    stack = torch._C._functorch.get_interpreter_stack() or []
    return any(one.key() == torch._C._functorch.TransformType.Vmap for one in stack)


def check_values(tensor: Tensor, why: str, instead: str) -> None:
    """Raise for a "meta" tensor where shapes alone do not determine the result."""
    if tensor.is_meta:
        raise ValueError(f"{why}, and a tensor on device 'meta' has none; {instead}")
