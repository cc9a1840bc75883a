"""fusedmax and oscarmax: sparse probabilities that are equal within groups of entries."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fewfold._check import normal_dim, per_row
from fewfold._torch import eager, exporting
from fewfold.maps.entmax import sparsemax
from fewfold.maps.entropies import Gini
from fewfold.maps.grouped.chain import fuse, solver_dtype
from fewfold.maps.grouped.prox_oscar import oscar_groups, oscar_groups_closed
from fewfold.maps.grouped.prox_tv import tv_groups, tv_groups_closed
from fewfold.maps.omega import Omega
from fewfold.maps.rows import centre, finalize, from_rows, to_rows

__all__ = ["Fused", "Oscar", "fusedmax", "oscarmax"]

_Groups = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def fusedmax(
    scores: Tensor,
    strength: float | Tensor = 0.1,
    dim: int = -1,
    *,
    mask: Tensor | None = None,
) -> Tensor:
    """Sparse probabilities that are constant over runs of neighbours.

    Solves `argmax_p <p, scores> - 1/2 ||p||^2 - strength * sum_i |p_{i+1} - p_i|` over the
    simplex, which is sparsemax of the scores after total-variation denoising. Strength 0 is
    sparsemax; a large strength makes the row uniform. Masked entries (or scores of -inf) are
    removed from the row, and the entries on either side become neighbours.

    Args:
        scores: (..., n) along `dim`.
        strength: finite and at least 0. A number, or a tensor that is 0-dimensional or broadcasts
            against the scores with size 1 along `dim`; a tensor receives an exact gradient.
        mask: boolean, True = keep; broadcasts to the scores.

    Returns:
        Probabilities with the shape and dtype of the scores.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.fusedmax(torch.tensor([0.6, 0.5, 0.1, 0.05]), strength=0.05)
        tensor([0.4875, 0.4375, 0.0375, 0.0375])

    Reference: Niculae and Blondel, "A regularized framework for sparse and structured neural
    attention", NIPS 2017.
    """
    return _grouped(scores, strength, dim, mask, tv_groups, tv_groups_closed)


def oscarmax(
    scores: Tensor,
    strength: float | Tensor = 0.1,
    dim: int = -1,
    *,
    mask: Tensor | None = None,
) -> Tensor:
    """Sparse probabilities that are equal within groups of close scores, in any position.

    Solves `argmax_p <p, scores> - 1/2 ||p||^2 - strength * sum_{i<j} max(p_i, p_j)` over the
    simplex, for scores of any sign. Strength 0 is sparsemax; a large strength makes the row
    uniform.

    Args:
        scores: (..., n) along `dim`.
        strength: finite and at least 0. A number, or a tensor that is 0-dimensional or broadcasts
            against the scores with size 1 along `dim`; a tensor receives an exact gradient.
        mask: boolean, True = keep; broadcasts to the scores. Masking an entry is equivalent to
            removing it from the row.

    Returns:
        Probabilities with the shape and dtype of the scores.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.oscarmax(torch.tensor([0.6, 0.05, 0.5, 0.1]), strength=0.05)
        tensor([0.4625, 0.0625, 0.4125, 0.0625])

    Reference: Niculae and Blondel, "A regularized framework for sparse and structured neural
    attention", NIPS 2017; Bondell and Reich, "Simultaneous regression shrinkage, variable
    selection, and supervised clustering of predictors with OSCAR", Biometrics 2008.
    """
    return _grouped(scores, strength, dim, mask, oscar_groups, oscar_groups_closed)


def _grouped(
    scores: Tensor,
    strength: float | Tensor,
    dim: int,
    mask: Tensor | None,
    groups: _Groups,
    closed: _Groups,
) -> Tensor:
    """Sparsemax after a proximal step that makes entries equal within groups."""
    rows = to_rows(scores, dim, mask)
    force = _row_strength(strength, scores, dim)
    if rows.shape[-1] == 0:
        return from_rows(rows, dim, scores.dtype)
    traced = exporting() or torch.jit.is_tracing()
    probs = _grouped_torch(rows, force, closed if traced else groups)
    return from_rows(probs, dim, scores.dtype)


def _grouped_torch(rows: Tensor, strength: float | Tensor, groups: _Groups) -> Tensor:
    """Find the groups on detached values; compute their means in differentiable operations."""
    values, top = centre(rows)
    values = values.to(solver_dtype(rows))
    force = torch.as_tensor(strength, dtype=values.dtype, device=values.device)
    force = force.expand_as(values[..., :1])
    group, pull = groups(values.detach(), force.detach())
    return finalize(sparsemax(fuse(values, force, group, pull)).to(rows.dtype), top)


def _row_strength(strength: float | Tensor, scores: Tensor, dim: int) -> float | Tensor:
    """Return the strength as a float, or as a tensor that broadcasts against rows."""
    if isinstance(strength, Tensor):
        if not strength.is_floating_point():
            raise TypeError(
                f"strength must be floating-point, got {strength.dtype}; write strength.float()"
            )
        rows = per_row(strength, scores, normal_dim(dim, scores.dim()), "strength")
        if eager(strength) and bool(((strength < 0) | strength.isinf()).any()):
            raise ValueError(
                f"strength must be finite and at least 0, got {strength.detach().min():g} to "
                f"{strength.detach().max():g}; write strength.clamp(min=0)"
            )
        return rows
    _check_strength(strength)
    return float(strength)


def _check_strength(strength: float) -> None:
    if isinstance(strength, bool) or not isinstance(strength, (int, float)):
        raise TypeError(f"strength must be a number or a tensor, got {type(strength).__name__}")
    if not 0 <= strength < math.inf:
        raise ValueError(
            f"strength must be finite and at least 0, got {strength}; 0 gives sparsemax"
        )


def _unmasked_last(scores: Tensor, dim: int, mask: Tensor | None) -> Tensor:
    """Return the mask of unmasked entries with `dim` last."""
    return to_rows(scores.detach(), dim, mask) != -math.inf


def _energy(probs: Tensor, scores: Tensor, dim: int) -> Tensor:
    """Return `<p, scores>` less the Gini value; masked entries contribute 0."""
    used = torch.where(probs.detach() != 0, scores, 0.0)
    return (probs * used).sum(dim) - Gini().value(probs, dim)


@dataclass(frozen=True)
class Fused(Omega):
    """The Gini value plus total variation; its map is fusedmax.

    `value(p) = (sum_i p_i^2 - 1) / 2 + strength * sum_i |p_{i+1} - p_i|` over the whole row. The
    map and the conjugate of a row with masked entries are those of the row without them.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.maps.Fused(0.05).argmax(torch.tensor([0.6, 0.5, 0.1, 0.05]))
        tensor([0.4875, 0.4375, 0.0375, 0.0375])
    """

    chunkable: ClassVar[bool] = False
    strength: float | Tensor = 0.1

    def __post_init__(self) -> None:
        if not isinstance(self.strength, Tensor):
            _check_strength(self.strength)

    def value(self, probs: Tensor, dim: int = -1) -> Tensor:
        return Gini().value(probs, dim) + self._penalty(probs, None, dim)

    def argmax(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        return fusedmax(scores, self.strength, dim, mask=mask)

    def conjugate(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        probs = self.argmax(scores, dim, mask=mask)
        unmasked = _unmasked_last(scores, dim, mask)
        return _energy(probs, scores, dim) - self._penalty(probs, unmasked, dim)

    def _penalty(self, probs: Tensor, unmasked: Tensor | None, dim: int) -> Tensor:
        rows = probs.movedim(dim, -1)
        if unmasked is not None:  # close the gaps: move masked entries to the end
            index = torch.arange(rows.shape[-1], device=rows.device)
            order = torch.where(unmasked, index, index + rows.shape[-1]).sort(-1)[1]
            rows = rows.gather(-1, order)
        jumps = (rows[..., 1:] - rows[..., :-1]).abs()
        if unmasked is not None:
            jumps = torch.where(index[1:] < unmasked.sum(-1, keepdim=True), jumps, 0.0)
        return _reduced_strength(self.strength, probs, dim) * jumps.sum(-1)


@dataclass(frozen=True)
class Oscar(Omega):
    """The Gini value plus the sum of pairwise maxima; its map is oscarmax.

    `value(p) = (sum_i p_i^2 - 1) / 2 + strength * sum_{i<j} max(p_i, p_j)` over the whole row. The
    map and the conjugate of a row with masked entries are those of the row without them.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.maps.Oscar(0.05).argmax(torch.tensor([0.6, 0.05, 0.5, 0.1]))
        tensor([0.4625, 0.0625, 0.4125, 0.0625])
    """

    chunkable: ClassVar[bool] = False
    strength: float | Tensor = 0.1

    def __post_init__(self) -> None:
        if not isinstance(self.strength, Tensor):
            _check_strength(self.strength)

    def value(self, probs: Tensor, dim: int = -1) -> Tensor:
        return Gini().value(probs, dim) + self._penalty(probs, None, dim)

    def argmax(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        return oscarmax(scores, self.strength, dim, mask=mask)

    def conjugate(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        probs = self.argmax(scores, dim, mask=mask)
        unmasked = _unmasked_last(scores, dim, mask)
        return _energy(probs, scores, dim) - self._penalty(probs, unmasked, dim)

    def _penalty(self, probs: Tensor, unmasked: Tensor | None, dim: int) -> Tensor:
        # An entry is the maximum of its pairs with all entries ranked below it.
        ordered = probs.movedim(dim, -1).sort(-1, descending=True)[0]
        size = ordered.shape[-1]
        number = size if unmasked is None else unmasked.sum(-1, keepdim=True)
        below = number - 1 - torch.arange(size, device=probs.device)
        pairs = (ordered * below.clamp(min=0)).sum(-1)
        return _reduced_strength(self.strength, probs, dim) * pairs


def _reduced_strength(strength: float | Tensor, probs: Tensor, dim: int) -> float | Tensor:
    """Return the strength in the shape of a reduction of `probs` along `dim`."""
    rows = _row_strength(strength, probs, dim)
    return rows.squeeze(-1) if isinstance(rows, Tensor) and rows.dim() else rows
