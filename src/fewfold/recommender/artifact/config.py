"""Schemas of `config.json` and `metrics.json` of a model folder."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fewfold._check import whole_number
from fewfold.recommender.artifact.schema import key
from fewfold.recommender.reading.summary import LogSummary

__all__ = ["Config", "LearnedFrom", "Metrics"]


@dataclass(frozen=True)
class LearnedFrom:
    """Size of the training data.

    Attributes:
        users, items, pairs: counts.
        everything: whether it is the whole log.
        tables: how anchor tables were trained, for messages; None for dense tables.
    """

    users: int
    items: int
    pairs: int
    everything: bool
    tables: str | None = None


@dataclass(frozen=True)
class Config:
    """`config.json`: model, training, data and versions.

    Attributes:
        model: `kind`, and the settings of its recipe.
        training: the settings of the `Training`.
        seed: at least 0.
        data: summary of the log.
        learned_from: size of the training data.
        versions: versions of the libraries.
    """

    model: Mapping[str, Any]
    training: Mapping[str, Any]
    seed: int
    data: LogSummary
    learned_from: LearnedFrom = field(metadata=key("learned from"))
    versions: Mapping[str, str]

    def __post_init__(self) -> None:
        whole_number(self.seed, "seed", least=0)


@dataclass(frozen=True)
class _Score:
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class _Scores:
    users: int
    level: float
    scores: Mapping[str, _Score]


@dataclass(frozen=True)
class Metrics:
    """`metrics.json`: results of the evaluation; see `Evaluation.as_dict`."""

    split: str
    overall: _Scores
    formulas: Mapping[str, str]
    slices: Mapping[str, _Scores]
    pairs: int = field(metadata=key("test pairs"))
    cold_pairs: int = field(metadata=key("test pairs with an item not seen in training"))

    def __post_init__(self) -> None:
        unexplained = set(self.overall.scores) - set(self.formulas)
        if unexplained:
            raise ValueError(f"formulas must have {min(unexplained)!r}")
