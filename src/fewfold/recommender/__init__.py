"""The recommender: from logs of who touched what to recommendations, and how good they are."""

from fewfold.recommender.baselines import BM25, EASE, Baseline, Cosine, ItemKNN, MostPopular
from fewfold.recommender.fastvae import (
    Entmax,
    FastVAE,
    FullSoftmax,
    Objective,
    SampledSoftmax,
)
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
    "Scorer",
    "Ranking",
    "MostPopular",
    "ItemKNN",
    "Cosine",
    "BM25",
    "EASE",
    "Baseline",
]
