"""All rows of the table of devices, and the public names that are not in it."""

import importlib
import types

import fewfold

from . import functions, huggingface, methods, structures, tables, training

CASES = [
    *functions.CASES, *structures.CASES, *tables.CASES, *training.CASES, *huggingface.CASES,
    *methods.CASES,
]  # fmt: skip

RECOMMENDER = {"VAE", "Recommender", "compare", "read_log"}
MODULES = (
    "maps", "losses", "structured", "structured.structures", "expectation", "attention",
    "hopfield", "continuous", "distributions", "sampling", "embeddings", "optim",
)  # fmt: skip

BESIDE = {
    "a model, trained and queried in test_recommender.py": (
        "recommender.ALS", "recommender.Auto", "recommender.Blend", "recommender.EASE",
        "recommender.FittedALS", "recommender.ItemKNN", "recommender.MostPopular",
        "recommender.SessionKNN", "recommender.SparseEASE", "recommender.Transformer",
        "recommender.Warm", "recommender.BM25", "recommender.Cosine",
    ),
    "used by test_recommender.py": (
        "Recommender", "VAE", "recommender.Checkpoint", "recommender.Diversity",
        "recommender.Evaluation", "recommender.Interrupted", "recommender.Metric",
        "recommender.NDCG", "recommender.Recall", "recommender.Recommendations",
        "recommender.Training", "recommender.TrainOptions",
    ),
    "a result that is printed, without tensors": (
        "recommender.Choice", "recommender.Comparison", "recommender.Contender",
        "recommender.DenseComparison", "recommender.Epoch", "recommender.FitReport",
        "recommender.Inspection", "recommender.LogPlan", "recommender.LogSummary",
        "recommender.Report", "recommender.Score", "recommender.SearchedSettings",
        "recommender.SettingsTried", "recommender.Tried", "recommender.UpdateReport",
    ),
    "numbers, text, errors or protocols, without tensors of their own": (
        "recommender.ArtifactError", "recommender.DataError", "recommender.Fitted",
        "recommender.Model", "recommender.Baseline", "recommender.Objective", "recommender.Option",
        "recommender.PUBLIC", "recommender.PublicSet", "recommender.ReadOptions",
        "recommender.Scorer", "recommender.SettingsSearch", "recommender.Suggest",
        "recommender.Suggestions", "recommender.register", "recommender.setting",
    ),
    "reads, writes or splits logs, which stay on the CPU": (
        "compare", "read_log", "recommender.Attributes", "recommender.Core", "recommender.Event",
        "recommender.HitRate", "recommender.HoldOut", "recommender.Ids", "recommender.Interactions",
        "recommender.ItemsTable", "recommender.Jagged", "recommender.Journal", "recommender.Log",
        "recommender.MAP", "recommender.MRR", "recommender.Precision", "recommender.PreparedLog",
        "recommender.Split", "recommender.StreamedLog", "recommender.UserProfiles",
        "recommender.UsersTable", "recommender.bundled", "recommender.bundled_items",
        "recommender.confidences", "recommender.decayed", "recommender.evaluate",
        "recommender.export", "recommender.fetch", "recommender.held_out_users",
        "recommender.inspect", "recommender.is_fetched", "recommender.last_out_split",
        "recommender.plan_log", "recommender.prepare", "recommender.random_split",
        "recommender.seal", "recommender.temporal_split",
    ),
    "faiss, on the CPU": ("recommender.Search",),
    "estimators of arrays of NumPy": ("sklearn.AnchorEncoder", "sklearn.MatrixRecommender"),
    "several processes train on CPUs": (
        "distributed.Group", "distributed.RowShards", "distributed.Traffic",
        "recommender.ShardedAnchoredTables", "recommender.ShardedTables",
    ),
}  # fmt: skip
"""Public names of the recommender and of packages without rows, by why they have none."""

EXCLUDED = {
    "show_config": "prints",
    "attention.Backend": "text, no tensors",
    "attention.attention_backend": "text, no tensors",
    "attention.picture_attention": "draws a picture",
    "hopfield.storage_bound": "numbers, no tensors",
    "expectation.annealed": "numbers, no tensors",
    "expectation.Baseline": "a base class",
    "continuous.Density": "a base class",
    "continuous.Locator": "a base class",
    "optim.Penalty": "numbers, no tensors",
    "embeddings.Sizes": "numbers, no tensors",
    "embeddings.DataParallel": "needs a group of processes",
}
"""Public names of which no row says where they run, and why."""


def beside() -> set[str]:
    """The public names of the recommender and of packages without rows."""
    found = {name for name in fewfold.__all__ if name in RECOMMENDER}
    for module in ("recommender", "sklearn", "distributed"):
        inside = importlib.import_module(f"fewfold.{module}")
        found |= {
            f"{module}.{name}" for name in inside.__all__
            if getattr(fewfold, name, None) is not getattr(inside, name)
        }  # fmt: skip
    return found


def public() -> set[str]:
    """All public names of functions and classes below `fewfold`, without the recommender."""
    top = {
        name: getattr(fewfold, name)
        for name in fewfold.__all__
        if not isinstance(getattr(fewfold, name), types.ModuleType) and name != "__version__"
    }
    found = set(top) - RECOMMENDER
    for module in MODULES:
        inside = fewfold
        for part in module.split("."):
            inside = getattr(inside, part)
        for name in inside.__all__:
            value = getattr(inside, name)
            if not isinstance(value, types.ModuleType) and top.get(name) is not value:
                place = "structures" if module == "structured.structures" else module
                found.add(f"{place}.{name}")
    return found
