"""A factor graph in flat form: every use of a bit by a factor is a link.

A bit of degree d has weight 1 / d in each of its factors, so that the weights of its links sum to
one.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewfold.structured.sparsemap.active_set import ActiveSet, solve_plain
from fewfold.structured.structures.batch_rows import rows_like
from fewfold.structured.structures.structure import Structure

__all__ = [
    "ActiveFaces",
    "FaceMap",
    "Faces",
    "FactorProjections",
    "Group",
    "Links",
    "check_fixed_bits",
    "raise_infeasible_factor",
]  # fmt: skip

CONVERGED_GAP = 1e-9  # gap that counts as converged; rounding may prevent smaller ones


@dataclass(frozen=True, eq=False)
class Group:
    """Factors of one structure, added by one call.

    Attributes:
        structure: the structure as given.
        bits: (factors, parts) int64, indices of bits of the graph.
        negated: (factors, parts) bool.
        factors: shape of the factors; additional scores broadcast to `(*batch, *factors)`.
        event: the shape of one factor.
    """

    structure: Structure
    bits: NDArray[np.int64]
    negated: NDArray[np.bool_]
    factors: torch.Size
    event: torch.Size


class FaceMap(Protocol):
    """The faces on which the projections of some factors lie."""

    @property
    def converged(self) -> Tensor:
        """Whether each projection is optimal, (n,) bool."""

    def push(self, change: Tensor) -> Tensor:
        """Directional derivative of the projections along `change`, (n, parts)."""


class Links:
    """All groups of a graph, concatenated."""

    def __init__(self, groups: Sequence[Group], size: int) -> None:
        self.groups, self.size = tuple(groups), size
        flat = [group.bits.reshape(-1) for group in groups]
        bits = np.concatenate([np.zeros(0, np.int64), *flat])
        self.bit = torch.from_numpy(bits)
        self.degree = torch.bincount(self.bit, minlength=size).double()
        self.weight = 1 / self.degree[self.bit]
        flips = [group.negated.reshape(-1) for group in groups]
        self.negated = torch.from_numpy(np.concatenate([np.zeros(0, np.bool_), *flips]))
        ends = np.cumsum([0, *[len(own) for own in flat]]).tolist()
        self.spans = [slice(a, b) for a, b in itertools.pairwise(ends)]

    def mean(self, values: Tensor) -> Tensor:
        """Average (rows, links) over the links of each bit, (rows, bits); 0 for bits without."""
        total = values.new_zeros(len(values), self.size).index_add(1, self.bit, values)
        return total / self.degree.clamp(min=1)

    def spread(self, values: Tensor) -> Tensor:
        """Copy (rows, bits) to the links of each bit, (rows, links)."""
        return values[:, self.bit]

    def local(self, place: int, values: Tensor) -> Tensor:
        """Values (rows, bits) as read by the factors of a group, (rows * factors, parts)."""
        own = values[:, self.bit[self.spans[place]]]
        own = torch.where(self.negated[self.spans[place]], 1 - own, own)
        return own.reshape(-1, self.groups[place].bits.shape[1])

    def local_change(self, place: int, values: Tensor) -> Tensor:
        """Changes (rows, bits) as read by the factors of a group, (rows * factors, parts)."""
        own = values[:, self.bit[self.spans[place]]]
        own = torch.where(self.negated[self.spans[place]], -own, own)
        return own.reshape(-1, self.groups[place].bits.shape[1])

    def scatter_change(self, place: int, values: Tensor) -> Tensor:
        """Transpose of `local_change`."""
        span = self.spans[place]
        own = values.reshape(-1, span.stop - span.start)
        own = torch.where(self.negated[span], -own, own)
        return own.new_zeros(len(own), self.size).index_add(1, self.bit[span], own)


class FactorProjections:
    """Projection of a point on the polytope of every factor."""

    def __init__(self, links: Links, structures: Sequence[Structure]) -> None:
        """`structures` are the flat structures of the groups; rows count (instances, factors)."""
        self.links, self.structures = links, structures
        self.previous: list[list[ActiveSet] | None] = [None] * len(structures)

    def nearest(self, y: Tensor, share: Tensor) -> tuple[Tensor, "Faces"]:
        """z = argmin sum w (z - y)^2 / 2 - share * (additional scores) for every factor.

        Args:
            y: (rows, links).
            share: (rows,) weight of the additional scores.

        Returns:
            z (rows, links), and the faces on which it lies.
        """
        links = self.links
        y_local = torch.where(links.negated, 1 - y, y)
        parts: list[Tensor] = [y[:, :0]]
        faces: list[FaceMap] = []
        for place, (group, span) in enumerate(zip(links.groups, links.spans, strict=True)):
            count = len(group.bits)
            near = y_local[:, span].reshape(len(y) * count, -1)
            weight = links.weight[span].view(count, -1).repeat(len(y), 1)
            each = share.repeat_interleave(count)
            given = [value * rows_like(each, value) for value in self.structures[place].additional]
            structure = self.structures[place].with_additional(given)
            closed = structure.nearest(near, weight)
            if closed is not None:
                z, face = closed
                z = z.masked_fill((near == -math.inf).all(1, keepdim=True), 0.0)
                faces.append(face)
            else:
                found = _solve_active(structure, group.event, near, weight, self.previous[place])
                for row, one in enumerate(found):
                    if not one.feasible:
                        raise_infeasible_factor(group, *divmod(row, count))
                self.previous[place] = found
                scale = weight.sqrt()
                z = torch.from_numpy(np.stack([one.weights @ one.atoms for one in found])) / scale
                faces.append(ActiveFaces(found, scale))
            parts.append(z.view(len(y), -1))
        z = torch.cat(parts, 1)
        return torch.where(links.negated, 1 - z, z), Faces(links, faces)


@dataclass(frozen=True, eq=False)
class Faces:
    """Faces of the projections of all factors."""

    links: Links
    parts: Sequence[FaceMap]

    def converged(self, rows: int) -> Tensor:
        """Whether the projections on all factors are optimal, (rows,)."""
        found = torch.ones(rows, dtype=torch.bool)
        for part in self.parts:
            found &= part.converged.view(rows, -1).all(1)
        return found

    def push(self, change: Tensor) -> Tensor:
        """Directional derivative of the projections, (rows, links) -> (rows, links)."""
        signed = torch.where(self.links.negated, -change, change)
        moved = [change[:, :0]]
        for group, span, part in zip(self.links.groups, self.links.spans, self.parts, strict=True):
            own = signed[:, span].reshape(len(change) * len(group.bits), -1)
            moved.append(part.push(own).view(len(change), -1))
        whole = torch.cat(moved, 1)
        return torch.where(self.links.negated, -whole, whole)


@dataclass(frozen=True, eq=False)
class ActiveFaces:
    """Faces spanned by the active structures of each factor."""

    found: Sequence[ActiveSet]
    scale: Tensor

    @property
    def converged(self) -> Tensor:
        """Whether the active set of each factor is optimal, (factors,) bool."""
        return torch.tensor([one.converged or one.gap <= CONVERGED_GAP for one in self.found])

    def push(self, change: Tensor) -> Tensor:
        by = self.weights_jvp(change)
        moved = [own @ one.atoms for own, one in zip(by, self.found, strict=True)]
        return torch.from_numpy(np.stack(moved)) / self.scale

    def weights_jvp(self, change: Tensor) -> list[NDArray[np.float64]]:
        """Change of the weight of each active structure."""
        changes = (change * self.scale).numpy()
        return [
            _weights_jvp(one, one.atoms @ own) for one, own in zip(self.found, changes, strict=True)
        ]

    def score_jvp(self, values: Tensor) -> Tensor:
        """Change of the projections (n, parts) with the scores of active structures (m,)."""
        ends = np.cumsum([len(one.weights) for one in self.found])[:-1]
        parts = zip(self.found, np.split(values.numpy(), ends), strict=True)
        return torch.from_numpy(
            np.stack([_weights_jvp(one, own) @ one.atoms for one, own in parts])
        )


def _weights_jvp(one: ActiveSet, scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Change of the weights of active structures with their scores."""
    gram = one.atoms @ one.atoms.T + 1
    by, ones = np.linalg.solve(gram, np.column_stack([scores, np.ones(len(gram))])).T
    found: NDArray[np.float64] = by - by.sum() / ones.sum() * ones
    return found


def check_fixed_bits(links: Links, structures: Sequence[Structure], scores: Tensor) -> None:
    """Raise a ValueError where bits fixed at 0 by scores of -inf make a factor infeasible.

    Structures without a closed form detect that themselves, but cannot fix a bit at 1.
    """
    if not bool((scores == -math.inf).any()):
        return
    for place, (group, structure) in enumerate(zip(links.groups, structures, strict=True)):
        span = links.spans[place]
        fixed = scores[:, links.bit[span]] == -math.inf
        parts = (len(scores) * len(group.bits), -1)
        on = (fixed & links.negated[span]).view(parts)
        off = (fixed & ~links.negated[span]).view(parts)
        possible = structure.possible(off, on)
        if possible is None:
            if bool(on.any()):
                raise ValueError(
                    f"bits with a score of -inf cannot be negated in {group.structure}"
                )
            continue
        bad = ~possible & ~off.all(1)  # a factor whose bits are all off is absent
        if bool(bad.any()):
            raise_infeasible_factor(group, *divmod(int(bad.nonzero()[0, 0]), len(group.bits)))


def raise_infeasible_factor(group: Group, instance: int, factor: int) -> None:
    """Raise a ValueError that names an infeasible factor."""
    where = f" at factor {factor}" if len(group.bits) > 1 else ""
    raise ValueError(
        f"instance {instance} has no structure of {group.structure}{where}: scores of -inf leave "
        "nothing to choose from"
    )


def _solve_active(
    structure: Structure, event: torch.Size, y: Tensor, w: Tensor, previous: list[ActiveSet] | None
) -> list[ActiveSet]:
    """SparseMAP in a weighted norm, by scaling parts by sqrt(w)."""
    scale = w.sqrt()

    def oracle(left: Tensor, which: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        own = torch.where(left == -math.inf, left, left * scale[which])
        best, feasible = structure.select_rows(which).plain_best(own.view(-1, *event))
        return (
            best.flatten(1) * scale[which],
            _additional_score(structure, best, which, event),
            feasible,
        )

    start = None
    if previous is not None:
        counts = torch.tensor([len(one.atoms) for one in previous])
        row = torch.repeat_interleave(torch.arange(len(previous)), counts)
        atoms = torch.from_numpy(np.concatenate([one.atoms for one in previous])) / scale[row]
        extra = _additional_score(structure, atoms.round().view(-1, *event), row, event).numpy()
        ends = np.cumsum(counts.numpy())[:-1]
        start = [(one.atoms, own) for one, own in zip(previous, np.split(extra, ends), strict=True)]
    return solve_plain(y * scale, oracle, 1000, 1e-12, start)


def _additional_score(structure: Structure, best: Tensor, row: Tensor, event: torch.Size) -> Tensor:
    if not structure.binary:
        return torch.zeros(len(best), dtype=torch.float64)
    return structure.additional_score(structure.codes(best, event), row, event).detach()
