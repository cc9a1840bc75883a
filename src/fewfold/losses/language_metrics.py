"""Metrics for language models whose probabilities may be exactly zero.

A single zero makes the usual perplexity infinite; these metrics stay finite.
"""

import math

import torch
from torch import Tensor

from fewfold._check import check_scores
from fewfold._torch import loss_dtype
from fewfold.losses.targets import INTEGERS, Reduction, check_indices, check_options

__all__ = ["epsilon_perplexity", "jensen_shannon", "optimal_epsilon", "sparsemax_score"]


def epsilon_perplexity(
    probs: Tensor, target: Tensor, epsilon: float = 1e-6, *, ignore_index: int = -100
) -> Tensor:
    """Perplexity after adding `epsilon` to every probability and normalising again.

    ``exp(-mean log((p_x + epsilon) / (1 + epsilon V)))``; epsilon = 0 is the usual perplexity and
    epsilon = inf the number of classes V. `optimal_epsilon` finds the best on held-out text.

    Args:
        probs: (..., V) probabilities.
        target: (...) class indices; those equal to `ignore_index` are ignored.

    Returns:
        A scalar, 1 at best.

    Example:
        >>> import torch
        >>> from fewfold.losses import epsilon_perplexity
        >>> probs = torch.tensor([[0.7, 0.3, 0.0, 0.0], [0.7, 0.3, 0.0, 0.0]])
        >>> epsilon_perplexity(probs, torch.tensor([1, 2]), 0.01)
        tensor(18.6790)

    Reference:
        Martins, Marinho, Martins (2020). Sparse text generation. EMNLP.
    """
    if math.isnan(epsilon) or epsilon < 0:
        raise ValueError(f"epsilon must be at least 0, got {epsilon}")
    chosen, valid = _target_probs(probs, target, ignore_index)
    classes = probs.shape[-1]
    uniform = 1.0 if epsilon == math.inf else epsilon * classes / (1 + epsilon * classes)
    smoothed = (1 - uniform) * chosen + uniform / classes
    return Reduction("mean", valid)(-smoothed.log()).exp().to(loss_dtype(probs))


def optimal_epsilon(target_probs: Tensor, classes: int) -> float:
    """Return the epsilon that minimises `epsilon_perplexity`, for use on held-out text.

    Mixing with the uniform distribution by ``lam = epsilon V / (1 + epsilon V)`` makes the mean
    log-probability concave in lam; bisection finds where its slope is 0.

    Args:
        target_probs: any shape, the predicted probabilities of the target classes:
            ``probs.gather(-1, target.unsqueeze(-1))``, collected over batches.
        classes: the number of classes V.

    Returns:
        A number; 0 if no smoothing is optimal, inf if the uniform distribution is.

    Example:
        >>> import torch
        >>> from fewfold.losses import optimal_epsilon
        >>> round(optimal_epsilon(torch.tensor([0.7, 0.0, 0.3]), classes=4), 4)
        0.6454
    """
    if not isinstance(classes, int) or classes < 1:
        raise ValueError(f"classes must be a positive int, got {classes}")
    if not isinstance(target_probs, Tensor):
        got = type(target_probs).__name__
        raise TypeError(
            f"target_probs must be a torch.Tensor, got {got}; write torch.as_tensor(target_probs)"
        )
    given = target_probs.detach().double().reshape(-1)
    if given.numel() == 0:
        raise ValueError("target_probs must hold at least one probability, got none")
    if not bool(((given >= 0) & (given <= 1 + 1e-6)).all()):
        raise ValueError("target_probs must be between 0 and 1")
    gain = 1 / classes - given

    def slope(uniform: float) -> float:
        return float((gain / (given + uniform * gain)).sum())

    if bool((given > 0).all()) and slope(0.0) <= 0:
        return 0.0
    if slope(1.0) >= 0:
        return math.inf
    low, high = 0.0, 1.0
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if slope(middle) > 0 else (low, middle)
    return low / (classes * (1 - low))


def sparsemax_score(
    probs: Tensor, target: Tensor, *, ignore_index: int = -100, reduction: str = "mean"
) -> Tensor:
    """Sparsemax score ``1 - |e_x - p|^2 / 2 = p_x + (1 - |p|^2) / 2``, from 0 (worst) to 1 (best).

    For the output of sparsemax and a class in its support it equals 1 minus the sparsemax loss.
    Arguments as in `jensen_shannon`.

    Example:
        >>> import torch
        >>> from fewfold.losses import sparsemax_score
        >>> sparsemax_score(torch.tensor([[0.7, 0.3, 0.0, 0.0]]), torch.tensor([0]))
        tensor(0.9100)

    Reference:
        Martins, Marinho, Martins (2020). Sparse text generation. EMNLP.
    """
    check_options(reduction, 0.0)
    chosen, valid = _target_probs(probs, target, ignore_index)
    squares = probs.to(chosen.dtype).square().sum(-1)
    return Reduction(reduction, valid)(chosen + (1 - squares) / 2).to(loss_dtype(probs))


def jensen_shannon(
    probs: Tensor, target: Tensor, *, ignore_index: int = -100, reduction: str = "mean"
) -> Tensor:
    """Jensen-Shannon divergence to the target class or to a distribution, in nats.

    ``(KL(p | m) + KL(q | m)) / 2`` with ``m = (p + q) / 2``: 0 at best, log 2 at worst. For a class
    x it is ``log 2 + (p_x log p_x - (1 + p_x) log(1 + p_x)) / 2``, a function of p_x alone.

    Args:
        probs: (..., V) probabilities.
        target: (...) class indices, of which those equal to `ignore_index` are ignored; or
            probabilities (..., V).
        reduction: "none", "mean" or "sum".

    Returns:
        A scalar, or the shape of the class indices for reduction="none".

    Example:
        >>> import torch
        >>> from fewfold.losses import jensen_shannon
        >>> jensen_shannon(torch.tensor([[0.7, 0.3, 0.0, 0.0]]), torch.tensor([0]))
        tensor(0.1173)

    Reference:
        Martins, Marinho, Martins (2020). Sparse text generation. EMNLP.
    """
    check_options(reduction, 0.0)
    if _is_distribution(probs, target):
        if ignore_index >= 0:
            raise ValueError(f"ignore_index={ignore_index} needs class indices, got probabilities")
        return Reduction(reduction)(_divergence(probs, target)).to(loss_dtype(probs))
    chosen, valid = _target_probs(probs, target, ignore_index)
    divergence = math.log(2) + (torch.xlogy(chosen, chosen) - (1 + chosen) * chosen.log1p()) / 2
    return Reduction(reduction, valid)(divergence).to(loss_dtype(probs))


def _target_probs(probs: Tensor, target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Probability of the target class in float32 or wider, and a mask of valid rows."""
    check_scores(probs, "probs")
    if _is_distribution(probs, target):
        raise TypeError(
            f"target must be class indices of shape {tuple(probs.shape[:-1])}, got probabilities "
            f"of shape {tuple(target.shape)}; write target.argmax(-1)"
        )
    if not isinstance(target, Tensor) or target.dtype not in INTEGERS:
        got = type(target).__name__
        if isinstance(target, Tensor):
            got = f"{target.dtype} of shape {tuple(target.shape)}"
        raise TypeError(f"target must be a tensor of class indices, got {got}; write target.long()")
    if target.shape != probs.shape[:-1] or probs.shape[-1] == 0:
        raise ValueError(
            f"target must have shape {tuple(probs.shape[:-1])} for probs of shape "
            f"{tuple(probs.shape)} (classes last), got {tuple(target.shape)}"
            + _shape_hint(probs, target)
        )
    index, valid = check_indices(target, probs.shape[-1], ignore_index)
    chosen = probs.gather(-1, index.unsqueeze(-1)).squeeze(-1)
    wide = torch.promote_types(probs.dtype, torch.float32)
    return torch.where(valid, chosen.to(wide), 1.0), valid


def _is_distribution(probs: Tensor, target: object) -> bool:
    """Return whether the target holds probabilities of the shape of `probs`."""
    return (
        isinstance(target, Tensor)
        and isinstance(probs, Tensor)
        and target.is_floating_point()
        and target.shape == probs.shape
    )


def _shape_hint(probs: Tensor, target: Tensor) -> str:
    """Return a hint for shapes that are valid in the losses of torch."""
    if target.shape == probs.shape:
        return "; write target.argmax(-1)"
    if probs.dim() > 2 and target.shape == probs.shape[:1] + probs.shape[2:]:
        return "; write probs.movedim(1, -1)"
    return ""


def _divergence(probs: Tensor, target: Tensor) -> Tensor:
    """Return the Jensen-Shannon divergence of each row, with a finite gradient at zeros."""
    check_scores(probs, "probs")
    wide = torch.promote_types(torch.promote_types(probs.dtype, target.dtype), torch.float32)
    p, q = probs.to(wide), target.to(wide)
    middle = (p + q) / 2
    middle = torch.where(middle == 0, 1.0, middle)
    terms = [
        torch.where(one == 0, 0.0, one * (torch.where(one == 0, 1.0, one) / middle).log())
        for one in (p, q)
    ]
    return (terms[0] + terms[1]).sum(-1) / 2
