"""The public names of fewfold, one table for type checkers, editors and the lazy loader."""

from . import attention as attention
from . import continuous as continuous
from . import distributions as distributions
from . import embeddings as embeddings
from . import expectation as expectation
from . import hopfield as hopfield
from . import losses as losses
from . import maps as maps
from . import optim as optim
from . import recommender as recommender
from . import sampling as sampling
from . import sklearn as sklearn
from . import structured as structured
from ._native import show_config as show_config
from .attention import MultiheadAttention as MultiheadAttention
from .attention import ProductKeyMemory as ProductKeyMemory
from .attention import sparse_attention as sparse_attention
from .continuous import ContinuousAttention as ContinuousAttention
from .continuous import ContinuousMemory as ContinuousMemory
from .continuous import continuous_attention as continuous_attention
from .distributions import GaussianSparsemax as GaussianSparsemax
from .distributions import HardConcrete as HardConcrete
from .distributions import MixedDirichlet as MixedDirichlet
from .embeddings import AnchorEmbedding as AnchorEmbedding
from .embeddings import AnchorEmbeddingBag as AnchorEmbeddingBag
from .embeddings import proximal as proximal
from .expectation import Dense as Dense
from .expectation import Gumbel as Gumbel
from .expectation import ScoreFunction as ScoreFunction
from .expectation import SparseMarginal as SparseMarginal
from .expectation import SumAndSample as SumAndSample
from .expectation import expect as expect
from .hopfield import FenchelYoung as FenchelYoung
from .hopfield import Hopfield as Hopfield
from .hopfield import HopfieldLayer as HopfieldLayer
from .hopfield import HopfieldPooling as HopfieldPooling
from .hopfield import hopfield_retrieve as hopfield_retrieve
from .losses import FenchelYoungLoss as FenchelYoungLoss
from .losses import entmax_loss as entmax_loss
from .losses import fenchel_young_loss as fenchel_young_loss
from .losses import ksubset_loss as ksubset_loss
from .losses import linear_entmax_loss as linear_entmax_loss
from .losses import noise_contrastive_loss as noise_contrastive_loss
from .losses import normmax_loss as normmax_loss
from .losses import sampled_softmax_loss as sampled_softmax_loss
from .losses import softmax_loss as softmax_loss
from .losses import sparsemax_loss as sparsemax_loss
from .maps import AdaptiveEntmax as AdaptiveEntmax
from .maps import Gini as Gini
from .maps import Map as Map
from .maps import Norm as Norm
from .maps import Omega as Omega
from .maps import Shannon as Shannon
from .maps import Subset as Subset
from .maps import Tsallis as Tsallis
from .maps import constrained_sparsemax as constrained_sparsemax
from .maps import entmax as entmax
from .maps import fusedmax as fusedmax
from .maps import ksubset as ksubset
from .maps import map_support as map_support
from .maps import normmax as normmax
from .maps import oscarmax as oscarmax
from .maps import softmax as softmax
from .maps import sparsemax as sparsemax
from .maps import topk_sparsemax as topk_sparsemax
from .recommender import VAE as VAE
from .recommender import Recommender as Recommender
from .recommender import compare as compare
from .recommender import read_log as read_log
from .sampling import MultiIndex as MultiIndex
from .sampling import Popularity as Popularity
from .sampling import Uniform as Uniform
from .structured import FactorGraph as FactorGraph
from .structured import Gibbs as Gibbs
from .structured import SparseMAP as SparseMAP
from .structured import sparsemap as sparsemap
from .structured import sparsemap_support as sparsemap_support
from .structured import structures as structures
from .support import Support as Support

__version__: str
__all__ = [
    "__version__",
    "AdaptiveEntmax",
    "AnchorEmbedding",
    "AnchorEmbeddingBag",
    "ContinuousAttention",
    "ContinuousMemory",
    "Dense",
    "FactorGraph",
    "FenchelYoung",
    "FenchelYoungLoss",
    "GaussianSparsemax",
    "Gibbs",
    "Gini",
    "Gumbel",
    "HardConcrete",
    "Hopfield",
    "HopfieldLayer",
    "HopfieldPooling",
    "Map",
    "MixedDirichlet",
    "MultiIndex",
    "MultiheadAttention",
    "Norm",
    "Omega",
    "Popularity",
    "ProductKeyMemory",
    "Recommender",
    "ScoreFunction",
    "Shannon",
    "SparseMAP",
    "SparseMarginal",
    "Subset",
    "SumAndSample",
    "Support",
    "Tsallis",
    "Uniform",
    "VAE",
    "attention",
    "compare",
    "constrained_sparsemax",
    "continuous",
    "continuous_attention",
    "distributions",
    "embeddings",
    "entmax",
    "entmax_loss",
    "expect",
    "expectation",
    "fenchel_young_loss",
    "fusedmax",
    "hopfield",
    "hopfield_retrieve",
    "ksubset",
    "ksubset_loss",
    "linear_entmax_loss",
    "losses",
    "map_support",
    "maps",
    "noise_contrastive_loss",
    "normmax",
    "normmax_loss",
    "optim",
    "oscarmax",
    "proximal",
    "read_log",
    "recommender",
    "sampled_softmax_loss",
    "sampling",
    "show_config",
    "sklearn",
    "softmax",
    "softmax_loss",
    "sparse_attention",
    "sparsemap",
    "sparsemap_support",
    "sparsemax",
    "sparsemax_loss",
    "structured",
    "structures",
    "topk_sparsemax",
]
