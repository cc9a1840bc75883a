"""Hopfield networks: energies, retrieval, layers and storage bounds."""

from fewfold.hopfield.association import Heads
from fewfold.hopfield.energies import (
    Classical,
    DenseAssociative,
    Energy,
    Exponential,
    FenchelYoung,
    LayerNormed,
    Quadratic,
    Sphere,
)
from fewfold.hopfield.layers import Hopfield, HopfieldLayer, HopfieldPooling
from fewfold.hopfield.retrieval import Retrieval, hopfield_retrieve
from fewfold.hopfield.storage_capacity import (
    is_stored,
    retrieved_in_one_step,
    separation,
    storage_bound,
)

__all__ = [
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
    "Quadratic",
    "Retrieval",
    "Sphere",
    "hopfield_retrieve",
    "is_stored",
    "retrieved_in_one_step",
    "separation",
    "storage_bound",
]
