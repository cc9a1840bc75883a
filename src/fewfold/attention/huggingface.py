"""Sparse attention as an attention implementation of Hugging Face transformers."""

import math
from typing import Any

import torch
from torch import Tensor

from fewfold.attention.sparse_attention import check_omega, sparse_attention
from fewfold.maps.omega import Omega, Tsallis

__all__ = ["register_attention"]


def register_attention(
    name: str = "fewfold",
    omega: Omega = Tsallis(1.5),  # noqa: B008  (an immutable value)
) -> str:
    """Offer `sparse_attention` to the models of Hugging Face transformers.

    A model that takes an attention implementation takes this one, trained with it or not:
    `AutoModel.from_config(config, attn_implementation=ff.register_attention())`, or later
    `model.set_attn_implementation("fewfold")`. Models that cap their scores, give a weight to no
    key at all, or choose the keys of each query elsewhere (`softcap`; `s_aux`; `indices` and
    `block_indices`, as DeepSeek V3.2 and MiniMax M3 have them) raise an error. Weights of attention
    are not returned; see `watch_attention`.

    Args:
        name: of the implementation; one name for each omega.
        omega: the map from scores to weights.

    Returns:
        The name.
    """
    check_omega(omega)
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import sdpa_mask
    except ImportError as error:
        raise ImportError(
            "register_attention needs transformers 5 or later: pip install fewfold[transformers]"
        ) from error

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

    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, sdpa_mask)
    return name


def _refuse(others: dict[str, Any]) -> None:
    """Raise for what would change the scores, or who sees whom, and has no meaning here."""
    for name in ("softcap", "s_aux", "indices", "block_indices"):
        if others.get(name) is not None:
            raise ValueError(f"sparse attention has no {name}, which this model asks for")


def _biased(mask: Tensor | None, bias: Tensor) -> Tensor:
    """Numbers to add, from a mask and a bias."""
    if mask is None:
        return bias
    if mask.dtype == torch.bool:
        return bias.masked_fill(~mask, -math.inf)
    return bias + mask
