"""Fake tensors of "cuda": devices, dtypes and shapes as on a GPU, without one and without data."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

__all__ = ["CUDA", "fake_gpu"]

CUDA = torch.device("cuda", 0)
_META, _CUDA = 14, 1  # numbers of device types in c10


class _FakeMode(FakeTensorMode):
    """A mode that never initialises a device, although a private-use one is registered."""

    avoid_device_init = True


def _guard() -> None:
    """Let torch without CUDA use the guard of "meta", which does nothing, for "cuda"."""
    if torch.cuda.is_available():
        return
    c10 = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * 20).in_dll(c10, "_ZN3c104impl26device_guard_impl_registryE")
    guards[_CUDA] = guards[_CUDA] or guards[_META]


@contextmanager
def fake_gpu() -> Iterator[None]:
    """Return a context in which tensors are fake, and "cuda" is a device; without autograd.

    A backward pass would need streams, of which that guard has none.
    """
    _guard()
    with _FakeMode(allow_non_fake_inputs=True), torch.no_grad():
        yield
