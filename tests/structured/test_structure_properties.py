"""Properties of every structure: equality with enumeration, gradients, masks, transforms.

Derivatives are checked on the path that is used; on the other they must only be the same. What the
code around the structures does is checked on one structure per kind of code.
"""

import math

import pytest
import torch
from torch import Tensor

import fewfold as ff
from fewfold import _native

from .cases import CASES, Case, every_structure, wide_structures

EXACT = {"rtol": 0.0, "atol": 1e-8}
SAME = {"rtol": 0.0, "atol": 1e-10}


def marginals(case: Case, scores: Tensor, *additional: Tensor, **options) -> Tensor:
    structure = case.structure.with_additional(additional) if additional else case.structure
    return ff.sparsemap(scores, structure, **options)


def leaves(case: Case, *batch: int, seed: int = 0) -> list[Tensor]:
    """Scores, and the additional ones, to differentiate by."""
    given = [case.scores(*batch, seed=seed), *case.structure.additional]
    return [value.detach().clone().requires_grad_() for value in given]


def atoms_of(support: ff.Support, row: int) -> Tensor:
    return support.atoms[support.row == row].double()


# The answer.


@pytest.mark.parametrize("case", [c for c in CASES if c.listed], ids=lambda case: case.name)
def test_the_table_tells_what_the_structure_enumerates(case):
    own = case.structure.enumerate(torch.Size(case.event)).flatten(1).long()
    rule = case.every().flatten(1).long()
    assert own.unique(dim=0).tolist() == rule.unique(dim=0).tolist()
    assert len(own) == len(rule)


@every_structure
def test_marginals_are_those_of_brute_force(case, path):
    scores = case.scores(6)
    found = marginals(case, scores)
    expected = case.expected(scores)
    assert ((expected > 1e-6) & (expected < 1 - 1e-6)).any()  # some are not at a vertex
    torch.testing.assert_close(found, expected, **EXACT)


@every_structure
def test_marginals_are_between_zero_and_one(case):
    for scale in (0.5, 2.0, 8.0):
        found = marginals(case, case.scores(20, scale=scale))
        assert found.min() >= 0
        assert found.max() <= (1 if case.structure.binary else 1 + 1e-12)


@every_structure
def test_large_and_small_scores(case):
    for scale in (1e-3, 30.0):
        scores = case.scores(2, scale=scale)
        torch.testing.assert_close(marginals(case, scores), case.expected(scores), **EXACT)


@every_structure
def test_the_best_structure_is_that_of_brute_force(case, path):
    scores = case.scores(5, seed=3)
    best = case.structure.argmax(scores)
    assert best.dtype == scores.dtype
    for row, found in zip(scores, best, strict=True):
        assert torch.equal(found, case.every()[case.values(row).argmax()])


@every_structure
def test_no_structure_is_better_than_those_of_the_support(case, path):
    scores = case.scores(4, seed=4)
    solution = ff.structured.sparsemap_solution(scores, case.structure)
    assert solution.converged.all()
    for row in range(4):
        left = case.left(scores[row], solution.marginals[row])
        used = (atoms_of(solution.support, row).flatten(1)[:, None] == case.every().flatten(1)).all(
            2
        )
        assert used.sum(1).eq(1).all()  # each is a structure
        level = left[used.any(0)]
        torch.testing.assert_close(level, level[:1].expand_as(level), rtol=0, atol=1e-8)
        assert left.max() <= level.min() + 1e-8


@every_structure
def test_a_support_sums_to_one_and_makes_the_marginals(case, path):
    scores = case.scores(2, 3, seed=5)
    support = ff.sparsemap_support(scores, case.structure)
    assert support.rows == 6
    assert (support.weights > 0).all()
    ones = support.reduce(torch.ones_like(support.weights))
    torch.testing.assert_close(ones, torch.ones(6, dtype=torch.float64), rtol=0, atol=1e-12)
    mean = support.reduce(support.atoms.double()).view_as(scores)
    torch.testing.assert_close(mean, marginals(case, scores), **EXACT)
    assert int(support.counts.max()) <= math.prod(case.event) + 1


@every_structure
def test_a_solution_tells_its_objective_and_gap(case, path):
    scores = case.scores(3, seed=6)
    solution = ff.structured.sparsemap_solution(scores, case.structure)
    torch.testing.assert_close(solution.marginals, marginals(case, scores), **SAME)
    for row in range(3):
        torch.testing.assert_close(solution.objective[row], case.best(scores[row]), **EXACT)
    assert (solution.gap <= 1e-8).all()
    assert (solution.gap >= 0).all()
    assert (solution.iterations >= 0).all()


# Gradients.


@every_structure
def test_gradients_are_those_of_finite_differences(case):
    inputs = leaves(case, 1, seed=7)
    assert torch.autograd.gradcheck(
        lambda *given: marginals(case, *given), inputs, eps=1e-6, atol=1e-6, rtol=1e-6
    )


@wide_structures
def test_gradients_of_the_weights(case):
    """A loss of the atoms: weights are differentiable along the support, which is held."""
    inputs = leaves(case, 2, seed=8)
    support = ff.sparsemap_support(inputs[0], case.structure.with_additional(inputs[1:]))
    pull = torch.randn(len(support.weights), generator=torch.Generator().manual_seed(0)).double()
    found = torch.autograd.grad((support.weights * pull).sum(), inputs, retain_graph=True)
    # Only differences that are linear in the atoms do not depend on which support was found.
    mean = support.reduce(support.atoms.double()).view_as(inputs[0])
    by_support = torch.autograd.grad(mean.square().sum(), inputs, retain_graph=True)
    by_map = torch.autograd.grad(marginals(case, *inputs).square().sum(), inputs)
    for one, other in zip(by_support, by_map, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-7)
    assert all(gradient.isfinite().all() for gradient in found)


@wide_structures
def test_gradients_of_gradients(case):
    inputs = leaves(case, 2, seed=9)
    assert torch.autograd.gradgradcheck(
        lambda *given: marginals(case, *given),
        inputs,
        eps=1e-6,
        atol=1e-6,
        rtol=1e-6,
        fast_mode=True,
    )


@wide_structures
def test_the_jacobian_is_symmetric(case):
    scores = case.scores(seed=10)
    jacobian = torch.autograd.functional.jacobian(lambda s: marginals(case, s), scores)
    square = jacobian.reshape(scores.numel(), -1)
    torch.testing.assert_close(square, square.T, **SAME)
    assert torch.linalg.eigvalsh((square + square.T) / 2).min() > -1e-9


# Batches, masks, types.


@wide_structures
def test_a_batch_is_its_instances(case, path):
    scores = case.scores(5, seed=11)
    together = marginals(case, scores)
    alone = torch.stack([marginals(case, row) for row in scores])
    torch.testing.assert_close(together, alone, **SAME)


@pytest.mark.parametrize("case", [c for c in CASES if c.shared], ids=lambda case: case.name)
def test_additional_scores_of_each_instance(case, path):
    scores = case.scores(5, seed=31).requires_grad_()
    by = torch.linspace(0.5, 2.0, 5, dtype=torch.float64)
    own = [
        (by.view(5, *[1] * value.dim()) * value).requires_grad_()
        for value in case.structure.additional
    ]
    together = marginals(case, scores, *own)
    alone = torch.stack(
        [marginals(case, scores[i], *[value[i] for value in own]) for i in range(5)]
    )
    torch.testing.assert_close(together, alone, **SAME)
    one, other = (torch.autograd.grad(v.pow(3).sum(), [scores, *own]) for v in (together, alone))
    for mine, theirs in zip(one, other, strict=True):
        torch.testing.assert_close(mine, theirs, **EXACT)
    mapped = torch.func.vmap(lambda row, *more: marginals(case, row, *more))(scores, *own)
    torch.testing.assert_close(mapped, together, **SAME)


@wide_structures
def test_any_batch_shape(case):
    scores = case.scores(6, seed=12)
    flat = marginals(case, scores)
    for shape in ((2, 3), (1, 6, 1), (3, 2)):
        found = marginals(case, scores.view(*shape, *case.event))
        assert found.shape == (*shape, *case.event)
        torch.testing.assert_close(found.view_as(flat), flat, **SAME)
    assert marginals(case, scores[:0]).shape == (0, *case.event)
    solution = ff.structured.sparsemap_solution(scores.view(2, 3, *case.event), case.structure)
    for value in (solution.objective, solution.gap, solution.iterations, solution.converged):
        assert value.shape == (2, 3)


@wide_structures
def test_memory_in_any_order(case):
    scores = case.scores(4, seed=13)
    turned = scores.movedim(0, -1).contiguous().movedim(-1, 0)
    assert not turned.is_contiguous()
    torch.testing.assert_close(marginals(case, turned), marginals(case, scores), **SAME)


@pytest.mark.parametrize("case", [c for c in CASES if c.small], ids=lambda case: case.name)
def test_a_masked_instance_is_a_smaller_one(case, path):
    mask, small, event = case.small.mask, case.small.structure, case.small.event
    inputs = leaves(case, 3, seed=14)
    scores = inputs[0]
    found = marginals(case, *inputs, mask=mask.expand_as(scores))
    assert (found[~mask.expand_as(scores)] == 0).all()
    alone = ff.sparsemap(scores[:, mask].view(3, *event), small)
    torch.testing.assert_close(found[:, mask].view_as(alone), alone, **SAME)
    one, other = (torch.autograd.grad(value.square().sum(), scores)[0] for value in (found, alone))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-8)


@every_structure
def test_a_score_of_minus_infinity_is_a_mask(case, path):
    scores = case.scores(3, seed=15)
    part = case.forbidden
    blocked = scores.flatten(1).index_fill(1, torch.tensor(part), -math.inf).view_as(scores)
    found = marginals(case, blocked)
    torch.testing.assert_close(found, case.expected(blocked), **EXACT)
    torch.testing.assert_close(marginals(case, scores, mask=blocked > -math.inf), found, **SAME)
    assert (found.flatten(1)[:, part] == 0).all()
    leaf = blocked.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(marginals(case, leaf).square().sum(), leaf)
    assert gradient.isfinite().all()
    assert (gradient.flatten(1)[:, part] == 0).all()


@wide_structures
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_types_in_and_out(case, dtype):
    scores = case.scores(3, seed=16).to(dtype).requires_grad_()
    found = marginals(case, scores)
    assert found.dtype == dtype
    expected = case.expected(scores)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=torch.finfo(dtype).eps + 1e-8)
    (gradient,) = torch.autograd.grad(found.float().square().sum(), scores)
    assert gradient.dtype == dtype
    support = ff.sparsemap_support(scores, case.structure)
    assert support.weights.dtype == dtype


@wide_structures
def test_temperature_divides_all_scores(case):
    scores = case.scores(3, seed=17)
    structure = case.structure.with_additional([value / 0.4 for value in case.structure.additional])
    expected = ff.sparsemap(scores / 0.4, structure)
    found = marginals(case, scores, temperature=0.4)
    torch.testing.assert_close(found, expected, **EXACT)
    assert (found - marginals(case, scores)).abs().max() > 1e-3
    inputs = leaves(case, 2, seed=18)
    assert torch.autograd.gradcheck(
        lambda *given: marginals(case, *given, temperature=0.4),
        inputs,
        eps=1e-6,
        atol=1e-6,
        rtol=1e-6,
        fast_mode=True,
    )
    hot = marginals(case, scores, temperature=1e-3)
    torch.testing.assert_close(hot, case.structure.argmax(scores), rtol=0, atol=1e-6)


@wide_structures
def test_temperature_scales_objective_and_gap(case, path):
    """Both are those of the divided scores, times the temperature, converged or not."""
    scores = case.scores(6, seed=32)
    cold = case.structure.with_additional([value / 0.4 for value in case.structure.additional])
    for turns in (1, 1000):
        found = ff.structured.sparsemap_solution(
            scores, case.structure, temperature=0.4, max_iter=turns
        )
        plain = ff.structured.sparsemap_solution(scores / 0.4, cold, max_iter=turns)
        torch.testing.assert_close(found.objective, 0.4 * plain.objective, **EXACT)
        torch.testing.assert_close(found.gap, 0.4 * plain.gap, **EXACT)
        # not zero times anything, but where a projection needs no turns
        assert turns > 1 or (plain.gap > 1e-3).any() or plain.converged.all()


# Solvers.


@wide_structures
def test_a_warm_start_leads_to_the_same(case, path):
    scores = case.scores(4, seed=19)
    first = ff.structured.sparsemap_solution(scores, case.structure)
    near = scores + 0.05 * case.scores(4, seed=20)
    cold = ff.structured.sparsemap_solution(near, case.structure)
    warm = ff.structured.sparsemap_solution(near, case.structure, warm=first)
    torch.testing.assert_close(warm.marginals, cold.marginals, **EXACT)
    assert warm.converged.all()
    other = ff.structured.sparsemap_solution(case.scores(4, seed=21), case.structure, warm=first)
    torch.testing.assert_close(other.marginals, case.expected(case.scores(4, seed=21)), **EXACT)


@pytest.mark.native
@every_structure
def test_native_and_plain_agree(case):
    if not _native.ready(torch.zeros(1)):
        pytest.skip("no kernels")
    inputs = leaves(case, 8, seed=22)
    answers = []
    for context in (None, _native.disabled()):
        if context is None:
            found = marginals(case, *inputs)
            gradients = torch.autograd.grad(found.pow(3).sum(), inputs)
        else:
            with context:
                found = marginals(case, *inputs)
                gradients = torch.autograd.grad(found.pow(3).sum(), inputs)
        answers.append((found, *gradients))
    for one, other in zip(*answers, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-8)


@wide_structures
def test_few_turns_give_a_feasible_answer_and_an_honest_gap(case, path):
    scores = case.scores(6, seed=23)
    best = ff.structured.sparsemap_solution(scores, case.structure)
    for turns in (1, 2, 3):
        found = ff.structured.sparsemap_solution(scores, case.structure, max_iter=turns)
        assert (found.iterations <= turns).all()
        support = found.support
        mean = support.reduce(support.atoms.double()).view_as(scores)
        torch.testing.assert_close(mean, found.marginals, **SAME)
        ones = support.reduce(torch.ones_like(support.weights))
        torch.testing.assert_close(ones, torch.ones_like(ones), rtol=0, atol=1e-12)
        short = best.objective - found.objective
        assert (short >= -1e-9).all()
        assert (short <= found.gap + 1e-9).all()
        assert (found.converged == (found.gap <= 1e-9)).all()


@every_structure
def test_equal_scores(case, path):
    for value in (0.0, 0.25, -1.0, 1000.0):
        scores = torch.full((2, *case.event), value, dtype=torch.float64)
        found = marginals(case, scores)
        torch.testing.assert_close(found, case.expected(scores), **EXACT)
        torch.testing.assert_close(found[0], found[1], **SAME)


@every_structure
def test_ties(case, path):
    scores = case.scores(8, seed=24).mul(2).round().div(2)
    structure = case.structure.with_additional(
        [value.mul(2).round().div(2) for value in case.structure.additional]
    )
    found = ff.sparsemap(scores, structure)
    torch.testing.assert_close(found, case.expected(scores, structure), **EXACT)
    leaf = scores.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(ff.sparsemap(leaf, structure).square().sum(), leaf)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("case", [c for c in CASES if c.single], ids=lambda case: case.name)
def test_one_element(case, path):
    mask, structure, event = case.single.mask, case.single.structure, case.single.event
    scores = torch.tensor([-3.0, 0.0, 0.4, 5.0]).double().view(4, *[1] * len(event))
    scores = scores.expand(4, *event).clone().requires_grad_()
    found = ff.sparsemap(scores, structure)
    wide = scores.new_zeros(4, *case.event).masked_scatter(mask.expand(4, *case.event), scores)
    masked = ff.sparsemap(wide, case.structure, mask=mask.expand_as(wide))
    torch.testing.assert_close(masked[:, mask].view_as(found), found, **SAME)
    (gradient,) = torch.autograd.grad(found.sum(), scores)
    assert gradient.isfinite().all()
    torch.testing.assert_close(found, found.clamp(0, 1), rtol=0, atol=1e-12)


# What is not a number, not finite, not there.


@every_structure
def test_odd_rows_stay_alone(case, path):
    scores = case.scores(4, seed=25)
    expected = marginals(case, scores)
    scores[(2, *[0] * len(case.event))] = math.nan
    scores[(1, *[0] * len(case.event))] = math.inf
    leaf = scores.requires_grad_()
    found = marginals(case, leaf)
    assert found[1:3].isnan().all()
    others = torch.tensor([0, 3])
    torch.testing.assert_close(found[others], expected[others], **SAME)
    (gradient,) = torch.autograd.grad(found[others].square().sum(), leaf)
    assert gradient[others].isfinite().all()
    solution = ff.structured.sparsemap_solution(leaf.detach(), case.structure)
    assert not solution.converged[1:3].any()
    assert solution.converged[others].all()


@every_structure
def test_an_odd_row_has_no_best_and_is_no_error(case, path):
    scores = case.scores(6, seed=33)
    expected = case.structure.argmax(scores)
    for row, odd in ((1, math.nan), (3, math.inf)):
        scores[(row, *[0] * len(case.event))] = odd
        scores[row + 1] = odd
    found = case.structure.argmax(scores)
    assert found[1:5].isnan().all()
    assert torch.equal(found[[0, 5]], expected[[0, 5]])
    assert ff.sparsemap(scores, case.structure)[[2, 4]].isnan().all()


@pytest.mark.parametrize("case", [c for c in CASES if c.nothing], ids=lambda case: case.name)
def test_nothing_to_choose_from_is_an_error(case, path):
    structure, mask = case.nothing
    scores = case.scores(3, seed=26)
    masks = torch.ones_like(scores, dtype=torch.bool)
    masks[1] = mask
    if mask.all():
        masks[:] = True
    with pytest.raises(ValueError, match="no structure"):
        ff.sparsemap(scores, structure, mask=masks)
    with pytest.raises(ValueError, match="no structure"):
        structure.argmax(scores, mask=masks)


# Transforms and losses.


@wide_structures
def test_functional_transforms(case):
    scores = case.scores(4, seed=27)
    expected = marginals(case, scores)
    torch.testing.assert_close(
        torch.func.vmap(lambda row: marginals(case, row))(scores), expected, **SAME
    )
    row = scores[0]
    jacobian = torch.func.jacrev(lambda s: marginals(case, s))(row)
    eager = torch.autograd.functional.jacobian(lambda s: marginals(case, s), row)
    torch.testing.assert_close(jacobian, eager, **SAME)
    pull = case.scores(seed=28)
    gradient = torch.func.grad(lambda s: (marginals(case, s) * pull).sum())(row)
    flat = eager.reshape(row.numel(), -1).T @ pull.flatten()
    torch.testing.assert_close(gradient.flatten(), flat, **SAME)
    rows = torch.func.vmap(torch.func.grad(lambda s: (marginals(case, s) * pull).sum()))(scores)
    torch.testing.assert_close(rows[0], gradient, **SAME)


@every_structure
def test_forward_mode_of_several_instances_is_one_by_one(case):
    scores = case.scores(3, 2, seed=33)  # three batches of two
    own = [
        torch.stack([by * value for by in (0.5, 1.0, 1.5)]) for value in case.structure.additional
    ]
    along = [case.scores(3, 2, seed=34), *[value.cos() for value in own]]

    def pushed(row: Tensor, *rest: Tensor) -> Tensor:
        more, moves = rest[: len(own)], rest[len(own) :]
        found = torch.func.jvp(lambda *x: marginals(case, *x), (row, *more), moves)
        return torch.cat([value.flatten() for value in found])

    given = (scores, *own, *along)
    alone = torch.stack([pushed(*row) for row in zip(*given, strict=True)])
    torch.testing.assert_close(torch.func.vmap(pushed)(*given), alone, **SAME)
    columns = torch.func.jacfwd(lambda s: marginals(case, s))
    each = torch.stack([columns(row) for row in scores])
    torch.testing.assert_close(torch.func.vmap(columns)(scores), each, **SAME)


@wide_structures
@pytest.mark.filterwarnings("ignore:.*:Warning")
def test_compiled_without_a_break(case):
    """To machine code once: the graph is what may fail, and compiling it takes long."""
    torch._dynamo.reset()
    inputs = leaves(case, 3, seed=29)

    def both(scores: Tensor, *additional: Tensor) -> Tensor:
        return 2 * marginals(case, scores + 1, *additional)

    backend = "inductor" if case.name == "sequence" else "aot_eager"
    compiled = torch.compile(both, fullgraph=True, backend=backend)
    found, expected = compiled(*inputs), both(*inputs)
    torch.testing.assert_close(found, expected, **SAME)
    one, other = (torch.autograd.grad(v.pow(3).sum(), inputs) for v in (found, expected))
    for mine, theirs in zip(one, other, strict=True):
        torch.testing.assert_close(mine, theirs, **SAME)


@wide_structures
def test_the_loss_is_zero_at_its_target_alone_and_its_gradient_the_difference(case):
    inputs = leaves(case, 3, seed=30)
    draw = torch.Generator().manual_seed(1)
    which = torch.randint(len(case.every()), (3,), generator=draw)
    target = case.every()[which]
    omega = ff.SparseMAP(case.structure.with_additional(inputs[1:]))
    losses = ff.fenchel_young_loss(inputs[0], target, omega, reduction="none")
    assert losses.shape == (3,)
    for row in range(3):
        scores = inputs[0][row]
        right = case.best(scores) + case.half(target[row]) - case.values(scores)[which[row]]
        torch.testing.assert_close(losses[row].detach(), right, **EXACT)
    gradient = torch.autograd.grad(losses.sum(), inputs[0])[0]
    torch.testing.assert_close(gradient, marginals(case, *inputs) - target, **EXACT)
    assert torch.autograd.gradcheck(
        lambda *given: ff.fenchel_young_loss(
            given[0], target, ff.SparseMAP(case.structure.with_additional(given[1:]))
        ),
        inputs,
        fast_mode=True,
    )
    sure = 50 * (2 * target - 1)
    mean = ff.fenchel_young_loss(sure, target, ff.SparseMAP(case.structure))
    assert abs(float(mean)) < 1e-9
