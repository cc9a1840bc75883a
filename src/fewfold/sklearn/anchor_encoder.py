"""`AnchorEncoder`: categorical columns as vectors made of a few anchors, learned from a target."""

from typing import Any, Self

import numpy as np
import torch

from fewfold._check import non_negative_number, whole_number
from fewfold._optional import optional_import
from fewfold.sklearn.anchor_training import AnchorTraining
from fewfold.sklearn.categories import Categories

with optional_import("scikit-learn", "sklearn", "fewfold.sklearn"):
    from sklearn.base import BaseEstimator, TransformerMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import _check_feature_names_in, check_is_fitted, validate_data

__all__ = ["AnchorEncoder"]


class AnchorEncoder(TransformerMixin, BaseEstimator):
    """Encodes categorical columns as vectors that are sparse combinations of anchors.

    Each column has a table whose row for category i is sum_k T_ik A_k with T >= 0 and at most
    `nonzeros` entries above zero per row. The tables are trained, together with a network of one
    hidden layer on their concatenated vectors, to predict the target: cross-entropy for classes,
    squared error for numbers. `transform` returns the concatenated vectors. Categories that act
    alike, alone or together with those of other columns, have vectors close to each other, which an
    encoder that looks at one column at a time cannot know; a column of thousands of categories
    becomes `dim` numbers.

    The vectors have seen the target of the training rows: judge a pipeline by rows that it was not
    fitted to, as `cross_val_score` and `GridSearchCV` do, and raise `l2` if many categories are
    rare. A category that was not there in `fit` gets the mean vector of the training rows.

    Args:
        dim: length of the vector of a column.
        anchors: number of anchors of a column; those with fewer categories have one per category.
        nonzeros: maximum number of anchors that a category combines.
        l2: decay of weights in the training (as of AdamW).
        epochs: passes over the rows.
        random_state: seed, or a generator of NumPy.

    Attributes:
        categories_: the categories of each column; None is a missing value.
        anchors_: (anchors, dim) array for each column.
        codes_: (categories + 1, anchors) sparse matrix for each column; row 0 is for unknown
            categories.

    Example:
        >>> import numpy as np
        >>> from fewfold.sklearn import AnchorEncoder
        >>> X = np.array([["red", "s"], ["blue", "m"], ["red", "m"], ["pink", "s"]] * 20, dtype=object)
        >>> y = (X[:, 0] != "blue").astype(int)
        >>> encoder = AnchorEncoder(dim=2, random_state=0).fit(X, y)
        >>> encoder.transform([["pink", "xl"]]).shape
        (1, 4)
        >>> encoder.get_feature_names_out(["colour", "size"])
        array(['colour_0', 'colour_1', 'size_0', 'size_1'], dtype=object)

    Reference: Liang, Zaheer, Wang, Ahmed, "Anchor & Transform: learning sparse embeddings for large
    vocabularies", 2021.
    """  # noqa: E501

    def __init__(
        self,
        dim: int = 8,
        *,
        anchors: int = 16,
        nonzeros: int = 4,
        l2: float = 0.1,
        epochs: int = 10,
        random_state: Any = None,
    ) -> None:
        self.dim = dim
        self.anchors = anchors
        self.nonzeros = nonzeros
        self.l2 = l2
        self.epochs = epochs
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Learn the vectors of the categories.

        Args:
            X: (rows, columns) frame or array of categories: texts, numbers, missing values.
            y: (rows,) the target: floats are numbers, all else is classes. For counts or ratings
                write ``y.astype(float)``.
        """
        training = self._training()
        X, y = validate_data(self, X, y, dtype=None, ensure_all_finite="allow-nan")
        generator = torch.Generator()
        generator.manual_seed(int(check_random_state(self.random_state).randint(2**31 - 1)))
        found = [Categories.of(column) for column in X.T]
        self._categories = [categories for categories, _ in found]
        self.categories_ = [np.array(one.values, dtype=object) for one in self._categories]
        numbers = np.stack([column for _, column in found], axis=1)
        counts = [len(one.values) for one in self._categories]
        trained = training.run(numbers, counts, self._target(y), generator)
        self.codes_ = [one.codes for one in trained]
        self.anchors_ = [one.anchors for one in trained]
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Return the vectors of the rows, (rows, columns * dim) float32."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=None, ensure_all_finite="allow-nan", reset=False)
        parts = zip(X.T, self._categories, self.codes_, self.anchors_, strict=True)
        vectors = [codes[known.numbers(one)] @ anchors for one, known, codes, anchors in parts]
        return np.concatenate(vectors, axis=1)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names of the output columns, NAME_0 to NAME_(dim - 1) for each column."""
        check_is_fitted(self)
        names = _check_feature_names_in(self, input_features)
        width = self.anchors_[0].shape[1]
        return np.array([f"{name}_{n}" for name in names for n in range(width)], dtype=object)

    def _training(self) -> AnchorTraining:
        """Validate the parameters."""
        for name in ("dim", "anchors", "nonzeros", "epochs"):
            whole_number(getattr(self, name), name)
        non_negative_number(self.l2, "l2")
        return AnchorTraining(self.dim, self.anchors, self.nonzeros, self.l2, self.epochs)

    def _target(self, y: np.ndarray) -> torch.Tensor:
        """Return the target as class numbers, or as numbers of mean 0 and variance 1."""
        if y.dtype.kind != "f":
            check_classification_targets(y)
            return torch.from_numpy(np.unique(y, return_inverse=True)[1].astype(np.int64))
        numbers = np.asarray(y, dtype=np.float64)
        spread = numbers.std()
        return torch.from_numpy((numbers - numbers.mean()) / (spread if spread > 0 else 1)).float()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = tags.input_tags.string = tags.input_tags.allow_nan = True
        tags.target_tags.required = True
        tags.transformer_tags.preserves_dtype = []
        return tags
