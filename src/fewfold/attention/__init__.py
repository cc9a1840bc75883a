"""queries, memory -> values: sparse attention and associative memories."""

from fewfold.attention.association import Heads
from fewfold.attention.energies import (
    Classical,
    DenseAssociative,
    Energy,
    Exponential,
    FenchelYoung,
    LayerNormed,
    Quadratic,
    Sphere,
)
from fewfold.attention.hopfield import Retrieval, hopfield_retrieve
from fewfold.attention.huggingface import register_attention
from fewfold.attention.layers import Hopfield, HopfieldLayer, HopfieldPooling
from fewfold.attention.multihead import MultiheadAttention
from fewfold.attention.picture import picture_attention
from fewfold.attention.sparse_attention import attention_support, sparse_attention
from fewfold.attention.storage import (
    is_stored,
    retrieved_in_one_step,
    separation,
    storage_bound,
)
from fewfold.attention.watch import Attended, watch_attention

__all__ = [
    "Attended",
    "Classical",
    "DenseAssociative",
    "Energy",
    "Exponential",
    "FenchelYoung",
    "Heads",
    "Hopfield",
    "HopfieldLayer",
    "HopfieldPooling",
    "LayerNormed",
    "MultiheadAttention",
    "Quadratic",
    "Retrieval",
    "Sphere",
    "attention_support",
    "hopfield_retrieve",
    "is_stored",
    "picture_attention",
    "register_attention",
    "retrieved_in_one_step",
    "separation",
    "sparse_attention",
    "storage_bound",
    "watch_attention",
]
