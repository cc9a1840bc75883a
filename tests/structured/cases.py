"""Table of structures: every property test of this module runs on every row.

What a structure is, and what its additional scores add, is said here a second time, as a rule about
0/1 vectors; the reference goes through all of these and knows nothing of oracles or active sets.
Knapsack is not here: its polytope is not that of its 0/1 vectors.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pytest
import torch
from torch import Tensor

from fewfold.structured import structures
from fewfold.structured.structures.structure import Structure

Rule = Callable[[Tensor], Tensor]
"""(m, *event) float64 of zeros and ones -> (m,) whether each is a structure"""


@dataclass(frozen=True, eq=False)
class Small:
    """What is left of an instance where an element is masked: a smaller instance."""

    mask: Tensor
    structure: Structure
    event: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Case:
    """A structure, the shape of an instance, and what is known about it."""

    name: str
    structure: Structure
    event: tuple[int, ...]
    rule: Rule
    adds: Callable[..., Tensor] | None = None
    """(structures, *additional scores) -> (m,) what these add"""
    small: Small | None = None
    single: Small | None = None
    """The smallest instance there is, whose marginals are one structure."""
    nothing: tuple[Structure, Tensor] | None = None
    """A structure and a mask that leave nothing to choose from; None where that cannot be."""
    forbidden: tuple[int, ...] = (0,)
    """Parts that an instance can do without."""
    doubled: bool = False
    """A bit that is off is a part of its own."""
    listed: bool = True
    """Whether it can enumerate its structures."""
    wide: bool = False
    """One representative per kind of code, for the compiler."""

    @property
    def shared(self) -> bool:
        """Whether it has additional scores that an instance may have of its own."""
        return self.adds is not None and self.adds is not single_bonus

    def every(self) -> Tensor:
        """All structures, (m, *event) float64, by trying all vectors of zeros and ones."""
        return _every(self)

    def extra(self, additional: tuple[Tensor, ...]) -> Tensor:
        """(m,) what the additional scores add to each of them."""
        if self.adds is None:
            return torch.zeros(len(self.every()), dtype=torch.float64)
        return self.adds(self.every(), *additional)

    def expected(self, scores: Tensor, structure: Structure | None = None) -> Tensor:
        """The marginals of `(..., *event)` scores by the reference."""
        additional = (structure or self.structure).additional
        rows = scores.detach().double().reshape(-1, *self.event)
        extra = self.extra(tuple(value.detach().double() for value in additional)).numpy()
        atoms = self.every().flatten(1).numpy()
        if self.doubled:
            atoms = np.concatenate([atoms, 1 - atoms], 1)
        found = []
        for row in rows.flatten(1).numpy():
            parts = np.append(row, np.zeros_like(row)) if self.doubled else row
            found.append(reference(atoms, parts, extra)[: len(row)])
        return torch.from_numpy(np.stack(found)).reshape(scores.shape)

    def values(self, scores: Tensor) -> Tensor:
        """The score of every structure under `(*event)` scores; -inf where it cannot be used."""
        every = self.every()
        used = torch.where(every > 0, scores.detach().double(), 0.0)
        return used.flatten(1).sum(1) + self.extra(self.structure.additional)

    def left(self, scores: Tensor, u: Tensor) -> Tensor:
        """The same less what the marginals take: no structure has more than those in use."""
        every = self.every()
        taken = every * u + (1 - every) * (1 - u) if self.doubled else every * u
        return self.values(scores) - taken.flatten(1).sum(1)

    def half(self, u: Tensor) -> Tensor:
        """Half the squared norm of an instance."""
        return (u.square().sum() + ((1 - u).square().sum() if self.doubled else 0.0)) / 2

    def best(self, scores: Tensor) -> Tensor:
        """The best objective: by duality what is left at the answer, and half its squared norm."""
        u = self.expected(scores)
        return self.left(scores, u).max() + self.half(u)

    def scores(self, *batch: int, seed: int = 0, scale: float = 0.7) -> Tensor:
        """Random scores, for which a few structures usually share the weight."""
        draw = torch.Generator().manual_seed(seed)
        return scale * torch.randn(*batch, *self.event, generator=draw, dtype=torch.float64)


@functools.cache
def _every(case: Case) -> Tensor:
    parts = int(np.prod(case.event))
    bits = (torch.arange(2**parts).unsqueeze(1) >> torch.arange(parts)) & 1
    vectors = bits.double().view(-1, *case.event)
    return vectors[case.rule(vectors)]


def reference(atoms: np.ndarray, scores: np.ndarray, extra: np.ndarray) -> np.ndarray:
    """max (A's + e)'x - |A'x|^2 / 2 over the simplex, by an interior point and one exact step.

    The dual is min |u|^2 / 2 + t where A u + t >= A s + e. Newton's steps on its central path lead
    near the answer, there it is clear which structures are tight, and with these as equations the
    marginals u are exact.
    """
    fine = np.isfinite(np.where(atoms > 0, scores, 0.0)).all(1) & np.isfinite(extra)
    a = atoms[fine]
    b = (a * np.where(a > 0, scores, 0.0)).sum(1) + extra[fine]
    count, parts = a.shape
    lifted = np.column_stack([a, np.ones(count)])
    x = np.full(count, 1 / count)
    point = np.append(a.T @ x, (b - a @ (a.T @ x)).max() + 1)
    slack = lifted @ point - b
    scale = 1 + abs(b).max()
    weigh = np.diag(np.append(np.ones(parts), 0.0))
    for _ in range(200):
        pull = np.append(x @ a - point[:-1], x.sum() - 1)
        short = b - lifted @ point + slack
        if x @ slack < 1e-13 * scale:
            break
        target = 0.1 * (x @ slack) / count
        toward = (target - x * slack + x * short) / slack
        system = weigh + lifted.T @ ((x / slack)[:, None] * lifted)
        step = np.linalg.solve(system, pull + lifted.T @ toward)
        wider = lifted @ step - short
        more = toward - x / slack * (lifted @ step)
        far = min(1.0, 0.99 * _room(x, more), 0.99 * _room(slack, wider))
        point, x, slack = point + far * step, x + far * more, slack + far * wider
    tight = slack < 1e-6
    gram = lifted[tight] @ lifted[tight].T  # the ones shift the last unknown only
    size = int(tight.sum())
    bordered = np.block([[gram, np.ones((size, 1))], [np.ones((1, size)), np.zeros((1, 1))]])
    solved = np.linalg.lstsq(bordered, np.append(b[tight], 1.0), rcond=1e-12)[0]
    u = solved[:-1] @ a[tight]
    rest = b - a @ u
    level = rest[tight].mean()
    # It is the answer: tight structures are equal, no other is better, and it is near a mix.
    assert abs(rest[tight] - level).max() < 1e-12 * scale, abs(rest[tight] - level).max()
    assert rest.max() - level < 1e-12 * scale, rest.max() - level
    assert abs(u - x @ a).max() < 1e-5, abs(u - x @ a).max()
    return u


def _room(value: np.ndarray, change: np.ndarray) -> float:
    shrinks = change < 0
    return float((-value[shrinks] / change[shrinks]).min()) if shrinks.any() else np.inf


# The rules.


def picks(least: int, most: int) -> Rule:
    """As many bits are on."""
    return lambda z: (z.sum(-1) >= least) & (z.sum(-1) <= most)


def sequence(z: Tensor) -> Tensor:
    return (z.sum(-1) == 1).all(-1)


def assignment(rows: int, columns: int) -> Rule:
    """Every row takes a column, if `rows`; every column a row, if `columns`; none takes two."""
    return lambda z: (
        (z.sum(-1) <= 1).all(-1)
        & (z.sum(-2) <= 1).all(-1)
        & (z.sum(-1) >= rows).all(-1)
        & (z.sum(-2) >= columns).all(-1)
    )


def tree(*, projective: bool = False, single_root: bool = False) -> Rule:
    """[h, m]: h is the head of m; the diagonal hangs from the root, which is left of all words."""

    def rule(z: Tensor) -> Tensor:
        n = z.shape[-1]
        arcs = z * (1 - torch.eye(n, dtype=z.dtype))
        good = (z.sum(-2) == 1).all(-1)  # one head each, and no way leads back
        good = good & (torch.linalg.matrix_power(arcs, n).flatten(1).sum(1) == 0)
        if single_root:
            good = good & (z.diagonal(dim1=-2, dim2=-1).sum(-1) == 1)
        if projective:
            words = range(n)
            spans = [
                (0, m + 1) if h == m else (min(h, m) + 1, max(h, m) + 1)
                for h in words
                for m in words
            ]
            flat = z.flatten(1)
            for (i, (a, b)), (j, (c, d)) in combinations(list(enumerate(spans)), 2):
                if a < c < b < d or c < a < d < b:
                    good = good & (flat[:, i] * flat[:, j] == 0)
        return good

    return rule


def spanning(edges: list[tuple[int, int]], nodes: int) -> Rule:
    """The matrix-tree theorem: the determinant is 1 for a tree and 0 for anything else so large."""

    def rule(z: Tensor) -> Tensor:
        laplacian = z.new_zeros(len(z), nodes, nodes)
        for e, (a, b) in enumerate(edges):
            laplacian[:, a, a] += z[:, e]
            laplacian[:, b, b] += z[:, e]
            laplacian[:, a, b] -= z[:, e]
            laplacian[:, b, a] -= z[:, e]
        return (z.sum(-1) == nodes - 1) & (torch.linalg.det(laplacian[:, 1:, 1:]) > 0.5)

    return rule


def bracketing(z: Tensor) -> Tensor:
    """2 n - 1 spans that do not cross: the whole, the single words, and others; one label each."""
    n = z.shape[1]
    y = z.flatten(3).sum(3) if z.dim() > 3 else z
    good = (y.flatten(1).amax(1) <= 1) & (y.tril(-1).flatten(1).sum(1) == 0)
    good = good & (y.diagonal(dim1=1, dim2=2) == 1).all(1) & (y[:, 0, n - 1] == 1)
    good = good & (y.flatten(1).sum(1) == 2 * n - 1)
    spans = [(i, j) for i in range(n) for j in range(i, n)]
    for (a, b), (c, d) in combinations(spans, 2):
        if a < c <= b < d or c < a <= d < b:
            good = good & (y[:, a, b] * y[:, c, d] == 0)
    return good


def segmentation(z: Tensor) -> Tensor:
    """Every position is in one segment; [j, l] goes from position j - l to j."""
    n, longest = z.shape[1:3]
    times = z.new_zeros(len(z), n)
    good = torch.ones(len(z), dtype=torch.bool)
    for j in range(n):
        for back in range(longest):
            used = z[:, j, back].sum(1)
            if back > j:
                good = good & (used == 0)
            else:
                times[:, j - back : j + 1] += used.unsqueeze(1)
    return good & (times == 1).all(1)


def labels(z: Tensor, between: Tensor) -> Tensor:
    """Scores between the labels of segments that meet."""
    total = z.new_zeros(len(z))
    for j in range(z.shape[1]):
        for back in range(min(z.shape[2], j)):
            before = z[:, j - back - 1].sum(1)
            total = total + torch.einsum("ms,st,mt->m", before, between, z[:, j, back])
    return total


def moves(z: Tensor) -> Tensor:
    """(m, rows, columns, 3) whether a path enters a cell from above, the left or across."""
    up = torch.nn.functional.pad(z, (0, 0, 1, 0))[:, :-1] * z
    left = torch.nn.functional.pad(z, (1, 0))[:, :, :-1] * z
    across = torch.nn.functional.pad(z, (1, 0, 1, 0))[:, :-1, :-1] * z
    return torch.stack([up, left, across * (1 - up) * (1 - left)], -1)


def grid_path(z: Tensor) -> Tensor:
    """From the first cell to the last; all but the first are entered, and all but the last left."""
    used = z.flatten(1).sum(1)
    ends = (z[:, 0, 0] == 1) & (z[:, -1, -1] == 1)
    diagonals = [
        sum(z[:, i, k - i] for i in range(z.shape[1]) if 0 <= k - i < z.shape[2])
        for k in range(sum(z.shape[1:]) - 1)
    ]
    once = (torch.stack(diagonals, 1) <= 1).all(1)
    entered = moves(z).flatten(1, 2)
    steps = (entered.sum(2) <= 1).all(1) & (entered.flatten(1).sum(1) == used - 1)
    return ends & once & steps


def move_scores(z: Tensor, steps: Tensor) -> Tensor:
    """Scores of the steps of a path, for all cells or for each."""
    return (moves(z) * steps).flatten(1).sum(1)


def output(gate: Callable[[Tensor], Tensor]) -> Rule:
    """The last bit is what a gate makes of the others."""
    return lambda z: gate(z[:, :-1]) == z[:, -1]


def imply(z: Tensor) -> Tensor:
    """If all others are on, the last is."""
    return ~((z[:, :-1] == 1).all(1) & (z[:, -1] == 0))


def transitions(z: Tensor, between: Tensor, *ends: Tensor) -> Tensor:
    """Scores between neighbours, (S, S) or (n - 1, S, S), of the first state and of the last."""
    steps = between.expand(z.shape[1] - 1, *between.shape[-2:])
    total = torch.einsum("mns,nst,mnt->m", z[:, :-1], steps, z[:, 1:])
    if ends:
        total = total + z[:, 0] @ ends[0] + z[:, -1] @ ends[1]
    return total


def neighbours(z: Tensor, bonus: Tensor) -> Tensor:
    """A bonus where two neighbours are on."""
    return (z[:, :-1] * z[:, 1:] * bonus).sum(1)


def single_bonus(z: Tensor, bonus: Tensor) -> Tensor:
    """The same one for all neighbours of all instances."""
    return neighbours(z, bonus)


# The table.


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Additional scores."""
    generator = torch.Generator().manual_seed(100 + seed)
    return 0.5 * torch.randn(shape, generator=generator, dtype=torch.float64)


def but(event: tuple[int, ...], *parts: tuple[int | slice, ...]) -> Tensor:
    """A mask that keeps all but these."""
    mask = torch.ones(event, dtype=torch.bool)
    for part in parts:
        mask[part] = False
    return mask


def only(event: tuple[int, ...], *parts: tuple[int | slice, ...]) -> Tensor:
    return ~but(event, *parts)


def bits(
    name: str, structure: Structure, size: int, rule: Rule, *, least: int = 1, **known: object
) -> Case:
    """A rule on bits that means the same when there is one bit fewer."""
    event = (size,)
    lesser = Small(but(event, (0,)), structure, (size - 1,))
    given = {"small": lesser, **known}
    if least <= 1:
        given.setdefault("single", Small(only(event, (size - 1,)), structure, (1,)))
    if least > 1:  # where all are masked nothing is asked of them
        left = [(i,) for i in range(least - 1)]
        given.setdefault("nothing", (structure, only(event, *left)))
    return Case(name, structure, event, rule, **given)


def trees() -> list[Case]:
    found = []
    for projective in (False, True):
        for single_root in (False, True):
            options = {"projective": projective, "single_root": single_root}
            structure, event = structures.DependencyTree(**options), (3, 3)
            name = "projective " * projective + "tree" + ", single root" * single_root
            small = Small(but(event, (1,), (slice(None), 1)), structure, (2, 2))
            single = Small(only(event, (2, 2)), structure, (1, 1))
            no_root = ~torch.eye(3, dtype=torch.bool)
            found.append(
                Case(
                    name, structure, event, tree(**options), small=small, single=single,
                    nothing=(structure, no_root), forbidden=(1,), wide=not single_root,
                )
            )  # fmt: skip
            if single_root == projective:
                found.append(Case(f"{name}, 4", structure, (4, 4), tree(**options), forbidden=(1,)))
    return found


def sequences() -> list[Case]:
    event = (4, 3)
    between, steps = draw(3, 3), draw(3, 3, 3, seed=1)
    start, stop = draw(3, seed=2), draw(3, seed=3)
    alone = structures.Sequence()
    same = structures.Sequence(between, by_position=False)
    each = structures.Sequence(steps, by_position=True, start=start, stop=stop)
    barred = structures.Sequence(torch.full((3, 3), -math.inf, dtype=torch.float64))
    one = only(event, (0,))
    fewer = structures.Sequence(steps[[0, 2]], by_position=True, start=start, stop=stop)
    return [
        Case(
            "sequence, no transitions", alone, event, sequence,
            small=Small(but(event, (2,)), alone, (3, 3)), single=Small(one, alone, (1, 3)),
            forbidden=(1,),
        ),
        Case(
            "sequence", same, event, sequence, transitions, forbidden=(1,), wide=True,
            small=Small(but(event, (1,)), same, (3, 3)), single=Small(one, same, (1, 3)),
            nothing=(barred, torch.ones(event, dtype=torch.bool)),
        ),
        Case(
            "sequence, ends", each, event, sequence, transitions, forbidden=(1,),
            small=Small(but(event, (1,)), fewer, (3, 3)),
        ),
    ]  # fmt: skip


def constituencies() -> list[Case]:
    found = []
    for labelled, event in ((False, (4, 4)), (True, (3, 3, 2))):
        structure, n = structures.ConstituencyTree(labelled=labelled), event[0]
        name = "constituency tree" + ", labels" * labelled
        small = Small(but(event, (1,), (slice(None), 1)), structure, (n - 1, n - 1, *event[2:]))
        single = Small(only(event, (2, 2)), structure, (1, 1, *event[2:]))
        found.append(
            Case(
                name, structure, event, bracketing, small=small, single=single, forbidden=(1,),
                nothing=(structure, but(event, (0, n - 1))), wide=not labelled,
            )
        )  # fmt: skip
    return found


def segmentations() -> list[Case]:
    event = (3, 2, 2)
    alone, linked = structures.Segmentation(), structures.Segmentation(draw(2, 2, seed=6))
    barred = structures.Segmentation(torch.full((2, 2), -math.inf, dtype=torch.float64))
    one = only(event, (0,))
    return [
        Case(
            "segmentation", alone, event, segmentation, single=Small(one, alone, (1, 2, 2)),
            small=Small(but(event, (2,)), alone, (2, 2, 2)),
            nothing=(alone, only(event, (1, 1), (2, 1))),
        ),
        Case(
            "segmentation, transitions", linked, event, segmentation, labels, wide=True,
            small=Small(but(event, (2,)), linked, (2, 2, 2)), single=Small(one, linked, (1, 2, 2)),
            nothing=(barred, torch.ones(event, dtype=torch.bool)),
        ),
    ]  # fmt: skip


def alignments() -> list[Case]:
    event, wide = (3, 3), (2, 4)
    alone, same = structures.Alignment(), structures.Alignment(draw(1, 1, 3, seed=7))
    each = draw(2, 4, 3, seed=8)
    by_cell = structures.Alignment(each)
    return [
        Case(
            "alignment", alone, event, grid_path, forbidden=(1,),
            small=Small(but(event, (1,)), alone, (2, 3)),
            single=Small(only(event, (1, 2)), alone, (1, 1)),
            nothing=(alone, but(event, (2, 2))),
        ),
        Case(
            "alignment, steps", same, event, grid_path, move_scores, forbidden=(1,), wide=True,
            small=Small(but(event, (slice(None), 0)), same, (3, 2)),
            single=Small(only(event, (1, 2)), same, (1, 1)), nothing=(same, but(event, (0, 0))),
        ),
        Case(
            "alignment, steps by cell", by_cell, wide, grid_path, move_scores, forbidden=(1,),
            small=Small(but(wide, (slice(None), 1)), structures.Alignment(each[:, [0, 2, 3]]),
                        (2, 3)),
            nothing=(by_cell, but(wide, (0, 0))),
        ),
    ]  # fmt: skip


def subsets() -> list[Case]:
    """Of a line of bits, with a bonus for neighbours."""
    steps = draw(6, seed=4)
    fixed = structures.SequentialSubset(3, bonus=0.3, at_most=True)
    return [
        Case(
            "sequential subset", structures.SequentialSubset(2, bonus=steps), (7,), picks(2, 2),
            neighbours, forbidden=(1,), wide=True,
            nothing=(structures.SequentialSubset(2, bonus=steps), only((7,), (3,))),
        ),
        Case(
            "sequential subset, at most", fixed, (6,), picks(0, 3), single_bonus,
            forbidden=(1,),
        ),
    ]  # fmt: skip


def assignments() -> list[Case]:
    square, wide, either = (3, 3), (2, 4), (2, 3)
    assign, match = structures.Assignment(), structures.Matching()
    clash = only(square, (0, 0), (1, 0), (2,))
    return [
        Case(
            "assignment", assign, square, assignment(1, 1), wide=True,
            small=Small(but(square, (0,), (slice(None), 1)), assign, (2, 2)),
            single=Small(only(square, (1, 2)), assign, (1, 1)), nothing=(assign, clash),
        ),
        Case(
            "assignment, wide", assign, wide, assignment(1, 0),
            small=Small(but(wide, (slice(None), 3)), assign, (2, 3)),
            single=Small(only(wide, (0, 3)), assign, (1, 1)),
            nothing=(assign, only(wide, (0, 0), (1, 0))),
        ),
        Case(
            "matching", match, either, assignment(0, 0),
            small=Small(but(either, (0,)), match, (1, 3)),
            single=Small(only(either, (0, 1)), match, (1, 1)),
        ),
    ]  # fmt: skip


def spanning_trees() -> list[Case]:
    edges = [(0, 1), (0, 2), (0, 3), (1, 2), (2, 3), (1, 3)]

    def graph(kept: list[tuple[int, int]]) -> Structure:
        return structures.SpanningTree(torch.tensor(kept), 4)

    return [
        Case(
            "spanning tree", graph(edges), (6,), spanning(edges, 4), wide=True,
            small=Small(but((6,), (0,)), graph(edges[1:]), (5,)),
            nothing=(graph(edges), but((6,), (0,), (3,), (5,))),
        )
    ]  # fmt: skip


def logic() -> list[Case]:
    score = draw(1, seed=5)[0].abs() + 0.2
    return [
        bits("exactly one", structures.Xor(), 5, picks(1, 1), wide=True),
        bits("at most one", structures.AtMostOne(), 5, picks(0, 1), least=0),
        bits("at least one", structures.Or(), 4, picks(1, 4)),
        Case("imply", structures.Imply(), (4,), imply),
        Case("or, output", structures.OrOut(), (4,), output(lambda z: z.amax(1)),
             small=Small(but((4,), (0,)), structures.OrOut(), (3,))),
        Case("one of, output", structures.XorOut(), (4,), output(lambda z: z.sum(1)),
             small=Small(but((4,), (0,)), structures.XorOut(), (3,))),
        Case("and, output", structures.AndOut(), (4,), output(lambda z: z.amin(1))),
        Case("pair", structures.Pair(score), (2,), picks(0, 2), lambda z, s: z[:, 0] * z[:, 1] * s,
             wide=True),
        Case("pair, against", structures.Pair(-score), (2,), picks(0, 2),
             lambda z, s: z[:, 0] * z[:, 1] * s),
    ]  # fmt: skip


def two_neighbours(scores: Tensor) -> Tensor:
    """The best two bits of a ring that are next to each other."""
    pairs = torch.eye(len(scores), dtype=scores.dtype)
    pairs = pairs + pairs.roll(1, 1)
    totals = torch.where(pairs > 0, scores, 0.0).sum(1)
    return pairs[totals.argmax()]


def ring(z: Tensor) -> Tensor:
    return (z.sum(1) == 2) & ((z * z.roll(1, 1)).sum(1) == 1)


def choices() -> list[Case]:
    return [
        bits("bits", structures.Bits(), 4, picks(0, 4), least=0, wide=True),
        bits("bits, on and off", structures.Bits(on_off=True), 4, picks(0, 4), least=0,
             doubled=True, small=None, single=None),
        bits("budget", structures.Budget(2), 5, picks(0, 2), least=0, wide=True),
        bits("subset", structures.KSubset(2), 5, picks(2, 2), least=2),
        Case("custom", structures.Custom(two_neighbours), (5,), ring, listed=False),
    ]  # fmt: skip


CASES = [
    *choices(),
    *logic(),
    *sequences(),
    *subsets(),
    *trees(),
    *spanning_trees(),
    *constituencies(),
    *segmentations(),
    *alignments(),
    *assignments(),
]
every_structure = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
wide_structures = pytest.mark.parametrize(
    "case", [case for case in CASES if case.wide], ids=lambda case: case.name
)
