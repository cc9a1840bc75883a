"""Structure: a set of sets of parts, and the questions one may ask it."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor

from fewfold._check import check_mask, check_scores, check_temperature, whole_number
from fewfold._torch import check_values, has_values, values_visible
from fewfold.structured.kbest import KBest

__all__ = ["Structure", "by_row", "cooled", "kept", "raise_infeasible", "raise_odd"]


Kind = TypeVar("Kind", bound="Structure")


class Structure(ABC):
    """A set of structures, each a set of parts; scores have one number for each part.

    What one instance is, the *event*, are the last `event_dim` dimensions of the scores; all others
    are the batch. A part whose score is -inf cannot be used.

    A structure of one's own is easiest made by `Custom`.
    """

    event_dim: ClassVar[int] = 1
    coded: ClassVar[bool] = True
    """whether a structure is a set of parts; otherwise it is any vector"""
    additional_names: ClassVar[tuple[str, ...]] = ()
    """fields with scores of more than one part, such as transitions; None where there are none"""
    layout_names: ClassVar[tuple[str, ...]] = ()
    """fields that say how the additional scores are laid out, and nothing about the structures"""

    def check(self, event: torch.Size) -> None:  # noqa: B027  (most take any)
        """Raise unless scores of this event shape fit."""

    def slots(self, event: torch.Size) -> Tensor:
        """(parts,) the slot of each part: a structure has at most one part of a slot."""
        return torch.arange(event.numel())

    def width(self, event: torch.Size) -> int:
        """How many slots there are."""
        return int(self.slots(event).max()) + 1 if event.numel() else 0

    @abstractmethod
    def plain_best(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The best structures, without native code.

        Args:
            scores: `(rows, *event)` float64, -inf where a part cannot be used.

        Returns:
            `(rows, *event)` bool, and (rows,) whether there was any structure at all.
        """

    def native(self, request: Any, scores: Tensor) -> tuple[Any, ...] | None:
        """SparseMAP of all rows by a kernel, or None where there is none."""
        return None

    def native_best(self, scores: Tensor) -> tuple[Tensor, Tensor] | None:
        """Codes (rows, slots) and values (rows,) of the best by a kernel, or None."""
        return None

    def direct(self, scores: Tensor) -> Tensor | None:
        """Marginals by a map with derivatives of its own; None where it does not apply."""
        return None

    def project(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
        """Marginals, gaps, iterations and whether they converged, in closed form, or None."""
        return None

    def face_apply(self, scores: Tensor, marginals: Tensor, change: Tensor) -> Tensor:
        """By how much the marginals of `project` change with the scores, a symmetric map."""
        raise NotImplementedError(f"{type(self).__name__} has no closed form")

    @property
    def additional(self) -> tuple[Tensor, ...]:
        """Scores of more than one part, such as transitions."""
        named = (getattr(self, name) for name in self.additional_names)
        return tuple(value for value in named if isinstance(value, Tensor))

    def with_additional(self, tensors: Sequence[Tensor]) -> Self:
        """The same with other additional scores, in the order of `additional`."""
        names = [n for n in self.additional_names if isinstance(getattr(self, n), Tensor)]
        if not names:
            return self
        return replace(self, **dict(zip(names, tensors, strict=True)))  # type: ignore[type-var]

    def same_set(self, other: "Structure") -> bool:
        """Whether the other is the same but for additional scores."""
        if type(self) is not type(other):
            return False
        for field in fields(self):  # type: ignore[arg-type]
            mine, its = getattr(self, field.name), getattr(other, field.name)
            if field.name in self.additional_names + self.layout_names:
                continue
            both = isinstance(mine, Tensor) and isinstance(its, Tensor)
            if not (torch.equal(mine, its) if both else mine is its or mine == its):
                return False
        return True

    def rows(self, which: Tensor) -> Self:
        """The same with the additional scores of these instances; self is flat."""
        return self.with_additional([value[which] for value in self.additional])

    def flat(self, batch: torch.Size, event: torch.Size) -> Self:
        """The same with additional scores of shape (rows, ...), one for each instance."""
        return self

    def extra(self, codes: Tensor, row: Tensor, event: torch.Size) -> Tensor:
        """What the additional scores add to each of some structures, differentiably; self is flat.

        Args:
            codes: (m, slots) int64, the part at each slot or -1.
            row: (m,) the instance of each.
            event: the shape of an instance.
        """
        return torch.zeros(len(codes), dtype=torch.float64)

    def extra_pull(
        self, by: Tensor, codes: Tensor, row: Tensor, batch: torch.Size, event: torch.Size
    ) -> tuple[Tensor, ...] | None:
        """The transpose of `extra` for each of the additional scores; None: autograd does it.

        Codes may be int32 as well; self is not flat.
        """
        return None

    def count(self, event: torch.Size) -> int:
        """How many structures there are, where a formula is known."""
        raise NotImplementedError(f"how many {type(self).__name__} has is not known")

    def enumerate(self, event: torch.Size) -> Tensor:
        """All of them, `(structures, *event)` bool: for small events."""
        raise NotImplementedError(f"{type(self).__name__} cannot be enumerated")

    def log_partition(self, scores: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Log of the sum of exp(score) over all structures; its gradient are the marginals."""
        raise NotImplementedError(f"the sum over all {type(self).__name__} is not offered")

    @torch.no_grad()
    def sample(
        self, scores: Tensor, n: int, *, mask: Tensor | None = None,
        generator: torch.Generator | None = None, temperature: float = 1.0,
    ) -> Tensor:  # fmt: skip
        """`(n, ..., *event)` bool: n structures drawn in proportion to exp(score / temperature).

        Raises:
            ValueError: where an instance has no structure, or a score that is NaN or inf.
        """
        if type(self)._draws is Structure._draws:
            raise NotImplementedError(f"draws from all {type(self).__name__} are not offered")
        rows, made, _ = self.prepared(scores, mask, temperature)
        raise_odd(made.odd(rows), self)
        raise_infeasible(made.log_partition(rows) == -math.inf, self)
        return made._draws(rows, n, generator).view(n, *scores.shape).to(scores.device)

    def _draws(self, scores: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
        """n draws for each row, in proportion to exp(score); self is flat.

        Args:
            scores: `(rows, *event)` float64, such that every row has a structure.

        Returns:
            `(n, rows, *event)` bool, perhaps with n and rows as one dimension.
        """
        raise NotImplementedError

    def _k_best(self, scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """(rows, k, slots) codes of the best, and (rows, k) their scores."""
        raise NotImplementedError(f"the k best of {type(self).__name__} are not offered")

    def _k_best_parts(self, scores: Tensor, k: int, event: torch.Size) -> tuple[Tensor, Tensor]:
        """The same with `(rows * k, *event)` bool instead of codes."""
        codes, values = self._k_best(scores, k)
        return self.dense(codes.flatten(0, 1).long(), event), values

    @property
    def scale(self) -> float:
        """Of the objective, next to that of `encoded` scores."""
        return 1.0

    def encoded(self, scores: Tensor) -> Tensor:
        """Scores with which the sum of squares of the marginals is what is to be regularised."""
        return scores

    def told(self, objective: Tensor, event: torch.Size) -> Tensor:
        """The objective, from that of `encoded` scores."""
        return objective

    def regulariser(self, marginals: Tensor) -> Tensor:
        """What `sparsemap` takes off: (rows, parts) -> (rows,)."""
        return marginals.square().sum(1) / 2

    # What all structures offer, written once.

    def score_of(self, scores: Tensor, structures: Tensor) -> Tensor:
        """The score of each structure: the sum of its parts and of the additional scores.

        Args:
            scores: `(..., *event)`.
            structures: `(..., *event)` zeros and ones, boolean or numbers; batches broadcast.

        Returns:
            (...,) double, differentiable in the scores and the additional ones; -inf where a
            structure has a part that cannot be used.
        """
        event = self.event_of(scores)
        if structures.shape[structures.dim() - self.event_dim :] != event:
            raise ValueError(
                f"structures must end in the shape of an instance {tuple(event)}, "
                f"got {tuple(structures.shape)}"
            )
        used = structures > 0.5
        total = torch.where(used, scores.double(), 0.0)
        batch = total.shape[: total.dim() - self.event_dim]
        total = total.flatten(len(batch)).sum(-1)
        if not self.additional:
            return total
        given = [value.to("cpu", torch.float64) for value in self.additional]
        codes = self.codes(used.expand(*batch, *event).reshape(-1, *event).cpu(), event)
        made = self.with_additional(given).flat(batch, event)
        return total + made.extra(codes, torch.arange(len(codes)), event).view(batch).to(total)

    def log_prob(
        self, scores: Tensor, structures: Tensor, *, mask: Tensor | None = None,
        temperature: float = 1.0,
    ) -> Tensor:  # fmt: skip
        """Log-probability of structures that are drawn in proportion to exp(score / temperature).

        The log-likelihood of a conditional random field: the score of the structure less
        `log_partition`.

        Args:
            scores: `(..., *event)`.
            structures: `(..., *event)` zeros and ones, boolean or numbers, such as those of
                `argmax` and `sample`; batches broadcast.
            mask: as in `sparsemap`.
            temperature: what scores, additional ones too, are divided by.

        Returns:
            (...,), differentiable in the scores and the additional ones; -inf for a structure with
            a part, or a pair of parts, that cannot be used.

        Raises:
            ValueError: if something else than a structure is given (not seen inside torch.func and
                torch.compile), or if an instance has no structure at all.
        """
        check_scores(scores)
        check_temperature(temperature)
        if mask is not None:
            check_mask(mask, scores)
            scores = scores.masked_fill(~mask, -math.inf)
        wide, made = cooled(scores, self, temperature)
        own, total = made.score_of(wide, structures), made.log_partition(wide).double()
        if values_visible():
            raise_infeasible((total == -math.inf).flatten(), self)
            self.check_members(scores, structures, own)
        return (own - total).to(scores.dtype)

    @torch.no_grad()
    def check_members(self, scores: Tensor, structures: Tensor, own: Tensor | None = None) -> None:
        """Raise where what is given, and has a finite score, is no structure.

        A structure is the best one for scores of +1 at its parts and -1 elsewhere.

        Args:
            scores: `(..., *event)`; those of -inf are parts that cannot be used.
            structures: `(..., *event)`.
            own: the scores of the structures, if they are known.
        """
        own = self.score_of(scores, structures) if own is None else own
        event = self.event_of(scores)
        shape = (*own.shape, *event)
        used = (structures > 0.5).expand(shape)
        signs = torch.where(used, 1.0, -1.0).masked_fill(scores == -math.inf, -math.inf)
        level = [value.masked_fill(value > -math.inf, 0.0) for value in self.additional]
        seen = own.isfinite().view(*own.shape, *[1] * len(event))
        odd = ((structures > 0.5) != (structures != 0)) | ((structures != 1) & (structures != 0))
        best = self.with_additional(level).argmax(torch.where(seen, signs, math.nan))
        wrong = (seen & (odd.expand(shape) | ((best > 0.5) != used))).flatten(own.dim()).any(-1)
        if bool(wrong.any()):
            first = tuple(wrong.nonzero()[0].tolist())
            raise ValueError(
                f"structures must be zeros and ones that make a structure of {self}; those at "
                f"{first} do not"
            )

    @torch.no_grad()
    def argmax(self, scores: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """The best structure: ones at its parts, zeros elsewhere, of the shape of the scores.

        Raises:
            ValueError: where an instance has no structure.
        """
        rows, made, event = self.prepared(scores, mask)
        found = made.native_best(rows)
        if found is None:
            best, feasible = made.plain_best(rows)
        else:
            feasible = found[1] != -math.inf
            best = made.dense(found[0].long(), event)
        odd = made.odd(rows)
        raise_infeasible(~feasible & ~odd, self)
        best = best.to(scores.dtype).masked_fill(_like(odd, best), math.nan)
        return best.view(scores.shape).to(scores.device)

    @torch.no_grad()
    def k_best(self, scores: Tensor, k: int, *, mask: Tensor | None = None) -> KBest:
        """The k best structures of each instance, the best first."""
        whole_number(k, "k")
        structures, values, event = self.k_best_parts(scores, k, mask=mask)
        batch = scores.shape[: scores.dim() - self.event_dim]
        return KBest(
            structures.view(*batch, k, *event).to(scores.device),
            values.view(*batch, k).to(scores),
            (values > -math.inf).view(*batch, k).to(scores.device),
        )

    @torch.no_grad()
    def k_best_parts(
        self, scores: Tensor, k: int, *, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, torch.Size]:
        """`(rows * k, *event)` bool, (rows, k) double, -inf where there are no more; the event."""
        rows, made, event = self.prepared(scores, mask)
        return *made._k_best_parts(rows, k, event), event

    def prepared(
        self, scores: Tensor, mask: Tensor | None, temperature: float = 1.0
    ) -> tuple[Tensor, Self, torch.Size]:
        """Constants for a solver: `(rows, *event)` float64, the flat structure, the event."""
        check_scores(scores)
        check_values(
            scores,
            "the search for the best structures goes by the values of the scores",
            "use sparsemap, whose marginals have the shape of the scores, or another device",
        )
        check_temperature(temperature)
        event = self.event_of(scores)
        rows = scores.detach()
        if mask is not None:
            check_mask(mask, scores)
            rows = rows.masked_fill(~mask, -math.inf)
        batch = scores.shape[: scores.dim() - self.event_dim]
        given = [value.detach().to("cpu", torch.float64) / temperature for value in self.additional]
        rows = rows.to("cpu", torch.float64, copy=True).reshape(batch.numel(), *event)
        rows = rows if temperature == 1.0 else rows / temperature
        return rows.contiguous(), self.with_additional(given).flat(batch, event), event

    def odd(self, scores: Tensor) -> Tensor:
        """(rows,) whether a score or an additional one of a row is NaN or inf; self is flat."""
        found = torch.zeros(len(scores), dtype=torch.bool, device=scores.device)
        for value in (scores, *self.additional):
            found |= by_row(value.isnan() | (value == math.inf), len(found)).any(1)
        return found

    def event_of(self, scores: Tensor) -> torch.Size:
        """The shape of an instance, checked."""
        if scores.dim() < self.event_dim:
            raise ValueError(
                f"scores of {type(self).__name__} must have at least {self.event_dim} dimensions, "
                f"got shape {tuple(scores.shape)}"
            )
        event = scores.shape[scores.dim() - self.event_dim :]
        self.check(event)
        return event

    def dense(self, codes: Tensor, event: torch.Size) -> Tensor:
        """(m, slots) codes as `(m, *event)` bool."""
        parts = torch.zeros(len(codes), event.numel() + 1, dtype=torch.bool)
        parts.scatter_(1, torch.where(codes < 0, event.numel(), codes), True)
        return parts[:, :-1].reshape(len(codes), *event)

    def codes(self, structures: Tensor, event: torch.Size) -> Tensor:
        """`(m, *event)` 0/1 as (m, slots) codes, int64."""
        if not values_visible():  # how many parts there are must not depend on what they are
            slots, parts = self.slots(event), torch.arange(event.numel())
            used = torch.where(structures.flatten(1) > 0.5, parts, -1)
            none = torch.full((len(structures), self.width(event)), -1)
            return none.scatter_reduce(1, slots.expand(len(structures), -1), used, "amax")
        found = torch.full((len(structures), self.width(event)), -1)
        which, part = structures.flatten(1).nonzero(as_tuple=True)
        found[which, self.slots(event)[part]] = part
        return found

    def __repr__(self) -> str:
        shown = []
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            told = f"tensor{tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
            shown.append(f"{field.name}={told}")
        return f"{type(self).__name__}({', '.join(shown)})"


def cooled(scores: Tensor, structure: Kind, temperature: float) -> tuple[Tensor, Kind]:
    """Scores, and the structure with its additional ones, divided by a temperature, in double."""
    if temperature == 1:
        return scores, structure
    more = [value.double() / temperature for value in structure.additional]
    return scores.double() / temperature, structure.with_additional(more)


def kept(value: Tensor) -> Tensor:
    """A tensor that autograd may keep, whether or not it was made in `torch.inference_mode`."""
    return value.clone() if value.is_inference() else value


def _like(rows: Tensor, structures: Tensor) -> Tensor:
    return rows.view(-1, *[1] * (structures.dim() - 1))


def raise_infeasible(bad: Tensor, structure: Structure) -> None:
    """Raise naming the first instance without a structure, where its values can be read."""
    if has_values(bad) and bool(bad.any()):
        first = int(bad.nonzero()[0, 0])
        raise ValueError(
            f"instance {first} has no structure of {structure}: its mask, or scores of -inf, "
            "leave nothing to choose from"
        )


def raise_odd(odd: Tensor, structure: Structure) -> None:
    """Raise naming the first instance with a score that is NaN or inf."""
    if has_values(odd) and bool(odd.any()):
        raise ValueError(
            f"instance {int(odd.nonzero()[0, 0])} has a score of nan or inf, and nothing can be "
            f"drawn in proportion to it; scores of {structure} must be finite, or -inf where a "
            "part cannot be used"
        )


def by_row(values: Tensor, rows: int) -> Tensor:
    """`values` as (rows, any), also where there are no rows."""
    return values.reshape(rows, values.numel() // max(rows, 1))
