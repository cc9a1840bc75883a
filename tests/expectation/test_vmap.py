"""expect inside torch.func.vmap: equal to a loop over the mapped dimension, or a clear error."""

import math

import pytest
import torch
from torch import Tensor

import fewfold as ff

S = ff.structures
NEAR = {"rtol": 1e-9, "atol": 1e-9}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


PRICE = normal(5, seed=1)
TABLE = normal(3, 3, seed=2)


def by_id(atoms: Tensor, row: Tensor) -> Tensor:
    return PRICE[atoms] * (row + 1)


def by_vector(atoms: Tensor, row: Tensor) -> Tensor:
    flat = atoms.flatten(1)
    return (flat * torch.arange(1, flat.shape[1] + 1)).sum(1).square() / 50 * (row + 1)


EXACT = [
    pytest.param(ff.Dense(), None, (2, 5), by_id, id="dense"),
    pytest.param(ff.SparseMarginal(), None, (2, 5), by_id, id="sparsemax"),
    pytest.param(ff.SparseMarginal(ff.Tsallis(1.5)), None, (5,), by_id, id="entmax"),
    pytest.param(ff.SparseMarginal(k=3), None, (2, 5), by_id, id="sparsemax, three"),
    pytest.param(ff.Dense(), S.Bits(), (2, 4), by_vector, id="bits"),
    pytest.param(ff.Dense(), S.KSubset(2), (4,), by_vector, id="subsets"),
    pytest.param(ff.Dense(), S.Sequence(TABLE), (2, 3, 3), by_vector, id="sequences"),
    pytest.param(ff.Dense(), S.DependencyTree(), (3, 3), by_vector, id="trees"),
]


@pytest.mark.parametrize(("estimator", "over", "event", "cost"), EXACT)
def test_exact_estimators_are_their_loop(estimator, over, event, cost) -> None:
    scores = normal(4, *event)
    scores[1].view(-1)[0] = -math.inf  # a part of one of them is masked

    def asked(own: Tensor) -> tuple[Tensor, ...]:
        out = ff.expect(cost, own, estimator, over)
        prior = {} if over is None or not over.additional else {"prior_over": over}
        divergence = out.kl(torch.zeros((), dtype=own.dtype), **prior)
        return out.value, out.entropy, divergence, out.loss

    found = torch.func.vmap(asked)(scores)
    alone = [asked(own) for own in scores]
    for one, other in zip(found, zip(*alone, strict=True), strict=True):
        torch.testing.assert_close(one, torch.stack(other), **NEAR)

    def loss(own: Tensor) -> Tensor:
        out = ff.expect(cost, own, estimator, over)
        return out.loss - 0.1 * out.entropy.sum()

    slopes = torch.func.vmap(torch.func.grad(loss))(scores)
    for own, slope in zip(scores, slopes, strict=True):
        leaf = own.clone().requires_grad_()
        (expected,) = torch.autograd.grad(loss(leaf), leaf)
        torch.testing.assert_close(slope, expected, **NEAR)


def test_masks_additional_scores_and_costs_are_mapped_too() -> None:
    scores, tables, weights = normal(3, 2, 3), normal(3, 3, 3, seed=3), normal(3, 6, seed=4)
    masks = torch.ones(3, 2, 3, dtype=torch.bool)
    masks[1, 0, 2] = masks[2, 1, 0] = False

    def loss(own: Tensor, mask: Tensor, table: Tensor, weight: Tensor) -> Tensor:
        over = S.Sequence(table)
        cost = lambda atoms, row: (atoms.flatten(1) * weight).sum(1)  # noqa: E731
        return ff.expect(cost, own, ff.Dense(), over, mask=mask).loss

    found = torch.func.vmap(loss)(scores, masks, tables, weights)
    given = zip(scores, masks, tables, weights, strict=True)
    torch.testing.assert_close(found, torch.stack([loss(*own) for own in given]), **NEAR)


DRAWN = [
    pytest.param(ff.ScoreFunction(), None, id="score function"),
    pytest.param(ff.ScoreFunction(3, ff.expectation.LeaveOneOut()), None, id="leave one out"),
    pytest.param(ff.ScoreFunction(2, ff.expectation.SelfCritic()), None, id="self critic"),
    pytest.param(ff.SumAndSample(2), None, id="sum and sample"),
    pytest.param(ff.expectation.REBAR(), None, id="rebar"),
    pytest.param(ff.expectation.UnorderedSet(3), None, id="unordered set"),
    pytest.param(ff.expectation.UnorderedSet(2), S.Bits(), id="unordered set, bits"),
    pytest.param(ff.ScoreFunction(), S.Bits(), id="score function, bits"),
    pytest.param(ff.expectation.REBAR(), S.Bits(), id="rebar, bits"),
    pytest.param(ff.expectation.DisARM(), S.Bits(), id="disarm"),
]


@pytest.mark.parametrize(("estimator", "over"), DRAWN)
def test_draws_differ_and_stay_unbiased(estimator, over) -> None:
    scores, copies = normal(1, 5), 6000

    def cost(atoms: Tensor, row: Tensor) -> Tensor:
        if over is not None:
            return (atoms * PRICE).sum(1).square()
        return ff.expectation.embed_atoms(atoms, PRICE.unsqueeze(1))[:, 0]

    def loss(own: Tensor) -> tuple[Tensor, Tensor]:
        out = ff.expect(cost, own, estimator, over)
        return out.loss, out.value[0]

    every = torch.func.grad(loss, has_aux=True)
    torch.manual_seed(0)
    many = scores.expand(copies, 1, 5)
    slopes, values = torch.func.vmap(every, randomness="different")(many)
    leaf = scores.clone().requires_grad_()
    exact = ff.expect(cost, leaf, ff.Dense(), over)
    (slope,) = torch.autograd.grad(exact.loss, leaf)
    for found, wanted in ((slopes, slope), *[(values, exact.value[0])] * (over is None)):
        error = found.std(0) / math.sqrt(copies)
        # at most 6 means within 5 standard errors: wrong by chance in one of 100,000 seeds
        assert ((found.mean(0) - wanted).abs() <= 5 * error + 1e-9).all()
        assert (found.std(0) > 0).any()


@pytest.mark.parametrize(
    "estimator",
    [
        *(ff.Gumbel(0.7), ff.expectation.VIMCO(3), ff.Gumbel(straight_through=True)),
        ff.expectation.StraightThrough(),
    ],
)
def test_relaxed_and_bounded_estimators_draw_for_each(estimator) -> None:
    torch.manual_seed(0)

    def value(own: Tensor) -> Tensor:
        cost = lambda atoms, row: ff.expectation.embed_atoms(atoms, PRICE.unsqueeze(1))[:, 0] ** 2  # noqa: E731
        return ff.expect(cost, own, estimator).loss

    found = torch.func.vmap(torch.func.grad(value), randomness="different")(torch.zeros(50, 1, 5))
    assert found.isfinite().all()
    assert len(found.unique(dim=0)) > 1


def test_what_cannot_be_mapped_says_so() -> None:
    chain, bits = S.Sequence(TABLE), S.Bits()
    for estimator, over, event, words in (
        (ff.SparseMarginal(), chain, (3, 3), "give expect the whole batch"),
        (ff.SparseMarginal(k=2), chain, (3, 3), "give expect the whole batch"),
        (ff.ScoreFunction(), chain, (3, 3), "cannot be sampled inside torch.func.vmap"),
        (ff.SumAndSample(2), bits, (4,), "give expect the whole batch"),
        (ff.expectation.MuProp(), None, (5,), "inside a transform of torch.func"),
        (ff.expectation.RELAX(torch.nn.Linear(5, 1)), None, (5,), "inside a transform"),
        (ff.expectation.StraightThrough(argmax=True), chain, (3, 3), "give expect the whole batch"),
        (ff.ScoreFunction(baseline=ff.expectation.RunningMean()), None, (5,), "LeaveOneOut"),
        (
            ff.ScoreFunction(baseline=ff.expectation.Learned(torch.nn.Linear(1, 1))),
            None,
            (5,),
            "LeaveOneOut",
        ),
    ):
        cost = by_id if over is None else by_vector

        def loss(own: Tensor, cost=cost, estimator=estimator, over=over) -> Tensor:  # type: ignore[no-untyped-def]
            context = torch.zeros(*own.shape[:-1], 1)
            return ff.expect(cost, own, estimator, over, context=context).loss

        with pytest.raises(RuntimeError, match=words):
            torch.func.vmap(loss, randomness="different")(normal(2, *event))
    with pytest.raises(RuntimeError, match="randomness"):
        torch.func.vmap(lambda own: ff.expect(by_id, own, ff.ScoreFunction()).loss)(normal(2, 5))
    frozen = ff.ScoreFunction(
        baseline=ff.expectation.RunningMean().eval()
    )  # keeps its mean as it is
    mapped = torch.func.vmap(lambda own: ff.expect(by_id, own, frozen).loss, randomness="different")
    assert mapped(normal(2, 5)).isfinite().all()


def test_an_atom_that_is_never_taken_may_cost_anything():
    """An infinite cost of a masked atom leaves the gradient of the others as it is."""
    table = torch.tensor([torch.inf, 0.5, -1.0, 2.0], dtype=torch.float64)
    scores = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mask = torch.ones(3, 4, dtype=torch.bool)
    mask[:, 0] = False

    def loss(row, keep):
        return ff.expect(lambda atoms, _: table[atoms], row, ff.Dense(), mask=keep).loss

    got = torch.func.vmap(torch.func.grad(loss))(scores, mask)
    want = torch.stack([torch.func.grad(loss)(*one) for one in zip(scores, mask, strict=True)])
    assert got.isfinite().all()
    torch.testing.assert_close(got, want)
