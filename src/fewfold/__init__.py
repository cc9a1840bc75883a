"""Learn over very large discrete sets while touching only a few of their members at a time.

This file is the table of contents. A name is imported from its room when it is first used, so that
``import fewfold`` costs nothing and the command line answers before torch is loaded.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_ROOMS: dict[str, tuple[str, ...]] = {
    # scores -> sparse probabilities
    "maps": (
        *("softmax", "sparsemax", "entmax", "normmax", "ksubset"),
        *("topk_sparsemax", "topk_sparsemax_certified", "TopK"),
        *("constrained_sparsemax", "constrained_softmax", "fusedmax", "oscarmax"),
        *("Omega", "Shannon", "Gini", "Tsallis", "Norm", "Subset", "Bounded", "Fused", "Oscar"),
        *("Map", "AdaptiveEntmax", "map_support"),
    ),
    # part scores -> few structures; what they can be: `ff.structures.Sequence` and the others
    "structured": (
        *("sparsemap", "sparsemap_support", "sparsemap_solution", "Solution", "SparseMAP"),
        *("Gibbs",),
        *("topk_support", "TopSupport", "gibbs_marginals"),
        *("FactorGraph", "GraphSolution", "structures"),
    ),
    # queries -> ids, log-proposal
    "sampling": (
        *("Proposal", "Given", "Uniform", "Popularity", "MultiIndex", "QuadraticKernel", "Dynamic"),
    ),
    # parameters -> random variable
    "distributions": (
        *("GaussianSparsemax", "HardConcrete", "BinaryHardConcrete", "MixedDirichlet"),
        *("MaxEntropyMixed", "FaceMixture", "Concrete", "LogisticNormal", "SparseCategorical"),
        *("QGaussian", "wasserstein2", "direct_sum_entropy", "direct_sum_kl"),
        *("mutual_information", "Estimate", "FaceLaw", "GibbsFaces", "FacesBySize", "ListedFaces"),
        *("uniform_faces", "all_faces", "face_of", "face_index", "face_dimension", "log_ndtr"),
    ),
    # scores, target -> loss
    "losses": (
        *("fenchel_young_loss", "FenchelYoungLoss"),
        *("softmax_loss", "sparsemax_loss", "entmax_loss", "normmax_loss", "ksubset_loss"),
        *("linear_entmax_loss", "sampled_softmax_loss", "noise_contrastive_loss"),
        *("epsilon_perplexity", "optimal_epsilon", "sparsemax_score", "jensen_shannon"),
        *("sample", "sample_support"),
    ),
    # cost, scores -> expected cost
    "expectation": (
        *("expect", "Expectation", "Estimator", "SparseMarginal", "Dense"),
        *("ScoreFunction", "RunningMean", "SelfCritic", "LeaveOneOut", "Learned"),
        *("SumAndSample", "VIMCO", "Gumbel", "REBAR", "DisARM", "annealed"),
        *("embed_atoms", "log_likelihood"),
    ),
    # queries, memory -> values
    "attention": (
        *("sparse_attention", "attention_support", "watch_attention", "Attended"),
        *("MultiheadAttention", "register_attention", "adapt_attention", "load_adapted"),
        "picture_attention",
        *("hopfield_retrieve", "Retrieval", "Energy", "FenchelYoung"),
        *("Quadratic", "Sphere", "LayerNormed", "Classical", "DenseAssociative", "Exponential"),
        *("separation", "is_stored", "retrieved_in_one_step", "storage_bound"),
        *("Hopfield", "HopfieldPooling", "HopfieldLayer", "Heads"),
        *("continuous_attention", "ContinuousAttention", "Density", "LineDensity", "PlaneDensity"),
        *("Basis", "GaussianBasis", "RectangularBasis", "FourierBasis", "PowerBasis"),
        *("Signal", "Ridge", "Locator", "QueryHeads", "SignalHeads", "AttentionMoments"),
        *("ContinuousMemory", "Sticky"),
    ),
    # ids -> vectors from few anchors; where they start and what they are compared with: the room
    "embeddings": (
        *("AnchorEmbedding", "AnchorEmbeddingBag", "AnchorMixture", "SparseRows", "Relations"),
        *("proximal", "Proximal", "Warmup", "Narrowing", "Regrow", "orthogonality"),
        *("AnchorGrowth", "GrowthStep", "inspect_anchors", "AnchorInspection"),
        *("save_anchors", "load_anchors", "MappedAnchors"),
    ),
    # logs -> recommendations, and how good they are
    "recommender": (
        *("Recommender", "VAE", "Training", "Recommendations", "FitReport", "Search"),
        *("compare", "Comparison", "Contender", "Evaluation"),
        *("read_log", "plan_log", "Log", "LogPlan", "LogSummary", "Ids", "Attributes"),
        *("Checkpoint", "Interrupted", "DataError", "ArtifactError"),
        *("inspect", "Inspection", "export"),
        *("bundled", "bundled_items", "fetch", "is_fetched", "PUBLIC", "PublicSet"),
        *("FastVAE", "AnchorVAE", "Anchors", "Beside", "Shortcut", "train", "Epoch"),
        *("Objective", "SampledSoftmax", "FullSoftmax", "Entmax"),
        *("Interactions", "Jagged", "Core"),
        *("Split", "random_split", "temporal_split", "last_out_split", "held_out_users"),
        *("NDCG", "Recall", "Precision", "MAP", "MRR", "HitRate"),
        *("Metric", "Score", "Report", "evaluate"),
        *("top_k", "DotProduct", "Catalogue", "Scorer", "Ranking"),
        *("MostPopular", "ItemKNN", "Cosine", "BM25", "EASE", "Baseline"),
    ),
    # gradients of few rows -> those rows moved; `ff.optim.Adam`, for torch has an Adam too
    "optim": (),
    # what passes between rooms, and what runs underneath
    "support": ("Support",),
    "_native": ("show_config",),
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(f"fewfold.{_HOME[name]}"), name)
    elif name in _ROOMS:
        value = importlib.import_module(f"fewfold.{name}")
    else:
        raise AttributeError(f"module 'fewfold' has no attribute {name!r}")
    globals()[name] = value  # the next look-up is an ordinary one
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})


# The same table for type checkers and editors, which cannot run the one above. It names files, not
# rooms, because a function may share its name with the file it lives in.
if TYPE_CHECKING:
    from fewfold._native import show_config as show_config
    from fewfold.attention.adapted import adapt_attention as adapt_attention
    from fewfold.attention.adapted import load_adapted as load_adapted
    from fewfold.attention.association import Heads as Heads
    from fewfold.attention.continuous.attention import continuous_attention as continuous_attention
    from fewfold.attention.continuous.basis import Basis as Basis
    from fewfold.attention.continuous.basis import GaussianBasis as GaussianBasis
    from fewfold.attention.continuous.basis import RectangularBasis as RectangularBasis
    from fewfold.attention.continuous.density import Density as Density
    from fewfold.attention.continuous.density import LineDensity as LineDensity
    from fewfold.attention.continuous.locate import AttentionMoments as AttentionMoments
    from fewfold.attention.continuous.locate import Locator as Locator
    from fewfold.attention.continuous.locate import QueryHeads as QueryHeads
    from fewfold.attention.continuous.locate import SignalHeads as SignalHeads
    from fewfold.attention.continuous.memory import ContinuousMemory as ContinuousMemory
    from fewfold.attention.continuous.memory import Sticky as Sticky
    from fewfold.attention.continuous.module import ContinuousAttention as ContinuousAttention
    from fewfold.attention.continuous.plane_density import PlaneDensity as PlaneDensity
    from fewfold.attention.continuous.signal import Ridge as Ridge
    from fewfold.attention.continuous.signal import Signal as Signal
    from fewfold.attention.continuous.smooth import FourierBasis as FourierBasis
    from fewfold.attention.continuous.smooth import PowerBasis as PowerBasis
    from fewfold.attention.energies import Classical as Classical
    from fewfold.attention.energies import DenseAssociative as DenseAssociative
    from fewfold.attention.energies import Energy as Energy
    from fewfold.attention.energies import Exponential as Exponential
    from fewfold.attention.energies import FenchelYoung as FenchelYoung
    from fewfold.attention.energies import LayerNormed as LayerNormed
    from fewfold.attention.energies import Quadratic as Quadratic
    from fewfold.attention.energies import Sphere as Sphere
    from fewfold.attention.hopfield import Retrieval as Retrieval
    from fewfold.attention.hopfield import hopfield_retrieve as hopfield_retrieve
    from fewfold.attention.huggingface import register_attention as register_attention
    from fewfold.attention.layers import Hopfield as Hopfield
    from fewfold.attention.layers import HopfieldLayer as HopfieldLayer
    from fewfold.attention.layers import HopfieldPooling as HopfieldPooling
    from fewfold.attention.multihead import MultiheadAttention as MultiheadAttention
    from fewfold.attention.picture import picture_attention as picture_attention
    from fewfold.attention.sparse_attention import attention_support as attention_support
    from fewfold.attention.sparse_attention import sparse_attention as sparse_attention
    from fewfold.attention.storage import is_stored as is_stored
    from fewfold.attention.storage import retrieved_in_one_step as retrieved_in_one_step
    from fewfold.attention.storage import separation as separation
    from fewfold.attention.storage import storage_bound as storage_bound
    from fewfold.attention.watch import Attended as Attended
    from fewfold.attention.watch import watch_attention as watch_attention
    from fewfold.distributions.face_laws import FaceLaw as FaceLaw
    from fewfold.distributions.faces import all_faces as all_faces
    from fewfold.distributions.faces import face_dimension as face_dimension
    from fewfold.distributions.faces import face_index as face_index
    from fewfold.distributions.faces import face_of as face_of
    from fewfold.distributions.gaussian_sparsemax import GaussianSparsemax as GaussianSparsemax
    from fewfold.distributions.gibbs_faces import GibbsFaces as GibbsFaces
    from fewfold.distributions.hard_concrete import BinaryHardConcrete as BinaryHardConcrete
    from fewfold.distributions.hard_concrete import HardConcrete as HardConcrete
    from fewfold.distributions.information import Estimate as Estimate
    from fewfold.distributions.information import direct_sum_entropy as direct_sum_entropy
    from fewfold.distributions.information import direct_sum_kl as direct_sum_kl
    from fewfold.distributions.information import mutual_information as mutual_information
    from fewfold.distributions.log_ndtr import log_ndtr as log_ndtr
    from fewfold.distributions.mixed_dirichlet import FaceMixture as FaceMixture
    from fewfold.distributions.mixed_dirichlet import MaxEntropyMixed as MaxEntropyMixed
    from fewfold.distributions.mixed_dirichlet import MixedDirichlet as MixedDirichlet
    from fewfold.distributions.q_gaussian import QGaussian as QGaussian
    from fewfold.distributions.q_gaussian import wasserstein2 as wasserstein2
    from fewfold.distributions.relaxed import Concrete as Concrete
    from fewfold.distributions.relaxed import LogisticNormal as LogisticNormal
    from fewfold.distributions.sized_faces import FacesBySize as FacesBySize
    from fewfold.distributions.sized_faces import ListedFaces as ListedFaces
    from fewfold.distributions.sized_faces import uniform_faces as uniform_faces
    from fewfold.distributions.sparse_categorical import SparseCategorical as SparseCategorical
    from fewfold.embeddings.embedding import AnchorEmbedding as AnchorEmbedding
    from fewfold.embeddings.embedding_bag import AnchorEmbeddingBag as AnchorEmbeddingBag
    from fewfold.embeddings.export import load_anchors as load_anchors
    from fewfold.embeddings.export import save_anchors as save_anchors
    from fewfold.embeddings.growth import AnchorGrowth as AnchorGrowth
    from fewfold.embeddings.growth import GrowthStep as GrowthStep
    from fewfold.embeddings.inspection import AnchorInspection as AnchorInspection
    from fewfold.embeddings.inspection import inspect_anchors as inspect_anchors
    from fewfold.embeddings.layout import SparseRows as SparseRows
    from fewfold.embeddings.mapped import MappedAnchors as MappedAnchors
    from fewfold.embeddings.mixture import AnchorMixture as AnchorMixture
    from fewfold.embeddings.penalties import orthogonality as orthogonality
    from fewfold.embeddings.proximal import Proximal as Proximal
    from fewfold.embeddings.proximal import proximal as proximal
    from fewfold.embeddings.relations import Relations as Relations
    from fewfold.embeddings.schedules import Narrowing as Narrowing
    from fewfold.embeddings.schedules import Regrow as Regrow
    from fewfold.embeddings.schedules import Warmup as Warmup
    from fewfold.expectation.baselines import Learned as Learned
    from fewfold.expectation.baselines import LeaveOneOut as LeaveOneOut
    from fewfold.expectation.baselines import RunningMean as RunningMean
    from fewfold.expectation.baselines import SelfCritic as SelfCritic
    from fewfold.expectation.binary import DisARM as DisARM
    from fewfold.expectation.drawn import VIMCO as VIMCO
    from fewfold.expectation.drawn import ScoreFunction as ScoreFunction
    from fewfold.expectation.drawn import SumAndSample as SumAndSample
    from fewfold.expectation.estimators import Estimator as Estimator
    from fewfold.expectation.expect import Expectation as Expectation
    from fewfold.expectation.expect import embed_atoms as embed_atoms
    from fewfold.expectation.expect import expect as expect
    from fewfold.expectation.likelihood import log_likelihood as log_likelihood
    from fewfold.expectation.marginal import Dense as Dense
    from fewfold.expectation.marginal import SparseMarginal as SparseMarginal
    from fewfold.expectation.relaxed import REBAR as REBAR
    from fewfold.expectation.relaxed import Gumbel as Gumbel
    from fewfold.expectation.relaxed import annealed as annealed
    from fewfold.losses.fenchel_young import FenchelYoungLoss as FenchelYoungLoss
    from fewfold.losses.fenchel_young import fenchel_young_loss as fenchel_young_loss
    from fewfold.losses.linear import linear_entmax_loss as linear_entmax_loss
    from fewfold.losses.members import entmax_loss as entmax_loss
    from fewfold.losses.members import ksubset_loss as ksubset_loss
    from fewfold.losses.members import normmax_loss as normmax_loss
    from fewfold.losses.members import softmax_loss as softmax_loss
    from fewfold.losses.members import sparsemax_loss as sparsemax_loss
    from fewfold.losses.metrics import epsilon_perplexity as epsilon_perplexity
    from fewfold.losses.metrics import jensen_shannon as jensen_shannon
    from fewfold.losses.metrics import optimal_epsilon as optimal_epsilon
    from fewfold.losses.metrics import sparsemax_score as sparsemax_score
    from fewfold.losses.sampled import noise_contrastive_loss as noise_contrastive_loss
    from fewfold.losses.sampled import sampled_softmax_loss as sampled_softmax_loss
    from fewfold.losses.sampling import sample as sample
    from fewfold.losses.sampling import sample_support as sample_support
    from fewfold.maps.constrained import Bounded as Bounded
    from fewfold.maps.constrained import constrained_softmax as constrained_softmax
    from fewfold.maps.constrained import constrained_sparsemax as constrained_sparsemax
    from fewfold.maps.entmax import entmax as entmax
    from fewfold.maps.entmax import softmax as softmax
    from fewfold.maps.entmax import sparsemax as sparsemax
    from fewfold.maps.entropies import Gini as Gini
    from fewfold.maps.entropies import Shannon as Shannon
    from fewfold.maps.entropies import Tsallis as Tsallis
    from fewfold.maps.fused import Fused as Fused
    from fewfold.maps.fused import Oscar as Oscar
    from fewfold.maps.fused import fusedmax as fusedmax
    from fewfold.maps.fused import oscarmax as oscarmax
    from fewfold.maps.ksubset import Subset as Subset
    from fewfold.maps.ksubset import ksubset as ksubset
    from fewfold.maps.modules import AdaptiveEntmax as AdaptiveEntmax
    from fewfold.maps.modules import Map as Map
    from fewfold.maps.normmax import Norm as Norm
    from fewfold.maps.normmax import normmax as normmax
    from fewfold.maps.omega import Omega as Omega
    from fewfold.maps.sparse import map_support as map_support
    from fewfold.maps.topk import TopK as TopK
    from fewfold.maps.topk import topk_sparsemax as topk_sparsemax
    from fewfold.maps.topk import topk_sparsemax_certified as topk_sparsemax_certified
    from fewfold.recommender.anchored import Anchors as Anchors
    from fewfold.recommender.anchored import AnchorVAE as AnchorVAE
    from fewfold.recommender.attributes import Attributes as Attributes
    from fewfold.recommender.baselines import BM25 as BM25
    from fewfold.recommender.baselines import EASE as EASE
    from fewfold.recommender.baselines import Baseline as Baseline
    from fewfold.recommender.baselines import Cosine as Cosine
    from fewfold.recommender.baselines import ItemKNN as ItemKNN
    from fewfold.recommender.baselines import MostPopular as MostPopular
    from fewfold.recommender.beside import Beside as Beside
    from fewfold.recommender.catalogue import Catalogue as Catalogue
    from fewfold.recommender.checkpoint import Checkpoint as Checkpoint
    from fewfold.recommender.checkpoint import Interrupted as Interrupted
    from fewfold.recommender.comparison import Comparison as Comparison
    from fewfold.recommender.comparison import Contender as Contender
    from fewfold.recommender.comparison import compare as compare
    from fewfold.recommender.data.bundled import bundled as bundled
    from fewfold.recommender.data.bundled import bundled_items as bundled_items
    from fewfold.recommender.data.log import Log as Log
    from fewfold.recommender.data.log import LogPlan as LogPlan
    from fewfold.recommender.data.log import LogSummary as LogSummary
    from fewfold.recommender.data.log import plan_log as plan_log
    from fewfold.recommender.data.log import read_log as read_log
    from fewfold.recommender.data.public import PUBLIC as PUBLIC
    from fewfold.recommender.data.public import PublicSet as PublicSet
    from fewfold.recommender.data.public import fetch as fetch
    from fewfold.recommender.data.public import is_fetched as is_fetched
    from fewfold.recommender.errors import ArtifactError as ArtifactError
    from fewfold.recommender.errors import DataError as DataError
    from fewfold.recommender.evaluation import Evaluation as Evaluation
    from fewfold.recommender.exports import export as export
    from fewfold.recommender.fastvae import Entmax as Entmax
    from fewfold.recommender.fastvae import FastVAE as FastVAE
    from fewfold.recommender.fastvae import FullSoftmax as FullSoftmax
    from fewfold.recommender.fastvae import Objective as Objective
    from fewfold.recommender.fastvae import SampledSoftmax as SampledSoftmax
    from fewfold.recommender.ids import Ids as Ids
    from fewfold.recommender.inspection import Inspection as Inspection
    from fewfold.recommender.inspection import inspect as inspect
    from fewfold.recommender.interactions import Core as Core
    from fewfold.recommender.interactions import Interactions as Interactions
    from fewfold.recommender.interactions import Jagged as Jagged
    from fewfold.recommender.metrics import MAP as MAP
    from fewfold.recommender.metrics import MRR as MRR
    from fewfold.recommender.metrics import NDCG as NDCG
    from fewfold.recommender.metrics import HitRate as HitRate
    from fewfold.recommender.metrics import Metric as Metric
    from fewfold.recommender.metrics import Precision as Precision
    from fewfold.recommender.metrics import Recall as Recall
    from fewfold.recommender.metrics import Report as Report
    from fewfold.recommender.metrics import Score as Score
    from fewfold.recommender.metrics import evaluate as evaluate
    from fewfold.recommender.recipes import VAE as VAE
    from fewfold.recommender.recipes import Training as Training
    from fewfold.recommender.recommendations import Recommendations as Recommendations
    from fewfold.recommender.recommender import Recommender as Recommender
    from fewfold.recommender.report import FitReport as FitReport
    from fewfold.recommender.search import Search as Search
    from fewfold.recommender.spectral import Shortcut as Shortcut
    from fewfold.recommender.splits import Split as Split
    from fewfold.recommender.splits import held_out_users as held_out_users
    from fewfold.recommender.splits import last_out_split as last_out_split
    from fewfold.recommender.splits import random_split as random_split
    from fewfold.recommender.splits import temporal_split as temporal_split
    from fewfold.recommender.topk import DotProduct as DotProduct
    from fewfold.recommender.topk import Ranking as Ranking
    from fewfold.recommender.topk import Scorer as Scorer
    from fewfold.recommender.topk import top_k as top_k
    from fewfold.recommender.train import Epoch as Epoch
    from fewfold.recommender.train import train as train
    from fewfold.sampling.dynamic import Dynamic as Dynamic
    from fewfold.sampling.multi_index import MultiIndex as MultiIndex
    from fewfold.sampling.proposal import Given as Given
    from fewfold.sampling.proposal import Proposal as Proposal
    from fewfold.sampling.quadratic import QuadraticKernel as QuadraticKernel
    from fewfold.sampling.simple import Popularity as Popularity
    from fewfold.sampling.simple import Uniform as Uniform
    from fewfold.structured import structures as structures
    from fewfold.structured.best import TopSupport as TopSupport
    from fewfold.structured.best import topk_support as topk_support
    from fewfold.structured.gibbs import gibbs_marginals as gibbs_marginals
    from fewfold.structured.graph import FactorGraph as FactorGraph
    from fewfold.structured.graph import GraphSolution as GraphSolution
    from fewfold.structured.omega import Gibbs as Gibbs
    from fewfold.structured.omega import SparseMAP as SparseMAP
    from fewfold.structured.sparsemap import Solution as Solution
    from fewfold.structured.sparsemap import sparsemap as sparsemap
    from fewfold.structured.sparsemap import sparsemap_solution as sparsemap_solution
    from fewfold.structured.sparsemap import sparsemap_support as sparsemap_support
    from fewfold.support import Support as Support
