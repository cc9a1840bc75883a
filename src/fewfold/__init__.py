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
        *("Attended", "MultiheadAttention", "adapt_attention", "attention_support", "load_adapted"),
        *("picture_attention", "register_attention", "sparse_attention", "watch_attention"),
    ),
    "hopfield": (
        *("Classical", "DenseAssociative", "Energy", "Exponential", "FenchelYoung"),
        *("Heads", "Hopfield", "HopfieldLayer", "HopfieldPooling", "LayerNormed"),
        *("Quadratic", "Retrieval", "Sphere", "hopfield_retrieve", "is_stored"),
        *("retrieved_in_one_step", "separation", "storage_bound"),
    ),
    "continuous": (
        *("AttentionMoments", "Basis", "ContinuousAttention", "ContinuousMemory", "Density"),
        *("FourierBasis", "GaussianBasis", "LineDensity", "Locator", "PlaneDensity"),
        *("PowerBasis", "QueryHeads", "RectangularBasis", "Ridge", "Signal"),
        *("SignalHeads", "Sticky", "continuous_attention"),
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
    from fewfold.attention.attention_picture import picture_attention as picture_attention
    from fewfold.attention.huggingface.adapt import adapt_attention as adapt_attention
    from fewfold.attention.huggingface.adapt import load_adapted as load_adapted
    from fewfold.attention.huggingface.register import register_attention as register_attention
    from fewfold.attention.multihead import MultiheadAttention as MultiheadAttention
    from fewfold.attention.sparse_attention import attention_support as attention_support
    from fewfold.attention.sparse_attention import sparse_attention as sparse_attention
    from fewfold.attention.watch import Attended as Attended
    from fewfold.attention.watch import watch_attention as watch_attention
    from fewfold.continuous.basis import Basis as Basis
    from fewfold.continuous.basis import GaussianBasis as GaussianBasis
    from fewfold.continuous.basis import RectangularBasis as RectangularBasis
    from fewfold.continuous.density import Density as Density
    from fewfold.continuous.density import LineDensity as LineDensity
    from fewfold.continuous.function import continuous_attention as continuous_attention
    from fewfold.continuous.locate import AttentionMoments as AttentionMoments
    from fewfold.continuous.locate import Locator as Locator
    from fewfold.continuous.locate import QueryHeads as QueryHeads
    from fewfold.continuous.locate import SignalHeads as SignalHeads
    from fewfold.continuous.memory import ContinuousMemory as ContinuousMemory
    from fewfold.continuous.memory import Sticky as Sticky
    from fewfold.continuous.module import ContinuousAttention as ContinuousAttention
    from fewfold.continuous.plane_density import PlaneDensity as PlaneDensity
    from fewfold.continuous.signal import Ridge as Ridge
    from fewfold.continuous.signal import Signal as Signal
    from fewfold.continuous.smooth_bases import FourierBasis as FourierBasis
    from fewfold.continuous.smooth_bases import PowerBasis as PowerBasis
    from fewfold.distributions.concrete import Concrete as Concrete
    from fewfold.distributions.concrete import LogisticNormal as LogisticNormal
    from fewfold.distributions.faces.face_distribution import FaceLaw as FaceLaw
    from fewfold.distributions.faces.faces_by_size import FacesBySize as FacesBySize
    from fewfold.distributions.faces.faces_by_size import ListedFaces as ListedFaces
    from fewfold.distributions.faces.faces_by_size import uniform_faces as uniform_faces
    from fewfold.distributions.faces.geometry import all_faces as all_faces
    from fewfold.distributions.faces.geometry import face_dimension as face_dimension
    from fewfold.distributions.faces.geometry import face_index as face_index
    from fewfold.distributions.faces.geometry import face_of as face_of
    from fewfold.distributions.faces.gibbs_faces import GibbsFaces as GibbsFaces
    from fewfold.distributions.gaussian_sparsemax import GaussianSparsemax as GaussianSparsemax
    from fewfold.distributions.hard_concrete import BinaryHardConcrete as BinaryHardConcrete
    from fewfold.distributions.hard_concrete import HardConcrete as HardConcrete
    from fewfold.distributions.information import Estimate as Estimate
    from fewfold.distributions.information import direct_sum_entropy as direct_sum_entropy
    from fewfold.distributions.information import direct_sum_kl as direct_sum_kl
    from fewfold.distributions.information import mutual_information as mutual_information
    from fewfold.distributions.integrals.log_ndtr import log_ndtr as log_ndtr
    from fewfold.distributions.mixed_dirichlet import FaceMixture as FaceMixture
    from fewfold.distributions.mixed_dirichlet import MaxEntropyMixed as MaxEntropyMixed
    from fewfold.distributions.mixed_dirichlet import MixedDirichlet as MixedDirichlet
    from fewfold.distributions.q_gaussian import QGaussian as QGaussian
    from fewfold.distributions.q_gaussian import wasserstein2 as wasserstein2
    from fewfold.distributions.sparse_categorical import SparseCategorical as SparseCategorical
    from fewfold.embeddings.files.mapped import MappedAnchors as MappedAnchors
    from fewfold.embeddings.files.save_load import load_anchors as load_anchors
    from fewfold.embeddings.files.save_load import save_anchors as save_anchors
    from fewfold.embeddings.inspect_anchors import AnchorInspection as AnchorInspection
    from fewfold.embeddings.inspect_anchors import inspect_anchors as inspect_anchors
    from fewfold.embeddings.relations.relations import Relations as Relations
    from fewfold.embeddings.sparsify.growth import AnchorGrowth as AnchorGrowth
    from fewfold.embeddings.sparsify.growth import GrowthStep as GrowthStep
    from fewfold.embeddings.sparsify.orthogonality import orthogonality as orthogonality
    from fewfold.embeddings.sparsify.proximal import Proximal as Proximal
    from fewfold.embeddings.sparsify.proximal import proximal as proximal
    from fewfold.embeddings.sparsify.schedules import Narrowing as Narrowing
    from fewfold.embeddings.sparsify.schedules import Regrow as Regrow
    from fewfold.embeddings.sparsify.schedules import Warmup as Warmup
    from fewfold.embeddings.table.embedding import AnchorEmbedding as AnchorEmbedding
    from fewfold.embeddings.table.embedding_bag import AnchorEmbeddingBag as AnchorEmbeddingBag
    from fewfold.embeddings.table.mixture import AnchorMixture as AnchorMixture
    from fewfold.embeddings.table.sparse_rows import SparseRows as SparseRows
    from fewfold.expectation.estimators.control_variates import Learned as Learned
    from fewfold.expectation.estimators.control_variates import LeaveOneOut as LeaveOneOut
    from fewfold.expectation.estimators.control_variates import RunningMean as RunningMean
    from fewfold.expectation.estimators.control_variates import SelfCritic as SelfCritic
    from fewfold.expectation.estimators.disarm import DisARM as DisARM
    from fewfold.expectation.estimators.estimator import Estimator as Estimator
    from fewfold.expectation.estimators.gumbel import REBAR as REBAR
    from fewfold.expectation.estimators.gumbel import Gumbel as Gumbel
    from fewfold.expectation.estimators.gumbel import annealed as annealed
    from fewfold.expectation.estimators.marginal import Dense as Dense
    from fewfold.expectation.estimators.marginal import SparseMarginal as SparseMarginal
    from fewfold.expectation.estimators.score_function import VIMCO as VIMCO
    from fewfold.expectation.estimators.score_function import ScoreFunction as ScoreFunction
    from fewfold.expectation.estimators.score_function import SumAndSample as SumAndSample
    from fewfold.expectation.expect import Expectation as Expectation
    from fewfold.expectation.expect import embed_atoms as embed_atoms
    from fewfold.expectation.expect import expect as expect
    from fewfold.expectation.likelihood import log_likelihood as log_likelihood
    from fewfold.hopfield.association import Heads as Heads
    from fewfold.hopfield.energies import Classical as Classical
    from fewfold.hopfield.energies import DenseAssociative as DenseAssociative
    from fewfold.hopfield.energies import Energy as Energy
    from fewfold.hopfield.energies import Exponential as Exponential
    from fewfold.hopfield.energies import FenchelYoung as FenchelYoung
    from fewfold.hopfield.energies import LayerNormed as LayerNormed
    from fewfold.hopfield.energies import Quadratic as Quadratic
    from fewfold.hopfield.energies import Sphere as Sphere
    from fewfold.hopfield.layers import Hopfield as Hopfield
    from fewfold.hopfield.layers import HopfieldLayer as HopfieldLayer
    from fewfold.hopfield.layers import HopfieldPooling as HopfieldPooling
    from fewfold.hopfield.retrieval import Retrieval as Retrieval
    from fewfold.hopfield.retrieval import hopfield_retrieve as hopfield_retrieve
    from fewfold.hopfield.storage import is_stored as is_stored
    from fewfold.hopfield.storage import retrieved_in_one_step as retrieved_in_one_step
    from fewfold.hopfield.storage import separation as separation
    from fewfold.hopfield.storage import storage_bound as storage_bound
    from fewfold.losses.fenchel_young import FenchelYoungLoss as FenchelYoungLoss
    from fewfold.losses.fenchel_young import fenchel_young_loss as fenchel_young_loss
    from fewfold.losses.language_metrics import epsilon_perplexity as epsilon_perplexity
    from fewfold.losses.language_metrics import jensen_shannon as jensen_shannon
    from fewfold.losses.language_metrics import optimal_epsilon as optimal_epsilon
    from fewfold.losses.language_metrics import sparsemax_score as sparsemax_score
    from fewfold.losses.linear.linear_entmax import linear_entmax_loss as linear_entmax_loss
    from fewfold.losses.named import entmax_loss as entmax_loss
    from fewfold.losses.named import ksubset_loss as ksubset_loss
    from fewfold.losses.named import normmax_loss as normmax_loss
    from fewfold.losses.named import softmax_loss as softmax_loss
    from fewfold.losses.named import sparsemax_loss as sparsemax_loss
    from fewfold.losses.sampled import noise_contrastive_loss as noise_contrastive_loss
    from fewfold.losses.sampled import sampled_softmax_loss as sampled_softmax_loss
    from fewfold.losses.sparse_sampling import sample as sample
    from fewfold.losses.sparse_sampling import sample_support as sample_support
    from fewfold.maps.constrained import Bounded as Bounded
    from fewfold.maps.constrained import constrained_softmax as constrained_softmax
    from fewfold.maps.constrained import constrained_sparsemax as constrained_sparsemax
    from fewfold.maps.entmax import entmax as entmax
    from fewfold.maps.entmax import softmax as softmax
    from fewfold.maps.entmax import sparsemax as sparsemax
    from fewfold.maps.entropies import Gini as Gini
    from fewfold.maps.entropies import Shannon as Shannon
    from fewfold.maps.entropies import Tsallis as Tsallis
    from fewfold.maps.grouped.fused import Fused as Fused
    from fewfold.maps.grouped.fused import Oscar as Oscar
    from fewfold.maps.grouped.fused import fusedmax as fusedmax
    from fewfold.maps.grouped.fused import oscarmax as oscarmax
    from fewfold.maps.ksubset import Subset as Subset
    from fewfold.maps.ksubset import ksubset as ksubset
    from fewfold.maps.map_support import map_support as map_support
    from fewfold.maps.modules import AdaptiveEntmax as AdaptiveEntmax
    from fewfold.maps.modules import Map as Map
    from fewfold.maps.normmax import Norm as Norm
    from fewfold.maps.normmax import normmax as normmax
    from fewfold.maps.omega import Omega as Omega
    from fewfold.maps.topk_sparsemax import TopK as TopK
    from fewfold.maps.topk_sparsemax import topk_sparsemax as topk_sparsemax
    from fewfold.maps.topk_sparsemax import topk_sparsemax_certified as topk_sparsemax_certified
    from fewfold.recommender.answers import Recommendations as Recommendations
    from fewfold.recommender.attributes import Attributes as Attributes
    from fewfold.recommender.datasets.bundled import bundled as bundled
    from fewfold.recommender.datasets.bundled import bundled_items as bundled_items
    from fewfold.recommender.datasets.public import PUBLIC as PUBLIC
    from fewfold.recommender.datasets.public import PublicSet as PublicSet
    from fewfold.recommender.datasets.public import fetch as fetch
    from fewfold.recommender.datasets.public import is_fetched as is_fetched
    from fewfold.recommender.errors import ArtifactError as ArtifactError
    from fewfold.recommender.errors import DataError as DataError
    from fewfold.recommender.evaluation.comparison import Comparison as Comparison
    from fewfold.recommender.evaluation.comparison import Contender as Contender
    from fewfold.recommender.evaluation.comparison import compare as compare
    from fewfold.recommender.evaluation.dense_comparison import Beside as Beside
    from fewfold.recommender.evaluation.evaluate import Evaluation as Evaluation
    from fewfold.recommender.evaluation.metrics import MAP as MAP
    from fewfold.recommender.evaluation.metrics import MRR as MRR
    from fewfold.recommender.evaluation.metrics import NDCG as NDCG
    from fewfold.recommender.evaluation.metrics import HitRate as HitRate
    from fewfold.recommender.evaluation.metrics import Metric as Metric
    from fewfold.recommender.evaluation.metrics import Precision as Precision
    from fewfold.recommender.evaluation.metrics import Recall as Recall
    from fewfold.recommender.evaluation.metrics import Report as Report
    from fewfold.recommender.evaluation.metrics import Score as Score
    from fewfold.recommender.evaluation.metrics import evaluate as evaluate
    from fewfold.recommender.evaluation.splits import Split as Split
    from fewfold.recommender.evaluation.splits import held_out_users as held_out_users
    from fewfold.recommender.evaluation.splits import last_out_split as last_out_split
    from fewfold.recommender.evaluation.splits import random_split as random_split
    from fewfold.recommender.evaluation.splits import temporal_split as temporal_split
    from fewfold.recommender.export_model import export as export
    from fewfold.recommender.fit_report import FitReport as FitReport
    from fewfold.recommender.ids import Ids as Ids
    from fewfold.recommender.inspect_model import Inspection as Inspection
    from fewfold.recommender.inspect_model import inspect as inspect
    from fewfold.recommender.interactions import Core as Core
    from fewfold.recommender.interactions import Interactions as Interactions
    from fewfold.recommender.interactions import Jagged as Jagged
    from fewfold.recommender.models.baselines import BM25 as BM25
    from fewfold.recommender.models.baselines import EASE as EASE
    from fewfold.recommender.models.baselines import Baseline as Baseline
    from fewfold.recommender.models.baselines import Cosine as Cosine
    from fewfold.recommender.models.baselines import ItemKNN as ItemKNN
    from fewfold.recommender.models.baselines import MostPopular as MostPopular
    from fewfold.recommender.models.fastvae.anchored import Anchors as Anchors
    from fewfold.recommender.models.fastvae.anchored import AnchorVAE as AnchorVAE
    from fewfold.recommender.models.fastvae.network import Entmax as Entmax
    from fewfold.recommender.models.fastvae.network import FastVAE as FastVAE
    from fewfold.recommender.models.fastvae.network import FullSoftmax as FullSoftmax
    from fewfold.recommender.models.fastvae.network import Objective as Objective
    from fewfold.recommender.models.fastvae.network import SampledSoftmax as SampledSoftmax
    from fewfold.recommender.models.fastvae.shortcut import Shortcut as Shortcut
    from fewfold.recommender.models.recipes import VAE as VAE
    from fewfold.recommender.models.recipes import Training as Training
    from fewfold.recommender.ranking.catalogue import Catalogue as Catalogue
    from fewfold.recommender.ranking.search import Search as Search
    from fewfold.recommender.ranking.top_k import DotProduct as DotProduct
    from fewfold.recommender.ranking.top_k import Ranking as Ranking
    from fewfold.recommender.ranking.top_k import Scorer as Scorer
    from fewfold.recommender.ranking.top_k import top_k as top_k
    from fewfold.recommender.reading.log import Log as Log
    from fewfold.recommender.reading.log import LogPlan as LogPlan
    from fewfold.recommender.reading.log import LogSummary as LogSummary
    from fewfold.recommender.reading.log import plan_log as plan_log
    from fewfold.recommender.reading.log import read_log as read_log
    from fewfold.recommender.recommender import Recommender as Recommender
    from fewfold.recommender.training.checkpoint import Checkpoint as Checkpoint
    from fewfold.recommender.training.checkpoint import Interrupted as Interrupted
    from fewfold.recommender.training.train import Epoch as Epoch
    from fewfold.recommender.training.train import train as train
    from fewfold.sampling.dynamic import Dynamic as Dynamic
    from fewfold.sampling.multi_index import MultiIndex as MultiIndex
    from fewfold.sampling.proposal import Given as Given
    from fewfold.sampling.proposal import Proposal as Proposal
    from fewfold.sampling.quadratic_kernel import QuadraticKernel as QuadraticKernel
    from fewfold.sampling.static import Popularity as Popularity
    from fewfold.sampling.static import Uniform as Uniform
    from fewfold.structured import structures as structures
    from fewfold.structured.factor_graph.graph import FactorGraph as FactorGraph
    from fewfold.structured.factor_graph.graph import GraphSolution as GraphSolution
    from fewfold.structured.gibbs import gibbs_marginals as gibbs_marginals
    from fewfold.structured.regularisers import Gibbs as Gibbs
    from fewfold.structured.regularisers import SparseMAP as SparseMAP
    from fewfold.structured.sparsemap.function import Solution as Solution
    from fewfold.structured.sparsemap.function import sparsemap as sparsemap
    from fewfold.structured.sparsemap.function import sparsemap_solution as sparsemap_solution
    from fewfold.structured.sparsemap.function import sparsemap_support as sparsemap_support
    from fewfold.structured.topk_support import TopSupport as TopSupport
    from fewfold.structured.topk_support import topk_support as topk_support
    from fewfold.support import Support as Support
