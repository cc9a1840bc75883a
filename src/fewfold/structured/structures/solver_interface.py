"""The methods of a structure that solvers call; most have a default for "no shortcut here"."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from fewfold.structured.structures.native_factors import NativeFactors
from fewfold.structured.structures.nearest import Face

__all__ = ["SolverInterface"]


class SolverInterface(ABC):
    """What the solvers of SparseMAP and of factor graphs need to know about a structure.

    A structure is *flat* once its additional scores have shape `(rows, ...)`, one entry per
    instance of the flattened batch; see `flat`. A structure is *coded* as the part index at each
    of its slots, -1 where a slot is empty.
    """

    event_dim: ClassVar[int] = 1
    binary: ClassVar[bool] = True
    """whether a structure is a set of parts (a 0/1 vector); otherwise it is any real vector"""
    has_factor_kernel: ClassVar[bool] = False
    """whether `add_factors` is implemented"""
    additional_names: ClassVar[tuple[str, ...]] = ()
    """fields with scores of several parts jointly, such as transitions; may be None"""
    layout_names: ClassVar[tuple[str, ...]] = ()
    """fields that describe the layout of the additional scores, not the set of structures"""

    def check(self, event: torch.Size) -> None:  # noqa: B027  (most take any)
        """Raise a ValueError unless scores of this event shape fit."""

    def check_factor(self) -> None:  # noqa: B027  (most take any)
        """Raise a ValueError unless the structure can be a factor of a `FactorGraph`."""

    def slots(self, event: torch.Size) -> Tensor:
        """Slot of each part, (parts,); a structure has at most one part per slot."""
        return torch.arange(event.numel())

    def width(self, event: torch.Size) -> int:
        """Number of slots."""
        return int(self.slots(event).max()) + 1 if event.numel() else 0

    @abstractmethod
    def plain_best(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the best structure of each row without native kernels.

        Args:
            scores: `(rows, *event)` float64, -inf where a part cannot be used.

        Returns:
            `(rows, *event)` bool, and (rows,) bool, whether any structure is feasible.
        """

    def native(self, request: Any, scores: Tensor) -> tuple[Any, ...] | None:
        """SparseMAP of all rows by a native kernel; None if there is no kernel."""
        return None

    def native_best(self, scores: Tensor) -> tuple[Tensor, Tensor] | None:
        """Codes (rows, slots) and values (rows,) of the best by a kernel; None if there is none."""
        return None

    def differentiable_marginals(self, scores: Tensor) -> Tensor | None:
        """SparseMAP marginals by a map that autograd can differentiate; None if not applicable."""
        return None

    def project(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
        """Closed-form marginals, gaps, iterations and convergence flags; None if there is none."""
        return None

    def project_jvp(self, scores: Tensor, marginals: Tensor, change: Tensor) -> Tensor:
        """Directional derivative of the marginals of `project`; the Jacobian is symmetric."""
        raise NotImplementedError(f"{type(self).__name__} has no closed form")

    def nearest(self, y: Tensor, w: Tensor) -> tuple[Tensor, Face] | None:
        """argmin sum w (z - y)^2 / 2 less additional scores, by row; None without closed form.

        Self is flat.
        """
        return None

    def possible(self, off: Tensor, on: Tensor) -> Tensor | None:
        """Whether a structure exists with these bits fixed at 0 and at 1; None as for `nearest`.

        Args:
            off, on: (rows, bits) bool.

        Returns:
            (rows,) bool.
        """
        return None

    def additional_usage(self, marginals: Tensor) -> Tensor | None:
        """Weight (rows,) that marginals (rows, parts) give to the one additional score.

        None where the weight is a function of the active structures, not of the marginals alone.
        """
        return None

    def additional_usage_grad(self, marginals: Tensor) -> Tensor:
        """Gradient (rows, parts) of `additional_usage` with respect to the marginals."""
        raise NotImplementedError(f"{type(self).__name__} has no closed form")

    def add_factors(self, factors: NativeFactors) -> Tensor | None:
        """Add factors to the graph of the kernels; self is flat.

        Returns:
            The scores that the kernel reads at every solve, (rows,), or None.
        """
        raise NotImplementedError(f"{type(self).__name__} has no kernel for factor graphs")

    @property
    def additional(self) -> tuple[Tensor, ...]:
        """Scores of several parts jointly, such as transitions."""
        named = (getattr(self, name) for name in self.additional_names)
        return tuple(value for value in named if isinstance(value, Tensor))

    def with_additional(self, tensors: Sequence[Tensor]) -> Self:
        """Return a copy with other additional scores, in the order of `additional`."""
        names = [n for n in self.additional_names if isinstance(getattr(self, n), Tensor)]
        if not names:
            return self
        return replace(self, **dict(zip(names, tensors, strict=True)))  # type: ignore[type-var]

    def same_set(self, other: "SolverInterface") -> bool:
        """Whether the other structure is equal except for additional scores."""
        if type(self) is not type(other):
            return False
        for field in fields(self):  # type: ignore[arg-type]
            value, other_value = getattr(self, field.name), getattr(other, field.name)
            if field.name in self.additional_names + self.layout_names:
                continue
            both = isinstance(value, Tensor) and isinstance(other_value, Tensor)
            if not (
                torch.equal(value, other_value)
                if both
                else value is other_value or value == other_value
            ):
                return False
        return True

    def select_rows(self, which: Tensor) -> Self:
        """Return a copy with the additional scores of these rows; self is flat."""
        return self.with_additional([value[which] for value in self.additional])

    def flat(self, batch: torch.Size, event: torch.Size) -> Self:
        """Return a copy with additional scores of shape (rows, ...), one entry per instance."""
        return self

    def additional_score(self, codes: Tensor, row: Tensor, event: torch.Size) -> Tensor:
        """Sum of the additional scores of each given structure, differentiable; self is flat.

        Args:
            codes: (m, slots) int64, the part at each slot or -1.
            row: (m,) the instance of each structure.
            event: the shape of an instance.
        """
        return torch.zeros(len(codes), dtype=torch.float64)

    def additional_score_vjp(
        self, by: Tensor, codes: Tensor, row: Tensor, batch: torch.Size, event: torch.Size
    ) -> tuple[Tensor, ...] | None:
        """Gradient of `<by, additional_score>` for each additional score; None to use autograd.

        Codes may also be int32; self is not flat.
        """
        return None

    def _draws(self, scores: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
        """Draw n structures per row with probability proportional to exp(score); self is flat.

        Args:
            scores: `(rows, *event)` float64; every row has a feasible structure.

        Returns:
            `(n, rows, *event)` bool; n and rows may be merged into one dimension.
        """
        raise NotImplementedError

    def _k_best(self, scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Codes (rows, k, slots) of the k best structures, and their scores (rows, k)."""
        raise NotImplementedError(f"{type(self).__name__} does not implement k_best")

    @property
    def scale(self) -> float:
        """Factor of the objective relative to the objective of `encode_scores`."""
        return 1.0

    def encode_scores(self, scores: Tensor) -> Tensor:
        """Scores for which the regulariser is half the squared norm of the marginals."""
        return scores

    def decode_objective(self, objective: Tensor, event: torch.Size) -> Tensor:
        """Objective for the original scores, from the objective of `encode_scores`."""
        return objective

    def regulariser(self, marginals: Tensor) -> Tensor:
        """Value of the regulariser of `sparsemap`: (rows, parts) -> (rows,)."""
        return marginals.square().sum(1) / 2

    def event_of(self, scores: Tensor) -> torch.Size:
        """Return the checked shape of an instance."""
        if scores.dim() < self.event_dim:
            raise ValueError(
                f"scores of {type(self).__name__} must have at least {self.event_dim} dimensions, "
                f"got shape {tuple(scores.shape)}"
            )
        event = scores.shape[scores.dim() - self.event_dim :]
        self.check(event)
        return event
