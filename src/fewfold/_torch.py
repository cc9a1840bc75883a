"""Questions about the state of torch: transforms, traces, autocast, and tensors without values."""

import contextlib
import inspect
import typing
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad

__all__ = [
    "CPU", "NO_CUDA_GRAPH", "autocast_dtype", "autocasts", "autograd_enabled", "check_values",
    "compiled", "eager", "exporting", "forward_mode", "has_values", "linear", "loss_dtype",
    "operator_schema", "runs_directly", "tracks_grad", "transferred", "under_transform",
    "under_vmap", "untransformed", "usable_device", "values_visible", "without_autocast",
]  # fmt: skip

CPU = torch.device("cpu")
# Arguments of an operator that no CUDA graph can contain; older versions of torch have no such tag.
NO_CUDA_GRAPH: dict[str, Any] = (
    {"tags": (torch.Tag.cudagraph_unsafe,)} if hasattr(torch.Tag, "cudagraph_unsafe") else {}
)
_PLAIN = (Tensor, torch.nn.Parameter)
_KEY, _KEYS = torch._C.DispatchKey, torch._C.DispatchKeySet
_INCLUDE = _KEYS(_KEY.BackendSelect) | _KEYS(_KEY.ADInplaceOrView)
_EXCLUDE = _KEYS(_KEY.AutocastCPU)
# Asked here, as graphs of torch 2.6 cannot ask.
_AUTOCAST = {name: torch.amp.is_autocast_available(name) for name in ("cpu", "cuda", "meta")}
_is_exporting = getattr(torch.compiler, "is_exporting", None)  # since torch 2.7
# The operator that torch.compile emits; None in a build without oneDNN.
_ONEDNN = getattr(torch.ops.mkldnn, "_linear_pointwise", None)


def autocast_dtype(like: Tensor) -> torch.dtype | None:
    """Return the dtype that autocast uses on the device of `like`, or None where it is off.

    Devices that autocast does not know, such as "meta", have none; torch raises an error for them.
    """
    device = like.device.type
    known = _AUTOCAST[device] if device in _AUTOCAST else torch.amp.is_autocast_available(device)
    if not known or not torch.is_autocast_enabled(device):
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


def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear` of plain CPU matrices without a derivative, by oneDNN where torch has it.

    torch itself uses oneDNN for float32 only in compiled graphs; on some processors it takes half
    the time of the BLAS library.
    """
    if inputs.dtype is torch.float32 and inputs.numel() and weight.numel() and _ONEDNN is not None:
        found: Tensor = _ONEDNN(inputs, weight, bias, "none", [], "")
        return found
    return torch.nn.functional.linear(inputs, weight, bias)


def under_transform() -> bool:
    """Return whether a transform of torch.func (vmap, grad, jvp, ...) is active."""
    return torch._C._are_functorch_transforms_active()


def under_vmap() -> bool:
    """Return whether torch.func.vmap is active, inside which nothing can depend on values."""
    if not under_transform():
        return False
    stack = torch._C._functorch.get_interpreter_stack() or []
    return any(one.key() == torch._C._functorch.TransformType.Vmap for one in stack)


def forward_mode() -> bool:
    """Return whether forward-mode differentiation is active."""
    return forward_ad._current_level >= 0


def exporting() -> bool:
    """Return whether torch.export is tracing. torch 2.6 does not tell; there it compiles."""
    return _is_exporting is not None and _is_exporting()


def compiled() -> bool:
    """Return whether torch.compile is tracing; an exporter, whose graph calls no Python, is not."""
    return torch.compiler.is_compiling() and not exporting()


def values_visible() -> bool:
    """Return whether Python may look at values: outside of torch.compile and torch.func.

    Forward mode, traces and dispatch modes count as outside; `runs_directly` excludes them too.
    """
    return not (torch.compiler.is_compiling() or under_transform())


def runs_directly() -> bool:
    """Return whether operations run at once on values: no transform, trace or dispatch mode.

    `fewfold._native.dispatch.ready` asks the same, written out to save a call.
    """
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return False
    return not (under_transform() or torch._C._len_torch_dispatch_stack() or forward_mode())


def has_values(*tensors: Tensor) -> bool:
    """Return whether values can be read: not of "meta" or fake tensors, and not under vmap."""
    return not any(map(_without_data, tensors)) and not under_vmap()


def _without_data(tensor: Tensor) -> bool:
    return tensor.is_meta or isinstance(tensor, FakeTensor)


def check_values(tensor: Tensor, why: str, instead: str) -> None:
    """Raise for a "meta" or fake tensor where shapes alone do not determine the result."""
    if tensor.is_meta:
        raise ValueError(f"{why}, and a tensor on device 'meta' has none; {instead}")
    if isinstance(tensor, FakeTensor):
        raise ValueError(f"{why}, and a FakeTensor has none; use a real tensor")


def untransformed(*given: Tensor) -> bool:
    """Return whether values may be read: `runs_directly`, and no "meta" or batched tensor."""
    return runs_directly() and not any(_without_data(one) or _batched(one) for one in given)


def eager(*values: object) -> bool:
    """Return whether data-dependent shortcuts pay: `runs_directly`, and plain CPU tensors only."""
    return runs_directly() and all(
        type(value) in _PLAIN and value.device.type == "cpu" and not _batched(value)
        for value in values
        if isinstance(value, Tensor)
    )


def _batched(tensor: Tensor) -> bool:
    """Return whether autograd's own vmap (`is_grads_batched`) has batched the tensor."""
    return torch._C._functorch.is_legacy_batchedtensor(tensor)


def tracks_grad(*values: object) -> bool:
    """Return whether autograd records a graph for a call on these."""
    return torch.is_grad_enabled() and any(
        isinstance(value, Tensor) and value.requires_grad for value in values
    )


def usable_device(name: str | torch.device) -> torch.device:
    """Return the device of this name; ValueError if torch has none here, and what there is.

    Example:
        >>> from fewfold._torch import usable_device
        >>> usable_device("gpu")
        Traceback (most recent call last):
        ValueError: device must be 'cpu', 'cuda', 'cuda:1' or another name of torch's, got 'gpu'
    """
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise ValueError(
            f"device must be 'cpu', 'cuda', 'cuda:1' or another name of torch's, got {name!r}"
        ) from None
    try:
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().partition("\n")[0].partition(". ")[0].rstrip(".")
        raise ValueError(
            f"device {str(device)!r} cannot be used ({reason}); there is {_devices()}"
        ) from None
    return device


def _devices() -> str:
    """Return the devices that torch has here, as text."""
    found = ["'cpu'"]
    if torch.accelerator.is_available():
        kind = torch.accelerator.current_accelerator()
        assert kind is not None
        found += [f"'{kind.type}:{i}'" for i in range(torch.accelerator.device_count())]
    return " and ".join(found) if len(found) < 3 else ", ".join(found)


def transferred(tensor: Tensor, device: torch.device) -> Tensor:
    """Return the tensor on a device; from the CPU to a GPU by pinned memory, without waiting."""
    if tensor.is_cpu and device.type == "cuda" and has_values(tensor):
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=tensor.is_cpu)


@contextlib.contextmanager
def autograd_enabled() -> Iterator[None]:
    """Record a graph inside an operator, where torch has switched autograd off.

    `enable_grad` alone is not enough: operators run with the autograd dispatch keys excluded.
    """
    with torch._C._ForceDispatchKeyGuard(_INCLUDE, _EXCLUDE), torch.enable_grad():
        yield


def operator_schema(function: Callable[..., Any]) -> str:
    """Return the schema of an operator that writes into none of its arguments.

    Lists are named as older versions of torch know them: torch 2.6 refuses ``list[bool]``.
    """

    lists: Any = typing.List  # noqa: UP006

    def known(annotation: Any) -> Any:
        is_list = typing.get_origin(annotation) is list
        return lists[typing.get_args(annotation)[0]] if is_list else annotation

    def prototype() -> None: ...

    found = inspect.signature(function)
    prototype.__signature__ = found.replace(  # type: ignore[attr-defined]
        parameters=[
            one.replace(annotation=known(one.annotation)) for one in found.parameters.values()
        ],
        return_annotation=known(found.return_annotation),
    )
    return str(torch.library.infer_schema(prototype, mutates_args=()))
