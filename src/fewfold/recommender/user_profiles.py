"""Recommendations to users without a history, from what users with the same attributes like."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewfold._progress import phase
from fewfold.recommender.attributes import Attributes
from fewfold.recommender.evaluation.metrics import NDCG, evaluate
from fewfold.recommender.evaluation.paired_interval import paired_interval
from fewfold.recommender.ids import Ids
from fewfold.recommender.interactions import Interactions, Jagged
from fewfold.recommender.ranking.exact_ranking import Ranking, top_k

__all__ = ["ProfileColumn", "ProfileSettings", "UserProfiles"]

_KINDS = ("category", "number")
_LEAST = 5  # users of a category; rarer ones count as missing
_MOST = 1000  # categories of a column
_DISTINCT = 30  # a column of more different numbers is cut into bins
_BINS = 10
_NUMBERS = 0.9  # least share of numbers in a column of them
_FOLDS, _VALIDATED, _FEWEST = 5, 2000, 50  # users without a history in validation
_STRENGTHS = (100.0, 1000.0, 10_000.0)
_EXPONENTS = (0.5, 1.0)
_METRIC = NDCG(10)


@dataclass(frozen=True)
class ProfileColumn:
    """How the values of one attribute are told apart.

    Attributes:
        name: of the column.
        kind: "category" or "number".
        values: the categories.
        edges: rising numbers between which the bins of a number lie.
    """

    name: str
    kind: str
    values: tuple[str, ...] = ()
    edges: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ValueError(f"kind must be one of {', '.join(_KINDS)}, got {self.kind!r}")

    @classmethod
    def of(cls, name: str, texts: Sequence[str]) -> "ProfileColumn":
        """Find out from the values of all users what kind of attribute it is."""
        given = [text for text in texts if text]
        numbers = [found for text in given if (found := _number(text)) is not None]
        if len(set(numbers)) > _DISTINCT and len(numbers) >= _NUMBERS * len(given):
            bounds = np.quantile(numbers, np.arange(1, _BINS) / _BINS)
            return cls(name, "number", edges=tuple(np.unique(bounds).tolist()))
        common = Counter(given).most_common(_MOST)
        return cls(name, "category", tuple(sorted(v for v, count in common if count >= _LEAST)))

    @property
    def size(self) -> int:
        """Number of values that are told apart."""
        return len(self.values) if self.kind == "category" else len(self.edges) + 1

    def codes(self, texts: Sequence[str]) -> np.ndarray:
        """Return the number of each value, -1 if it is missing or unknown."""
        if self.kind == "category":
            known = {value: code for code, value in enumerate(self.values)}
            return np.array([known.get(text, -1) for text in texts], dtype=np.int32)
        numbers = [_number(text) for text in texts]
        place = np.searchsorted(self.edges, [n or 0.0 for n in numbers], side="right")
        return np.where([n is None for n in numbers], -1, place).astype(np.int32)


@dataclass(frozen=True)
class ProfileSettings:
    """How attributes of users are used, and what that gained in validation.

    Attributes:
        columns: the attributes.
        strength: s, interactions at which half of what is known of a value is its own; None if
            attributes did not help, and users without a history get what is popular.
        exponent: t, weight of the attributes.
        users: number of users that were validated; 0 if the log is too small.
        gain: NDCG@10 above that of popularity.
        low, high: 95 % interval of the gain, by user.
    """

    columns: tuple[ProfileColumn, ...]
    strength: float | None = 1000.0
    exponent: float = 0.5
    users: int = 0
    gain: float = 0.0
    low: float = 0.0
    high: float = 0.0

    def __post_init__(self) -> None:
        if self.strength is not None and not 0 < self.strength < math.inf:
            raise ValueError(f"strength must be above 0 and finite, got {self.strength}")
        if not 0 < self.exponent <= 1:
            raise ValueError(f"exponent must be above 0 and at most 1, got {self.exponent}")

    def __str__(self) -> str:
        names = ", ".join(column.name for column in self.columns)
        if not self.users:
            return f"users without a history: by {names} (the log is too small to validate)"
        found = f"NDCG@10 {self.gain:+.4f} ({self.low:+.4f} to {self.high:+.4f}) against popularity"
        used = f"by {names}" if self.strength is not None else f"by popularity, not by {names}"
        return f"users without a history: {used}; {found} for {self.users:,} users"


@dataclass(frozen=True, eq=False)
class UserProfiles:
    """What users with certain attributes like.

    With p_i the share of item i in all interactions, n_vi those of users with the attribute value v
    and n_v their sum,

        score_i = log p_i + t sum over the values v of the user of
                  log( (n_vi + s p_i) / ((n_v + s) p_i) ),

    naive Bayes with shares that are drawn to p_i the more the fewer interactions a value has.

    Attributes:
        settings: columns, s and t.
        popularity: (items,) interactions of each item, or the sum of their weights.
        counts: (values, items) scipy `csr_array`, n; the values of all columns one after the other.
        ids: users of the table without interactions, if they were kept.
        codes: (ids, columns) their values, -1 where missing.

    Example:
        >>> from fewfold.recommender import Interactions
        >>> from fewfold.recommender.attributes import Attributes
        >>> from fewfold.recommender.user_profiles import UserProfiles
        >>> log = Interactions.from_pairs(range(20), [n % 2 for n in range(20)])
        >>> found = UserProfiles.fit(log, Attributes.of({"sex": ["f", "m"] * 10}), seed=0)
        >>> found.rank(found.encode([{"sex": "m"}]), 1).ids
        tensor([[1]])
    """

    settings: ProfileSettings
    popularity: Tensor
    counts: Any
    ids: Ids | None = None
    codes: Tensor | None = None

    @classmethod
    def fit(cls, log: Interactions, attributes: Attributes, *, seed: int) -> "UserProfiles":
        """Count what users with each value like, and choose s and t in validation.

        Args:
            log: users x items.
            attributes: of the users; rows beyond those of the log are of users without any.
            seed: of the users that validate.
        """
        names = attributes.columns
        columns = [ProfileColumn.of(name, names[name].tolist()) for name in names]
        columns = [column for column in columns if column.size > 1]
        if not columns:
            raise ValueError(
                "the users table says nothing that users share; add columns such as age or country"
            )
        settings = ProfileSettings(tuple(columns))
        rows = [column.codes(names[column.name].tolist()[: log.users]) for column in columns]
        codes = torch.from_numpy(np.stack(rows, 1))
        with phase("learning from attributes of users"):
            return _counted(_tuned(log, codes, settings, seed), log, codes)

    @property
    def used(self) -> bool:
        """Whether attributes are used; otherwise they did not help in validation."""
        return self.settings.strength is not None

    def with_items(self, items: int) -> "UserProfiles":
        """Return profiles of more items, which nobody likes yet."""
        from scipy.sparse import csr_array

        more = items - len(self.popularity)
        parts = (self.counts.data, self.counts.indices, self.counts.indptr)
        counts = csr_array(parts, shape=(self.counts.shape[0], items))
        popularity = torch.nn.functional.pad(self.popularity, (0, more))
        return replace(self, popularity=popularity, counts=counts) if more else self

    def encode(self, users: Sequence[Mapping[str, Any]]) -> Tensor:
        """Return (users, columns) codes of attributes by name; unknown ones are ignored."""
        rows = []
        for column in self.settings.columns:
            texts = [user.get(column.name) for user in users]
            rows.append(column.codes(["" if text is None else str(text) for text in texts]))
        return torch.from_numpy(np.stack(rows, 1)) if users else torch.empty(0, len(rows)).int()

    def rank(
        self,
        codes: Tensor,
        k: int,
        *,
        exclude: Jagged | None = None,
        allowed: Tensor | None = None,
    ) -> Ranking:
        """Rank the best k items for users with these codes; see `Fitted.rank`."""
        return top_k(_Scores(self, codes), k, exclude=exclude, allowed=allowed)


@dataclass(frozen=True, eq=False)
class _Scores:
    """The scorer of users with these codes."""

    profiles: UserProfiles
    codes: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.codes), len(self.profiles.popularity)

    def __call__(self, users: slice, items: slice) -> Tensor:
        popularity, settings = self.profiles.popularity.double(), self.profiles.settings
        share = (popularity + 1) / (popularity + 1).sum()
        base = share[items].log()
        codes = self.codes[users]
        scores = base.expand(len(codes), -1).clone()
        if settings.strength is not None:
            starts = _starts(settings)
            values, place = (codes + starts).where(codes >= 0, -1).unique(return_inverse=True)
            rows = values.clamp(min=0).numpy()
            total = torch.from_numpy(np.asarray(self.profiles.counts.sum(1))).ravel()[rows]
            found = torch.from_numpy(self.profiles.counts[rows][:, items].toarray()).double()
            ratio = found / share[items] + settings.strength
            gain = ratio.log() - (total + settings.strength).double().log().unsqueeze(1)
            gain[values < 0] = 0.0
            for column in range(codes.shape[1]):
                scores += settings.exponent * gain[place[:, column]]
        return scores.float()


def _starts(settings: ProfileSettings) -> Tensor:
    """(columns,) number of the first value of each column."""
    sizes = torch.tensor([0, *(column.size for column in settings.columns)])
    return sizes.cumsum(0)[:-1]


def _counted(settings: ProfileSettings, log: Interactions, codes: Tensor) -> UserProfiles:
    """Count the interactions of users with each value."""
    from scipy.sparse import csr_array

    user, column = (codes >= 0).nonzero(as_tuple=True)
    value = codes[user, column] + _starts(settings)[column]
    size = sum(one.size for one in settings.columns)
    ones = np.ones(len(user), dtype=np.float32)
    have = csr_array((ones, (value.numpy(), user.numpy())), shape=(size, log.users))
    counts = (have @ log.to_csr(log.weights)).tocsr()
    counts.sort_indices()
    return UserProfiles(settings, log.popularity(), counts)


def _tuned(
    log: Interactions, codes: Tensor, settings: ProfileSettings, seed: int
) -> ProfileSettings:
    """Choose s and t on users whose histories are hidden, fold by fold, the gain on others."""
    able = ((codes >= 0).any(1) & (log.jagged.lengths > 0)).nonzero().squeeze(1)
    if len(able) < _FEWEST:
        return settings
    order = able[torch.randperm(len(able), generator=torch.Generator().manual_seed(seed))]
    grid: list[tuple[float | None, float]] = [(None, 1.0)]
    grid += [(s, t) for s in _STRENGTHS for t in _EXPONENTS]
    parts = [
        _qualities(log, codes, one[: _VALIDATED // _FOLDS], settings, grid)
        for one in order.tensor_split(_FOLDS)
    ]
    popular, *others = (torch.cat(found) for found in zip(*parts, strict=True))
    even = torch.arange(len(popular)) % 2 == 0
    number = max(range(len(others)), key=lambda one: float(others[one][even].mean()))
    gain = paired_interval(others[number][~even], popular[~even])
    strength, exponent = grid[1 + number]
    return replace(
        settings, strength=strength if gain.low > 0 else None, exponent=exponent,
        users=int((~even).sum()), gain=gain.mean, low=gain.low, high=gain.high,
    )  # fmt: skip


def _qualities(
    log: Interactions,
    codes: Tensor,
    hidden: Tensor,
    settings: ProfileSettings,
    grid: Sequence[tuple[float | None, float]],
) -> list[Tensor]:
    """(hidden,) NDCG@10 of users whose histories are hidden from the counts, for each s and t."""
    there = torch.ones(log.users, dtype=torch.bool)
    there[hidden] = False
    profiles = _counted(settings, log.keep(there[log.row]), codes)
    found = []
    for strength, exponent in grid:
        changed = replace(settings, strength=strength, exponent=exponent)
        top = replace(profiles, settings=changed).rank(codes[hidden], 10).ids
        values = evaluate(top, log.rows(hidden), (_METRIC,), resamples=0)[_METRIC]
        found.append(values.per_user)
    return found


def _number(text: str) -> float | None:
    """The number that a text is, if it is finite."""
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) else None
