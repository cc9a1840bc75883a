"""Sparse attention: scaled dot-product attention with exact zeros."""

from fewfold.attention.attention_picture import picture_attention
from fewfold.attention.huggingface.adapt import adapt_attention, load_adapted
from fewfold.attention.huggingface.adasplash import Backend, attention_backend
from fewfold.attention.huggingface.register import register_attention
from fewfold.attention.length_scaling import AdaptiveLengthScaling, LengthScaling
from fewfold.attention.multihead import MultiheadAttention
from fewfold.attention.product_key_memory import KeyHeads, MemorySlots, ProductKeyMemory
from fewfold.attention.product_keys import ProductTopK, product_topk
from fewfold.attention.sparse_attention import attention_support, sparse_attention
from fewfold.attention.watch import Attended, watch_attention

__all__ = [
    "AdaptiveLengthScaling",
    "Attended",
    "Backend",
    "KeyHeads",
    "LengthScaling",
    "MemorySlots",
    "MultiheadAttention",
    "ProductKeyMemory",
    "ProductTopK",
    "adapt_attention",
    "attention_backend",
    "attention_support",
    "load_adapted",
    "picture_attention",
    "product_topk",
    "register_attention",
    "sparse_attention",
    "watch_attention",
]
