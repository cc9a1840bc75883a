"""AdaSplash, the kernels for 1.5-entmax attention on GPUs, where it is installed and applies."""

import functools
import importlib
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fewfold._torch import untransformed
from fewfold.attention.watch import is_watched
from fewfold.maps.entropies import Tsallis
from fewfold.maps.omega import Omega
from fewfold.structured.omega_tensors import tensors

__all__ = ["Backend", "adasplash_attention", "attention_backend", "log_backend"]

_LOG = logging.getLogger("fewfold.attention")
_DEVICES = ("cuda",)
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_SIZES = (16, 32, 64, 128, 256)  # of heads
_SHORTEST = 64  # sequence
_REFINEMENTS = {torch.float32: 10}  # steps of its threshold solver; one is enough for 16 bits


@dataclass(frozen=True)
class Backend:
    """What computes a call of the attention that `register_attention` registers.

    Attributes:
        name: "adasplash" or "fewfold".
        reason: why AdaSplash does not apply; empty if it does.
    """

    name: str
    reason: str = ""


def attention_backend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    omega: Omega = Tsallis(1.5),  # noqa: B008  (an immutable value)
    *,
    mask: Tensor | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
) -> Backend:
    """Return what computes attention on these tensors in a Hugging Face model.

    AdaSplash (`pip install adasplash`, 0.2 or later) computes causal self-attention with
    `Tsallis(1.5)` on a GPU, for 64 positions and more, heads of 16, 32, 64, 128 or 256 numbers in
    float32, float16 or bfloat16, without a mask and without dropout. Everything else, such as one
    query against a cache, a mask of padding, `watch_attention`, `torch.compile` and transforms of
    `torch.func`, is computed by `fewfold.sparse_attention`.

    Args:
        query: `(batch, heads, L, d)`.
        key, value: `(batch, key heads, S, d)`.
        omega: regulariser of the map from scores to weights.
        mask: attention mask of the call.
        is_causal: whether query i attends to keys 0, ..., i only.
        dropout_p: probability that a weight is dropped.

    Example:
        >>> import torch, fewfold as ff
        >>> heads = torch.randn(1, 4, 128, 64)
        >>> ff.attention.attention_backend(heads, heads, heads, ff.Gini(), is_causal=True)
        Backend(name='fewfold', reason='AdaSplash computes Tsallis(1.5), got Gini()')

    Reference: Goncalves, Treviso and Martins, "AdaSplash: adaptive sparse flash attention", 2025.
    """
    reason = _why_not(query, key, value, omega, mask, is_causal, dropout_p)
    return Backend("fewfold", reason) if reason else Backend("adasplash")


def adasplash_attention(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float | None = None
) -> Tensor:
    """Causal 1.5-entmax attention by AdaSplash, for tensors that `attention_backend` accepts."""
    batch, _, length, size = query.shape
    own = 1 / math.sqrt(size)  # AdaSplash always applies it
    if scale is not None and scale != own:
        query = query * (scale / own)
    # Lengths that are not a power of two have to be given for each sequence.
    lengths = None
    if length & (length - 1):
        lengths = torch.full((batch,), length, dtype=torch.int32, device=query.device)
    kernel = _kernel()
    assert kernel is not None
    steps = _REFINEMENTS.get(query.dtype, 1)
    given = query.contiguous(), key.contiguous(), value.contiguous()
    return kernel(*given, niter=steps, varlen=lengths)


@functools.cache
def log_backend(backend: Backend) -> None:
    """Log what computes attention, the first time it is chosen for this reason."""
    why = f", because {backend.reason}" if backend.reason else ""
    _LOG.info("attention of Hugging Face models is computed by %s%s", backend.name, why)


@functools.cache
def _kernel() -> Callable[..., Tensor] | None:
    """Return the function of AdaSplash, or None without it."""
    try:
        adasplash = importlib.import_module("adasplash")
    except ImportError:
        return None
    return getattr(adasplash, "adasplash_v2", None)  # since 0.2


def _why_not(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    omega: Omega,
    mask: Tensor | None,
    is_causal: bool,
    dropout_p: float,
) -> str:
    """Return why AdaSplash does not compute a call, or "" if it does; cheap reasons first."""
    size, dtype = query.shape[-1], query.dtype
    if tensors(omega) or omega != Tsallis(1.5):
        return f"AdaSplash computes Tsallis(1.5), got {_name(omega)}"
    if mask is not None:
        return "AdaSplash has no masks"
    if not is_causal or query.shape[-2:] != key.shape[-2:]:
        return "AdaSplash computes causal attention of a sequence to itself"
    if query.dim() != 4 or query.shape[0] != key.shape[0] or query.shape[1] % key.shape[1]:
        return "AdaSplash takes (batch, heads, L, d), and heads of queries for each head of keys"
    if dropout_p:
        return "AdaSplash has no dropout"
    if query.shape[-2] < _SHORTEST:
        return f"AdaSplash needs {_SHORTEST} positions, got {query.shape[-2]}"
    if size not in _SIZES or value.shape != key.shape:
        return f"AdaSplash has heads of {_SIZES} numbers, got {size} and {value.shape[-1]}"
    if dtype not in _DTYPES or not dtype == key.dtype == value.dtype:
        return f"AdaSplash has no kernels for {dtype}, {key.dtype} and {value.dtype}"
    if query.device.type not in _DEVICES:
        return f"AdaSplash runs on GPUs, got a tensor on {query.device.type!r}"
    if not untransformed(query, key, value):
        return "AdaSplash runs neither under torch.compile nor under torch.func"
    if is_watched():
        return "watch_attention records supports, which AdaSplash does not return"
    return "" if _kernel() else "adasplash 0.2 or later is not installed"


def _name(omega: Omega) -> str:
    return f"a learned {type(omega).__name__}" if tensors(omega) else repr(omega)
