from .attribute_tables import ItemsTable as ItemsTable
from .attribute_tables import UsersTable as UsersTable
from .attributes import Attributes as Attributes
from .datasets.bundled import bundled as bundled
from .datasets.bundled import bundled_items as bundled_items
from .datasets.public import PUBLIC as PUBLIC
from .datasets.public import PublicSet as PublicSet
from .datasets.public import fetch as fetch
from .datasets.public import is_fetched as is_fetched
from .diversity import Diversity as Diversity
from .errors import ArtifactError as ArtifactError
from .errors import DataError as DataError
from .evaluation.comparison import Comparison as Comparison
from .evaluation.comparison import Contender as Contender
from .evaluation.comparison import compare as compare
from .evaluation.dense_comparison import DenseComparison as DenseComparison
from .evaluation.holdout import HoldOut as HoldOut
from .evaluation.metrics import MAP as MAP
from .evaluation.metrics import MRR as MRR
from .evaluation.metrics import NDCG as NDCG
from .evaluation.metrics import HitRate as HitRate
from .evaluation.metrics import Metric as Metric
from .evaluation.metrics import Precision as Precision
from .evaluation.metrics import Recall as Recall
from .evaluation.metrics import Report as Report
from .evaluation.metrics import Score as Score
from .evaluation.metrics import evaluate as evaluate
from .evaluation.model_evaluation import Evaluation as Evaluation
from .evaluation.splits import Split as Split
from .evaluation.splits import held_out_users as held_out_users
from .evaluation.splits import last_out_split as last_out_split
from .evaluation.splits import random_split as random_split
from .evaluation.splits import temporal_split as temporal_split
from .export_model import export as export
from .fit_job import FitReport as FitReport
from .ids import Ids as Ids
from .inspect_model import Inspection as Inspection
from .inspect_model import inspect as inspect
from .interactions import Core as Core
from .interactions import Interactions as Interactions
from .jagged import Jagged as Jagged
from .journal import Journal as Journal
from .journal_events import Event as Event
from .models.als import ALS as ALS
from .models.als import FittedALS as FittedALS
from .models.auto import Auto as Auto
from .models.baseline import Baseline as Baseline
from .models.blend import Blend as Blend
from .models.ease import EASE as EASE
from .models.fastvae.anchor_options import Anchors as Anchors
from .models.fastvae.anchored import AnchorVAE as AnchorVAE
from .models.fastvae.anchored_tables import AnchoredTables as AnchoredTables
from .models.fastvae.network import FastVAE as FastVAE
from .models.fastvae.objectives import Entmax as Entmax
from .models.fastvae.objectives import FullSoftmax as FullSoftmax
from .models.fastvae.objectives import Objective as Objective
from .models.fastvae.objectives import SampledSoftmax as SampledSoftmax
from .models.fastvae.perceptron import Perceptron as Perceptron
from .models.fastvae.recipe import VAE as VAE
from .models.fastvae.sharded_anchored_tables import (
    ShardedAnchoredTables as ShardedAnchoredTables,
)
from .models.fastvae.sharded_tables import ShardedTables as ShardedTables
from .models.fastvae.shortcut import Shortcut as Shortcut
from .models.fastvae.tables import DenseTables as DenseTables
from .models.item_knn import BM25 as BM25
from .models.item_knn import Cosine as Cosine
from .models.item_knn import ItemKNN as ItemKNN
from .models.model import Fitted as Fitted
from .models.model import Model as Model
from .models.model_options import Option as Option
from .models.model_options import setting as setting
from .models.next_item.next_item_network import NextItemNetwork as NextItemNetwork
from .models.next_item.transformer import Transformer as Transformer
from .models.popularity import MostPopular as MostPopular
from .models.registry import register as register
from .models.session_knn import SessionKNN as SessionKNN
from .models.sparse_linear import SparseEASE as SparseEASE
from .models.warm import Warm as Warm
from .prepared.prepare_log import prepare as prepare
from .prepared.prepared_log import PreparedLog as PreparedLog
from .prepared.seal_folder import seal as seal
from .prepared.streamed_interactions import StreamedLog as StreamedLog
from .ranking.catalogue import Catalogue as Catalogue
from .ranking.exact_ranking import DotProduct as DotProduct
from .ranking.exact_ranking import Ranking as Ranking
from .ranking.exact_ranking import Scorer as Scorer
from .ranking.exact_ranking import top_k as top_k
from .ranking.search import Search as Search
from .reading.log import Log as Log
from .reading.log import LogPlan as LogPlan
from .reading.log import LogSummary as LogSummary
from .reading.log import plan_log as plan_log
from .reading.log import read_log as read_log
from .reading.read_options import ReadOptions as ReadOptions
from .recommendations import Recommendations as Recommendations
from .recommender import Recommender as Recommender
from .selection.choice import Choice as Choice
from .selection.choice import Tried as Tried
from .selection.settings_search import SearchedSettings as SearchedSettings
from .selection.settings_search import SettingsSearch as SettingsSearch
from .selection.settings_search import SettingsTried as SettingsTried
from .selection.settings_search import Suggest as Suggest
from .selection.settings_search import Suggestions as Suggestions
from .training.checkpoint import Checkpoint as Checkpoint
from .training.checkpoint import Interrupted as Interrupted
from .training.train import Epoch as Epoch
from .training.train import TrainOptions as TrainOptions
from .training.train import train as train
from .training.train_options import DenseAdam as DenseAdam
from .training.train_options import Training as Training
from .updating import UpdateReport as UpdateReport
from .user_profiles import UserProfiles as UserProfiles
from .weighting import confidences as confidences
from .weighting import decayed as decayed

__all__ = [
    "AnchorVAE",
    "AnchoredTables",
    "Anchors",
    "DenseComparison",
    "Recommender",
    "Auto",
    "Choice",
    "Tried",
    "Blend",
    "Warm",
    "VAE",
    "Transformer",
    "Training",
    "Recommendations",
    "Diversity",
    "FitReport",
    "UpdateReport",
    "Journal",
    "Event",
    "HoldOut",
    "ItemsTable",
    "UsersTable",
    "UserProfiles",
    "confidences",
    "decayed",
    "Search",
    "compare",
    "Comparison",
    "Contender",
    "Evaluation",
    "SettingsSearch",
    "SearchedSettings",
    "SettingsTried",
    "Suggest",
    "Suggestions",
    "read_log",
    "prepare",
    "PreparedLog",
    "StreamedLog",
    "seal",
    "ReadOptions",
    "plan_log",
    "Log",
    "LogPlan",
    "LogSummary",
    "Ids",
    "Attributes",
    "Checkpoint",
    "Interrupted",
    "DataError",
    "ArtifactError",
    "inspect",
    "Inspection",
    "export",
    "bundled",
    "bundled_items",
    "fetch",
    "is_fetched",
    "PUBLIC",
    "PublicSet",
    "FastVAE",
    "Perceptron",
    "NextItemNetwork",
    "DenseTables",
    "ShardedAnchoredTables",
    "ShardedTables",
    "Shortcut",
    "train",
    "TrainOptions",
    "DenseAdam",
    "Epoch",
    "Objective",
    "SampledSoftmax",
    "FullSoftmax",
    "Entmax",
    "Interactions",
    "Jagged",
    "Core",
    "Split",
    "random_split",
    "temporal_split",
    "last_out_split",
    "held_out_users",
    "NDCG",
    "Recall",
    "Precision",
    "MAP",
    "MRR",
    "HitRate",
    "Metric",
    "Score",
    "Report",
    "evaluate",
    "top_k",
    "DotProduct",
    "Catalogue",
    "Scorer",
    "Ranking",
    "MostPopular",
    "ItemKNN",
    "Cosine",
    "BM25",
    "SessionKNN",
    "EASE",
    "ALS",
    "FittedALS",
    "SparseEASE",
    "Baseline",
    "Model",
    "Fitted",
    "register",
    "setting",
    "Option",
]
