"""Tables of vectors made of few anchors: a drop-in embedding tens of times smaller."""

from fewfold.embeddings.coding import Coding, learn_dictionary, nearest_code, sparse_code
from fewfold.embeddings.compact import (
    FrequentEmbedding,
    HashedEmbedding,
    LowRankEmbedding,
    MixedDimEmbedding,
    slim,
    sparse_table,
)
from fewfold.embeddings.embedding import AnchorEmbedding
from fewfold.embeddings.embedding_bag import AnchorEmbeddingBag
from fewfold.embeddings.export import Sizes, load_anchors, save_anchors
from fewfold.embeddings.features import cooccurrence_features
from fewfold.embeddings.growth import AnchorGrowth, GrowthStep
from fewfold.embeddings.initial import (
    Clusters,
    Frequent,
    FrequentThenClusters,
    Pretrained,
    RandomBasis,
    TfIdf,
    start,
)
from fewfold.embeddings.inspection import AnchorInspection, inspect_anchors
from fewfold.embeddings.layout import SparseRows
from fewfold.embeddings.mapped import MappedAnchors
from fewfold.embeddings.mixture import AnchorMixture
from fewfold.embeddings.parallel import DataParallel
from fewfold.embeddings.penalties import orthogonality
from fewfold.embeddings.proximal import Proximal, proximal
from fewfold.embeddings.relations import Relations, apart
from fewfold.embeddings.schedules import Narrowing, Regrow, Warmup
from fewfold.embeddings.special import compositional_codes, low_rank, vocabulary_selection

__all__ = [
    "AnchorEmbedding",
    "AnchorEmbeddingBag",
    "AnchorGrowth",
    "AnchorInspection",
    "AnchorMixture",
    "Clusters",
    "Coding",
    "DataParallel",
    "Frequent",
    "FrequentEmbedding",
    "FrequentThenClusters",
    "GrowthStep",
    "HashedEmbedding",
    "LowRankEmbedding",
    "MappedAnchors",
    "MixedDimEmbedding",
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
    "apart",
    "compositional_codes",
    "cooccurrence_features",
    "inspect_anchors",
    "learn_dictionary",
    "load_anchors",
    "low_rank",
    "nearest_code",
    "orthogonality",
    "proximal",
    "save_anchors",
    "slim",
    "sparse_code",
    "sparse_table",
    "start",
    "vocabulary_selection",
]
