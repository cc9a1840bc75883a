"""Sums over all structures, k best and samples, against brute force.

A Gibbs distribution gives each structure a share in proportion to exp(score).
"""

import math

import pytest
import torch
from torch import Tensor

import fewfold as ff

from .cases import CASES, Case

NEAR = {"rtol": 1e-9, "atol": 1e-9}


def sums(case: Case) -> bool:
    try:
        case.structure.log_partition(case.scores())
    except NotImplementedError:
        return False
    return True


SUMMED = [case for case in CASES if sums(case)]
RANKED = [
    case
    for case in CASES
    if type(case.structure)._k_best is not ff.structures.Structure._k_best
    or type(case.structure)._k_best_parts is not ff.structures.Structure._k_best_parts
]
summed = pytest.mark.parametrize("case", SUMMED, ids=lambda case: case.name)
ranked = pytest.mark.parametrize("case", RANKED, ids=lambda case: case.name)


def blocked(case: Case, *batch: int, seed: int = 0) -> Tensor:
    """Scores with a part that cannot be used."""
    scores = case.scores(*batch, seed=seed)
    scores.view(*batch, -1)[..., list(case.forbidden)] = -math.inf
    return scores


def test_the_table_covers_all_structures_with_sums() -> None:
    names = {type(case.structure).__name__ for case in SUMMED}
    new = {"ConstituencyTree", "Segmentation", "Alignment"}
    assert names >= new | {"Bits", "KSubset", "Sequence", "DependencyTree", "SpanningTree"}
    assert {type(case.structure).__name__ for case in RANKED} >= names | {"Assignment"}


@ranked
def test_the_k_best_are_those_of_brute_force(case: Case, path: str) -> None:
    count = len(case.every())
    scores = torch.stack([case.scores(seed=40), blocked(case, seed=41)])
    for k in (1, 3, count + 1):
        found = case.structure.k_best(scores, k)
        for row, own in enumerate(scores):
            values = case.values(own).sort(descending=True).values[:k]
            values = values[values > -math.inf]
            there = found.valid[row]
            assert there.tolist() == [True] * len(values) + [False] * (k - len(values))
            torch.testing.assert_close(found.scores[row, there], values, **NEAR)
            assert (found.scores[row, ~there] == -math.inf).all()
            atoms = found.structures[row].flatten(1)
            assert not atoms[~there].any()
            known = (atoms[there].unsqueeze(1) == case.every().flatten(1).bool()).all(2)
            assert known.sum(1).eq(1).all()
            assert known.sum(0).max() <= 1  # no structure twice
            torch.testing.assert_close(case.values(own)[known.long().argmax(1)], values, **NEAR)


def test_all_structures_are_certified_and_all_but_one_are_not() -> None:
    """With equal scores none has a weight of zero."""
    scores, pairs = torch.zeros(2, 4), ff.structures.KSubset(2)
    assert ff.structured.topk_support(scores, pairs, 6).certified.all()
    assert not ff.structured.topk_support(scores, pairs, 5).certified.any()


@summed
def test_log_partitions_and_marginals_are_those_of_brute_force(case: Case) -> None:
    for scores in (case.scores(3, seed=42), blocked(case, 3, seed=43), 40 * case.scores(3)):
        values = torch.stack([case.values(row) for row in scores])
        total = case.structure.log_partition(scores)
        torch.testing.assert_close(total, values.logsumexp(1), **NEAR)
        expected = values.softmax(1) @ case.every().flatten(1)
        found = ff.structured.gibbs_marginals(scores, case.structure)
        torch.testing.assert_close(found.flatten(1), expected, **NEAR)


@summed
def test_log_partitions_have_gradients_of_any_order(case: Case) -> None:
    given = [case.scores(2, seed=44), *case.structure.additional]
    inputs = [value.clone().requires_grad_() for value in given]

    def total(scores: Tensor, *additional: Tensor) -> Tensor:
        return case.structure.with_additional(additional).log_partition(scores)

    assert torch.autograd.gradcheck(total, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(total, inputs, fast_mode=True)


@summed
def test_draws_follow_the_distribution(case: Case) -> None:
    scores = torch.stack([case.scores(seed=45), blocked(case, seed=46)])
    draws = case.structure.sample(scores, 2000, generator=torch.Generator().manual_seed(0))
    assert draws.shape == (2000, *scores.shape)
    assert draws.dtype == torch.bool
    every = case.every().flatten(1).bool()
    for row, own in enumerate(scores):
        same = (draws[:, row].flatten(1).unsqueeze(1) == every).all(2)
        assert same.sum(1).eq(1).all()  # each is a structure
        probs = case.values(own).softmax(0)
        # at most 125 shares within 5 deviations: wrong by chance in one of 10,000 seeds
        far = (same.double().mean(0) - probs).abs()
        assert (far <= 5 * (probs * (1 - probs) / 2000).sqrt() + 1e-9).all()


@summed
@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_nothing_is_drawn_by_scores_that_are_no_numbers(case: Case, odd: float) -> None:
    scores = case.scores(2, seed=46)
    scores[1].view(-1)[0] = odd
    with pytest.raises(ValueError, match="instance 1 has a score of nan or inf"):
        case.structure.sample(scores, 2)
    mask = scores.isfinite()
    wide = case.structure.with_additional(
        [torch.full_like(v, odd) for v in case.structure.additional]
    )
    if wide.additional:
        with pytest.raises(ValueError, match="instance 0 has a score of nan or inf"):
            wide.sample(scores, 2, mask=mask)


@pytest.mark.parametrize("case", [c for c in SUMMED if c.small], ids=lambda case: case.name)
def test_a_masked_instance_is_summed_as_a_smaller_one(case: Case) -> None:
    mask, small, event = case.small.mask, case.small.structure, case.small.event
    scores = case.scores(3, seed=47)
    own = scores[:, mask].view(3, *event)
    total = case.structure.log_partition(scores, mask=mask)
    torch.testing.assert_close(total, small.log_partition(own), **NEAR)
    found, alone = (
        s.k_best(x, 2, mask=m) for s, x, m in ((case.structure, scores, mask), (small, own, None))
    )
    torch.testing.assert_close(found.scores, alone.scores, **NEAR)
    assert torch.equal(found.structures[:, :, mask].view_as(alone.structures), alone.structures)
    draws = case.structure.sample(scores, 20, mask=mask)
    assert not draws[..., ~mask].any()
    likely = case.structure.log_prob(scores, found.structures[:, 0], mask=mask)
    torch.testing.assert_close(likely, small.log_prob(own, alone.structures[:, 0]), **NEAR)


@pytest.mark.parametrize("case", [c for c in SUMMED if c.nothing], ids=lambda case: case.name)
def test_nothing_to_sum_over(case: Case) -> None:
    structure, mask = case.nothing
    scores = case.scores(2, seed=48).requires_grad_()
    masks = torch.stack([torch.ones_like(mask), mask])
    total = structure.log_partition(scores, mask=masks)
    assert total[1] == -math.inf
    (gradient,) = torch.autograd.grad(total[0], scores)
    assert gradient.isfinite().all()
    assert not structure.k_best(scores, 2, mask=masks).valid[1].any()
    with pytest.raises(ValueError, match="no structure"):
        structure.sample(scores, 2, mask=masks)


@pytest.mark.parametrize(
    "case", [c for c in SUMMED if c.name != "spanning tree"], ids=lambda case: case.name
)
def test_an_empty_instance_has_the_empty_structure(case: Case) -> None:
    mask = torch.zeros(case.event, dtype=torch.bool)
    scores = case.scores(2, seed=49).requires_grad_()
    total = case.structure.log_partition(scores, mask=mask)
    assert total.tolist() == [0, 0]
    assert torch.autograd.grad(total.sum(), scores)[0].eq(0).all()
    assert not case.structure.argmax(scores, mask=mask).any()
    assert case.structure.k_best(scores, 2, mask=mask).valid.tolist() == [[True, False]] * 2
    assert not case.structure.sample(scores, 3, mask=mask).any()


@summed
def test_sums_under_transforms(case: Case) -> None:
    """vmap is the batch, also over masks, and gradients are those of autograd."""
    scores, structure = case.scores(3, seed=50), case.structure
    total = structure.log_partition(scores)
    torch.testing.assert_close(torch.func.vmap(structure.log_partition)(scores), total, **NEAR)
    marginals = ff.structured.gibbs_marginals(scores, structure)
    slope = torch.func.vmap(torch.func.grad(structure.log_partition))(scores)
    torch.testing.assert_close(slope, marginals, **NEAR)
    mapped = torch.func.vmap(lambda row: ff.structured.gibbs_marginals(row, structure))(scores)
    torch.testing.assert_close(mapped, marginals, **NEAR)
    curved = torch.func.hessian(structure.log_partition)(scores[0])
    for jacobian in (torch.func.jacrev, torch.func.jacfwd):
        found = jacobian(lambda row: ff.structured.gibbs_marginals(row, structure))(scores[0])
        torch.testing.assert_close(found, curved, **NEAR)


@summed
def test_the_count_is_the_sum_at_equal_scores(case: Case) -> None:
    event = torch.Size(case.event)
    count = case.structure.count(event)
    assert count == len(case.every())
    level = case.structure.with_additional([0 * value for value in case.structure.additional])
    total = level.log_partition(torch.zeros(event, dtype=torch.float64))
    assert float(total.exp()) == pytest.approx(count)


# Likelihoods and the loss of random fields.


def leaves(case: Case, *batch: int, seed: int = 0) -> list[Tensor]:
    given = [case.scores(*batch, seed=seed), *case.structure.additional]
    return [value.detach().clone().requires_grad_() for value in given]


def targets(case: Case, count: int) -> tuple[Tensor, Tensor]:
    """Which structures, and themselves."""
    draw = torch.Generator().manual_seed(1)
    which = torch.randint(len(case.every()), (count,), generator=draw)
    return which, case.every()[which]


@summed
def test_log_probabilities_are_those_of_brute_force(case: Case) -> None:
    scores, structure = case.scores(3, seed=51), case.structure
    every = case.every()
    for temperature in (1.0, 0.6):
        probs = torch.stack([case.values(row) for row in scores]).div(temperature).log_softmax(1)
        found = structure.log_prob(scores, every.unsqueeze(1), temperature=temperature)
        torch.testing.assert_close(found, probs.T, **NEAR)  # every structure in every row
    draws = structure.sample(scores, 4, generator=torch.Generator().manual_seed(0))
    assert structure.log_prob(scores, draws).shape == (4, 3)
    assert structure.log_prob(scores.float(), draws[0]).dtype == torch.float32


@summed
def test_log_probabilities_have_gradients_and_transforms(case: Case) -> None:
    inputs = leaves(case, 2, seed=52)
    _, target = targets(case, 2)

    def log_prob(scores: Tensor, *additional: Tensor) -> Tensor:
        return case.structure.with_additional(additional).log_prob(scores, target)

    assert torch.autograd.gradcheck(log_prob, inputs, fast_mode=True)
    scores, found = inputs[0].detach(), log_prob(*inputs)
    mapped = torch.func.vmap(case.structure.log_prob)(scores, target)
    torch.testing.assert_close(mapped, found, **NEAR)
    slope = torch.func.vmap(torch.func.grad(case.structure.log_prob))(scores, target)
    torch.testing.assert_close(slope, torch.autograd.grad(found.sum(), inputs[0])[0], **NEAR)
    torch.testing.assert_close(
        slope, target - ff.structured.gibbs_marginals(scores, case.structure), **NEAR
    )


# A recursion over places and a determinant; at night also a recursion over spans and over cells.
COMPILED = ("sequence", "tree", "projective tree", "alignment, steps")


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if case.name in COMPILED[:2] else pytest.mark.nightly)
        for case in SUMMED
        if case.name in COMPILED
    ],
    ids=lambda case: case.name,
)
@pytest.mark.filterwarnings("ignore:.*:Warning")
def test_log_probabilities_compiled_without_a_break(case: Case) -> None:
    torch._dynamo.reset()
    inputs = leaves(case, 2, seed=53)
    _, target = targets(case, 2)

    def loss(scores: Tensor, *additional: Tensor) -> Tensor:
        structure = case.structure.with_additional(additional)
        omega = ff.Gibbs(structure)
        return structure.log_prob(scores, target) - ff.fenchel_young_loss(scores, target, omega)

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    found, expected = compiled(*inputs), loss(*inputs)
    torch.testing.assert_close(found, expected, **NEAR)
    one, other = (torch.autograd.grad(v.sum(), inputs) for v in (found, expected))
    for mine, theirs in zip(one, other, strict=True):
        torch.testing.assert_close(mine, theirs, **NEAR)


@summed
def test_what_is_no_structure_has_no_log_probability(case: Case) -> None:
    scores = case.scores(2, seed=54)
    _, target = targets(case, 2)
    members = {tuple(z.flatten().tolist()) for z in case.every()}
    for part in range(target[0].numel()):
        wrong = target.clone()
        wrong[1].view(-1)[part] = 1 - wrong[1].view(-1)[part]
        if tuple(wrong[1].flatten().tolist()) in members:
            continue
        with pytest.raises(ValueError, match=r"those at \(1,\) do not"):
            case.structure.log_prob(scores, wrong)
    with pytest.raises(ValueError, match="zeros and ones"):
        case.structure.log_prob(scores, 0.9 * target + 0.05)
    with pytest.raises(ValueError, match="end in the shape of an instance"):
        case.structure.log_prob(scores, target.flatten(1).unsqueeze(0)[..., :-1])


def test_a_forbidden_structure_has_probability_zero() -> None:
    scores = torch.zeros(2, 3, dtype=torch.float64)
    table = torch.zeros(3, 3, dtype=torch.float64)
    table[0, 1] = -math.inf
    tags, gold = ff.structures.Sequence(table), torch.eye(3, dtype=torch.float64)[:2]
    assert tags.log_prob(scores, gold) == -math.inf
    assert tags.log_prob(scores, gold.flip(0)) == pytest.approx(-math.log(8))
    masked = torch.tensor([[False, True, True], [True, True, True]])
    assert ff.structures.Sequence().log_prob(scores, gold, mask=masked) == -math.inf
    with pytest.raises(ValueError, match="no structure"):
        ff.structures.Sequence(table - math.inf).log_prob(scores, gold)


@summed
def test_the_gibbs_loss_is_the_negative_log_likelihood(case: Case) -> None:
    inputs = leaves(case, 3, seed=55)
    which, target = targets(case, 3)
    omega = ff.Gibbs(case.structure.with_additional(inputs[1:]))
    losses = ff.fenchel_young_loss(inputs[0], target, omega, reduction="none")
    for row in range(3):
        probs = case.values(inputs[0][row]).log_softmax(0)
        torch.testing.assert_close(losses[row].detach(), -probs[which[row]], **NEAR)
    (slope,) = torch.autograd.grad(losses.sum(), inputs[0], retain_graph=True)
    marginals = ff.structured.gibbs_marginals(inputs[0], omega.structure)
    torch.testing.assert_close(slope, (marginals - target).detach(), **NEAR)
    assert torch.autograd.gradcheck(
        lambda *given: ff.fenchel_young_loss(
            given[0], target, ff.Gibbs(case.structure.with_additional(given[1:]), 0.7)
        ),
        inputs,
        fast_mode=True,
    )
    sure = 50 * (2 * target - 1)
    assert float(ff.fenchel_young_loss(sure, target, ff.Gibbs(case.structure))) < 1e-9
    mapped = torch.func.vmap(lambda s, y: ff.fenchel_young_loss(s, y, ff.Gibbs(case.structure)))
    torch.testing.assert_close(mapped(inputs[0].detach(), target), losses.detach(), **NEAR)


@summed
def test_the_gibbs_loss_with_a_cost_is_augmented(case: Case) -> None:
    scores = case.scores(3, seed=56)
    which, target = targets(case, 3)
    losses = ff.fenchel_young_loss(
        scores, target, ff.Gibbs(case.structure), cost=0.8, reduction="none"
    )
    for row in range(3):
        wrong = (case.every() * (1 - target[row])).flatten(1).sum(1)
        values = case.values(scores[row])
        expected = (values + 0.8 * wrong).logsumexp(0) - values[which[row]]
        torch.testing.assert_close(losses[row], expected, **NEAR)


@summed
def test_temperature_divides_all_scores(case: Case) -> None:
    scores = case.scores(2, seed=57)
    cold = case.structure.with_additional([value / 0.3 for value in case.structure.additional])
    found = ff.structured.gibbs_marginals(scores, case.structure, temperature=0.3)
    torch.testing.assert_close(found, ff.structured.gibbs_marginals(scores / 0.3, cold), **NEAR)
    omega = ff.Gibbs(case.structure, temperature=0.3)
    torch.testing.assert_close(omega.argmax(scores), found, **NEAR)
    total = 0.3 * cold.log_partition(scores / 0.3)
    torch.testing.assert_close(omega.conjugate(scores), total, **NEAR)
    draws = [
        structure.sample(own, 50, temperature=by, generator=torch.Generator().manual_seed(3))
        for structure, own, by in ((case.structure, scores, 0.3), (cold, scores / 0.3, 1.0))
    ]
    assert torch.equal(*draws)
    best = case.structure.sample(scores, 5, temperature=1e-4)
    assert (best.double() == case.structure.argmax(scores)).all()
    half = ff.structured.gibbs_marginals((100 * scores).half(), case.structure, temperature=1e-4)
    assert half.isfinite().all()  # not so, were they divided in half precision


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, torch.tensor(1.0), "hot"])
def test_a_temperature_is_a_positive_number(wrong: object) -> None:
    scores, tags = torch.zeros(2, 3), ff.structures.Sequence()
    gold = torch.eye(3)[:2]
    for ask in (
        lambda: ff.structured.gibbs_marginals(scores, tags, temperature=wrong),  # type: ignore[arg-type]
        lambda: tags.log_prob(scores, gold, temperature=wrong),  # type: ignore[arg-type]
        lambda: tags.sample(scores, 1, temperature=wrong),  # type: ignore[arg-type]
        lambda: ff.structures.Bits().sample(scores, 1, temperature=wrong),  # type: ignore[arg-type]
        lambda: ff.Gibbs(tags, wrong),  # type: ignore[arg-type]
    ):
        with pytest.raises((TypeError, ValueError), match="temperature must be"):
            ask()


def test_the_value_of_mixed_marginals_is_refused() -> None:
    half = torch.full((2, 2), 0.5)
    with pytest.raises(ValueError, match="zeros and ones that make a structure"):
        ff.fenchel_young_loss(torch.zeros(2, 2), half, ff.Gibbs(ff.structures.Sequence()))
    with pytest.raises(ValueError, match="other than 0 and 1"):
        ff.Gibbs(ff.structures.Sequence()).value(half)
    with pytest.raises(NotImplementedError, match="permanent"):
        ff.Gibbs(ff.structures.Assignment()).conjugate(torch.zeros(2, 2))


def test_the_loss_of_what_is_no_structure_is_refused():
    tags = ff.Gibbs(ff.structures.Sequence(torch.zeros(2, 2)))
    with pytest.raises(ValueError, match="zeros and ones that make a structure"):
        ff.fenchel_young_loss(torch.randn(3, 2), torch.ones(3, 2), tags)
    with pytest.raises(ValueError, match="zeros and ones that make a structure"):
        ff.fenchel_young_loss(
            torch.randn(3, 3), torch.zeros(3, 3), ff.Gibbs(ff.structures.ConstituencyTree())
        )
    shorter = torch.tensor([[1.0, 2.0], [0.5, 0.0], [-torch.inf, -torch.inf]])
    gold = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    torch.testing.assert_close(
        ff.fenchel_young_loss(shorter, gold, tags),
        ff.fenchel_young_loss(shorter[:2], gold[:2], tags),
    )
