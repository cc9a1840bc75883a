"""The recommender: from logs of who touched what to recommendations, and how good they are."""

from fewfold.recommender.anchored import Anchors, AnchorVAE
from fewfold.recommender.attributes import Attributes
from fewfold.recommender.baselines import BM25, EASE, Baseline, Cosine, ItemKNN, MostPopular
from fewfold.recommender.beside import Beside
from fewfold.recommender.catalogue import Catalogue
from fewfold.recommender.checkpoint import Checkpoint, Interrupted
from fewfold.recommender.comparison import Comparison, Contender, compare
from fewfold.recommender.data.bundled import bundled, bundled_items
from fewfold.recommender.data.log import Log, LogPlan, LogSummary, plan_log, read_log
from fewfold.recommender.data.public import PUBLIC, PublicSet, fetch, is_fetched
from fewfold.recommender.errors import ArtifactError, DataError
from fewfold.recommender.evaluation import Evaluation
from fewfold.recommender.exports import export
from fewfold.recommender.fastvae import (
    Entmax,
    FastVAE,
    FullSoftmax,
    Objective,
    SampledSoftmax,
)
from fewfold.recommender.ids import Ids
from fewfold.recommender.inspection import Inspection, inspect
from fewfold.recommender.interactions import Core, Interactions, Jagged
from fewfold.recommender.metrics import (
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
from fewfold.recommender.recipes import VAE, Training
from fewfold.recommender.recommendations import Recommendations
from fewfold.recommender.recommender import Recommender
from fewfold.recommender.report import FitReport
from fewfold.recommender.search import Search
from fewfold.recommender.spectral import Shortcut
from fewfold.recommender.splits import (
    Split,
    held_out_users,
    last_out_split,
    random_split,
    temporal_split,
)
from fewfold.recommender.topk import DotProduct, Ranking, Scorer, top_k
from fewfold.recommender.train import Epoch, train

__all__ = [
    "AnchorVAE",
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
    "Shortcut",
    "train",
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
