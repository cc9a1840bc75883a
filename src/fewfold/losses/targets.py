"""Validation of targets and reduction of losses, as in `torch.nn.functional.cross_entropy`."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fewfold._check import check_scores
from fewfold._torch import eager

__all__ = [
    "INTEGERS",
    "Reduction",
    "check_indices",
    "check_options",
    "check_weight",
    "class_dim",
    "smooth",
]

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def class_dim(scores: Tensor, target: Tensor) -> int:
    """Return the class dimension; raise unless scores and target have matching shapes."""
    check_scores(scores)
    if not isinstance(target, Tensor):
        raise TypeError(
            f"target must be a torch.Tensor, got {type(target).__name__}; "
            "write torch.as_tensor(target)"
        )
    dim = 0 if scores.dim() == 1 else 1
    if scores.shape[dim] == 0:
        raise ValueError(f"scores must have at least one class, got shape {tuple(scores.shape)}")
    expected = scores.shape[:dim] + scores.shape[dim + 1 :]
    if target.dtype in INTEGERS:
        if target.shape != expected:
            raise ValueError(
                f"target must hold class indices of shape {tuple(expected)} for scores of shape "
                f"{tuple(scores.shape)} (classes along dim {dim}), got {tuple(target.shape)}"
                + ("; write target.float() for probabilities" * (target.shape == scores.shape))
            )
    elif target.shape != scores.shape:
        raise ValueError(
            f"target must hold probabilities of shape {tuple(scores.shape)}, like the scores, "
            f"got {tuple(target.shape)} of dtype {target.dtype}; "
            f"write target.long() for class indices of shape {tuple(expected)}"
        )
    elif not (target.is_floating_point() or target.dtype == torch.bool):
        raise TypeError(
            f"target must hold class indices (int64) or probabilities (float), got {target.dtype}"
        )
    return dim


def check_indices(target: Tensor, classes: int, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Return class indices with 0 at ignored rows, and a mask of rows that are not ignored."""
    if not isinstance(ignore_index, int):
        raise TypeError(
            f"ignore_index must be an int, got {ignore_index!r}; omit it to ignore no rows"
        )
    target = target.long()
    valid = target != ignore_index
    index = torch.where(valid, target, 0)
    if eager(target):  # elsewhere reading values would synchronise the device or break the trace
        wrong = (index < 0) | (index >= classes)
        if bool(wrong.any()):
            place = tuple(wrong.nonzero()[0].tolist())
            raise ValueError(
                f"target must be between 0 and {classes - 1} or equal to "
                f"ignore_index={ignore_index}, got {int(target[place])} at position {place}"
            )
    return index, valid


def check_options(reduction: str, label_smoothing: float) -> None:
    """Raise unless both are valid for `torch.nn.functional.cross_entropy`."""
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"reduction must be 'none', 'mean' or 'sum', got {reduction!r}")
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"label_smoothing must be between 0 and 1, got {label_smoothing}")


def check_weight(weight: Tensor | None, classes: int) -> None:
    """Raise unless `weight` is None or one real number per class."""
    if weight is None:
        return
    if not isinstance(weight, Tensor) or not weight.is_floating_point():
        got = weight.dtype if isinstance(weight, Tensor) else type(weight).__name__
        raise TypeError(f"weight must be a floating-point tensor, one per class, got {got}")
    if weight.shape != (classes,):
        raise ValueError(
            f"weight must have shape ({classes},), one per class, got {tuple(weight.shape)}"
        )


def smooth(target: Tensor, scores: Tensor, label_smoothing: float, dim: int) -> Tensor:
    """Mix the target with the uniform distribution over the unmasked classes.

    The sum of each row is preserved, so that a row of k ones still sums to k. Classes with a score
    of -inf are excluded, since mass on them would make the loss infinite.
    """
    possible = (scores > -math.inf).to(target.dtype)
    share = target.sum(dim, keepdim=True) / possible.sum(dim, keepdim=True).clamp(min=1)
    return (1 - label_smoothing) * target + label_smoothing * share * possible


@dataclass(frozen=True)
class Reduction:
    """Weighted reduction of the losses of all rows.

    A mean divides by the total size of the valid rows, or by their number if no size is given. It
    is 0, not NaN, without valid rows.

    Attributes:
        kind: "none", "mean" or "sum".
        valid: mask of rows that are not ignored; None for all.
        weight: factor of each loss.
        size: weight of each row in the denominator of a mean.
    """

    kind: str
    valid: Tensor | None = None
    weight: Tensor | None = None
    size: Tensor | None = None

    def __call__(self, losses: Tensor) -> Tensor:
        counts = self.valid
        if self.weight is not None:
            heavy = self.weight != 0  # 0 * inf is NaN: a weight of 0 excludes the row
            counts = heavy if counts is None else counts & heavy
            losses = losses * self.weight
        if counts is not None:
            losses = torch.where(counts, losses, 0.0)
        if self.kind == "none":
            return losses
        if self.kind == "sum":
            return losses.sum()
        if self.valid is None:
            return losses.mean() if losses.numel() else losses.sum()
        size = torch.where(self.valid, 1 if self.size is None else self.size, 0).sum()
        return losses.sum() / torch.where(size == 0, 1, size)
