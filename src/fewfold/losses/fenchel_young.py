"""Fenchel-Young losses of any regulariser.

With p = argmax_q <q, s> - Omega(q), the loss of scores s against a target y is

    L(s; y) = <p, s> - Omega(p) + Omega(y) - <y, s>,

which is convex in s, at least 0, and 0 exactly when p = y. Its gradient is p - y and its Hessian
is the Jacobian of the map.
"""

import torch
from torch import Tensor, nn

from fewfold._check import check_scores
from fewfold._torch import loss_dtype, without_autocast
from fewfold.losses.duality_gap import against_index, against_probs, one_hot
from fewfold.losses.targets import (
    Reduction,
    check_indices,
    check_options,
    check_weight,
    class_dim,
    smooth,
)
from fewfold.maps.entropies import Gini
from fewfold.maps.omega import Omega, check_omega
from fewfold.structured.omega_tensors import register_tensors, with_tensors

__all__ = ["FenchelYoungLoss", "fenchel_young_loss"]


def fenchel_young_loss(
    scores: Tensor,
    target: Tensor,
    omega: Omega = Gini(),  # noqa: B008  (an immutable value)
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    cost: float | Tensor | None = None,
) -> Tensor:
    """The Fenchel-Young loss of `scores` against `target` for the regulariser `omega`.

    ``L(s; y) = max_p (<p, s> - Omega(p)) + Omega(y) - <y, s>``. The gradient with respect to the
    scores is ``p - y`` with ``p = omega.argmax(scores)``; tensor fields of `omega`, such as the
    alpha of `Tsallis`, receive gradients as well.

    Args:
        scores: (C,), (N, C) or (N, C, d1, ...), classes along dim 1. A score of -inf masks the
            class; the loss is +inf if the target has mass on it, and finite otherwise. A row of
            only -inf has loss +inf and zero gradient.
        target: class indices, (), (N,) or (N, d1, ...); or probabilities of the shape of the
            scores. `Subset` takes rows of k ones.
        omega: the regulariser; see `fewfold.maps`.
        weight: (C,) weight of each class, as in `torch.nn.functional.cross_entropy`: the loss of a
            row with target y is m L(s; weight * y / m) with m = sum_c weight_c y_c. For a class
            index that is weight_y L; for a row of zeros it is 0. With `Subset` the loss of the row
            is multiplied by sum_c weight_c y_c.
        ignore_index: class index of rows to ignore; any integer, negative or not. Requires class
            indices; for probabilities use rows of zeros.
        reduction: "none", "mean" or "sum". A mean over class indices divides by the total weight
            of the rows that are not ignored, a mean over probabilities by the number of rows; a
            mean over no rows is 0.
        label_smoothing: between 0 and 1, the weight of the uniform distribution over the unmasked
            classes in the target.
        cost: for an omega over structures (`SparseMAP` or `Gibbs`): the cost of each part that is
            not in the target, a number or a tensor that broadcasts to the scores. It is added to
            the scores of those parts, so that the target must win by the cost of the difference.

    With an omega over structures an instance is the last `omega.event_dim` dimensions of the
    scores, the target is a structure (or marginals) of the same shape, and weight, ignore_index and
    label_smoothing, which apply to classes, are not supported.

    Returns:
        A scalar, or the shape of the class indices (of the batch) for reduction="none"; dtype of
        the scores. Half precision is computed in float32. Under autocast the result is float32, as
        for `torch.nn.functional.cross_entropy`.

    Unlike `torch.nn.functional.cross_entropy`, the loss includes Omega(y), so that its minimum is 0
    for soft targets too.

    Example:
        >>> import torch
        >>> from fewfold.losses import fenchel_young_loss
        >>> from fewfold.maps import Tsallis
        >>> scores = torch.tensor([[2.0, 0.0, -1.0], [0.5, 0.4, 0.3]])
        >>> fenchel_young_loss(scores, torch.tensor([0, 2]), Tsallis(1.5), reduction="none")
        tensor([0.0000, 0.6693])

    Reference:
        Blondel, Martins, Niculae (2020). Learning with Fenchel-Young losses. JMLR 21(35).
    """
    check_scores(scores)
    wide = scores.to(loss_dtype(scores))
    with without_autocast(scores):
        return _loss(
            wide,
            target,
            omega,
            weight=weight,
            ignore_index=ignore_index,
            reduction=reduction,
            label_smoothing=label_smoothing,
            cost=cost,
        )


def _loss(
    scores: Tensor,
    target: Tensor,
    omega: Omega,
    *,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    cost: float | Tensor | None,
) -> Tensor:
    """`fenchel_young_loss` with autocast disabled."""
    check_omega(omega)
    if omega.structure is not None:
        _check_structured(weight, ignore_index, label_smoothing, scores, target)
        _check_cost(cost, scores)
        check_options(reduction, label_smoothing)
        losses = _structured_losses(scores, target.to(scores.dtype), omega, cost)
        return Reduction(reduction, None, None, None)(losses).to(scores.dtype)
    if cost is not None:
        raise ValueError("cost needs an omega over structures, such as SparseMAP(...)")
    dim = class_dim(scores, target)
    check_options(reduction, label_smoothing)
    check_weight(weight, scores.shape[dim])
    wide = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
    heavy = None if weight is None else weight.to(wide.dtype)
    valid = size = None
    if target.is_floating_point() or target.dtype == torch.bool:
        if ignore_index >= 0:
            raise ValueError(
                f"ignore_index={ignore_index} needs class indices, got probabilities; "
                "use rows of zeros to ignore rows"
            )
        probs = target.to(wide.dtype)
    else:
        index, valid = check_indices(target, scores.shape[dim], ignore_index)
        size = None if heavy is None else heavy[index]
        omega.check_class_indices()
        if label_smoothing == 0:
            losses = against_index(wide, index, valid, omega, dim)
            return Reduction(reduction, valid, size, size)(losses).to(scores.dtype)
        wide = torch.where(valid.unsqueeze(dim), wide, 0.0)
        probs = one_hot(wide, index, dim)
    if label_smoothing > 0:
        probs = smooth(probs, wide.detach(), label_smoothing, dim)
    probs, factor = _apply_class_weights(probs, heavy, omega, dim)
    losses = against_probs(wide, probs, omega, dim)
    return Reduction(reduction, valid, factor, size)(losses).to(scores.dtype)


class FenchelYoungLoss(nn.Module):
    """`fenchel_young_loss` as a module that registers the tensors of `omega`.

    Parameters in `omega` are registered as parameters and other tensors as buffers, including the
    additional scores of a structure: `FenchelYoungLoss(SparseMAP(Sequence(table)))` has the
    parameter (or buffer) `structure_transitions`. `weight` and a tensor `cost` are registered too.

    Example:
        >>> import torch
        >>> from fewfold.losses import FenchelYoungLoss
        >>> from fewfold.maps import Gini
        >>> FenchelYoungLoss(Gini())(torch.tensor([[0.3, 0.1]]), torch.tensor([0]))
        tensor(0.1600)
    """

    def __init__(
        self,
        omega: Omega = Gini(),  # noqa: B008  (an immutable value)
        *,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        cost: float | Tensor | None = None,
    ) -> None:
        super().__init__()
        check_options(reduction, label_smoothing)
        self.cost: float | Tensor | None
        if isinstance(cost, Tensor) and not isinstance(cost, nn.Parameter):
            self.register_buffer("cost", cost)
        else:
            self.cost = cost
        self._omega = omega
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.label_smoothing = label_smoothing
        self.weight: Tensor | None
        self.register_buffer("weight", weight)
        self._learned = register_tensors(self, omega)

    @property
    def omega(self) -> Omega:
        """The regulariser with the current tensors of the module."""
        return with_tensors(self._omega, {name: getattr(self, name) for name in self._learned})

    def forward(self, scores: Tensor, target: Tensor) -> Tensor:
        """Return the loss of scores (N, C, ...) and class indices or probabilities."""
        return fenchel_young_loss(
            scores,
            target,
            self.omega,
            weight=self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
            cost=self.cost,
        )

    def extra_repr(self) -> str:
        return f"{self._omega}, reduction={self.reduction!r}"


def _structured_losses(
    scores: Tensor, target: Tensor, omega: Omega, cost: float | Tensor | None
) -> Tensor:
    """Loss of each instance for an omega over structures."""
    wide = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
    target = target.to(wide.dtype)
    omega.check_target(wide, target)
    events = tuple(range(scores.dim() - omega.event_dim, scores.dim()))
    own = torch.where(target != 0, target * wide, 0.0).sum(events)
    raised = wide if cost is None else wide + cost * (1 - target)
    return omega.conjugate(raised) + omega.value(target) - own


def _check_structured(
    weight: Tensor | None, ignore_index: int, label_smoothing: float, scores: Tensor, target: Tensor
) -> None:
    if weight is not None or ignore_index != -100 or label_smoothing:
        raise ValueError(
            "weight, ignore_index and label_smoothing apply to classes; with an omega over "
            "structures leave them out"
        )
    check_scores(scores)
    if not isinstance(target, Tensor) or target.shape != scores.shape:
        raise ValueError(
            f"the target must be structures of the shape of the scores {tuple(scores.shape)}, "
            f"got {tuple(target.shape) if isinstance(target, Tensor) else type(target).__name__}"
        )


def _check_cost(cost: float | Tensor | None, scores: Tensor) -> None:
    if isinstance(cost, Tensor):
        try:
            cost.expand(scores.shape)
        except RuntimeError:
            raise ValueError(
                f"cost must broadcast to the shape of the scores {tuple(scores.shape)}, "
                f"got {tuple(cost.shape)}"
            ) from None
    elif cost is not None and not isinstance(cost, (int, float)):
        raise TypeError(f"cost must be a number or a tensor, got {type(cost).__name__}")


def _apply_class_weights(
    probs: Tensor, weight: Tensor | None, omega: Omega, dim: int
) -> tuple[Tensor, Tensor | None]:
    """Multiply the target by class weights; return it normalised, and the factor of each row."""
    heavy = probs if weight is None else (probs.movedim(dim, -1) * weight).movedim(-1, dim)
    mass = heavy.sum(dim, keepdim=True)
    if not omega.on_simplex:  # a weighted target need not be a point of the polytope
        return probs, None if weight is None else mass.squeeze(dim)
    return heavy / torch.where(mass == 0, 1.0, mass), mass.squeeze(dim)
