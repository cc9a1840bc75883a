"""`MatrixRecommender`: any model of the recommender, on matrices whose rows are users."""

from dataclasses import fields, is_dataclass, replace
from typing import Any, Self

import numpy as np

from fewfold._check import whole_number
from fewfold._optional import optional_import
from fewfold.recommender import (
    NDCG,
    Interactions,
    Metric,
    Model,
    Recommender,
    evaluate,
    random_split,
)

with optional_import("scikit-learn", "sklearn", "fewfold.sklearn"):
    from scipy.sparse import csr_array
    from sklearn.base import BaseEstimator
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted, validate_data

__all__ = ["MatrixRecommender"]


class MatrixRecommender(BaseEstimator):
    """Recommends columns of a matrix to its rows: rows are users, columns items.

    An entry other than zero is an interaction. `predict` ranks the items for any rows, of users in
    the training matrix or not, so that cross-validation over rows measures how well new users are
    served. The settings of the model are parameters too: `model__l2` is that of `EASE`.

    Args:
        model: such as `EASE()`, `ItemKNN()` or `VAE()`; `Auto()` if None.
        k: number of items that `predict` ranks and `score` looks at.
        weighted: use the values of the matrix as confidences; otherwise all entries count alike.
        hidden: share of the items of each row that `score` hides.
        metric: what `score` returns; `NDCG(k)` if None.
        random_state: seed, or a generator of NumPy, for the training and the hidden items.

    Attributes:
        recommender_: the fitted `Recommender`, which identifies items by their columns.

    Example:
        >>> import numpy as np
        >>> from fewfold.recommender import EASE
        >>> from fewfold.sklearn import MatrixRecommender
        >>> X = np.array([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 1, 1, 1]])
        >>> MatrixRecommender(EASE(l2=1.0), k=1).fit(X).predict([[1, 0, 0, 0], [0, 0, 1, 0]])
        array([[1],
               [3]])
    """

    def __init__(
        self,
        model: Model | None = None,
        *,
        k: int = 10,
        weighted: bool = False,
        hidden: float = 0.2,
        metric: Metric | None = None,
        random_state: Any = 0,
    ) -> None:
        self.model = model
        self.k = k
        self.weighted = weighted
        self.hidden = hidden
        self.metric = metric
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the model to a matrix (users, items), dense or sparse; `y` is ignored."""
        matrix, seed = self._matrix(X, reset=True), self._seed()
        recommender = Recommender(self.model, seed=seed)
        weight = True if self.weighted else None
        self.recommender_ = recommender.fit(matrix, weight=weight, progress=False)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return the k best items for each row, without those in it.

        Returns:
            (rows, k) int64, best first; -1 where no item is left. There are fewer columns if there
            are fewer than k items.
        """
        check_is_fitted(self)
        return self._ranked(self._interactions(X))

    def score(self, X: Any, y: Any = None) -> float:
        """Hide some items of each row, rank them by the others; return the mean of the metric.

        Which items are hidden depends on `random_state` and on X alone. Rows with very few items
        are not counted. `y` is ignored.
        """
        check_is_fitted(self)
        if not 0 < self.hidden < 1:
            raise ValueError(f"hidden must be above 0 and below 1, got {self.hidden}")
        split = random_split(self._interactions(X), test=self.hidden, seed=self._seed())
        metric = self.metric if self.metric is not None else NDCG(self.k)
        top = self.recommender_.fitted.rank(
            split.fold_in.jagged, min(metric.k, split.fold_in.items), exclude=split.fold_in.jagged
        ).ids
        return float(evaluate(top, split.test, (metric,), resamples=0)[metric].mean)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters, and with `deep` the settings of the model as `model__NAME`."""
        params: dict[str, Any] = super().get_params(deep=False)
        if deep:
            params |= {f"model__{name}": getattr(self.model, name) for name in self._settings()}
        return params

    def set_params(self, **params: Any) -> Self:
        """Set parameters, also those of the model: ``set_params(model__l2=100.0)``."""
        own = {name: value for name, value in params.items() if not name.startswith("model__")}
        super().set_params(**own)
        nested = {name.removeprefix("model__"): params[name] for name in params if name not in own}
        unknown = sorted(set(nested) - set(self._settings()))
        if unknown:
            raise ValueError(
                f"{type(self.model).__name__} has no setting {unknown[0]!r}; its settings are "
                f"{', '.join(self._settings()) or 'none, so give a model'}"
            )
        if nested:
            self.model = replace(self.model, **nested)  # type: ignore[type-var]
        return self

    def _settings(self) -> tuple[str, ...]:
        model = self.model
        return tuple(one.name for one in fields(model) if one.init) if is_dataclass(model) else ()

    def _ranked(self, rows: Interactions) -> np.ndarray:
        k = min(whole_number(self.k, "k"), rows.items)
        found = self.recommender_.fitted.rank(rows.jagged, k, exclude=rows.jagged)
        return found.ids.numpy()

    def _interactions(self, X: Any) -> Interactions:
        matrix = self._matrix(X, reset=False)
        return Interactions.from_csr((matrix != 0).astype(np.int8))

    def _matrix(self, X: Any, *, reset: bool) -> Any:
        given = validate_data(
            self, X, accept_sparse="csr", dtype="numeric", ensure_non_negative=True, reset=reset
        )
        return csr_array(given)

    def _seed(self) -> int:
        state = self.random_state
        if isinstance(state, (int, np.integer)):
            return int(state)
        return int(check_random_state(state).randint(2**31 - 1))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = tags.input_tags.positive_only = True
        return tags
