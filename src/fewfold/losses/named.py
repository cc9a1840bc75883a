"""Fenchel-Young losses of common maps."""

import torch
from torch import Tensor

from fewfold._check import check_scores
from fewfold._torch import eager
from fewfold.losses.fenchel_young import fenchel_young_loss
from fewfold.maps.entropies import Gini, Shannon, Tsallis
from fewfold.maps.ksubset import Subset
from fewfold.maps.normmax import Norm

__all__ = ["entmax_loss", "ksubset_loss", "normmax_loss", "softmax_loss", "sparsemax_loss"]


def softmax_loss(
    scores: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Logistic loss, ``log sum exp(s) - s_y``: the Fenchel-Young loss of `Shannon`.

    Equal to `torch.nn.functional.cross_entropy` for class indices. For probabilities, and with
    label smoothing, it is cross-entropy minus the entropy of the target, a Kullback-Leibler
    divergence with the same gradient. Arguments as in `fenchel_young_loss`.

    Example:
        >>> import torch
        >>> from fewfold.losses import softmax_loss
        >>> softmax_loss(torch.zeros(1, 4), torch.tensor([2]))
        tensor(1.3863)
    """
    return fenchel_young_loss(
        scores,
        target,
        Shannon(),
        weight=weight,
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )


def sparsemax_loss(
    scores: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Sparsemax loss: the Fenchel-Young loss of `Gini`.

    ``L(s; e_y) = 1/2 sum_{j in S} (s_j^2 - tau^2) + 1/2 - s_y`` with S the support of
    sparsemax(s) and tau its threshold. It is 0 if the target score leads by at least 1. Arguments
    as in `fenchel_young_loss`.

    Example:
        >>> import torch
        >>> from fewfold.losses import sparsemax_loss
        >>> scores = torch.tensor([[1.0, 0.0, -2.0], [0.2, 0.0, -2.0]])
        >>> sparsemax_loss(scores, torch.tensor([0, 0]), reduction="none")
        tensor([0.0000, 0.1600])

    Reference:
        Martins, Astudillo (2016). From softmax to sparsemax. ICML.
    """
    return fenchel_young_loss(
        scores,
        target,
        Gini(),
        weight=weight,
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )


def entmax_loss(
    scores: Tensor,
    target: Tensor,
    alpha: float | Tensor = 1.5,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """alpha-entmax loss: the Fenchel-Young loss of `Tsallis(alpha)`.

    ``L(s; e_y) = <p - e_y, s> + (1 - sum_j p_j^alpha) / (alpha (alpha - 1))`` with
    ``p = entmax(s, alpha)``. For alpha > 1 it is 0 if the target score leads by at least
    ``1 / (alpha - 1)``; alpha=1 is `softmax_loss`, alpha=2 `sparsemax_loss`.

    Args:
        alpha: a number above 0, or a learnable tensor: 0-dimensional, or broadcasting against the
            scores with size 1 along the classes. Other arguments as in `fenchel_young_loss`.

    Example:
        >>> import torch
        >>> from fewfold.losses import entmax_loss
        >>> scores = torch.tensor([[2.0, 0.0, -1.0], [0.5, 0.4, 0.3]], requires_grad=True)
        >>> loss = entmax_loss(scores, torch.tensor([0, 2]), alpha=1.5)
        >>> loss.backward()
        >>> scores.grad
        tensor([[ 0.0000,  0.0000,  0.0000],
                [ 0.1959,  0.1658, -0.3617]])

    Reference:
        Peters, Niculae, Martins (2019). Sparse sequence-to-sequence models. ACL.
    """
    return fenchel_young_loss(
        scores,
        target,
        Tsallis(alpha),
        weight=weight,
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )


def normmax_loss(
    scores: Tensor,
    target: Tensor,
    alpha: float | Tensor = 2.0,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """alpha-normmax loss: the Fenchel-Young loss of `Norm(alpha)`.

    ``L(s; e_y) = tau + 1 - s_y`` where tau solves ``sum_j [s_j - tau]_+^(alpha/(alpha-1)) = 1``.
    It is 0 if the target score leads by at least 1, for every alpha above 1. Arguments as in
    `entmax_loss`.

    Example:
        >>> import torch
        >>> from fewfold.losses import normmax_loss
        >>> normmax_loss(torch.zeros(1, 4), torch.tensor([0]), alpha=2.0)
        tensor(0.5000)

    Reference:
        Blondel, Martins, Niculae (2020). Learning with Fenchel-Young losses. JMLR 21(35).
    """
    return fenchel_young_loss(
        scores,
        target,
        Norm(alpha),
        weight=weight,
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )


def ksubset_loss(
    scores: Tensor,
    target: Tensor,
    k: float,
    *,
    at_most: bool = False,
    weight: Tensor | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """k-subset loss of choosing k classes: the Fenchel-Young loss of `Subset(k)`.

    ``L(s; y) = <p, s> - |p|^2 / 2 + |y|^2 / 2 - <y, s>`` with ``p = ksubset(s, k)``. It is 0 if
    the score of every target class leads the score of every other class by at least 1.

    Args:
        target: of the shape of the scores, boolean or float, rows of k ones (with `at_most`, of
            at most k ones). Other arguments as in `fenchel_young_loss`.

    Example:
        >>> import torch
        >>> from fewfold.losses import ksubset_loss
        >>> scores = torch.tensor([[1.0, 0.5, 0.25, -2.0]])
        >>> ksubset_loss(scores, torch.tensor([[True, False, True, False]]), k=2)
        tensor(0.3906)
    """
    check_scores(scores)
    omega = Subset(k, at_most)
    if not isinstance(target, Tensor) or target.shape != scores.shape:
        got = tuple(target.shape) if isinstance(target, Tensor) else type(target).__name__
        raise ValueError(
            f"target must have the shape of the scores {tuple(scores.shape)}, with k ones in "
            f"every row, got {got}; write torch.zeros_like(scores).scatter(1, chosen, 1.0)"
        )
    if eager(scores, target):
        _check_mass(target, 0 if scores.dim() == 1 else 1, k, at_most)
    return fenchel_young_loss(
        scores,
        target,
        omega,
        weight=weight,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )


def _check_mass(target: Tensor, dim: int, k: float, at_most: bool) -> None:
    mass = target.double().sum(dim)
    wrong = mass > k + 1e-3 if at_most else (mass - k).abs() > 1e-3
    if bool(wrong.any()):
        place = tuple(torch.nonzero(wrong)[0].tolist())
        raise ValueError(
            f"every row of target must sum to {'at most ' if at_most else ''}k={k}, "
            f"got {float(mass[place]):g} at position {place}"
        )
