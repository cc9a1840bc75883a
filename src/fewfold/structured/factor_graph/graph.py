"""Factor graphs: several structures over shared bits, solved jointly."""

import enum
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewfold import _html
from fewfold._check import check_scores, positive_number, whole_number
from fewfold.structured.factor_graph.differentiable import solve_relaxation
from fewfold.structured.factor_graph.links import Group, Links
from fewfold.structured.factor_graph.relaxation import SearchOptions
from fewfold.structured.structures.structure import Structure

__all__ = ["FactorGraph", "GraphSolution", "Status", "Variable"]


F = TypeVar("F", bound=Callable[..., Any])


def _uncompiled(function: F) -> F:
    """Exclude a function from torch.compile; loads the compiler only when compiling."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(function)(*args, **kwargs)
        return function(*args, **kwargs)

    return cast(F, called)


class Status(enum.IntEnum):
    """Status of the marginals of an instance."""

    INTEGER = 0
    """zeros and ones: the optimal structure"""
    FRACTIONAL = 1
    """optimal, but not integral"""
    APPROXIMATE = 2
    """not converged, or the factors are infeasible together"""


_STATUS = {
    Status.INTEGER: "the optimal structure",
    Status.FRACTIONAL: "optimal, but not integral",
    Status.APPROXIMATE: "not converged, or infeasible",
}


@dataclass(frozen=True, eq=False)
class Variable:
    """An array of bits of a graph, as returned by `FactorGraph.variable`, or a slice of it.

    Index it as an array: `u[2, :]`, `u[pairs]`, `u.T`; `~u` are the negated bits.
    """

    graph: "FactorGraph" = field(repr=False)
    bits: NDArray[np.int64]
    negated: NDArray[np.bool_]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.bits.shape

    @property
    def T(self) -> "Variable":  # noqa: N802, as in numpy
        return Variable(self.graph, self.bits.T, self.negated.T)

    @_uncompiled
    def __getitem__(self, key: Any) -> "Variable":
        if isinstance(key, Tensor):
            key = key.cpu().numpy()
        bits, negated = np.asarray(self.bits[key]), np.asarray(self.negated[key])
        return Variable(self.graph, bits, negated)

    def __len__(self) -> int:
        return len(self.bits)

    @_uncompiled
    def __invert__(self) -> "Variable":
        return Variable(self.graph, self.bits, ~self.negated)


@dataclass(frozen=True, eq=False)
class GraphSolution:
    """Solution of all instances of a graph.

    `solution[u]` are the marginals of the bits `u`, in the shape of their scores.

    Attributes:
        marginals: `(*batch, bits)`, all bits of the graph.
        objective: (batch,) expected score minus half the squared norm of the marginals.
        iterations: (batch,) int64.
        primal_residual: (batch,) root mean square disagreement between factors.
        dual_residual: (batch,) root mean square change of the marginals in the last iteration.
        converged: (batch,) bool, whether the residuals are within the tolerance and the iterative
            solvers of all factors have converged.
        status: (batch,) values of `Status`.
    """

    marginals: Tensor
    objective: Tensor
    iterations: Tensor
    primal_residual: Tensor
    dual_residual: Tensor
    converged: Tensor
    status: Tensor
    graph: "FactorGraph" = field(repr=False)

    def _repr_html_(self) -> str:
        """Return a table of the instances, for notebooks."""
        bits = self.marginals.detach().reshape(-1, self.marginals.shape[-1])
        columns = (
            self.objective, self.iterations, self.primal_residual, self.dual_residual, self.status,
        )  # fmt: skip
        rows = [
            [
                str(n), float(objective), int(iterations), int((found > 0).sum()),
                int(((found > 0) & (found < 1)).sum()), float(primal), float(dual),
                f"{Status(int(status)).name.lower()}: {_STATUS[Status(int(status))]}",
            ]
            for n, (found, objective, iterations, primal, dual, status) in enumerate(
                zip(bits, *(one.detach().reshape(-1) for one in columns), strict=True)
            )
        ]  # fmt: skip
        heads = ["instance", "objective", "iterations", "above 0", "fractional",
                 "primal residual", "dual residual", "status"]  # fmt: skip
        return _html.table(heads, rows, caption=f"{bits.shape[1]:,} bits in each instance")

    @_uncompiled
    def __getitem__(self, variable: Variable) -> Tensor:
        if not isinstance(variable, Variable) or variable.graph is not self.graph:
            raise TypeError(
                "a solution must be indexed by a variable of its own graph, as in solution[u]"
            )
        bits = torch.from_numpy(np.ascontiguousarray(variable.bits))
        found = self.marginals[..., bits.to(self.marginals.device)]
        negated = torch.from_numpy(np.ascontiguousarray(variable.negated)).to(found.device)
        return torch.where(negated, 1 - found, found) if bool(negated.any()) else found


class FactorGraph:
    """Structures over shared bits; `solve` computes LP-SparseMAP marginals.

        mu = argmax <t, mu> + sum_f <v_f, nu_f> - <mu, mu> / 2,

    where mu, restricted to the bits of each factor f, is in the convex hull of its structures, and
    v_f are its additional scores. With one factor this is `sparsemap`; with several it is a
    relaxation, in which factors need only agree on marginals. Bits in no factor are clip(t, 0, 1).

    Args:
        batch_dims: number of leading batch dimensions of all scores.

    Example:
        >>> import torch, fewfold as ff
        >>> graph = ff.FactorGraph()
        >>> u = graph.variable(torch.tensor([[1.2, 0.3, 0.1], [0.9, 0.8, -0.4]]))
        >>> graph.add(ff.structures.Xor(), u)  # one factor for every row
        >>> graph.add(ff.structures.AtMostOne(), u.T)
        >>> graph.solve()[u]
        tensor([[0.6857, 0.2571, 0.0571],
                [0.3143, 0.6857, 0.0000]])

    Reference: Niculae and Martins, "LP-SparseMAP: differentiable relaxed optimization for sparse
    structured prediction", 2020.
    """

    @_uncompiled
    def __init__(self, *, batch_dims: int = 0) -> None:
        self.batch_dims = whole_number(batch_dims, "batch_dims", 0)
        self._scores: list[Tensor] = []
        self._groups: list[Group] = []
        self._size = 0

    @_uncompiled
    def variable(self, scores: Tensor) -> Variable:
        """Add bits with scores `(*batch, *shape)`; a score of -inf fixes a bit at 0."""
        check_scores(scores)
        if scores.dim() < self.batch_dims:
            raise ValueError(
                f"scores must have {self.batch_dims} batch dimensions, got {tuple(scores.shape)}"
            )
        batch, shape = scores.shape[: self.batch_dims], scores.shape[self.batch_dims :]
        if self._scores and batch != self._batch():
            raise ValueError(
                f"all scores of a graph share their batch {tuple(self._batch())}, "
                f"got {tuple(batch)}"
            )
        count = shape.numel()
        bits = np.arange(self._size, self._size + count).reshape(tuple(shape))
        self._scores.append(scores)
        self._size += count
        return Variable(self, bits, np.zeros(bits.shape, np.bool_))

    @_uncompiled
    def add(self, structure: Structure, bits: Variable | Sequence[Variable]) -> None:
        """Add factors: constrain bits to the convex hull of a structure.

        Args:
            structure: see `fewfold.structures`. Additional scores broadcast to
                `(*batch, *factors)`.
            bits: `(*factors, *event)`; each index of the dimensions before the event is one
                factor. A list is concatenated for one-dimensional events and stacked otherwise.
        """
        if not isinstance(structure, Structure):
            raise TypeError(
                f"structure must be one of ff.structures, got {type(structure).__name__}"
            )
        structure.check_factor()
        joined = self._join(structure, bits)
        if joined.bits.ndim < structure.event_dim:
            raise ValueError(
                f"{type(structure).__name__} needs bits of at least {structure.event_dim} "
                f"dimensions, got shape {joined.shape}"
            )
        cut = joined.bits.ndim - structure.event_dim
        factors, event = torch.Size(joined.shape[:cut]), torch.Size(joined.shape[cut:])
        structure.check(event)
        flat = joined.bits.reshape(factors.numel(), event.numel())
        if (np.diff(np.sort(flat, 1), axis=1) == 0).any():
            raise ValueError("a factor must not use a bit twice")
        if not flat.size:
            return  # no factors, or factors without bits: no constraint
        negated = joined.negated.reshape(flat.shape)
        self._groups.append(Group(structure, flat, negated, factors, event))

    def solve(
        self, *, max_iter: int = 1000, tol: float = 1e-6, step_size: float = 6.0
    ) -> GraphSolution:
        """Compute LP-SparseMAP marginals, differentiable in scores and additional scores.

        The graph itself is not changed.

        Args:
            max_iter: maximum number of iterations per instance.
            tol: tolerance on the residuals.
            step_size: step size of ADMM, which precedes Newton's method, in units of the root mean
                square of the scores.

        Returns:
            The solution; NaN, with a gradient of zero, for an instance whose scores or additional
            scores are NaN or +inf.

        Raises:
            ValueError: if scores of -inf make a factor infeasible, or if finite scores exceed 1e150
                in magnitude.

        Example:
            >>> import torch, fewfold as ff
            >>> graph = ff.FactorGraph(batch_dims=1)
            >>> u = graph.variable(torch.tensor([[0.3, 0.6, 0.2], [0.5, -0.2, 0.9]]))
            >>> graph.add(ff.structures.Pair(torch.tensor([0.4, -0.5])), u[[[0, 1], [1, 2]]])
            >>> solution = graph.solve()
            >>> solution[u], solution.converged
            (tensor([[0.6500, 0.6500, 0.2000],
                    [0.5000, 0.1500, 0.8500]]), tensor([True, True]))
        """
        return self._solve(max_iter, tol, step_size, regularised=True)

    def solve_map(
        self, *, max_iter: int = 1000, tol: float = 1e-6, step_size: float = 6.0
    ) -> GraphSolution:
        """Compute LP-MAP, the optimal marginals without a regulariser; no gradient.

        Uses the proximal point method, a finite number of LP-SparseMAP problems.

        Args:
            max_iter, tol, step_size: as in `solve`.
        """
        with torch.no_grad():
            return self._solve(max_iter, tol, step_size, regularised=False)

    @_uncompiled
    def _solve(
        self, max_iter: int, tol: float, step_size: float, *, regularised: bool
    ) -> GraphSolution:
        whole_number(max_iter, "max_iter")
        positive_number(tol, "tol")
        positive_number(step_size, "step_size")
        if not self._scores:
            raise ValueError("the graph has no bits; write u = graph.variable(scores)")
        batch, kind = self._batch(), self._scores[0]
        flat = [
            one.to("cpu", torch.float64).reshape(batch.numel(), one.shape[len(batch) :].numel())
            for one in self._scores
        ]
        links = Links(self._groups, self._size)
        found, objective, diagnostics = solve_relaxation(
            torch.cat(flat, 1), links, batch, SearchOptions(max_iter, tol, step_size, regularised)
        )
        iterations, disagreement, moved, factors_converged = diagnostics.unbind(1)
        converged = (disagreement <= tol) & (factors_converged > 0)  # False for NaN
        if not regularised:
            converged = converged & (moved <= tol)
        integral = (found == found.round()).all(1)
        status = torch.where(integral, int(Status.INTEGER), int(Status.FRACTIONAL))
        status = torch.where(converged, status, int(Status.APPROXIMATE))
        return GraphSolution(
            found.view(*batch, self._size).to(kind),
            objective.view(batch).to(kind),
            iterations.long().view(batch).to(kind.device),
            disagreement.view(batch).to(kind),
            moved.view(batch).to(kind),
            converged.view(batch).to(kind.device),
            status.view(batch).to(kind.device),
            self,
        )

    def _batch(self) -> torch.Size:
        return self._scores[0].shape[: self.batch_dims]

    def _join(self, structure: Structure, bits: Variable | Sequence[Variable]) -> Variable:
        given = [bits] if isinstance(bits, Variable) else list(bits)
        for one in given:
            if not isinstance(one, Variable) or one.graph is not self:
                raise TypeError("bits must be variables of this graph, slices or lists of them")
        if isinstance(bits, Variable):
            return bits
        if not given:
            raise ValueError("bits must be a variable, or a list of some; got an empty list")
        if structure.event_dim == 1:
            parts = [(np.atleast_1d(one.bits), np.atleast_1d(one.negated)) for one in given]
            which, negated = (np.concatenate(side) for side in zip(*parts, strict=True))
        else:
            which = np.stack([one.bits for one in given])
            negated = np.stack([one.negated for one in given])
        return Variable(self, which, negated)
