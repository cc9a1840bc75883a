"""Sequences and sequential subsets against brute force: best, k best, sums, samples, SparseMAP."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

import fewfold as ff
from fewfold._native import disabled
from fewfold.structured.structures.lattice import draw
from fewfold.structured.structures.sequence import Sequence
from fewfold.structured.structures.sequential_subset import SequentialSubset
from fewfold.structured.structures.structure import Structure

N, S = 4, 3


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.double, generator=torch.Generator().manual_seed(seed))


def forbidding() -> Tensor:
    table = normal(S, S, seed=5)
    table[0, 1] = table[2, 2] = -math.inf
    return table


SEQUENCES = {
    "alone": Sequence(),
    "shared": Sequence(normal(S, S)),
    "by position": Sequence(
        normal(N - 1, S, S), by_position=True, start=normal(S, seed=1), stop=normal(S, seed=2)
    ),
    "forbidding": Sequence(forbidding(), stop=normal(S, seed=3)),
}
SUBSETS = {
    "no bonus": SequentialSubset(2),
    "number": SequentialSubset(3, 0.7),
    "by position": SequentialSubset(2, normal(5, seed=4)),
    "at most": SequentialSubset(3, normal(5, seed=6), at_most=True),
    "apart": SequentialSubset(2, -math.inf),
    "none": SequentialSubset(0, 1.0),
    "all": SequentialSubset(6, normal(5, seed=7)),
}
ALL = [
    pytest.param(structure, event, id=f"{type(structure).__name__} {name}")
    for table, event in ((SEQUENCES, (N, S)), (SUBSETS, (6,)))
    for name, structure in table.items()
]
every_structure = pytest.mark.parametrize(("structure", "event"), ALL)


def at(table: Tensor, i: int) -> Tensor:
    return table[i] if table.dim() > 2 else table


def value(structure: Structure, one: Tensor, scores: Tensor) -> Tensor:
    """The score of one 0/1 structure, from the definition."""
    if isinstance(structure, SequentialSubset):
        total = scores[one].sum()
        bonus = torch.as_tensor(structure.bonus).expand(len(one) - 1)
        return total + sum((bonus[i] for i in range(len(one) - 1) if one[i] and one[i + 1]), 0.0)
    assert isinstance(structure, Sequence)
    state = one.long().argmax(1).tolist()
    total = scores[range(len(state)), state].sum()
    if structure.transitions is not None:
        for i, (a, b) in enumerate(itertools.pairwise(state)):
            total = total + at(structure.transitions, i)[a, b]
    if structure.start is not None:
        total = total + structure.start[state[0]]
    if structure.stop is not None:
        total = total + structure.stop[state[-1]]
    return total


def members(structure: Structure, event: tuple[int, ...]) -> Tensor:
    """All structures, from the definition."""
    parts = math.prod(event)
    every = (torch.arange(2**parts).unsqueeze(1) >> torch.arange(parts)) % 2 == 1
    if isinstance(structure, SequentialSubset):
        ones = every.sum(1)
        return every[(ones <= structure.k) & (structure.at_most | (ones == structure.k))]
    every = every.view(-1, *event)
    return every[(every.sum(2) == 1).all(1)]


def values(structure: Structure, event: tuple[int, ...], scores: Tensor) -> Tensor:
    return torch.stack([value(structure, z, scores) for z in members(structure, event)])


@every_structure
def test_all_structures_are_enumerated(structure: Structure, event: tuple[int, ...]) -> None:
    size = torch.Size(event)
    listed = {tuple(z.flatten().tolist()) for z in structure.enumerate(size)}
    assert listed == {tuple(z.flatten().tolist()) for z in members(structure, event)}
    assert len(structure.enumerate(size)) == structure.count(size) == len(listed)


@every_structure
def test_the_best_and_the_k_best(structure: Structure, event: tuple[int, ...], path: str) -> None:
    x = normal(3, *event, seed=8)
    k = structure.count(torch.Size(event)) + 2
    found = structure.k_best(x, k)
    for i, row in enumerate(x):
        known = values(structure, event, row).sort(descending=True).values
        known = known[known > -math.inf]
        assert torch.isclose(value(structure, structure.argmax(row).bool(), row), known[0])
        assert found.valid[i].sum() == len(known)
        torch.testing.assert_close(found.scores[i, : len(known)], known)
        alike = [value(structure, z, row) for z in found.structures[i, : len(known)]]
        torch.testing.assert_close(torch.stack(alike), known)
        assert len(found.structures[i, : len(known)].unique(dim=0)) == len(known)
        assert not found.structures[i, len(known) :].any()
    few = structure.k_best(x, 2)
    torch.testing.assert_close(few.scores, found.scores[:, :2])


@every_structure
def test_sums_over_all(structure: Structure, event: tuple[int, ...]) -> None:
    x = normal(*event, seed=9)
    known = values(structure, event, x)
    torch.testing.assert_close(structure.log_partition(x), known.logsumexp(0))
    probs = known.softmax(0)
    expected = (probs.view(-1, *[1] * len(event)) * members(structure, event)).sum(0)
    torch.testing.assert_close(ff.structured.gibbs_marginals(x, structure), expected)
    draws = structure.sample(x, 4000, generator=torch.Generator().manual_seed(1))
    every = members(structure, event).flatten(1).double()
    # A 0/1 vector is the row of which it has the most, and that are all.
    where = (draws.flatten(1).double() @ every.T * 2 - every.sum(1)).argmax(1)
    assert (every[where].bool() == draws.flatten(1)).all()
    frequency = torch.bincount(where, minlength=len(every)) / 4000
    # at most 81 frequencies within 5 standard errors: wrong by chance in one of 20,000 seeds
    assert ((frequency - probs).abs() <= 5 * (probs * (1 - probs) / 4000).sqrt() + 1e-9).all()


@every_structure
def test_sums_have_gradients_of_any_order(structure: Structure, event: tuple[int, ...]) -> None:
    more = [v for v in structure.additional if v.isfinite().all()]
    if len(more) < len(structure.additional):
        more = []
    inputs = [x.clone().requires_grad_() for x in (normal(2, *event, seed=10), *more)]

    def total(x: Tensor, *given: Tensor) -> Tensor:
        return (structure.with_additional(given) if given else structure).log_partition(x)  # type: ignore[attr-defined]

    assert torch.autograd.gradcheck(total, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(total, inputs, fast_mode=True, atol=1e-4)


@every_structure
def test_sparsemap_by_its_certificate(
    structure: Structure, event: tuple[int, ...], path: str
) -> None:
    x = 0.7 * normal(4, *event, seed=11)
    found = ff.structured.sparsemap_solution(x, structure)
    assert found.converged.all()
    every = members(structure, event).flatten(1).double()
    for i, row in enumerate(x):
        known, mean = values(structure, event, row), found.marginals[i].flatten()
        left = known - every @ mean
        torch.testing.assert_close(found.objective[i], left.max() + mean.square().sum() / 2)
        mine = found.support.atoms[found.support.row == i].flatten(1)
        where = (mine.unsqueeze(1) == every).all(2).long().argmax(1)
        torch.testing.assert_close(left[where], left.max().expand(len(where)), atol=1e-8, rtol=0)


def test_what_is_hardly_ever_drawn_is_drawn_as_often() -> None:
    logits = torch.tensor([0.0, -8.0], dtype=torch.double).expand(200_000, 2)
    rare = int(draw(logits, torch.Generator().manual_seed(0)).sum())
    # 67 in the mean, 8.2 the deviation: further off by chance for one of a million seeds
    assert abs(rare - 200_000 / (1 + math.exp(8))) < 41


def test_gold_sequence(path: str) -> None:
    x = torch.tensor([[0.5, 0.0], [-0.3, 0.2], [0.1, 0.4], [0.6, -0.2]], dtype=torch.double)
    stay = torch.tensor([[0.3, -0.3], [-0.3, 0.3]], dtype=torch.double)
    found = ff.structured.sparsemap_solution(x, Sequence(stay))
    first = torch.tensor([0.55, 0.55, 0.55, 0.6], dtype=torch.double)
    torch.testing.assert_close(found.marginals[:, 0], first)
    assert math.isclose(found.objective, 0.5675, abs_tol=1e-9)
    best = Sequence(stay).k_best(x, 3)
    torch.testing.assert_close(best.scores, torch.tensor([1.8, 1.5, 1.4], dtype=torch.double))
    assert best.structures.long().argmax(2).tolist() == [[0, 0, 0, 0], [1, 1, 1, 0], [0, 1, 1, 0]]
    change = torch.tensor([0.2, -0.1, 0.4, 0.3, -0.5, 0.1, 0.6, -0.2], dtype=torch.double)
    by_scores = torch.autograd.functional.jacobian(lambda t: ff.sparsemap(t, Sequence(stay)), x)
    third = 1 / 30
    expected = torch.tensor([-third, third] * 3 + [0.4, -0.4], dtype=torch.double)
    torch.testing.assert_close(by_scores.reshape(8, 8) @ change, expected)
    tables = stay.expand(3, 2, 2).clone()
    by_tables = torch.autograd.functional.jacobian(
        lambda t: ff.sparsemap(x, Sequence(t, by_position=True)), tables
    )
    change = torch.linspace(-0.3, 0.3, 12, dtype=torch.double)
    a, b = 0.8 / 11, 0.3 / 11
    expected = torch.tensor([-a, a] * 3 + [-b, b], dtype=torch.double)
    torch.testing.assert_close(by_tables.reshape(8, 12) @ change, expected)


def test_gold_subset(path: str) -> None:
    x = torch.tensor([0.4, 0.1, -0.2, 0.3, 0.35], dtype=torch.double)
    pairs = SequentialSubset(2, 0.25)
    found = ff.structured.sparsemap_solution(x, pairs)
    expected = torch.tensor([0.4625, 0.4625, 0.0, 0.5375, 0.5375], dtype=torch.double)
    torch.testing.assert_close(found.marginals, expected)
    assert math.isclose(found.objective, 0.3278125, abs_tol=1e-9)
    assert pairs.argmax(x).tolist() == [0, 0, 0, 1, 1]
    assert math.isclose(pairs.k_best(x, 1).scores[0], 0.9)


# Positions that are left out.

ABSENT = torch.tensor(
    [[True] * 5, [True, False, True, True, False], [False, False, True, False, True]]
)


@pytest.mark.parametrize("by_position", [False, True])
def test_a_masked_position_is_left_out(by_position: bool, path: str) -> None:
    n, b = 5, len(ABSENT)
    x, start, stop = normal(b, n, S, seed=12), normal(b, S, seed=13), normal(S, seed=14)
    tables = normal(b, n - 1 if by_position else 1, S, S, seed=15)
    mask = ABSENT.unsqueeze(2)
    whole = Sequence(tables, by_position=True, start=start, stop=stop)
    solved = ff.sparsemap(x, whole, mask=mask)
    best, few = whole.argmax(x, mask=mask), whole.k_best(x, 4, mask=mask)
    total = whole.log_partition(x, mask=mask)
    draws = whole.sample(x, 50, mask=mask, generator=torch.Generator().manual_seed(0))
    assert (draws.sum(3) == ABSENT.long()).all()
    for i, kept in enumerate(ABSENT):
        # the transition to the next one is that which leaves the left neighbour
        own = tables[i][kept.nonzero()[:-1, 0]] if by_position else tables[i]
        small = Sequence(own, by_position=True, start=start[i], stop=stop)
        torch.testing.assert_close(solved[i, kept], ff.sparsemap(x[i, kept], small))
        assert not solved[i, ~kept].any()
        assert torch.equal(best[i, kept], small.argmax(x[i, kept]))
        torch.testing.assert_close(few.scores[i], small.k_best(x[i, kept], 4).scores)
        assert torch.equal(few.structures[i][:, kept], small.k_best(x[i, kept], 4).structures)
        torch.testing.assert_close(total[i], small.log_partition(x[i, kept]))


@pytest.mark.parametrize("structure", [Sequence(normal(S, S)), SequentialSubset(2, 0.5)])
def test_nothing_is_left(structure: Structure, path: str) -> None:
    x = torch.full((2, N, S)[: 1 + structure.event_dim], -math.inf, dtype=torch.double)
    x[1] = normal(*x.shape[1:])
    assert not ff.sparsemap(x, structure)[0].any()
    assert not structure.argmax(x)[0].any()
    few = structure.k_best(x, 2)
    assert few.scores[0].tolist() == [0, -math.inf]
    assert not few.structures[0].any()
    leaf = x.clone().requires_grad_()
    total = structure.log_partition(leaf)  # type: ignore[attr-defined]
    assert total[0] == 0
    assert torch.autograd.grad(total.sum(), leaf)[0].isfinite().all()
    assert not structure.sample(x, 3)[:, 0].any()  # type: ignore[attr-defined]


def test_a_masked_bit_is_off_and_stays_between_its_neighbours(path: str) -> None:
    x = torch.tensor([1.0, -math.inf, 0.9, 0.1, 0.5])
    assert SequentialSubset(2, 0.5).argmax(x).tolist() == [1, 0, 1, 0, 0]
    assert SequentialSubset(2, 1.0).argmax(x).tolist() == [0, 0, 1, 1, 0]


# Shapes.


def test_additional_scores_broadcast_to_the_batch() -> None:
    a, b, n = 2, 3, 6
    x = normal(a, b, n, S, seed=16)
    for shape in (
        (S, S),
        (n - 1, S, S),
        (b, S, S),
        (a, 1, S, S),
        (a, b, S, S),
        (a, 1, n - 1, S, S),
    ):
        table, start = normal(*shape, seed=17), normal(a, 1, S, seed=18)
        by_position = n - 1 in shape
        made = Sequence(table, by_position=by_position, start=start)
        found, total = ff.sparsemap(x, made), made.log_partition(x)
        steps = table if by_position else table.unsqueeze(-3)
        steps = steps.expand(a, b, *steps.shape[-3:])
        for i, j in itertools.product(range(a), range(b)):
            alone = Sequence(steps[i, j], by_position=True, start=start[i, 0])
            torch.testing.assert_close(found[i, j], ff.sparsemap(x[i, j], alone))
            torch.testing.assert_close(total[i, j], alone.log_partition(x[i, j]))


def test_transitions_in_any_memory_order() -> None:
    x, table = normal(2, 5, S, seed=19), normal(4, S, S, seed=20)
    turned = table.transpose(1, 2).contiguous().transpose(1, 2)
    assert not turned.is_contiguous()
    wide = normal(S, 2, seed=21)
    one = ff.sparsemap(x, Sequence(table, by_position=True, stop=wide[:, 0].clone()))
    again = Sequence(turned, by_position=True, stop=wide[:, 0])
    torch.testing.assert_close(ff.sparsemap(x, again), one)


@pytest.mark.parametrize("states", [1, 2, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40, 65])
def test_any_number_of_states(states: int) -> None:
    x, table = normal(3, 4, states, seed=22), normal(3, states, states, seed=23)
    for made in (Sequence(table, by_position=True), Sequence(table[0])):
        with disabled():
            plain = made.argmax(x)
        assert torch.equal(made.argmax(x), plain)
        # a second question is answered from the same oracle
        assert ff.structured.sparsemap_solution(x, made).converged.all()


@pytest.mark.parametrize("k", [0, 1, 2, 3, 7, 8, 9, 16, 20])
@pytest.mark.parametrize("at_most", [False, True])
def test_any_number_of_ones(k: int, at_most: bool) -> None:
    made = SequentialSubset(k, normal(19, seed=24), at_most=at_most)
    x = normal(4, 20, seed=25)
    best, few = made.argmax(x), made.k_best(x, 3)
    with disabled():
        assert torch.equal(made.argmax(x), best)
        torch.testing.assert_close(made.k_best(x, 3).scores, few.scores)
    assert (best.sum(1) <= k).all()
    assert at_most or (best.sum(1) == k).all()


@pytest.mark.parametrize("count", [N - 1, N])
def test_tables_by_instance_and_by_position_are_told_apart(count: int, path: str) -> None:
    """With as many instances as there are steps the shape alone does not say which is meant."""
    x, tables = normal(count, N, S, seed=40), normal(count, S, S, seed=41)
    with pytest.raises(ValueError, match=r"write by_position=True .* or by_position=False"):
        Sequence(tables)
    own = Sequence(tables, by_position=False)
    found, total = ff.sparsemap(x, own), own.log_partition(x)
    for i in range(count):
        torch.testing.assert_close(found[i], ff.sparsemap(x[i], Sequence(tables[i])))
        torch.testing.assert_close(total[i], Sequence(tables[i]).log_partition(x[i]))
    steps = Sequence(tables, by_position=True)
    if count == N:
        with pytest.raises(ValueError, match=r"n - 1 = 3, .* got \(4, 3, 3\)"):
            steps.argmax(x)
        return
    each = Sequence(tables.expand(count, N - 1, S, S), by_position=True)
    torch.testing.assert_close(ff.sparsemap(x, steps), ff.sparsemap(x, each))
    assert (ff.sparsemap(x, steps) - found).abs().max() > 0.1
    with pytest.raises(ValueError, match="by_position=True needs"):
        Sequence(tables[0], by_position=True)


def test_tables_of_each_instance_under_transforms() -> None:
    """What a transform makes of a batch of tables is the batch, never positions."""
    b = N - 1
    x, tables, steps = normal(b, N, S), normal(b, S, S), normal(b, N - 1, S, S)

    def shared(row: Tensor, table: Tensor) -> Tensor:
        return ff.sparsemap(row, Sequence(table)).square().sum()

    def by_step(row: Tensor, table: Tensor) -> Tensor:
        return ff.sparsemap(row, Sequence(table, by_position=True)).square().sum()

    for function, given in ((shared, tables), (by_step, steps)):
        both = torch.func.grad(function, argnums=(0, 1))
        mapped = torch.func.vmap(both)(x, given)
        alone = [both(x[i], given[i]) for i in range(b)]
        for one, other in zip(mapped, zip(*alone, strict=True), strict=True):
            torch.testing.assert_close(one, torch.stack(other))


# Odd inputs.


@every_structure
def test_equal_scores(structure: Structure, event: tuple[int, ...], path: str) -> None:
    x = torch.zeros(event, dtype=torch.double)
    bare = structure.with_additional([torch.zeros_like(v) for v in structure.additional])
    found = ff.structured.sparsemap_solution(x, bare)
    assert found.converged
    if isinstance(structure, Sequence):
        torch.testing.assert_close(found.marginals, torch.full_like(x, 1 / S))
    else:
        assert isinstance(structure, SequentialSubset)
        share = 0 if structure.at_most else structure.k / event[0]
        torch.testing.assert_close(found.marginals, torch.full_like(x, share), atol=1e-9, rtol=0)


@pytest.mark.parametrize("odd", [math.nan, math.inf])
@pytest.mark.parametrize("structure", [SEQUENCES["by position"], SEQUENCES["forbidding"]])
def test_an_odd_row_leaves_others_alone(structure: Sequence, odd: float, path: str) -> None:
    x = normal(3, N, S, seed=26)
    fine = x[[0, 2]]
    x[1, 2, 0] = odd
    found = ff.sparsemap(x, structure)
    assert found[1].isnan().all()
    torch.testing.assert_close(found[[0, 2]], ff.sparsemap(fine, structure))
    assert torch.equal(structure.argmax(x)[[0, 2]], structure.argmax(fine))
    torch.testing.assert_close(
        structure.k_best(x, 3).scores[[0, 2]], structure.k_best(fine, 3).scores
    )
    torch.testing.assert_close(structure.log_partition(x)[[0, 2]], structure.log_partition(fine))
    assert not structure.log_partition(x)[1].isfinite()


def test_a_transition_that_is_no_number(path: str) -> None:
    tables = normal(2, N - 1, S, S, seed=27)
    tables[1, 2, 1, 1] = math.nan
    x = normal(2, N, S, seed=28)
    made = Sequence(tables, by_position=True)
    alone = Sequence(tables[0], by_position=True)
    found = ff.sparsemap(x, made)
    torch.testing.assert_close(found[0], ff.sparsemap(x[0], alone))
    assert found[1].isnan().all()
    best = made.argmax(x)
    assert torch.equal(best[0], alone.argmax(x[0]))
    assert best[1].isnan().all()


@pytest.mark.parametrize("odd", [math.nan, math.inf])
@pytest.mark.parametrize("field", ["transitions", "start", "stop", "bonus", "bonus of none"])
def test_an_additional_score_that_is_no_number_has_no_best(
    field: str, odd: float, path: str
) -> None:
    """Neither value nor structure of its row are numbers; others are what they are alone."""
    shape = {"transitions": (2, 1, S, S), "start": (2, S), "stop": (2, S)}.get(field, (2, N - 1))
    table = normal(*shape, seed=38)
    fine = table[0].clone()
    table[1].view(-1)[1] = odd

    def make(given: Tensor) -> Structure:
        if "bonus" in field:
            return SequentialSubset(0 if "none" in field else N, given)
        return Sequence(**{field: given}, by_position=True)  # type: ignore[arg-type]

    structure = make(table)
    x = normal(*(2, N, S)[: 1 + structure.event_dim], seed=39)
    rows, made, _ = structure.solver_inputs(x, None)
    if path == "native":
        answer = made.native_best(rows)
        assert answer is not None
        values = answer[1]
    else:
        values = made.plain_best(rows)[0].double().flatten(1).sum(1)
    unused = field == "bonus of none" and odd == math.inf
    assert values.isnan().tolist() == [False, not unused]
    for found in (structure.argmax(x), ff.sparsemap(x, structure)):
        assert found[0].isfinite().all()
        assert unused or found[1].isnan().all()
    assert torch.equal(structure.argmax(x)[0], make(fine).argmax(x[0]))


def test_no_way_through_is_an_error(path: str) -> None:
    wall = torch.full((S, S), -math.inf)
    x = normal(2, N, S)
    with pytest.raises(ValueError, match="instance 0 has no structure"):
        ff.sparsemap(x, Sequence(wall))
    with pytest.raises(ValueError, match="instance 0 has no structure"):
        Sequence(wall).argmax(x)
    with pytest.raises(ValueError, match="instance 0 has no structure"):
        Sequence(wall).sample(x, 1)
    assert not Sequence(wall).k_best(x, 2).valid.any()
    leaf = x.requires_grad_()
    total = Sequence(wall).log_partition(leaf)
    assert (total == -math.inf).all()
    bits = torch.tensor([0.1, -math.inf, -math.inf])
    with pytest.raises(ValueError, match="no structure"):
        ff.sparsemap(bits, SequentialSubset(2))
    with pytest.raises(ValueError, match="no structure"):
        SequentialSubset(3, -math.inf).argmax(torch.zeros(4))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Sequence(torch.zeros(2, 3)).argmax(torch.zeros(4, 3)), "transitions must end in"),
        (lambda: Sequence(torch.zeros(5, 3, 3), by_position=False).argmax(torch.zeros(4, 3)),
         "must broadcast"),
        (lambda: Sequence(start=torch.zeros(2)).argmax(torch.zeros(4, 3)), "start must end in"),
        (lambda: Sequence(stop=torch.zeros(2, 3)).argmax(torch.zeros(4, 3)), "stop must broadcast"),
        (lambda: Sequence().argmax(torch.zeros(3)), "at least 2 dimensions"),
        (lambda: Sequence().argmax(torch.zeros(0, 3)), "must have positions"),
        (lambda: SequentialSubset(4).argmax(torch.zeros(3)), "at most the 3 bits"),
        (lambda: SequentialSubset(-1), "k must be at least 0"),
        (lambda: SequentialSubset(1, torch.zeros(3)).argmax(torch.zeros(3)), "n - 1 = 2"),
        (lambda: SequentialSubset(1, torch.zeros(2, 2)).argmax(torch.zeros(3)), "must broadcast"),
    ],
)  # fmt: skip
def test_errors_say_what_was_expected(make: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()  # type: ignore[operator]


@pytest.mark.parametrize("given", [np.zeros((3, 3)), [[0.0]], torch.zeros(3, 3, dtype=torch.long)])
@pytest.mark.parametrize("field", ["transitions", "start", "stop", "bonus"])
def test_additional_scores_must_be_tensors_of_numbers(field: str, given: object) -> None:
    kind = SequentialSubset if field == "bonus" else Sequence
    with pytest.raises(TypeError, match=rf"^{field} must .*(floating-point|a torch.Tensor)"):
        kind(**{**({"k": 1} if field == "bonus" else {}), field: given})  # type: ignore[arg-type]


# Size.


def test_random_instances_converge() -> None:
    for seed, (n, s) in enumerate([(3, 2), (10, 5), (20, 10), (7, 30)]):
        x, table = normal(40, n, s, seed=seed), normal(40, n - 1, s, s, seed=seed + 100)
        found = ff.structured.sparsemap_solution(x, Sequence(table, by_position=True))
        assert found.converged.all()
        assert found.gap.max() <= 1e-8
        bits = ff.structured.sparsemap_solution(
            normal(40, n * s, seed=seed), SequentialSubset(n, 0.5)
        )
        assert bits.converged.all()
        assert bits.gap.max() <= 1e-8


def test_a_long_sequence_that_is_stopped_is_feasible_and_says_how_far_off() -> None:
    x, table = normal(2000, 5, seed=29), normal(5, 5, seed=30)
    few = ff.structured.sparsemap_solution(x, Sequence(table), max_iter=20)
    more = ff.structured.sparsemap_solution(x, Sequence(table), max_iter=60, warm=few)
    assert not few.converged
    torch.testing.assert_close(few.marginals.sum(1), torch.ones(2000, dtype=torch.double))
    assert few.marginals.min() >= 0
    assert few.objective < more.objective <= few.objective + few.gap
    assert len(few.support.weights) <= 21


@pytest.mark.native
def test_the_gradient_of_additional_scores_is_the_transpose_of_what_they_add() -> None:
    a, b, n = 2, 3, 5
    batch, x = torch.Size([a, b]), normal(a, b, n, S, seed=31)
    x[1, 2, 2] = x[0, 1, 4] = -math.inf
    bits = normal(a, b, n, seed=32)
    shapes = ((S, S), (n - 1, S, S), (b, S, S), (a, 1, 1, S, S), (a, b, n - 1, S, S))
    tables = [normal(*shape, seed=33) for shape in shapes]
    ends = [{}, {"start": normal(a, 1, S, seed=34), "stop": normal(S, seed=35)}]
    steps = [n - 1 in shape or shape == (a, 1, 1, S, S) for shape in shapes]
    made = [
        (Sequence(table, by_position=by, **end), x)
        for table, by in zip(tables, steps, strict=True)
        for end in ends
    ]
    made += [(Sequence(stop=normal(b, S, seed=36)), x)]
    bonuses = [torch.tensor(0.5).double(), *(normal(*s) for s in ((4,), (b, 4), (a, 1, 4), (1,)))]
    for structure, scores in [*made, *((SequentialSubset(3, bonus), bits) for bonus in bonuses)]:
        event = structure.event_of(scores)
        active = ff.structured.sparsemap_solution(scores, structure).problem.active
        by = normal(len(active.weights), seed=37)

        def extra(*given: Tensor, structure=structure, event=event, active=active) -> Tensor:  # type: ignore[no-untyped-def]
            flat = structure.with_additional(given).flat(batch, event)
            return flat.additional_score(active.codes, active.row, event)

        found = structure.additional_score_vjp(by, active.codes, active.row, batch, event)
        expected = torch.func.vjp(extra, *structure.additional)[1](by)
        assert found is not None
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)
