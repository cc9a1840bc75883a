"""Logical constraints on bits: XOR, at most one, OR, implication, and gates with an output bit.

Each constraint is one of four rules applied to bits of which some are negated. SparseMAP is a
closed-form projection; see `nearest`.
"""

import enum
import itertools
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fewfold._native import dispatch
from fewfold.structured.sparsemap.sparsemap_operator import registered
from fewfold.structured.structures.bit_polytopes import ClosedForm, Knapsack, Pair
from fewfold.structured.structures.native_factors import LinearConstraint, NativeFactors
from fewfold.structured.structures.nearest import Face, nearest_or_out

__all__ = [
    "AndOut", "AtMostOne", "Imply", "Knapsack", "Logic", "Or", "OrOut", "Pair", "Rule", "Xor",
    "XorOut",
]  # fmt: skip


class Rule(enum.IntEnum):
    """Which bits may be on together, after negation."""

    ONE = 0
    AT_MOST_ONE = 1
    ANY = 2
    ANY_OUT = 3  # the last bit is the OR of the others

    def allows(self, bits: Tensor) -> Tensor:
        """Whether each of (m, bits) bool is allowed, (m,)."""
        ones = bits.sum(1)
        if self is Rule.ANY_OUT:
            return bits[:, :-1].any(1) == bits[:, -1]
        return {Rule.ONE: ones == 1, Rule.AT_MOST_ONE: ones <= 1, Rule.ANY: ones >= 1}[self]

    def best(self, scores: Tensor) -> Tensor:
        """Best bits of each row; a score of +inf forces a bit on."""
        if self is Rule.ANY_OUT:
            inputs = Rule.ANY.best(scores[:, :-1])
            gain = torch.where(inputs, scores[:, :-1], 0.0).sum(1, keepdim=True) + scores[:, -1:]
            return torch.cat([inputs, torch.ones_like(gain, dtype=torch.bool)], 1) & (gain > 0)
        first = torch.zeros_like(scores, dtype=torch.bool)
        first.scatter_(1, scores.argmax(1, keepdim=True), True)
        on = scores > 0
        if self is Rule.ANY:
            return torch.where(on.any(1, keepdim=True), on, first)
        return first & on if self is Rule.AT_MOST_ONE else first


@dataclass(frozen=True, repr=False)
class Logic(ClosedForm):
    """A rule, the slice of bits that it negates, and the least number of bits."""

    rule: ClassVar[Rule]
    negates: ClassVar[slice]
    least: ClassVar[int]

    def __init_subclass__(
        cls, *, rule: Rule | None = None, negates: slice = slice(0), least: int = 1
    ) -> None:
        super().__init_subclass__()
        if rule is not None:
            cls.rule, cls.negates, cls.least = rule, negates, least
            registered(dataclass(frozen=True, repr=False)(cls))

    def negated_bits(self, size: int) -> Tensor:
        """Which of `size` bits the rule negates, (size,) bool."""
        found = torch.zeros(size, dtype=torch.bool)
        found[self.negates] = True
        return found

    def check(self, event: torch.Size) -> None:
        if event[0] < self.least:
            raise ValueError(
                f"{type(self).__name__} needs at least {self.least} bits, got {event[0]}"
            )

    def constraint(self, size: int) -> LinearConstraint | None:
        negated_bits = self.negated_bits(size)
        sign = torch.where(negated_bits, -1.0, 1.0).to(torch.float64)
        bound = 1.0 - float(negated_bits.sum())
        if self.rule is Rule.ANY:
            return LinearConstraint(-sign, -bound, False)
        return LinearConstraint(sign, bound, self.rule is Rule.ONE)

    def plain_best(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        negated_bits = self.negated_bits(scores.shape[1])
        absent = (scores == -math.inf).all(1, keepdim=True)
        best = (self.rule.best(torch.where(negated_bits, -scores, scores)) ^ negated_bits) & ~absent
        return best, ~(best & (scores == -math.inf)).any(1)

    def native(self, request: Any, scores: Tensor) -> tuple[Any, Any, Any] | None:
        negated_bits = self.negated_bits(scores.shape[1]).to(torch.uint8)
        found: tuple[Any, Any, Any] = dispatch.kernel("sparsemap_logic")(
            request, int(self.rule), negated_bits
        )
        return found

    def enumerate(self, event: torch.Size) -> Tensor:
        every = torch.tensor(list(itertools.product([False, True], repeat=event[0])))
        return every[self.rule.allows(every ^ self.negated_bits(event[0]))]

    def count(self, event: torch.Size) -> int:
        size = int(event[0])
        return {
            Rule.ONE: size,
            Rule.AT_MOST_ONE: size + 1,
            Rule.ANY: (1 << size) - 1,
            Rule.ANY_OUT: 1 << (size - 1),
        }[self.rule]


class Output(Logic):
    """Gates that are not one linear constraint. All bits are negated, or none."""

    def constraint(self, size: int) -> LinearConstraint | None:
        return None

    def possible(self, off: Tensor, on: Tensor) -> Tensor:
        if bool(self.negated_bits(off.shape[1]).any()):
            off, on = on, off
        never = off[:, -1] & on[:, :-1].any(1)
        return ~(never | (on[:, -1] & off[:, :-1].all(1)))

    def nearest(self, y: Tensor, w: Tensor) -> tuple[Tensor, Face]:
        negated_bits = self.negated_bits(y.shape[1])
        z, face = nearest_or_out(torch.where(negated_bits, 1 - y, y), w)
        return torch.where(negated_bits, 1 - z, z), face

    def add_factors(self, factors: NativeFactors) -> Tensor | None:
        negated = factors.negated ^ self.negated_bits(factors.bits.shape[1])
        factors.graph.add_any_out(factors.uses(negated))
        return None

    def native_nearest(self, scores: Tensor) -> Tensor:
        negated_bits = self.negated_bits(scores.shape[1])
        y = torch.where(negated_bits, 1 - scores, scores)
        z = torch.empty_like(y)
        dispatch.kernel("nearest_any_out")(y, *y.shape, z, dispatch.threads())
        return torch.where(negated_bits, 1 - z, z)


class Xor(Logic, rule=Rule.ONE):
    """Exactly one bit is on; SparseMAP is sparsemax.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.sparsemap(torch.tensor([0.8, 0.7, -0.2]), ff.structures.Xor())
        tensor([0.5500, 0.4500, 0.0000])
    """


class AtMostOne(Logic, rule=Rule.AT_MOST_ONE):
    """At most one bit is on.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.sparsemap(torch.tensor([0.2, 0.3, -0.4]), ff.structures.AtMostOne())
        tensor([0.2000, 0.3000, 0.0000])
    """


class Or(Logic, rule=Rule.ANY):
    """At least one bit is on.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.sparsemap(torch.tensor([0.2, 0.3, -0.4]), ff.structures.Or())
        tensor([0.4500, 0.5500, 0.0000])
    """


class Imply(Logic, rule=Rule.ANY, negates=slice(-1), least=2):
    """If all bits but the last are on, the last is on.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.sparsemap(torch.tensor([0.8, 0.7, -0.2]), ff.structures.Imply())
        tensor([0.5667, 0.4667, 0.0333])
    """


class XorOut(Logic, rule=Rule.ONE, negates=slice(-1, None), least=2):
    """At most one of the inputs is on; the last bit is on exactly if one of them is.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.sparsemap(torch.tensor([0.8, 0.7, -0.2]), ff.structures.XorOut())
        tensor([0.2333, 0.1333, 0.3667])
    """


class OrOut(Output, rule=Rule.ANY_OUT, least=2):
    """The last bit is the OR of the others.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.sparsemap(torch.tensor([0.9, 0.2, 0.6]), ff.structures.OrOut())
        tensor([0.7500, 0.2000, 0.7500])
    """


class AndOut(Output, rule=Rule.ANY_OUT, negates=slice(None), least=2):
    """The last bit is the AND of the others.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.sparsemap(torch.tensor([0.9, 0.2, 0.6]), ff.structures.AndOut())
        tensor([0.9000, 0.4000, 0.4000])
    """
