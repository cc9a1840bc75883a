"""Logic over bits: one of them, at most one, at least one, and outputs that follow from inputs.

Each is known by its rule and by the bits that it reads the other way round, so that four rules are
enough. All have SparseMAP in closed form, as the nearest point of a polytope; see `nearest`.
"""

import enum
import itertools
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fewfold import _native
from fewfold.structured.closed import ClosedForm, Knapsack, Pair, Row
from fewfold.structured.nearest import Face, nearest_or_out
from fewfold.structured.opaque import registered

__all__ = [
    "AndOut", "AtMostOne", "Imply", "Knapsack", "Logic", "Or", "OrOut", "Pair", "Rule", "Xor",
    "XorOut",
]  # fmt: skip


class Rule(enum.IntEnum):
    """Which bits may be on together, once those that are read the other way round are turned."""

    ONE = 0
    AT_MOST_ONE = 1
    ANY = 2
    ANY_OUT = 3  # the last bit tells whether any of the others is on


class Logic(ClosedForm):
    """A rule, and which bits it reads the other way round."""

    rule: ClassVar[Rule]
    least: ClassVar[int] = 1

    def turned(self, size: int) -> Tensor:
        """(bits,) which of so many are read the other way round."""
        return torch.zeros(size, dtype=torch.bool)

    def check(self, event: torch.Size) -> None:
        if event[0] < self.least:
            raise ValueError(
                f"{type(self).__name__} needs at least {self.least} bits, got {event[0]}"
            )

    def row(self, size: int) -> Row | None:
        if self.rule is Rule.ANY_OUT:
            return None
        turned = self.turned(size)
        sign = torch.where(turned, -1.0, 1.0).to(torch.float64)
        bound = 1.0 - float(turned.sum())
        if self.rule is Rule.ANY:
            return Row(-sign, -bound, False)
        return Row(sign, bound, self.rule is Rule.ONE)

    def possible(self, off: Tensor, on: Tensor) -> Tensor:
        if self.rule is not Rule.ANY_OUT:
            return super().possible(off, on)
        if bool(self.turned(off.shape[1]).any()):  # all bits are turned, or none
            off, on = on, off
        never = off[:, -1] & on[:, :-1].any(1)
        return ~(never | (on[:, -1] & off[:, :-1].all(1)))

    def nearest(self, y: Tensor, w: Tensor) -> tuple[Tensor, Face]:
        if self.rule is not Rule.ANY_OUT:
            return super().nearest(y, w)
        turned = self.turned(y.shape[1])
        z, face = nearest_or_out(torch.where(turned, 1 - y, y), w)
        return torch.where(turned, 1 - z, z), face  # all bits are turned, or none: the same face

    def native_nearest(self, scores: Tensor) -> Tensor:
        if self.rule is not Rule.ANY_OUT:
            return super().native_nearest(scores)
        assert _native.kernels is not None
        turned = self.turned(scores.shape[1])
        y = torch.where(turned, 1 - scores, scores)
        z = torch.empty_like(y)
        _native.kernels.nearest_any_out(y.data_ptr(), *y.shape, z.data_ptr(), _native.threads())
        return torch.where(turned, 1 - z, z)

    def plain_best(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        turned = self.turned(scores.shape[1])
        absent = (scores == -math.inf).all(1)
        best = _best(torch.where(turned, -scores, scores), self.rule) ^ turned
        best &= ~absent.unsqueeze(1)
        return best, ~(best & (scores == -math.inf)).any(1)

    def native(self, request: Any, scores: Tensor) -> tuple[Any, Any, Any] | None:
        assert _native.kernels is not None
        turned = self.turned(scores.shape[1]).to(torch.uint8)
        found: tuple[Any, Any, Any] = _native.kernels.sparsemap_logic(
            request, int(self.rule), turned.data_ptr()
        )
        return found

    def enumerate(self, event: torch.Size) -> Tensor:
        every = _every(event[0])
        bits = every ^ self.turned(event[0])
        ones = bits.sum(1)
        if self.rule is Rule.ONE:
            return every[ones == 1]
        if self.rule is Rule.AT_MOST_ONE:
            return every[ones <= 1]
        if self.rule is Rule.ANY:
            return every[ones >= 1]
        return every[bits[:, :-1].any(1) == bits[:, -1]]

    def count(self, event: torch.Size) -> int:
        size = int(event[0])
        return {
            Rule.ONE: size,
            Rule.AT_MOST_ONE: size + 1,
            Rule.ANY: (1 << size) - 1,
            Rule.ANY_OUT: 1 << (size - 1),
        }[self.rule]


def _every(size: int) -> Tensor:
    return torch.tensor(list(itertools.product([False, True], repeat=size))).view(-1, size)


def _best(scores: Tensor, rule: Rule) -> Tensor:
    """The best bits by a rule; +inf where a bit must be on."""
    first = torch.zeros_like(scores, dtype=torch.bool)
    first.scatter_(1, scores.argmax(1, keepdim=True), True)
    on = scores > 0
    if rule is Rule.ONE:
        return first
    if rule is Rule.AT_MOST_ONE:
        return first & on
    if rule is Rule.ANY:
        return torch.where(on.any(1, keepdim=True), on, first)
    inputs = _best(scores[:, :-1], Rule.ANY)
    gain = torch.where(inputs, scores[:, :-1], 0.0).sum(1, keepdim=True) + scores[:, -1:]
    on = gain > 0
    return torch.cat([inputs & on, on], 1)


@registered
@dataclass(frozen=True, repr=False)
class Xor(Logic):
    """Exactly one bit is on; SparseMAP is sparsemax.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.sparsemap(torch.tensor([0.8, 0.7, -0.2]), ff.structures.Xor())
        tensor([0.5500, 0.4500, 0.0000])
    """

    rule = Rule.ONE


@registered
@dataclass(frozen=True, repr=False)
class AtMostOne(Logic):
    """At most one bit is on.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.sparsemap(torch.tensor([0.2, 0.3, -0.4]), ff.structures.AtMostOne())
        tensor([0.2000, 0.3000, 0.0000])
    """

    rule = Rule.AT_MOST_ONE


@registered
@dataclass(frozen=True, repr=False)
class Or(Logic):
    """At least one bit is on.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.sparsemap(torch.tensor([0.2, 0.3, -0.4]), ff.structures.Or())
        tensor([0.4500, 0.5500, 0.0000])
    """

    rule = Rule.ANY


@registered
@dataclass(frozen=True, repr=False)
class Imply(Logic):
    """If all bits but the last are on, the last is on.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.sparsemap(torch.tensor([0.8, 0.7, -0.2]), ff.structures.Imply())
        tensor([0.5667, 0.4667, 0.0333])
    """

    rule = Rule.ANY
    least = 2

    def turned(self, size: int) -> Tensor:
        return torch.arange(size) < size - 1


@registered
@dataclass(frozen=True, repr=False)
class XorOut(Logic):
    """At most one bit but the last is on; the last tells whether one is.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.sparsemap(torch.tensor([0.8, 0.7, -0.2]), ff.structures.XorOut())
        tensor([0.2333, 0.1333, 0.3667])
    """

    rule = Rule.ONE
    least = 2

    def turned(self, size: int) -> Tensor:
        return torch.arange(size) == size - 1


@registered
@dataclass(frozen=True, repr=False)
class OrOut(Logic):
    """The last bit tells whether any other is on.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.sparsemap(torch.tensor([0.9, 0.2, 0.6]), ff.structures.OrOut())
        tensor([0.7500, 0.2000, 0.7500])
    """

    rule = Rule.ANY_OUT
    least = 2


@registered
@dataclass(frozen=True, repr=False)
class AndOut(Logic):
    """The last bit tells whether all others are on.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.sparsemap(torch.tensor([0.9, 0.2, 0.6]), ff.structures.AndOut())
        tensor([0.9000, 0.4000, 0.4000])
    """

    rule = Rule.ANY_OUT
    least = 2

    def turned(self, size: int) -> Tensor:
        return torch.ones(size, dtype=torch.bool)
