"""Alternating least squares for implicit feedback: item vectors, and users solved from their items.

The vectors are rotated so that their Gram matrix is diagonal. A user or item with few pairs then
takes a system of as many unknowns as pairs, instead of `factors`.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewfold._check import non_negative_number, positive_number, whole_number
from fewfold._progress import phase, silence
from fewfold._resources import format_bytes, free_memory
from fewfold._tensors import Found, Spec
from fewfold.recommender.interactions import Interactions, Jagged
from fewfold.recommender.models.baseline import more_counts
from fewfold.recommender.models.fitted_vectors import FittedVectors
from fewfold.recommender.models.least_squares import Rotated, diagonalise, regress
from fewfold.recommender.models.model import FitOptions, Fitted, Learned, Model
from fewfold.recommender.models.model_options import ALS as OPTIONS
from fewfold.recommender.models.model_options import setting
from fewfold.recommender.models.registry import register

__all__ = ["ALS", "FittedALS", "users_by_item"]

_START = 0.1  # norm of a random item vector
_POPULARITY = 1e-3  # of the most popular item, in the column for users without items
_MOST_FACTORS = 4096
# Regularisation that validated best on logs of 5,000 to 6,000 items, and of 41,000 to 263,000.
_FEW_ITEMS, _MANY_ITEMS = (6_000, 0.01), (40_000, 0.003)
_GRID = ((0.003, 0.03), (0.01, 0.06), (0.01, 0.01), (0.003, 0.01))
_STEPS = 20  # of the conjugate gradients in an exported scorer


@register
@dataclass(frozen=True)
class ALS(Model):
    """Matrix factorisation of implicit feedback by alternating least squares (iALS).

    Vectors w_u of users and h_i of items minimise::

        sum over pairs of c_ui (1 - <w_u, h_i>)^2  +  a sum over all u, i of <w_u, h_i>^2
        + l sum_u (n_u + a items)^v |w_u|^2  +  l sum_i (n_i + a users)^v |h_i|^2

    for a the unobserved weight, l the regularisation, v the `frequency_exponent`, n_u and n_i the
    numbers of pairs, and confidences c_ui: `Interactions.weights`, or 1. Vectors of users and of
    items are computed in turn, each side by least squares. Those of users are not stored: a query
    is solved exactly from the items of the history, with the mean confidence of the log for each of
    them, so that users of the log and new ones are treated alike. A user without items gets the
    most popular.

    Attributes:
        factors: length of the vectors.
        regularisation: l, above 0; by default, from the number of items: 0.01 for up to 6,000,
            0.003 for 40,000 and more, and between the two in proportion of the logarithms.
        unobserved_weight: a, weight of every pair, observed or not; above 0.
        iterations: of solving for all users, then for all items.
        frequency_exponent: v; 0 regularises all vectors alike, 1 in proportion to their pairs.

    Example:
        >>> from fewfold.recommender import ALS, Interactions
        >>> train = Interactions.from_pairs([0, 0, 1, 1, 2, 2], [0, 1, 0, 1, 2, 3])
        >>> fitted = ALS(factors=2).fit(train)
        >>> fitted.rank(Interactions.from_pairs([0], [3]).jagged, 2).ids
        tensor([[2, 3]])

    Reference:
        Hu, Koren, Volinsky (2008). Collaborative filtering for implicit feedback datasets. ICDM.
        Rendle, Krichene, Zhang, Koren (2021). Revisiting the performance of iALS on item
        recommendation benchmarks. arXiv:2110.14037.
    """

    name: ClassVar[str] = "als"
    colour: ClassVar[str] = "#1f9e89"
    weighted: ClassVar[bool] = True
    completable: ClassVar[bool] = True
    extendable: ClassVar[bool] = True
    update_note: ClassVar[str] = "vectors of new items are solved from those of their users"
    factors: int = field(default=256, metadata=setting(OPTIONS["factors"], "{} factors"))
    regularisation: float | None = field(
        default=None, metadata=setting(OPTIONS["regularisation"], "regularisation {:g}")
    )
    unobserved_weight: float = field(
        default=0.03, metadata=setting(OPTIONS["unobserved_weight"], "unobserved {:g}")
    )
    iterations: int = field(default=16, metadata=setting(OPTIONS["iterations"]))
    frequency_exponent: float = 1.0

    def __post_init__(self) -> None:
        if whole_number(self.factors, "factors") > _MOST_FACTORS:
            raise ValueError(f"factors must be at most {_MOST_FACTORS}, got {self.factors}")
        if self.regularisation is not None:
            positive_number(self.regularisation, "regularisation")
        positive_number(self.unobserved_weight, "unobserved_weight")
        whole_number(self.iterations, "iterations")
        non_negative_number(self.frequency_exponent, "frequency_exponent")

    @classmethod
    def grid(cls, items: int) -> "Sequence[ALS]":
        """Pairs of penalty and unobserved weight, each the best one on some log."""
        return [cls(regularisation=penalty, unobserved_weight=weight) for penalty, weight in _GRID]

    @classmethod
    def too_large(cls, items: int) -> str:
        """Why the vectors do not fit into memory; empty if they do."""
        need = 12 * items * cls.factors
        if need > 0.6 * free_memory():
            return f"it needs vectors of {cls.factors} numbers, {format_bytes(need)} for all"
        return ""

    def resolved(self, items: int) -> "ALS":
        """The same with a regularisation, by default the one for this many items."""
        if self.regularisation is not None:
            return self
        (few, high), (many, low) = _FEW_ITEMS, _MANY_ITEMS
        share = math.log(max(items, few) / few) / math.log(many / few)
        return replace(self, regularisation=high * (low / high) ** min(share, 1.0))

    def work(self, log: Interactions) -> float:
        """Multiply-adds of all iterations: small systems of short rows, and Gram matrices.

        They run faster than those of training, which counts for less than half of them.
        """
        rows = 2.0 * log.pairs * min(self.factors, 64) * self.factors
        grams = 2.0 * (log.users + log.items) * self.factors**2
        return 0.4 * self.iterations * (rows + grams)

    def fit(self, train: Interactions) -> "FittedALS":
        """Fit to interactions, from random item vectors of seed 0."""
        return self.resolved(train.items)._solve(train, seed=0)

    def learn(self, log: Interactions, options: FitOptions) -> Learned:
        """Fit to a log, as `Recommender.fit` and `compare` do."""
        if options.checkpoint is not None:
            raise ValueError("an ALS is fitted in one run and needs no checkpoint; leave it out")
        with silence(not options.progress):
            return Learned(self.resolved(log.items)._solve(log, options.seed), log, [])

    def _solve(self, log: Interactions, seed: int) -> "FittedALS":
        generator = torch.Generator().manual_seed(seed)
        items = torch.randn(log.items, self.factors, generator=generator)
        items *= _START / self.factors**0.5
        with phase("fitting ALS", total=self.iterations) as progress:
            turned, weights = users_by_item(log)
            users: Tensor | None = None
            for iteration in progress.each(range(self.iterations)):
                users = self.solve_side(log.jagged, log.weights, items, users)
                items = self.solve_side(turned, weights, users, items if iteration else None)
            rotated = diagonalise(items)
        counts = log.popularity()
        confidence = torch.ones(()) if log.weights is None else log.weights.mean()
        return FittedALS(self, rotated.table, rotated.gram, counts, confidence)

    def solve_side(
        self, rows: Jagged, weights: Tensor | None, others: Tensor, start: Tensor | None = None
    ) -> Tensor:
        """Vectors of users, or of items, from those of the others; overwrites `others` and `start`.

        Args:
            rows: numbers of the others, for each row.
            weights: of these pairs, or None.
            others: (n, factors) vectors.
            start: (rows, factors) vectors of the last iteration, from which long rows are improved
                instead of solved.
        """
        table = diagonalise(others)
        ridge = self.ridge(rows.lengths, len(others))
        return regress(rows, table, ridge, weights, start, scale=self.unobserved_weight)

    def ridge(self, pairs: Tensor, others: int) -> Tensor:
        """(rows,) regularisation of vectors with so many pairs out of `others` possible ones."""
        if self.regularisation is None:
            raise ValueError("regularisation depends on the number of items; call resolved(items)")
        known = pairs.float() + self.unobserved_weight * others
        return self.regularisation * known**self.frequency_exponent

    def updated(self, fitted: Fitted, log: Interactions, added: Interactions) -> "FittedALS":
        """The fitted model with vectors for new items: half an iteration of the fit, for these."""
        assert isinstance(fitted, FittedALS)
        counts, vectors, gram = more_counts(fitted.counts, added), fitted.item_vectors, fitted.gram
        new = torch.arange(fitted.items, log.items)
        if len(new):
            users = fitted.queries(log.jagged.select(log.ids < fitted.items))[:, :-1]
            table, rows = diagonalise(users.contiguous()), users_by_item(log)[0].rows(new)
            ridge = self.ridge(rows.lengths, log.users)
            confidence = fitted.confidence.expand(len(rows.values)).contiguous()
            found = regress(rows, table, ridge, confidence, scale=self.unobserved_weight)
            items = torch.cat([vectors, found @ table.rotation.T])
            vectors, gram, _ = diagonalise(items)
        return FittedALS(self, vectors, gram, counts, fitted.confidence)

    def layout(self, found: Found, items: int) -> Iterator[tuple[str, Spec]]:
        """Yield the specifications of vectors, diagonal Gram matrix, counts and confidence."""
        yield "items", Spec((items, self.factors))
        yield "gram", Spec((self.factors,), least=0)
        yield "counts", Spec((items,), least=0)
        yield "confidence", Spec((), positive=True)

    def largest(self, ranges: Mapping[str, tuple[float, float]], items: int) -> float:
        """Upper bound of all scores and intermediate values, from the range of each tensor.

        The loss of a query is at most that of zeros, which bounds the length of the query.
        """
        size = {name: max(abs(low), abs(high)) for name, (low, high) in ranges.items()}
        try:
            least = float(self.resolved(items).ridge(torch.ones(()), items))
            length = math.sqrt(self.factors) * size["items"]
            query = math.sqrt(items * size["confidence"] / least)
            squares = size["confidence"] * items * length**2
            found = [length**2 / least, squares, query * length, size["gram"], size["counts"]]
        except (OverflowError, ZeroDivisionError):
            return math.inf
        return max(found) if all(map(math.isfinite, found)) else math.inf

    def from_state(self, tensors: dict[str, Tensor], items: int) -> "FittedALS":
        """The fitted model with these tensors."""
        return FittedALS(
            self.resolved(items), tensors["items"], tensors["gram"], tensors["counts"],
            tensors["confidence"],
        )  # fmt: skip


class FittedALS(FittedVectors):
    """Item vectors of `ALS`; a query is the regression of a user on the items of the history."""

    def __init__(
        self, recipe: ALS, vectors: Tensor, gram: Tensor, counts: Tensor, confidence: Tensor
    ) -> None:
        self._recipe, self.items = recipe, len(vectors)
        self.item_vectors, self.gram = vectors, gram
        self.counts, self.confidence = counts, confidence

    @property
    def recipe(self) -> ALS:
        """The `ALS` this was fitted by."""
        return self._recipe

    @cached_property
    def vectors(self) -> Tensor:
        """(items, factors + 1) item vectors, and a column of popularity for empty histories."""
        popularity = self.counts * (_POPULARITY / self.counts.max().clamp(min=1))
        return torch.cat([self.item_vectors, popularity.unsqueeze(1)], 1)

    def normalised(self) -> Tensor:
        """Compute (items, factors) item vectors of length one."""
        return F.normalize(self.item_vectors)

    def queries(self, history: Jagged) -> Tensor:
        """(rows, factors + 1) query vectors of users with these items."""
        recipe, lengths = self._recipe, history.lengths
        weight = float(self.confidence)
        weights = None if weight == 1 else self.confidence.expand(len(history.values)).contiguous()
        others = Rotated(self.item_vectors, self.gram, torch.empty(0))
        ridge = recipe.ridge(lengths, self.items)
        found = regress(history, others, ridge, weights, scale=recipe.unobserved_weight)
        return torch.cat([found, (lengths == 0).float().unsqueeze(1)], 1)

    def state(self) -> dict[str, Tensor]:
        """Item vectors, diagonal of their Gram matrix, users of each item, mean confidence."""
        return {
            "items": self.item_vectors,
            "gram": self.gram,
            "counts": self.counts,
            "confidence": self.confidence,
        }

    def to_onnx(self) -> nn.Module:
        """Module from padded histories to scores."""
        return _PaddedScores(self)


def users_by_item(log: Interactions) -> tuple[Jagged, Tensor | None]:
    """Users of every item, and the weights of these pairs."""
    order = log.ids.argsort(stable=True)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), log.counts().cumsum(0)])
    weights = None if log.weights is None else log.weights[order]
    return Jagged(log.row[order], offsets), weights


class _PaddedScores(nn.Module):
    """ALS from (rows, length) item numbers, padded with -1, to (rows, items) scores.

    ONNX cannot solve equations. The system in the items of a history is solved by conjugate
    gradients, so many steps that the rest is rounding unless the regularisation is tiny.
    """

    def __init__(self, fitted: FittedALS) -> None:
        super().__init__()
        self.recipe, self.items = fitted.recipe, fitted.items
        self.vectors, self.gram = nn.Buffer(fitted.vectors), nn.Buffer(fitted.gram)
        self.confidence = float(fitted.confidence)

    def forward(self, history: Tensor) -> Tensor:
        there = (history >= 0).float()
        count = there.sum(1)
        ridge = self.recipe.ridge(count, self.items).unsqueeze(1)
        scale = (self.recipe.unobserved_weight * self.gram + ridge).rsqrt().unsqueeze(1)
        rows = self.vectors[history.clamp(min=0)][:, :, :-1] * there.unsqueeze(2) * scale
        matrix = rows @ rows.mT + torch.eye(history.shape[1]) / self.confidence
        answer = _conjugate_gradients(matrix, there.unsqueeze(2))
        query = (rows.mT @ answer).squeeze(2) * scale.squeeze(1)
        query = torch.cat([query, (count == 0).float().unsqueeze(1)], 1)
        return query @ self.vectors.T


def _conjugate_gradients(matrix: Tensor, target: Tensor) -> Tensor:
    """Solve ``matrix @ x = target`` for every row, (rows, n, 1)."""
    answer, rest = torch.zeros_like(target), target
    step, size = rest, (rest * rest).sum(1, keepdim=True)
    for _ in range(_STEPS):
        image = matrix @ step
        by = size / (step * image).sum(1, keepdim=True).clamp(min=1e-30)
        answer, rest = answer + by * step, rest - by * image
        before, size = size, (rest * rest).sum(1, keepdim=True)
        step = rest + size / before.clamp(min=1e-30) * step
    return answer
