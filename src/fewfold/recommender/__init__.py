"""The recommender: from logs of who touched what to recommendations, and how good they are."""

from fewfold.recommender.answers import Recommendations
from fewfold.recommender.attributes import Attributes
from fewfold.recommender.datasets.bundled import bundled, bundled_items
from fewfold.recommender.datasets.public import PUBLIC, PublicSet, fetch, is_fetched
from fewfold.recommender.errors import ArtifactError, DataError
from fewfold.recommender.evaluation.comparison import Comparison, Contender, compare
from fewfold.recommender.evaluation.dense_comparison import Beside
from fewfold.recommender.evaluation.evaluate import Evaluation
from fewfold.recommender.evaluation.metrics import (
    MAP,
    MRR,
    NDCG,
    HitRate,
    Metric,
    Precision,
    Recall,
    Report,
    Score,
    evaluate,
)
from fewfold.recommender.evaluation.splits import (
    Split,
    held_out_users,
    last_out_split,
    random_split,
    temporal_split,
)
from fewfold.recommender.export_model import export
from fewfold.recommender.fit_report import FitReport
from fewfold.recommender.ids import Ids
from fewfold.recommender.inspect_model import Inspection, inspect
from fewfold.recommender.interactions import Core, Interactions, Jagged
from fewfold.recommender.models.baselines import BM25, EASE, Baseline, Cosine, ItemKNN, MostPopular
from fewfold.recommender.models.fastvae.anchored import AnchorVAE
from fewfold.recommender.models.fastvae.anchored_tables import AnchoredTables
from fewfold.recommender.models.fastvae.anchors import Anchors
from fewfold.recommender.models.fastvae.dense_tables import DenseTables
from fewfold.recommender.models.fastvae.network import FastVAE
from fewfold.recommender.models.fastvae.objectives import (
    Entmax,
    FullSoftmax,
    Objective,
    SampledSoftmax,
)
from fewfold.recommender.models.fastvae.shortcut import Shortcut
from fewfold.recommender.models.recipes import VAE, Training
from fewfold.recommender.ranking.catalogue import Catalogue
from fewfold.recommender.ranking.search import Search
from fewfold.recommender.ranking.top_k import DotProduct, Ranking, Scorer, top_k
from fewfold.recommender.reading.log import Log, LogPlan, LogSummary, plan_log, read_log
from fewfold.recommender.recommender import Recommender
from fewfold.recommender.training.checkpoint import Checkpoint, Interrupted
from fewfold.recommender.training.train import Epoch, TrainOptions, train

__all__ = [
    "AnchorVAE",
    "AnchoredTables",
    "Anchors",
    "Beside",
    "Recommender",
    "VAE",
    "Training",
    "Recommendations",
    "FitReport",
    "Search",
    "compare",
    "Comparison",
    "Contender",
    "Evaluation",
    "read_log",
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
    "DenseTables",
    "Shortcut",
    "train",
    "TrainOptions",
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
    "EASE",
    "Baseline",
]
