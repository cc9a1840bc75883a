"""queries, memory -> values: sparse attention and associative memories."""

from fewfold.attention.adapted import adapt_attention, load_adapted
from fewfold.attention.association import Heads
from fewfold.attention.continuous import (
    AttentionMoments,
    Basis,
    ContinuousAttention,
    ContinuousMemory,
    Density,
    FourierBasis,
    GaussianBasis,
    LineDensity,
    Locator,
    PlaneDensity,
    PowerBasis,
    QueryHeads,
    RectangularBasis,
    Ridge,
    Signal,
    SignalHeads,
    Sticky,
    continuous_attention,
)
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
    "AttentionMoments",
    "Basis",
    "Classical",
    "ContinuousAttention",
    "ContinuousMemory",
    "DenseAssociative",
    "Density",
    "Energy",
    "Exponential",
    "FenchelYoung",
    "FourierBasis",
    "GaussianBasis",
    "Heads",
    "Hopfield",
    "HopfieldLayer",
    "HopfieldPooling",
    "LayerNormed",
    "LineDensity",
    "Locator",
    "MultiheadAttention",
    "PlaneDensity",
    "PowerBasis",
    "Quadratic",
    "QueryHeads",
    "RectangularBasis",
    "Retrieval",
    "Ridge",
    "Signal",
    "SignalHeads",
    "Sphere",
    "Sticky",
    "adapt_attention",
    "attention_support",
    "continuous_attention",
    "hopfield_retrieve",
    "is_stored",
    "load_adapted",
    "picture_attention",
    "register_attention",
    "retrieved_in_one_step",
    "separation",
    "sparse_attention",
    "storage_bound",
    "watch_attention",
]
