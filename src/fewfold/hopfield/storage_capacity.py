"""Storage of associative memories: exactly retrieved patterns and bounds on their number."""

import math
import sys
from typing import Any

import torch
from torch import Tensor

from fewfold._check import non_negative_number, positive_number, whole_number
from fewfold._torch import untransformed
from fewfold.attention.shapes import joint_batch
from fewfold.hopfield.energies import FenchelYoung, Quadratic, check_patterns, check_rowwise
from fewfold.maps.omega import Omega

__all__ = ["is_stored", "retrieved_in_one_step", "separation", "storage_bound"]

_LARGEST = math.log(sys.float_info.max)


def separation(memory: Tensor) -> Tensor:
    """`(..., n)` separation of each pattern from the others:

        min over j of x_i (x_i - x_j).

    Args:
        memory: `(..., n, d)`.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.hopfield.separation(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, -1.0]]))
        tensor([0.2000, 0.2000, 1.0000])
    """
    check_patterns(memory)
    shared = memory @ memory.transpose(-2, -1)
    own = shared.diagonal(dim1=-2, dim2=-1)
    same = torch.eye(memory.shape[-2], dtype=torch.bool, device=memory.device)
    return own - shared.masked_fill(same, -math.inf).amax(-1)


def is_stored(memory: Tensor, energy: FenchelYoung, chosen: Tensor | None = None) -> Tensor:
    """Whether each pattern is a fixed point of the update step.

    A pattern is a fixed point if its separation is at least margin / beta, where the margin of
    omega is 1 for sparsemax and normmax and 1 / (alpha - 1) for entmax. Softmax has no margin, so
    no pattern is a fixed point unless it is the only one. Exact up to rounding, as in
    `retrieved_in_one_step`.

    Args:
        memory: `(..., n, d)`.
        energy: must have `psi=Quadratic()`.
        chosen: `(..., m, n)` of 0 and 1, sets of patterns, for an omega that selects several; each
            set is tested at the sum of its patterns.

    Returns:
        `(..., n)` bool for the patterns, or `(..., m)` for the sets.

    Example:
        >>> import torch, fewfold as ff
        >>> memory = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, -1.0]])
        >>> ff.hopfield.is_stored(memory, ff.FenchelYoung(ff.Gini(), beta=2.0))
        tensor([False, False,  True])
    """
    _check_energy(energy)
    check_patterns(memory)
    if chosen is not None:
        _check_sets(chosen, memory)
        return retrieved_in_one_step(chosen.to(memory) @ memory, memory, chosen, energy)
    if not energy.omega.on_simplex:
        raise ValueError(
            f"{energy.omega} takes several patterns at once; write is_stored(memory, energy, "
            "chosen) with the sets to test"
        )
    own = torch.arange(memory.shape[-2], device=memory.device).expand(memory.shape[:-1])
    return retrieved_in_one_step(memory, memory, own, energy)


@torch.no_grad()
def retrieved_in_one_step(
    query: Tensor, memory: Tensor, target: Tensor, energy: FenchelYoung
) -> Tensor:
    """Whether one step maps each query exactly to its target.

    A pattern is reached if its score in `beta X q` exceeds the others by the margin of omega; a set
    or structure y of patterns if it is the maximiser for the scores `beta X q - y`. Both conditions
    are exact up to rounding: otherwise the step gives a mix, whose smallest weights may underflow.
    More queries than predicted may thus arrive where weights decay fast, as with an alpha near 1 or
    softmax at a large beta.

    Args:
        query: `(..., m, d)`.
        memory: `(..., n, d)`.
        target: `(..., m)` int64, the pattern of each query; or `(..., m, n)` of 0 and 1 if omega
            selects several.
        energy: must have `psi=Quadratic()`.

    Returns:
        `(..., m)` bool.

    Example:
        >>> import torch, fewfold as ff
        >>> memory = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> query = torch.tensor([[0.9, 0.3], [0.6, 0.5]])
        >>> energy = ff.FenchelYoung(ff.Gini(), beta=2.0)
        >>> ff.hopfield.retrieved_in_one_step(query, memory, torch.tensor([0, 0]), energy)
        tensor([ True, False])

    Reference: Santos, Niculae, McNamee and Martins, "Sparse and structured Hopfield networks",
    2024, where the thresholds of the scores are m / beta.
    """
    _check_energy(energy)
    scores, omega = energy.scores(query, memory), energy.omega
    if not omega.on_simplex:
        return omega.attains(_target_indicators(target, scores), scores)
    one = _ids(target, scores)
    margin = _margin(omega)
    if margin == 0:  # margin unknown: perform the step
        return omega.argmax(scores).gather(-1, one).squeeze(-1) == 1
    own = scores.gather(-1, one).squeeze(-1)
    return own - scores.scatter(-1, one, -math.inf).amax(-1) >= margin


def storage_bound(
    omega: Omega, beta: float, *, dim: int, radius: float = 1.0, noise: float = 0.0,
    failure: float = 0.01,
) -> float:  # fmt: skip
    """Number of random patterns on a sphere retrievable in one step, up to a constant:

        sqrt(failure) zeta^((dim - 1) / 2),   cos(1 / zeta) = 1 - 2 noise / M - m / (beta M^2),

    with radius M and the margin m of omega.

    Args:
        omega: regulariser with a margin; without one, no pattern is retrieved exactly, up to
            rounding.
        beta: inverse temperature.
        dim: dimension of the patterns.
        radius: radius of the sphere, M.
        noise: largest distance of a query from its pattern.
        failure: probability that a pattern is not retrieved.

    Returns:
        The bound; 0 if beta is too low for the noise, inf if it exceeds the largest float.

    Example:
        >>> import fewfold as ff
        >>> round(ff.hopfield.storage_bound(ff.Gini(), 100.0, dim=16))
        233571
    """
    check_rowwise(omega)
    positive_number(beta, "beta")
    positive_number(radius, "radius")
    non_negative_number(noise, "noise")
    whole_number(dim, "dim", least=2)
    if not 0 < failure <= 1:
        raise ValueError(f"failure must be above 0 and at most 1, got {failure}")
    if not omega.on_simplex:
        raise ValueError(f"the bound is about single patterns, and {omega} takes several at once")
    margin = _margin(omega)
    if margin == 0:
        raise ValueError(f"the bound needs a margin, and that of {omega} depends on the pattern")
    below = 2 * noise / radius + margin / (beta * radius**2)  # 1 minus the cosine
    if below >= 2:
        return 0.0
    # acos(1 - below) would lose small angles to rounding.
    angle = 2 * math.asin(math.sqrt(max(below, sys.float_info.min) / 2))
    logarithm = math.log(failure) / 2 - math.log(angle) * (dim - 1) / 2
    return math.exp(logarithm) if logarithm < _LARGEST else math.inf


def _check_energy(energy: Any) -> None:
    if not isinstance(energy, FenchelYoung):
        raise TypeError(
            f"energy must be a value such as ff.FenchelYoung(ff.Gini(), beta=4.0), got {energy!r}"
        )
    if not isinstance(energy.psi, Quadratic):
        raise ValueError(f"exact retrieval is known only for psi=Quadratic(), got {energy.psi}")


def _check_sets(chosen: Any, memory: Tensor) -> None:
    count = memory.shape[-2]
    if not isinstance(chosen, Tensor):
        raise TypeError(f"chosen must be a tensor of 0 and 1, got {type(chosen).__name__}")
    if chosen.dim() < 2 or chosen.shape[-1] != count:
        raise ValueError(
            f"chosen must be (..., m, {count}) of 0 and 1, which patterns are in each set, got "
            f"shape {tuple(chosen.shape)}"
        )
    joint_batch(chosen, memory)


def _margin(omega: Omega) -> float:
    """Margin of omega; inf if it has none, 0 if it depends on the pattern."""
    margin = omega.margin
    if margin is None and not omega.dense:
        return 0.0
    if isinstance(margin, Tensor) and margin.numel() > 1:
        raise ValueError(
            f"omega must have one margin, got shape {tuple(margin.shape)}; pass one alpha at a time"
        )
    return math.inf if margin is None else float(margin)


def _target_indicators(target: Tensor, scores: Tensor) -> Tensor:
    """Targets as indicator vectors of 0 and 1."""
    if isinstance(target, Tensor) and target.shape == scores.shape:
        if untransformed(target) and not bool(((target == 0) | (target == 1)).all()):
            raise ValueError("a target that is a set must have entries 0 and 1 alone")
        return target.to(scores)
    sets = f", or {tuple(scores.shape)} of 0 and 1"
    return torch.zeros_like(scores).scatter(-1, _ids(target, scores, sets), 1.0)


def _ids(target: Tensor, scores: Tensor, more: str = "") -> Tensor:
    """`(..., m, 1)` validated pattern id of each query."""
    wanted, count = tuple(scores.shape[:-1]), scores.shape[-1]
    if not isinstance(target, Tensor) or target.dtype != torch.int64 or target.shape != wanted:
        got = (
            f"{target.dtype} of shape {tuple(target.shape)}"
            if isinstance(target, Tensor)
            else type(target).__name__
        )
        raise ValueError(f"target must be {wanted} int64, ids of patterns{more}, got {got}")
    if untransformed(target) and bool(((target < 0) | (target >= count)).any()):
        raise ValueError(
            f"target must be ids from 0 to {count - 1}, got {int(target.min())} to "
            f"{int(target.max())}"
        )
    return target.unsqueeze(-1)
