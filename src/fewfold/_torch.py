"""Questions about torch's own state that depend on the device."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.autograd import forward_ad

__all__ = [
    "autocast_dtype", "autocasts", "check_values", "eager", "has_values", "loss_dtype",
    "tracks_grad", "under_vmap", "untransformed", "without_autocast",
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


def untransformed(*given: Tensor) -> bool:
    """Return whether values may be read: no transform, trace, dispatch mode or "meta" tensor."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return False
    if torch._C._are_functorch_transforms_active() or torch._C._len_torch_dispatch_stack():
        return False
    if forward_ad._current_level >= 0:
        return False
    if not has_values(*given):
        return False
    return not any(torch._C._functorch.is_legacy_batchedtensor(one) for one in given)


def eager(*values: object) -> bool:
    """Whether data-dependent shortcuts are allowed: plain CPU tensors outside any transform."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return False
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    if torch._C._len_torch_dispatch_stack() or forward_ad._current_level >= 0:
        return False
    tensors = [value for value in values if isinstance(value, Tensor)]
    return all(
        type(tensor) in (Tensor, torch.nn.Parameter)
        and tensor.device.type == "cpu"
        and not torch._C._functorch.is_legacy_batchedtensor(tensor)  # autograd's own vmap
        for tensor in tensors
    )


def tracks_grad(*values: object) -> bool:
    """Whether an eager call must leave a graph behind it."""
    return torch.is_grad_enabled() and any(
        isinstance(value, Tensor) and value.requires_grad for value in values
    )
