"""Fenchel-Young losses, written once for every regulariser.

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
    scores is ``p - y`` with ``p = omega.argmax(scores)``; a tensor inside `omega`, such as the
    alpha of `Tsallis`, learns through the loss as well.

    Args:
        scores: (C,), (N, C) or (N, C, d1, ...), classes along dim 1. A score of -inf drops the
            class; the loss stays finite unless the target needs that class, and is then +inf.
            A row with nothing but -inf costs +inf and has no gradient.
        target: class indices, (), (N,) or (N, d1, ...); or probabilities of the shape of the
            scores. `Subset` takes rows of k ones.
        omega: the regulariser; see `fewfold.maps`.
        weight: (C,) factor of each class, as in `torch.nn.functional.cross_entropy`: a row with
            target y costs m L(s; weight * y / m) with m = sum_c weight_c y_c. With one class that
            is its factor; a row of zeros costs nothing. `Subset` takes sum_c weight_c y_c as the
            factor of the row.
        ignore_index: class index of rows that do not count; any integer, negative or not. Needs
            class indices; for probabilities write rows of zeros.
        reduction: "none", "mean" or "sum". A mean over class indices divides by the total weight
            of the rows that count, a mean over probabilities by the number of rows, and a mean
            over no rows at all is 0.
        label_smoothing: how far, from 0 to 1, the target moves towards uniform over the classes
            that are possible.
        cost: for an omega over structures, `SparseMAP` or `Gibbs`: what each part that the target
            does not have costs, a number or a tensor that broadcasts to the scores. It is added to
            the scores of those parts, so that wrong structures must lose by their cost.

    With an omega over structures an instance is the last `omega.event_dim` dimensions of the
    scores, the target is a structure (or marginals) of the same shape, and weight, ignore_index and
    label_smoothing, which are about classes, do not apply.

    Returns:
        A scalar, or the shape of the class indices (of the batch) for reduction="none"; dtype of
        the scores. Half precision is computed in float32, which is also what is returned under
        autocast, as by `torch.nn.functional.cross_entropy`.

    `torch.nn.functional.cross_entropy` leaves Omega(y) out; the value here is 0 at the best
    scores for soft targets too.

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
    """`fenchel_young_loss` outside of autocast."""
    check_omega(omega)
    if omega.structure is not None:
        _check_structured(weight, ignore_index, label_smoothing, scores, target)
        _check_cost(cost, scores)
        check_options(reduction, label_smoothing)
        losses = _of_structures(scores, target.to(scores.dtype), omega, cost)
        return Reduction(reduction, None, None, None)(losses).to(scores.dtype)
    if cost is not None:
        raise ValueError("cost needs an omega over structures, such as SparseMAP(...)")
    dim = class_dim(scores, target)
    check_options(reduction, label_smoothing)
    check_weight(weight, scores.shape[dim])
    wide = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
    heavy = None if weight is None else weight.to(wide.dtype)
    kept = size = None
    if target.is_floating_point() or target.dtype == torch.bool:
        if ignore_index >= 0:
            raise ValueError(
                f"ignore_index={ignore_index} needs class indices, got probabilities; "
                "rows of zeros do not count"
            )
        probs = target.to(wide.dtype)
    else:
        index, kept = check_indices(target, scores.shape[dim], ignore_index)
        size = None if heavy is None else heavy[index]
        omega.check_class_indices()
        if label_smoothing == 0:
            losses = against_index(wide, index, kept, omega, dim)
            return Reduction(reduction, kept, size, size)(losses).to(scores.dtype)
        wide = torch.where(kept.unsqueeze(dim), wide, 0.0)
        probs = one_hot(wide, index, dim)
    if label_smoothing > 0:
        probs = smooth(probs, wide.detach(), label_smoothing, dim)
    probs, factor = _weighed(probs, heavy, omega, dim)
    losses = against_probs(wide, probs, omega, dim)
    return Reduction(reduction, kept, factor, size)(losses).to(scores.dtype)


class FenchelYoungLoss(nn.Module):
    """`fenchel_young_loss` as a module; a learnable tensor inside `omega` is registered.

    So are the additional scores of a structure: `FenchelYoungLoss(SparseMAP(Sequence(table)))` has
    the parameter (or, if `table` is a plain tensor, the buffer) `structure_transitions`. And so are
    `weight` and a `cost` that is a tensor.

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
        """The regulariser, with its tensors where the module now holds them."""
        return with_tensors(self._omega, {name: getattr(self, name) for name in self._learned})

    def forward(self, scores: Tensor, target: Tensor) -> Tensor:
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


def _of_structures(
    scores: Tensor, target: Tensor, omega: Omega, cost: float | Tensor | None
) -> Tensor:
    """One loss for each instance."""
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
            "weight, ignore_index and label_smoothing are about classes; with an omega over "
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


def _weighed(
    probs: Tensor, weight: Tensor | None, omega: Omega, dim: int
) -> tuple[Tensor, Tensor | None]:
    """The target with its classes weighed, brought back to the simplex, and what that took."""
    heavy = probs if weight is None else (probs.movedim(dim, -1) * weight).movedim(-1, dim)
    mass = heavy.sum(dim, keepdim=True)
    if not omega.on_simplex:  # weighed classes need not be a point of the polytope
        return probs, None if weight is None else mass.squeeze(dim)
    return heavy / torch.where(mass == 0, 1.0, mass), mass.squeeze(dim)
