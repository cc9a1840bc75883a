"""Sparse attention as an attention implementation of Hugging Face transformers."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fewfold._optional import optional_import
from fewfold.attention.huggingface.adasplash import (
    adasplash_attention,
    attention_backend,
    log_backend,
)
from fewfold.attention.sparse_attention import sparse_attention
from fewfold.maps.entropies import Tsallis
from fewfold.maps.omega import Omega, check_omega
from fewfold.structured.omega_tensors import tensors

__all__ = ["offer_attention", "register_attention"]

_OURS: dict[str, tuple[Callable[..., Any], object, bool]] = {}
"""Implementations registered by this module: name -> (function, its source, uses AdaSplash)."""


def register_attention(
    name: str = "fewfold",
    omega: Omega = Tsallis(1.5),  # noqa: B008  (an immutable value)
    *,
    adasplash: bool = True,
    replace: bool = False,
) -> str:
    """Register `sparse_attention` as an attention implementation of Hugging Face transformers.

    Any model that accepts an attention implementation can use it, trained with it or not:
    `AutoModel.from_config(config, attn_implementation=ff.attention.register_attention())`, or later
    `model.set_attn_implementation("fewfold")`. Models with capped scores (`softcap`), attention
    sinks (`s_aux`) or their own selection of keys (`indices` and `block_indices`, as in DeepSeek
    V3.2 and MiniMax M3) raise an error. Attention weights are not returned; see `watch_attention`.

    Where AdaSplash is installed, its kernels compute the calls that they can: causal attention with
    `Tsallis(1.5)` on a GPU. `attention_backend` says for which tensors, and the logger
    "fewfold.attention" which one was used and why. Its results agree with those of fewfold up to
    rounding, but cannot be differentiated twice.

    Implementations are global to the process. A name that is already taken is therefore an error,
    be it one of transformers ("eager", "sdpa", "flash_attention_2") or of an earlier call with
    another omega.

    Args:
        name: name of the implementation; one for each omega.
        omega: regulariser of the map from scores to weights.
        adasplash: use AdaSplash where it is installed and applies.
        replace: register even if the name is taken, for all models of the process.

    Returns:
        The name.
    """
    check_omega(omega)
    return offer_attention(name, lambda module: omega, omega, replace, adasplash)


def offer_attention(
    name: str,
    omega_of: Callable[[Any], Omega],
    source: object,
    replace: bool,
    adasplash: bool = True,
) -> str:
    """Register attention whose map depends on the attention module of the model.

    Args:
        name: name of the implementation.
        omega_of: function from an attention module to its regulariser.
        source: identifies `omega_of`; the same name and source may be registered again.
        replace: register even if the name is taken.
        adasplash: use AdaSplash where it is installed and applies.
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f"name must be a string that is not empty, got {name!r}")
    with optional_import("transformers 5 or later", "transformers", "register_attention"):
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import sdpa_mask
    known = AttentionInterface().get(name)
    taken = known is not None or name in AttentionMaskInterface()  # "eager" has a mask alone
    if taken and not replace and not _same(name, known, source, adasplash):
        raise ValueError(
            f"the attention implementation {name!r} is registered already, and all models of this "
            f"process that use it would change; choose another name, or write replace=True"
        )
    attend = _attention(omega_of, adasplash)
    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, sdpa_mask)
    _OURS[name] = attend, source, adasplash
    return name


def _same(name: str, known: Any, source: object, adasplash: bool) -> bool:
    """Whether the same attention is already registered under the name."""
    registered, before, also = _OURS.get(name, (None, None, True))
    if known is None or known is not registered or also != adasplash:
        return False
    if before is source:
        return True
    # Regularisers with tensors are compared by identity.
    return isinstance(source, Omega) and not tensors(source) and before == source


def _attention(
    omega_of: Callable[[Any], Omega], adasplash: bool
) -> Callable[..., tuple[Tensor, None]]:
    """Return the function that transformers calls in each attention module."""

    def attend(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        is_causal: bool | None = None,
        position_bias: Tensor | None = None,
        **others: Any,
    ) -> tuple[Tensor, None]:
        _refuse(others)
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        causal = bool(causal) and attention_mask is None and query.shape[2] > 1
        if position_bias is not None:
            attention_mask = _biased(attention_mask, position_bias)
        omega = omega_of(module)
        if adasplash and not torch.compiler.is_compiling():
            backend = attention_backend(
                query, key, value, omega,
                mask=attention_mask, is_causal=causal, dropout_p=dropout,
            )  # fmt: skip
            log_backend(backend)
            if backend.name == "adasplash":
                found = adasplash_attention(query, key, value, scale=scaling)
                return found.transpose(1, 2).contiguous(), None
        found = sparse_attention(
            query,
            key,
            value,
            omega,
            mask=attention_mask,
            is_causal=causal,
            scale=scaling,
            dropout_p=dropout,
            enable_gqa=key.shape[1] != query.shape[1],
        )
        return found.transpose(1, 2).contiguous(), None

    return attend


def _refuse(others: dict[str, Any]) -> None:
    """Raise for arguments that would change the scores or the mask and are not supported."""
    for name in ("softcap", "s_aux", "indices", "block_indices"):
        if others.get(name) is not None:
            raise ValueError(f"sparse attention has no {name}, which this model requires")


def _biased(mask: Tensor | None, bias: Tensor) -> Tensor:
    """Combine a mask and a position bias into one additive mask."""
    if mask is None:
        return bias
    if mask.dtype == torch.bool:
        return bias.masked_fill(~mask, -math.inf)
    return bias + mask
