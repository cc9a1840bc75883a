"""Energies of associative memories and their update steps.

Queries are `(..., m, d)` and the memory is `(..., n, d)`, one pattern per row.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from fewfold._check import check_mask, positive_number, whole_number
from fewfold._torch import autocasts
from fewfold.attention.shapes import joint_batch
from fewfold.maps.entmax import softmax
from fewfold.maps.entropies import Shannon
from fewfold.maps.omega import Omega, check_omega

__all__ = [
    "Classical",
    "DenseAssociative",
    "Energy",
    "Exponential",
    "FenchelYoung",
    "LayerNormed",
    "Psi",
    "Quadratic",
    "Sphere",
]


@runtime_checkable
class Psi(Protocol):
    """Convex regulariser of the queries, with the gradient of its conjugate."""

    def value(self, query: Tensor) -> Tensor:
        """`(...,)` value at queries `(..., d)`."""

    def conjugate_grad(self, mixed: Tensor) -> Tensor:
        """Gradient of the conjugate at a mix of patterns: the next query."""


@dataclass(frozen=True)
class Quadratic:
    """Half the squared norm; the next query is the mix of patterns itself."""

    def value(self, query: Tensor) -> Tensor:
        return query.square().sum(-1) / 2

    def conjugate_grad(self, mixed: Tensor) -> Tensor:
        return mixed


@dataclass(frozen=True)
class Sphere:
    """Indicator of a ball; the next query is normalised to its radius."""

    radius: float = 1.0

    def __post_init__(self) -> None:
        positive_number(self.radius, "radius")

    def value(self, query: Tensor) -> Tensor:
        inside = query.norm(dim=-1) <= self.radius * (1 + _slack(query))
        return torch.where(inside, 0.0, math.inf).to(query)

    def conjugate_grad(self, mixed: Tensor) -> Tensor:
        norm = mixed.norm(dim=-1, keepdim=True)
        return self.radius * mixed / torch.where(norm > 0, norm, 1.0)  # zero stays zero


@dataclass(frozen=True)
class LayerNormed:
    """Indicator of mean 0 and variance at most 1; the next query is layer-normalised."""

    def value(self, query: Tensor) -> Tensor:
        centre = query.mean(-1).abs() <= _slack(query)
        inside = query.square().mean(-1) <= 1 + 10 * _slack(query)
        return torch.where(centre & inside, 0.0, math.inf).to(query)

    def conjugate_grad(self, mixed: Tensor) -> Tensor:
        # The smallest eps leaves vectors of zero variance at zero and changes no other.
        return F.layer_norm(mixed, mixed.shape[-1:], eps=torch.finfo(mixed.dtype).tiny)


class Energy(ABC):
    """Base class of energies of an associative memory, passed to `hopfield_retrieve`."""

    @abstractmethod
    def value(self, query: Tensor, memory: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """`(..., m)` energy of each query."""

    @abstractmethod
    def step(self, query: Tensor, memory: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """`(..., m, d)` updated queries, whose energy is not higher."""


@dataclass(frozen=True)
class FenchelYoung(Energy):
    """Hopfield-Fenchel-Young energy, for any regulariser Omega:

        E(q) = -Omega*(beta X q) / beta + Psi(q),    q <- grad Psi*(X^T argmax_Omega(beta X q)).

    With `Shannon()` this is the modern Hopfield network, whose step is softmax attention; with a
    sparse map patterns are retrieved exactly; with `Subset(k)` or `SparseMAP(structure)` several
    patterns at once.

    Args:
        omega: regulariser of the pattern weights.
        beta: inverse temperature; the higher, the fewer patterns are mixed.
        psi: regulariser of the queries: `Quadratic()`, `Sphere()` or `LayerNormed()`.

    Example:
        >>> import torch, fewfold as ff
        >>> memory = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> energy = ff.FenchelYoung(ff.Gini(), beta=2.0)
        >>> energy.step(torch.tensor([[0.9, 0.3]]), memory)
        tensor([[1., 0.]])

    Reference: Santos, Niculae, McNamee and Martins, "Hopfield-Fenchel-Young networks", 2024.
    """

    omega: Omega = Shannon()  # noqa: RUF009  (an immutable value)
    beta: float = 1.0
    psi: Psi = Quadratic()

    def __post_init__(self) -> None:
        if isinstance(self.beta, Tensor):
            raise TypeError("beta must be a number, got a tensor; write float(beta)")
        positive_number(self.beta, "beta")
        check_rowwise(self.omega)
        if isinstance(self.psi, type) or not isinstance(self.psi, Psi):
            raise TypeError(f"psi must be a value such as ff.hopfield.Sphere(), got {self.psi!r}")

    def scores(self, query: Tensor, memory: Tensor) -> Tensor:
        """`(..., m, n)` scores of queries and patterns, scaled by beta."""
        check_memory(query, memory)
        return self.beta * query @ memory.transpose(-2, -1)

    def probs(self, query: Tensor, memory: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """`(..., m, n)` weight of each pattern in a step."""
        return self.omega.argmax(self.scores(query, memory), mask=mask)

    def value(self, query: Tensor, memory: Tensor, *, mask: Tensor | None = None) -> Tensor:
        found = self.omega.conjugate(self.scores(query, memory), mask=mask)
        return self.psi.value(query) - found / self.beta

    def step(self, query: Tensor, memory: Tensor, *, mask: Tensor | None = None) -> Tensor:
        return self.psi.conjugate_grad(self.probs(query, memory, mask=mask) @ memory)

    def offset(self, memory: Tensor) -> Tensor:
        """Constant that makes the energy non-negative on the convex hull of the patterns.

        `-Omega(u) / beta + M^2 / 2` with uniform u and M the largest norm; for omegas on the
        simplex and `Quadratic()`.
        """
        check_patterns(memory)
        size = memory.shape[-2]
        uniform = memory.new_full((size,), 1 / size)
        largest = memory.square().sum(-1).amax(-1)
        return largest / 2 - self.omega.value(uniform) / self.beta


@dataclass(frozen=True)
class Classical(Energy):
    """Binary Hopfield network, `E(q) = -q^T W q / 2` with `W = X^T X` and a zero diagonal.

    A step updates the signs asynchronously, `q_i <- sign(W_i q)`, so that the energy never rises.
    The capacity is about .14 d random patterns; beyond it, retrieved states resemble no pattern.

    Args:
        self_coupling: keep the diagonal of W. The energy is then `-||X q||^2 / 2`, and a step
            `q <- sign(X^T X q)` updates all signs at once. The diagonal grows with the number of
            patterns, so that nearly every query becomes a fixed point.

    Reference: Hopfield, "Neural networks and physical systems with emergent collective
    computational abilities", 1982.
    """

    self_coupling: bool = False

    def value(self, query: Tensor, memory: Tensor, *, mask: Tensor | None = None) -> Tensor:
        found = -_masked_scores(query, memory, mask).square().sum(-1) / 2
        if self.self_coupling:
            return found
        return found + (_diagonal(memory, mask) * query.square()).sum(-1) / 2

    def step(self, query: Tensor, memory: Tensor, *, mask: Tensor | None = None) -> Tensor:
        scores = _masked_scores(query, memory, mask)
        if self.self_coupling:
            return _signs(scores @ memory, query)
        diagonal, after = _diagonal(memory, mask), []
        for i in range(query.shape[-1]):
            part, old = memory[..., i : i + 1], query[..., i : i + 1]
            new = _signs(scores @ part - diagonal[..., i : i + 1] * old, old)
            moved = (new - old) * part.mT  # change of the scores
            scores = scores + (moved if mask is None else moved.masked_fill(~mask, 0.0))
            after.append(new)
        return torch.cat(after, -1) if after else query


@dataclass(frozen=True)
class DenseAssociative(Energy):
    """Binary energy `-sum_i [x_i q]_+^n`, with step `q <- sign(X^T [X q]_+^(n-1))`.

    Args:
        power: n, at least 2; the capacity grows with it.

    Reference: Krotov and Hopfield, "Dense associative memory for pattern recognition", 2016.
    """

    power: int = 3

    def __post_init__(self) -> None:
        whole_number(self.power, "power", least=2)

    def value(self, query: Tensor, memory: Tensor, *, mask: Tensor | None = None) -> Tensor:
        return -_masked_scores(query, memory, mask).clamp(min=0).pow(self.power).sum(-1)

    def step(self, query: Tensor, memory: Tensor, *, mask: Tensor | None = None) -> Tensor:
        scores = _masked_scores(query, memory, mask).clamp(min=0)
        if scores.shape[-1]:  # scaled by the largest, so that powers do not overflow
            largest = scores.amax(-1, keepdim=True)
            scores = scores / largest.clamp(min=torch.finfo(scores.dtype).tiny)
        return _signs(scores.pow(self.power - 1) @ memory, query)


@dataclass(frozen=True)
class Exponential(Energy):
    """Binary energy `-log sum_i exp(x_i q)`, with step `q <- sign(X^T exp(X q))`.

    The logarithm preserves the order of energies and keeps them finite.

    Reference: Demircigil, Heusel, Loewe, Upgang and Vermet, "On a model of associative memory with
    huge storage capacity", 2017.
    """

    def value(self, query: Tensor, memory: Tensor, *, mask: Tensor | None = None) -> Tensor:
        return -Shannon().conjugate(_masked_scores(query, memory, None), mask=mask)

    def step(self, query: Tensor, memory: Tensor, *, mask: Tensor | None = None) -> Tensor:
        return _signs(softmax(_masked_scores(query, memory, None), mask=mask) @ memory, query)


def check_memory(query: Tensor, memory: Tensor) -> None:
    """Raise unless queries and patterns have the same size, dtype and compatible batches."""
    for name, tensor in (("memory", memory), ("query", query)):
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or tensor.dim() < 2:
            got = (
                f"{tensor.dtype} of shape {tuple(tensor.shape)}"
                if isinstance(tensor, Tensor)
                else type(tensor).__name__
            )
            raise ValueError(f"{name} must be floating-point vectors (..., count, d), got {got}")
    if query.shape[-1] != memory.shape[-1]:
        raise ValueError(
            f"queries and patterns must have the same size, got {query.shape[-1]} and "
            f"{memory.shape[-1]}"
        )
    if query.dtype != memory.dtype and not autocasts(query):
        raise TypeError(
            f"queries and patterns must have the same dtype, got {query.dtype} and {memory.dtype}; "
            "write memory.to(query.dtype)"
        )
    joint_batch(query, memory)


def check_patterns(memory: Tensor) -> None:
    """Raise unless the memory holds at least one pattern."""
    check_memory(memory, memory)
    if not memory.shape[-2]:
        raise ValueError(f"memory must hold a pattern, got shape {tuple(memory.shape)}")


def check_rowwise(omega: Omega) -> None:
    """Raise unless omega is a regulariser over vectors, applied to each query separately."""
    check_omega(omega)
    if omega.event_dim != 1:
        raise ValueError(
            f"omega must map the scores of one query, got {omega}, which maps a matrix of scores"
        )


def _slack(query: Tensor) -> float:
    """Rounding tolerance of a norm of 1."""
    return max(1e-5, 4 * torch.finfo(query.dtype).eps)


def _masked_scores(query: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
    """Inner products of queries and patterns, zero where masked."""
    check_memory(query, memory)
    scores = query @ memory.transpose(-2, -1)
    if mask is None:
        return scores
    check_mask(mask, scores)
    return scores.masked_fill(~mask, 0.0)


def _diagonal(memory: Tensor, mask: Tensor | None) -> Tensor:
    """`(..., 1 or m, d)` sums of squares over the patterns: the diagonal of `X^T X`."""
    squares = memory.square()
    if mask is None:
        return squares.sum(-2, keepdim=True)
    return mask.to(squares.dtype) @ squares


def _signs(field: Tensor, query: Tensor) -> Tensor:
    """Sign of the field; the previous value where the field is zero."""
    return torch.where(field == 0, query, field.sign())
