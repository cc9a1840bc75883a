"""Energies of an associative memory, and the step that lowers each of them.

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
    """A convex function of queries, and the map it makes of a mix of patterns."""

    def value(self, query: Tensor) -> Tensor:
        """`(...,)` of queries `(..., d)`."""

    def settle(self, mixed: Tensor) -> Tensor:
        """The query that a mix of patterns leads to: the gradient of the conjugate."""


@dataclass(frozen=True)
class Quadratic:
    """Half the squared norm; a mix of patterns is the next query."""

    def value(self, query: Tensor) -> Tensor:
        return query.square().sum(-1) / 2

    def settle(self, mixed: Tensor) -> Tensor:
        return mixed


@dataclass(frozen=True)
class Sphere:
    """No cost within a ball; the next query has its radius."""

    radius: float = 1.0

    def __post_init__(self) -> None:
        positive_number(self.radius, "radius")

    def value(self, query: Tensor) -> Tensor:
        inside = query.norm(dim=-1) <= self.radius * (1 + _slack(query))
        return torch.where(inside, 0.0, math.inf).to(query)

    def settle(self, mixed: Tensor) -> Tensor:
        norm = mixed.norm(dim=-1, keepdim=True)
        return self.radius * mixed / torch.where(norm > 0, norm, 1.0)  # no mix at all stays


@dataclass(frozen=True)
class LayerNormed:
    """No cost for mean 0 and variance of at most 1; the next query has variance 1."""

    def value(self, query: Tensor) -> Tensor:
        centre = query.mean(-1).abs() <= _slack(query)
        inside = query.square().mean(-1) <= 1 + 10 * _slack(query)
        return torch.where(centre & inside, 0.0, math.inf).to(query)

    def settle(self, mixed: Tensor) -> Tensor:
        # a mix without any variance stays, and no other is changed
        return F.layer_norm(mixed, mixed.shape[-1:], eps=torch.finfo(mixed.dtype).tiny)


class Energy(ABC):
    """What a memory lowers, step by step: a value to give to `hopfield_retrieve`."""

    @abstractmethod
    def value(self, query: Tensor, memory: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """`(..., m)` the energy of each query."""

    @abstractmethod
    def step(self, query: Tensor, memory: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """`(..., m, d)` queries whose energy is not higher."""


@dataclass(frozen=True)
class FenchelYoung(Energy):
    """The energy of a memory with any regulariser:

        E(q) = -Omega*(beta X q) / beta + Psi(q),    q <- grad Psi*(X^T argmax_Omega(beta X q)).

    With `Shannon()` this is the modern Hopfield network, whose step is softmax attention; with a
    sparse map patterns are retrieved exactly; with `Subset(k)` or `SparseMAP(structure)` several
    patterns at once.

    Args:
        omega: the regulariser.
        beta: how sharp; the higher, the fewer patterns are mixed.
        psi: of the queries: `Quadratic()`, `Sphere()` or `LayerNormed()`.

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
        """`(..., m, n)` of queries and patterns."""
        check_memory(query, memory)
        return self.beta * query @ memory.transpose(-2, -1)

    def probs(self, query: Tensor, memory: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """`(..., m, n)` how much of each pattern a step takes."""
        return self.omega.argmax(self.scores(query, memory), mask=mask)

    def value(self, query: Tensor, memory: Tensor, *, mask: Tensor | None = None) -> Tensor:
        found = self.omega.conjugate(self.scores(query, memory), mask=mask)
        return self.psi.value(query) - found / self.beta

    def step(self, query: Tensor, memory: Tensor, *, mask: Tensor | None = None) -> Tensor:
        return self.psi.settle(self.probs(query, memory, mask=mask) @ memory)

    def offset(self, memory: Tensor) -> Tensor:
        """What to add to the value so that it is never below 0 within the hull of the patterns.

        `-Omega(u) / beta + M^2 / 2` with uniform u and M the largest norm; for probabilities and
        `Quadratic()`.
        """
        check_patterns(memory)
        size = memory.shape[-2]
        uniform = memory.new_full((size,), 1 / size)
        largest = memory.square().sum(-1).amax(-1)
        return largest / 2 - self.omega.value(uniform) / self.beta


@dataclass(frozen=True)
class Classical(Energy):
    """The Hopfield network of signs, `E(q) = -q^T W q / 2` with `W = X^T X` and a zero diagonal.

    A step updates one sign after the other, `q_i <- sign(W_i q)`, so that the energy never rises.
    About .14 d random patterns are stored; with more, what is retrieved resembles none of them.

    Args:
        self_coupling: keep the diagonal of W. The energy is then `-||X q||^2 / 2`, and a step
            `q <- sign(X^T X q)` updates all signs at once. The diagonal grows with the number of
            patterns and holds every sign in place: patterns stay, and so does nearly any query.

    Reference: Hopfield, "Neural networks and physical systems with emergent collective
    computational abilities", 1982.
    """

    self_coupling: bool = False

    def value(self, query: Tensor, memory: Tensor, *, mask: Tensor | None = None) -> Tensor:
        found = -_kept(query, memory, mask).square().sum(-1) / 2
        if self.self_coupling:
            return found
        return found + (_diagonal(memory, mask) * query.square()).sum(-1) / 2

    def step(self, query: Tensor, memory: Tensor, *, mask: Tensor | None = None) -> Tensor:
        scores = _kept(query, memory, mask)
        if self.self_coupling:
            return _signs(scores @ memory, query)
        diagonal, after = _diagonal(memory, mask), []
        for i in range(query.shape[-1]):
            part, old = memory[..., i : i + 1], query[..., i : i + 1]
            new = _signs(scores @ part - diagonal[..., i : i + 1] * old, old)
            moved = (new - old) * part.mT  # by how much the scores change
            scores = scores + (moved if mask is None else moved.masked_fill(~mask, 0.0))
            after.append(new)
        return torch.cat(after, -1) if after else query


@dataclass(frozen=True)
class DenseAssociative(Energy):
    """`-sum_i [x_i q]_+^n` of signs, with `q <- sign(X^T [X q]_+^(n-1))`.

    Args:
        power: n, 2 or more; the higher, the more patterns are stored.

    Reference: Krotov and Hopfield, "Dense associative memory for pattern recognition", 2016.
    """

    power: int = 3

    def __post_init__(self) -> None:
        whole_number(self.power, "power", least=2)

    def value(self, query: Tensor, memory: Tensor, *, mask: Tensor | None = None) -> Tensor:
        return -_kept(query, memory, mask).clamp(min=0).pow(self.power).sum(-1)

    def step(self, query: Tensor, memory: Tensor, *, mask: Tensor | None = None) -> Tensor:
        scores = _kept(query, memory, mask).clamp(min=0)
        if scores.shape[-1]:  # in units of the largest, so that no power overflows
            largest = scores.amax(-1, keepdim=True)
            scores = scores / largest.clamp(min=torch.finfo(scores.dtype).tiny)
        return _signs(scores.pow(self.power - 1) @ memory, query)


@dataclass(frozen=True)
class Exponential(Energy):
    """`-log sum_i exp(x_i q)` of signs, with `q <- sign(X^T exp(X q))`.

    The logarithm leaves the order of energies as it is, and keeps them finite.

    Reference: Demircigil, Heusel, Loewe, Upgang and Vermet, "On a model of associative memory with
    huge storage capacity", 2017.
    """

    def value(self, query: Tensor, memory: Tensor, *, mask: Tensor | None = None) -> Tensor:
        return -Shannon().conjugate(_kept(query, memory, None), mask=mask)

    def step(self, query: Tensor, memory: Tensor, *, mask: Tensor | None = None) -> Tensor:
        return _signs(softmax(_kept(query, memory, None), mask=mask) @ memory, query)


def check_memory(query: Tensor, memory: Tensor) -> None:
    """Raise unless queries and patterns are vectors of one size and kind."""
    for name, tensor in (("memory", memory), ("query", query)):
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or tensor.dim() < 2:
            came = (
                f"{tensor.dtype} of shape {tuple(tensor.shape)}"
                if isinstance(tensor, Tensor)
                else type(tensor).__name__
            )
            raise ValueError(f"{name} must be floating-point vectors (..., count, d), got {came}")
    if query.shape[-1] != memory.shape[-1]:
        raise ValueError(
            f"queries and patterns must have one size, got {query.shape[-1]} and {memory.shape[-1]}"
        )
    if query.dtype != memory.dtype and not autocasts(query):
        raise TypeError(
            f"queries and patterns must have one dtype, got {query.dtype} and {memory.dtype}; "
            "write memory.to(query.dtype)"
        )
    joint_batch(query, memory)


def check_patterns(memory: Tensor) -> None:
    """Raise unless a memory holds something."""
    check_memory(memory, memory)
    if not memory.shape[-2]:
        raise ValueError(f"memory must hold a pattern, got shape {tuple(memory.shape)}")


def check_rowwise(omega: Omega) -> None:
    """Raise unless omega is a regulariser that maps the scores of each query by themselves."""
    check_omega(omega)
    if omega.event_dim != 1:
        raise ValueError(
            f"omega must map the scores of one query, got {omega}, which maps a matrix of scores"
        )


def _slack(query: Tensor) -> float:
    """What rounding may add to a norm of 1."""
    return max(1e-5, 4 * torch.finfo(query.dtype).eps)


def _kept(query: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
    """How much each query and pattern have in common; nothing, where masked."""
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
    """The sign of each; what is pulled nowhere stays."""
    return torch.where(field == 0, query, field.sign())
