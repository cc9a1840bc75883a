"""Embeddings whose rows are sparse combinations of anchors: training, compression and storage."""

from fewfold.embeddings.anchor_inspection import AnchorInspection, inspect_anchors
from fewfold.embeddings.coding.sparse_coding import (
    Coding,
    learn_dictionary,
    nearest_code,
    sparse_code,
)
from fewfold.embeddings.files.mapped import MappedAnchors
from fewfold.embeddings.files.save_load import Sizes, load_anchors, save_anchors
from fewfold.embeddings.initial.features import cooccurrence_features
from fewfold.embeddings.initial.initial_anchors import (
    AnchorInitialisation,
    Pretrained,
    RandomBasis,
    initialise_anchors,
)
from fewfold.embeddings.initial.object_anchors import (
    Clusters,
    Frequent,
    FrequentThenClusters,
    TfIdf,
)
from fewfold.embeddings.relations.relations import Relations, dissimilarity_penalty
from fewfold.embeddings.sparsify.growth import AnchorGrowth, GrowthStep
from fewfold.embeddings.sparsify.orthogonality import orthogonality
from fewfold.embeddings.sparsify.proximal import Proximal, proximal
from fewfold.embeddings.sparsify.schedules import Narrowing, Regrow, Warmup
from fewfold.embeddings.table.data_parallel import DataParallel
from fewfold.embeddings.table.embedding import AnchorEmbedding
from fewfold.embeddings.table.embedding_bag import AnchorEmbeddingBag
from fewfold.embeddings.table.mixture import AnchorMixture
from fewfold.embeddings.table.sparse_rows import SparseRows

__all__ = [
    "AnchorEmbedding",
    "AnchorEmbeddingBag",
    "AnchorGrowth",
    "AnchorInitialisation",
    "AnchorInspection",
    "AnchorMixture",
    "Clusters",
    "Coding",
    "DataParallel",
    "Frequent",
    "FrequentThenClusters",
    "GrowthStep",
    "MappedAnchors",
    "Narrowing",
    "Pretrained",
    "Proximal",
    "RandomBasis",
    "Regrow",
    "Relations",
    "Sizes",
    "SparseRows",
    "TfIdf",
    "Warmup",
    "cooccurrence_features",
    "dissimilarity_penalty",
    "initialise_anchors",
    "inspect_anchors",
    "learn_dictionary",
    "load_anchors",
    "nearest_code",
    "orthogonality",
    "proximal",
    "save_anchors",
    "sparse_code",
]
