"""Active-set method for SparseMAP in numpy, for structures without a kernel.

All instances advance in step, so that one oracle call serves all of them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["ActiveSet", "Oracle", "complete_face", "solve_plain"]

Array = NDArray[np.float64]
Oracle = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
"""scores (n, parts), rows (n,) -> structures (n, parts), additional scores and feasible (n,)"""
_DEPENDENT = (
    1e-9  # squared distance, relative, below which a structure is an affine combination of others
)


@dataclass
class ActiveSet:
    """Active structures of one instance, their weights and the state of the solver."""

    values: Array
    base: tuple[Array, float]
    """the first structure and its additional score: `scores` are differences from it"""
    atoms: Array
    weights: Array = field(default_factory=lambda: np.ones(1))
    scores: Array = field(default_factory=lambda: np.zeros(1))
    gap: float = math.inf
    turns: int = 0
    converged: bool = False
    feasible: bool = True
    gram: Array = field(init=False)
    """Gram matrix of the structures plus one; cached, as they may have thousands of parts"""

    def __post_init__(self) -> None:
        self.gram = self.atoms @ self.atoms.T + 1

    def score(self, atom: Array, extra: float) -> float:
        """Score of a structure relative to the first, so that large common terms cancel exactly."""
        first, own = self.base
        change = atom - first
        return math.fsum((change * np.where(change != 0, self.values, 0.0)).tolist()) + extra - own

    def optimise_weights(self) -> None:
        """Optimise the weights of the active structures, removing those that become zero."""
        while True:
            best = _optimal_weights(self.gram, self.scores)
            negative = best < 0
            if not negative.any():
                self.weights = best / best.sum()
                return
            steps = np.where(negative, self.weights / (self.weights - best).clip(1e-300), math.inf)
            leaves = int(steps.argmin())
            self.weights = self.weights + steps[leaves] * (best - self.weights)
            self.remove(leaves)

    def remove(self, which: int) -> None:
        """Remove an active structure."""
        self.atoms = np.delete(self.atoms, which, 0)
        self.gram = np.delete(np.delete(self.gram, which, 0), which, 1)
        self.weights = np.delete(self.weights, which).clip(0)
        self.scores = np.delete(self.scores, which)

    def add(self, atom: Array, score: float) -> bool:
        """Add a structure, replacing one of which it is an affine combination; False if no gain."""
        by, *_ = np.linalg.lstsq(self.gram, self.atoms @ atom + 1, rcond=None)
        weight = 0.0
        distance = np.square(by @ self.atoms - atom).sum() + (by.sum() - 1) ** 2
        if distance <= _DEPENDENT * (np.square(atom).sum() + 1):
            steps = np.where(by > 1e-9, self.weights / by.clip(1e-300), math.inf)
            leaves = int(steps.argmin())
            gain = score - by @ self.scores
            if gain <= 1e-13 * (1 + abs(score)) or not math.isfinite(steps[leaves]):
                return False
            weight = steps[leaves]
            self.weights = (self.weights - weight * by).clip(0)
            self.remove(leaves)
        self.append(atom, weight, score)
        return True

    def append(self, atom: Array, weight: float, score: float) -> None:
        """Append a structure that is affinely independent of the others."""
        shared = self.atoms @ atom + 1
        corner = np.square(atom).sum() + 1
        self.gram = np.block([[self.gram, shared[:, None]], [shared[None], np.array([[corner]])]])
        self.atoms = np.vstack([self.atoms, atom])
        self.weights = np.append(self.weights, weight)
        self.scores = np.append(self.scores, score)


def _optimal_weights(gram: Array, scores: Array) -> Array:
    """argmax s'x - |A x|^2 / 2 where x sums to one, of either sign."""
    count = len(gram)
    system = np.zeros((count + 1, count + 1))
    system[:count, :count] = gram  # the added ones change the multiplier only
    system[:count, count] = system[count, :count] = 1
    weights: Array = np.linalg.solve(system, np.append(scores, 1.0))[:count]
    return weights


def solve_plain(
    scores: Tensor,
    oracle: Oracle,
    turns: int,
    tolerance: float,
    start: list[tuple[Array, Array]] | None = None,
) -> list[ActiveSet]:
    """SparseMAP of every row.

    Args:
        scores: (rows, parts) float64.
        oracle: returns the best structures.
        turns: maximum number of oracle calls per row.
        tolerance: on the duality gap.
        start: initial structures (m, parts) of each row, and their additional scores (m,).
    """
    every = torch.arange(len(scores))
    first, extra, feasible = oracle(scores, every)
    values = scores.numpy()
    found = []
    for row in range(len(scores)):
        atom, own = first[row].double().numpy(), float(extra[row])
        solved = ActiveSet(values[row], (atom, own), atom[None], feasible=bool(feasible[row]))
        for other, more in zip(*start[row], strict=True) if start and solved.feasible else ():
            score = solved.score(other, float(more))
            if math.isfinite(score) and not (solved.atoms == other).all(1).any():
                solved.add(other, score)
        found.append(solved)
    running = [
        row
        for row, one in enumerate(found)
        if one.feasible and math.isfinite(one.base[1]) and np.isfinite(one.atoms).all()
    ]
    while running:
        for row in running:
            found[row].optimise_weights()
        left = np.stack([values[row] - found[row].weights @ found[row].atoms for row in running])
        best, extra, _ = oracle(torch.from_numpy(left), torch.tensor(running))
        running = [
            row
            for place, row in enumerate(running)
            if _add_best(
                found[row], best[place].double().numpy(), float(extra[place]), turns, tolerance
            )
        ]
    return found


def complete_face(one: ActiveSet, row: int, oracle: Oracle) -> None:
    """Add structures of weight zero until the active structures span the face of the solution.

    For degenerate scores the solution needs fewer structures than span its face, but its
    derivative needs all of them. The oracle is called with scores perturbed along a random
    direction on which all active structures agree; the solution is in the relative interior of the
    face, so a missing structure is found in either direction.
    """
    mean = one.weights @ one.atoms
    used, left = mean >= 1e-9, one.values - mean
    draw = np.random.default_rng(0)
    top = float((one.scores - one.atoms @ mean)[0])
    found = True
    basis = _basis(one.atoms - one.atoms[0])
    most = min(len(mean), len(one.atoms) + 128)
    while found and len(one.atoms) <= most:
        along = np.where(used, draw.uniform(-1, 1, len(mean)), 0.0)
        along = _orthogonal_part(along, basis)
        level, found = float(one.atoms[0] @ along), False
        tried = np.where(used, left + 1e-6 * along, -math.inf)
        best, extra, feasible = oracle(torch.from_numpy(tried)[None], torch.tensor([row]))
        atom = best[0].double().numpy()
        score = one.score(atom, float(extra[0])) if feasible[0] else -math.inf
        value = score - float(atom @ mean)
        near = abs(value - top) < 1e-9 * (1 + abs(top))
        if near and abs(atom @ along - level) > 1e-6:
            one.append(atom, 0.0, score)
            further = _orthogonal_part(atom - one.atoms[0], basis)
            basis = np.vstack([basis, further / np.linalg.norm(further)])
            found = True


def _basis(rows: Array) -> Array:
    """Orthonormal basis of the span of the rows, (rank, parts)."""
    _, size, basis = np.linalg.svd(rows, full_matrices=False)
    leading: Array = basis[size > 1e-7 * size[0]]
    return leading


def _orthogonal_part(vector: Array, basis: Array) -> Array:
    """Component of a vector orthogonal to all rows of an orthonormal basis."""
    for _ in range(2):  # the second pass removes rounding errors
        vector = vector - basis.T @ (basis @ vector)
    return vector


def _add_best(one: ActiveSet, atom: Array, extra: float, turns: int, tolerance: float) -> bool:
    """Update the gap, and add the best structure unless converged; return whether to continue."""
    one.turns += 1
    mean = one.weights @ one.atoms
    square = float(mean @ mean)
    score = one.score(atom, extra)
    value = score - float(atom @ mean)
    one.gap = max(0.0, value - (float(one.weights @ one.scores) - square))
    one.converged = one.gap <= max(tolerance, 1e-13 * (abs(value) + square))
    if one.converged or one.turns >= turns or not math.isfinite(value):
        return False
    if (one.atoms == atom).all(1).any():
        return False
    return one.add(atom, score)
