"""Layout of the results that a model folder keeps: the evaluation and a comparison of models."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fewfold.recommender.artifact.schema import key

__all__ = ["StoredComparison", "StoredEvaluation"]


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
class StoredEvaluation:
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


@dataclass(frozen=True)
class _StoredContender:
    model: str
    settings: str
    summary: str
    seconds: float
    bytes: int
    speed: float = field(metadata=key("users per second"))
    ranked: str = field(metadata=key("users ranked"))
    users: int
    level: float
    scores: Mapping[str, _Score]
    slices: Mapping[str, _Scores]
    behind: _Score | None = field(metadata=key("behind the best"))


@dataclass(frozen=True)
class StoredComparison:
    """`comparison` of `config.json`: models on one split; see `Comparison.as_dict`."""

    split: str
    metric: str
    models: tuple[_StoredContender, ...]
    formulas: Mapping[str, str]
    skipped: Mapping[str, str]
    verdict: str

    def __post_init__(self) -> None:
        if not self.models:
            raise ValueError("models must be at least one")
        for name in (self.metric, *(name for one in self.models for name in one.scores)):
            if name not in self.formulas:
                raise ValueError(f"formulas must have {name!r}")
        for one in self.models:
            if self.metric not in one.scores:
                raise ValueError(f"scores of {one.model} must have {self.metric!r}")
