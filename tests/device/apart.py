"""A device for tests: tensors of `apart` hold a tensor of the CPU and mix with no other device.

The device is torch's private-use backend, registered from Python. Operations run on the tensors
that are held, so that results can be compared with those of the CPU; an operation on tensors of
both devices raises, as it would with a GPU, and so does `numpy()`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._pytree import tree_flatten, tree_map

__all__ = ["APART", "Apart"]


class _Module(backend_registration._DummyBackendModule):  # type: ignore[misc, name-defined]
    """What torch asks of a device; this one has no random numbers of its own.

    Once registered it is the accelerator of the whole process, whose state `fork_rng` keeps.
    """

    def get_rng_state(self, device: object = "apart") -> Tensor:
        return torch.empty(0, dtype=torch.uint8)

    def set_rng_state(self, state: Tensor, device: object = "apart") -> None:
        pass


backend_registration._setup_privateuseone_for_python_backend(  # type: ignore[attr-defined]
    "apart", backend_module=_Module()
)
APART = torch.device("apart:0")

_COPIES = ("aten::copy_", "aten::_to_copy")
"""Operations that may take tensors of both devices."""


class Apart(torch.Tensor):
    """Tensor of the device `apart`, made by `.to("apart")` or by a factory with `device=`."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "Apart":
        strided = held.layout is torch.strided
        tensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.shape,
            strides=held.stride() if strided else None,
            storage_offset=held.storage_offset() if strided else None,
            layout=held.layout,
            dtype=held.dtype,
            device=APART,
        )
        tensor.held = held
        return tensor

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.tolist:  # torch refuses it for subclasses, and has it for every device
            return args[0].held.tolist()
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, *args, **(kwargs or {}))

    def __repr__(self) -> str:  # type: ignore[override]
        return f"apart({self.held})"


def _run(operation: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operation on the tensors that are held; its results hold what it returns."""
    name = operation._schema.name

    def hold(value: Any) -> Any:
        if isinstance(value, Apart):
            return value.held
        if isinstance(value, Tensor) and value.dim() and name not in _COPIES:
            raise RuntimeError(f"{name} was given tensors on both {APART} and {value.device}")
        if isinstance(value, torch.Generator):
            raise RuntimeError(f"{name} was given a generator of {value.device} on {APART}")
        if isinstance(value, torch.device) and value.type == APART.type:
            return torch.device("cpu")
        return value

    given = {id(t.held): t for t in tree_flatten((args, kwargs))[0] if isinstance(t, Apart)}
    result = operation(*tree_map(hold, args), **tree_map(hold, kwargs))
    if name == "aten::_to_copy":
        target = kwargs.get("device")
        if target is not None and target.type != APART.type:
            return result
    if name == "aten::copy_" and not isinstance(args[0], Apart):
        return args[0]
    # What an operation in place returns is the tensor it was given.
    return tree_map(
        lambda t: (given[id(t)] if id(t) in given else Apart(t)) if isinstance(t, Tensor) else t,
        result,
    )


_library = torch.library.Library("_", "IMPL")
_library.fallback(_run, "PrivateUse1")  # for factories alone


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """Copy between the devices, as `torch.tensor(..., device=)` does below all Python."""
    held = [one.held if isinstance(one, Apart) else one for one in (source, target)]
    held[1].copy_(held[0])
    return target


_aten = torch.library.Library("aten", "IMPL")
_aten.impl("_copy_from", _copy_from, "PrivateUse1")


def _factory(operation: Any) -> Callable[..., Tensor]:
    """A factory that makes its tensor on the CPU; torch's would resize one that is made empty."""

    def make(*args: Any, **kwargs: Any) -> Tensor:
        return Apart(operation(*args, **{**kwargs, "device": torch.device("cpu")}))

    return make


for _name in ("arange", "arange.start", "arange.start_step", "eye", "eye.m"):
    _packet, _, _overload = _name.partition(".")
    _operation = getattr(getattr(torch.ops.aten, _packet), _overload or "default")
    _aten.impl(_name, _factory(_operation), "PrivateUse1")
