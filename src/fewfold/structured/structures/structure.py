"""Structure: a set of structures over scored parts, and the queries it answers."""

import math
from abc import ABC
from dataclasses import fields
from typing import Self

import torch
from torch import Tensor

from fewfold._check import check_mask, check_scores, check_temperature, whole_number
from fewfold._torch import check_values, values_visible
from fewfold.structured.kbest import KBest
from fewfold.structured.structures.batch_rows import by_row, divide_by_temperature, rows_like
from fewfold.structured.structures.score_errors import raise_infeasible, raise_invalid_scores
from fewfold.structured.structures.solver_interface import SolverInterface

__all__ = ["Structure"]


class Structure(SolverInterface, ABC):
    """A set of structures, each a set of parts; scores have one number per part.

    The last `event_dim` dimensions of the scores, the *event*, are one instance; all others are
    the batch. A part with a score of -inf cannot be used.

    `Custom` makes a structure from a function that finds the best one.
    """

    def count(self, event: torch.Size) -> int:
        """Number of structures, where a formula is known."""
        raise NotImplementedError(f"{type(self).__name__} does not implement count")

    def enumerate(self, event: torch.Size) -> Tensor:
        """All structures, `(structures, *event)` bool; feasible for small events only."""
        raise NotImplementedError(f"{type(self).__name__} cannot be enumerated")

    def log_partition(self, scores: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Log of the sum of exp(score) over all structures; its gradient is the marginals."""
        raise NotImplementedError(f"the sum over all {type(self).__name__} is not implemented")

    @torch.no_grad()
    def sample(
        self, scores: Tensor, n: int, *, mask: Tensor | None = None,
        generator: torch.Generator | None = None, temperature: float = 1.0,
    ) -> Tensor:  # fmt: skip
        """Draw n structures with probability proportional to exp(score / temperature).

        Returns:
            `(n, ..., *event)` bool.

        Raises:
            ValueError: where an instance has no structure, or a score that is NaN or inf.
        """
        if type(self)._draws is Structure._draws:
            raise NotImplementedError(f"sampling of {type(self).__name__} is not implemented")
        rows, flat, _ = self.solver_inputs(scores, mask, temperature)
        raise_invalid_scores(flat.invalid_rows(rows), self)
        raise_infeasible(flat.log_partition(rows) == -math.inf, self)
        return flat._draws(rows, n, generator).view(n, *scores.shape).to(scores.device)

    def _k_best_parts(self, scores: Tensor, k: int, event: torch.Size) -> tuple[Tensor, Tensor]:
        """The k best as `(rows * k, *event)` bool, and their scores (rows, k)."""
        codes, values = self._k_best(scores, k)
        return self.dense(codes.flatten(0, 1).long(), event), values

    def score_of(self, scores: Tensor, structures: Tensor) -> Tensor:
        """Score of each structure: the sum over its parts plus its additional scores.

        Args:
            scores: `(..., *event)`.
            structures: `(..., *event)` zeros and ones, bool or any number type; batches broadcast.

        Returns:
            (...,) double, differentiable in the scores and the additional scores; -inf where
            a structure has a part that cannot be used.
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
        flat = self.with_additional(given).flat(batch, event)
        return total + flat.additional_score(codes, torch.arange(len(codes)), event).view(batch).to(
            total
        )

    def log_prob(
        self, scores: Tensor, structures: Tensor, *, mask: Tensor | None = None,
        temperature: float = 1.0,
    ) -> Tensor:  # fmt: skip
        """Log-probability of structures under p proportional to exp(score / temperature).

        The log-likelihood of a conditional random field: the score of the structure minus
        `log_partition`.

        Args:
            scores: `(..., *event)`.
            structures: `(..., *event)` zeros and ones, bool or any number type, as returned by
                `argmax` and `sample`; batches broadcast.
            mask: as in `sparsemap`.
            temperature: divisor of the scores and of the additional scores.

        Returns:
            (...,), differentiable in the scores and the additional scores; -inf for a structure
            with a part, or a pair of parts, that cannot be used.

        Raises:
            ValueError: if an entry of `structures` is not a structure (unchecked inside torch.func
                and torch.compile), or if an instance has no structure at all.
        """
        check_scores(scores)
        check_temperature(temperature)
        if mask is not None:
            check_mask(mask, scores)
            scores = scores.masked_fill(~mask, -math.inf)
        wide, scaled = divide_by_temperature(scores, self, temperature)
        own, total = scaled.score_of(wide, structures), scaled.log_partition(wide).double()
        if values_visible():
            raise_infeasible((total == -math.inf).flatten(), self)
            self.check_members(scores, structures, own)
        return (own - total).to(scores.dtype)

    @torch.no_grad()
    def check_members(self, scores: Tensor, structures: Tensor, own: Tensor | None = None) -> None:
        """Raise a ValueError where an entry with a finite score is not a structure.

        A structure is the best one for scores of +1 at its parts and -1 elsewhere.

        Args:
            scores: `(..., *event)`; -inf where a part cannot be used.
            structures: `(..., *event)`.
            own: the scores of the structures, if already computed.
        """
        own = self.score_of(scores, structures) if own is None else own
        event = self.event_of(scores)
        shape = (*own.shape, *event)
        used = (structures > 0.5).expand(shape)
        signs = torch.where(used, 1.0, -1.0).masked_fill(scores == -math.inf, -math.inf)
        level = [value.masked_fill(value > -math.inf, 0.0) for value in self.additional]
        seen = own.isfinite().view(*own.shape, *[1] * len(event))
        not_binary = ((structures > 0.5) != (structures != 0)) | (
            (structures != 1) & (structures != 0)
        )
        best = self.with_additional(level).argmax(torch.where(seen, signs, math.nan))
        wrong = (
            (seen & (not_binary.expand(shape) | ((best > 0.5) != used))).flatten(own.dim()).any(-1)
        )
        if bool(wrong.any()):
            first = tuple(wrong.nonzero()[0].tolist())
            raise ValueError(
                f"structures must be zeros and ones that make a structure of {self}; those at "
                f"{first} do not"
            )

    @torch.no_grad()
    def argmax(self, scores: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Best structure: ones at its parts, zeros elsewhere, in the shape of the scores.

        Raises:
            ValueError: where an instance has no structure.
        """
        rows, flat, event = self.solver_inputs(scores, mask)
        found = flat.native_best(rows)
        if found is None:
            best, feasible = flat.plain_best(rows)
        else:
            feasible = found[1] != -math.inf
            best = flat.dense(found[0].long(), event)
        invalid = flat.invalid_rows(rows)
        raise_infeasible(~feasible & ~invalid, self)
        best = best.to(scores.dtype).masked_fill(rows_like(invalid, best), math.nan)
        return best.view(scores.shape).to(scores.device)

    @torch.no_grad()
    def k_best(self, scores: Tensor, k: int, *, mask: Tensor | None = None) -> KBest:
        """The k highest-scoring structures of each instance, best first."""
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
        """The k best as `(rows * k, *event)` bool, their scores (rows, k) float64, and the event.

        A score is -inf where there are fewer than k structures.
        """
        rows, flat, event = self.solver_inputs(scores, mask)
        return *flat._k_best_parts(rows, k, event), event

    def solver_inputs(
        self, scores: Tensor, mask: Tensor | None, temperature: float = 1.0
    ) -> tuple[Tensor, Self, torch.Size]:
        """Detached inputs of a solver: `(rows, *event)` float64, the flat structure, the event."""
        check_scores(scores)
        check_values(
            scores,
            "the search for the best structures depends on the values of the scores",
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

    def invalid_rows(self, scores: Tensor) -> Tensor:
        """Whether a score or additional score of each row is NaN or +inf, (rows,); self is flat."""
        found = torch.zeros(len(scores), dtype=torch.bool, device=scores.device)
        for value in (scores, *self.additional):
            found |= by_row(value.isnan() | (value == math.inf), len(found)).any(1)
        return found

    def dense(self, codes: Tensor, event: torch.Size) -> Tensor:
        """Convert codes (m, slots) to `(m, *event)` bool."""
        parts = torch.zeros(len(codes), event.numel() + 1, dtype=torch.bool)
        parts.scatter_(1, torch.where(codes < 0, event.numel(), codes), True)
        return parts[:, :-1].reshape(len(codes), *event)

    def codes(self, structures: Tensor, event: torch.Size) -> Tensor:
        """Convert `(m, *event)` zeros and ones to codes (m, slots), int64."""
        if not values_visible():  # shapes must not depend on values here
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
            text = f"tensor{tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
            shown.append(f"{field.name}={text}")
        return f"{type(self).__name__}({', '.join(shown)})"
