"""Item vectors predicted from features, for items with few interactions or none."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewfold._check import non_negative_number, positive_number

__all__ = ["Prediction", "WarmSettings", "ridge_predictions", "shrunk"]

_DIRECT = 4096  # largest system of equations that is factorised; larger ones are iterated
_PRIOR = 10.0  # interactions at which half of the deviation of a learned vector is noise
_ITERATIONS, _TOLERANCE = 100, 1e-4  # of conjugate gradients


@dataclass(frozen=True)
class WarmSettings:
    """How item vectors are completed from attributes, and what it gained in validation.

    Recall is the share of held-out pairs whose item is among the best 50.

    Attributes:
        l2: penalty of the regression.
        shrinkage: strength with which learned vectors are drawn to predicted ones; see `shrunk`.
        offset: added to the scores of items without interactions, in standard deviations of the 50
            best scores of a user.
        hidden_items: number of items that were hidden to choose these; 0 if the log is too small.
        users: number of users that were ranked for it.
        cold_recall: of hidden items, ranked among all.
        cold_recall_alone: of hidden items, ranked among themselves.
        warm_recall: of other items, ranked among all.
        warm_recall_before: of other items, ranked without the hidden ones.
    """

    l2: float = 10.0
    shrinkage: float = 0.0
    offset: float = 0.0
    hidden_items: int = 0
    users: int = 0
    cold_recall: float = 0.0
    cold_recall_alone: float = 0.0
    warm_recall: float = 0.0
    warm_recall_before: float = 0.0

    def __str__(self) -> str:
        if not self.hidden_items:
            return "attributes: used with default settings, since the log is too small to choose"
        return (
            f"attributes: with {self.hidden_items:,} items hidden, Recall@50 of hidden items is "
            f"{self.cold_recall:.4f} among all items ({self.cold_recall_alone:.4f} among "
            f"themselves), of other items {self.warm_recall:.4f} (without hidden items "
            f"{self.warm_recall_before:.4f}), for {self.users:,} users; l2 {self.l2:g}, offset "
            f"{self.offset:g}, shrinkage {self.shrinkage:g}"
        )


@dataclass(frozen=True, eq=False)
class Prediction:
    """Item vectors predicted from features.

    Attributes:
        mean: (d,) weighted mean of the learned vectors: the prediction without features.
        vectors: (items, d).
    """

    mean: Tensor
    vectors: Tensor


def ridge_predictions(
    features: Any, vectors: Tensor, counts: Tensor, l2: Iterable[float]
) -> Iterator[Prediction]:
    """Yield the item vectors that a ridge regression on features predicts, for each penalty.

    With features f_i, learned vectors v_i and n_i interactions, W minimises

        sum_i w_i |v_i - m - f_i W|^2 + l2 |W|^2,    w_i = n_i / (n_i + 10),

    where m is the weighted mean of the v_i, and the prediction of item i is m + f_i W. Items
    without interactions have no part in it. The normal equations are factorised, in the space of
    the features or of the items, whichever is smaller, or solved by conjugate gradients if both are
    large.

    Args:
        features: (items, features) scipy sparse matrix.
        vectors: (items, d) learned vectors.
        counts: (items,) interactions of each item.
        l2: penalties, above 0.

    Example:
        >>> import torch
        >>> from scipy.sparse import csr_array
        >>> from fewfold.recommender.warm_vectors import ridge_predictions
        >>> features = csr_array([[1.0, 0], [0, 1], [1, 0]])
        >>> learned = torch.tensor([[2.0], [-2.0], [0.0]])
        >>> found = next(ridge_predictions(features, learned, torch.tensor([9, 9, 0]), [1e-6]))
        >>> found.vectors.round(decimals=3)
        tensor([[ 2.],
                [-2.],
                [ 2.]])
    """
    if features.shape[0] != len(vectors) or counts.shape != vectors.shape[:1]:
        raise ValueError(
            f"features, vectors and counts must be about the same items, got {features.shape[0]}, "
            f"{len(vectors)} and {tuple(counts.shape)}"
        )
    known = (counts > 0).nonzero().squeeze(1)
    if len(known) == 0:
        raise ValueError("there is nothing to learn from: no item has interactions")
    number = counts[known].double()
    weight = (number / (number + _PRIOR)).float().unsqueeze(1)
    mean = (weight * vectors[known]).sum(0) / weight.sum()
    root = weight.sqrt()
    rows = features.tocsr()[known.numpy()]
    solve = _solver(rows.multiply(root.numpy()).tocsr(), root * (vectors[known] - mean))
    for penalty in l2:
        positive_number(penalty, "l2")
        found = torch.from_numpy(features @ solve(penalty).numpy())
        yield Prediction(mean, found.to(vectors.dtype) + mean)


def _solver(matrix: Any, target: Tensor) -> Any:
    """Return a function from a penalty to the weights, (features, d)."""
    items, features = matrix.shape
    if min(items, features) > _DIRECT:
        return lambda l2: _conjugate_gradients(matrix, target, l2)
    dual = items < features
    gram = matrix @ matrix.T if dual else matrix.T @ matrix
    gram = torch.from_numpy(np.asarray(gram.todense(), dtype=np.float64))
    right = target.double() if dual else torch.from_numpy(matrix.T @ target.numpy()).double()

    def solve(l2: float) -> Tensor:
        system = gram.clone()
        system.diagonal().add_(l2)
        found = torch.cholesky_solve(right, torch.linalg.cholesky(system)).float()
        return torch.from_numpy(matrix.T @ found.numpy()) if dual else found

    return solve


def _conjugate_gradients(matrix: Any, target: Tensor, l2: float) -> Tensor:
    """Solve (X'X + l2) W = X'Y for all columns at once, each with its own steps."""
    across = matrix.T.tocsr()
    right = torch.from_numpy(across @ target.numpy())
    found = torch.zeros_like(right)
    residual, direction = right.clone(), right.clone()
    size = residual.square().sum(0)
    enough = _TOLERANCE**2 * size
    for _ in range(_ITERATIONS):
        if bool((size <= enough).all()):
            break
        image = torch.from_numpy(across @ (matrix @ direction.numpy())) + l2 * direction
        step = size / (direction * image).sum(0).clamp(min=1e-30)
        found += step * direction
        residual -= step * image
        before, size = size, residual.square().sum(0)
        direction = residual + (size / before.clamp(min=1e-30)) * direction
    return found


def shrunk(vectors: Tensor, predicted: Tensor, counts: Tensor, strength: float) -> Tensor:
    """Return learned vectors drawn to the predicted ones, the more the fewer interactions.

    ``(n_i v_i + strength p_i) / (n_i + strength)``; an item without interactions gets p_i whatever
    the strength, and with a strength of 0 all others keep their vectors exactly.
    """
    non_negative_number(strength, "strength")
    number = counts.to(vectors.dtype).unsqueeze(1)
    share = torch.where(number > 0, strength / (number + strength).clamp(min=1e-30), 1.0)
    return torch.lerp(vectors, predicted, share)
