"""Properties of every estimator: calls of the cost, batches, masks, dtypes, known values."""

import math
from functools import partial

import pytest
import torch
from torch import nn

import fewfold as ff
from tests.expectation.cases import (
    BARRED,
    BITS,
    CATEGORIES,
    LATENTS,
    ON_OFF,
    SEQUENCE,
    SUBSET,
    Cost,
    Latent,
    drawing,
    over,
    tuples,
)

INF = math.inf
same = partial(torch.testing.assert_close, rtol=0, atol=1e-12)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def network() -> ff.expectation.Learned:
    torch.manual_seed(0)
    return ff.expectation.Learned(nn.Linear(2, 1, dtype=torch.float64))


class Wave(nn.Module):
    """A control variate for relaxed samples of any width, next to two numbers of context."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return (self.scale * inputs).sin().sum(1)


def relaxed(strength: float) -> ff.expectation.RELAX:
    return ff.expectation.RELAX(Wave(), 0.5, strength)


# name: an estimator, and how many calls a row needs of a latent with so many values
ANY = {
    "dense": (ff.Dense, lambda n: n),
    "score function": (ff.ScoreFunction, lambda n: 1),
    "three samples": (lambda: ff.ScoreFunction(3, ff.expectation.LeaveOneOut()), lambda n: 3),
    "running mean": (lambda: ff.ScoreFunction(2, ff.expectation.RunningMean()), lambda n: 2),
    "self-critic": (lambda: ff.ScoreFunction(2, ff.expectation.SelfCritic()), lambda n: 3),
    "learned": (lambda: ff.ScoreFunction(2, network()), lambda n: 2),
    "vimco": (lambda: ff.expectation.VIMCO(4), lambda n: 4),
    "muprop": (lambda: ff.expectation.MuProp(2), lambda n: 3),
    "plain straight through": (lambda: ff.expectation.StraightThrough(2), lambda n: 2),
    "best": (lambda: ff.expectation.StraightThrough(argmax=True), lambda n: 1),
    "best, identity": (lambda: ff.expectation.StraightThrough(1, True, True), lambda n: 1),
}
PARTLY = {
    "sum and sample": (lambda: ff.SumAndSample(2), lambda n: 3),
    "sum and self-critic": (lambda: ff.SumAndSample(1, ff.expectation.SelfCritic()), lambda n: 3),
    "sum of all": (lambda: ff.SumAndSample(99, ff.expectation.RunningMean()), lambda n: n),
    "gumbel": (lambda: ff.Gumbel(0.5, samples=2), lambda n: 2),
    "straight through": (lambda: ff.Gumbel(0.5, straight_through=True), lambda n: 1),
    "rebar": (lambda: ff.expectation.REBAR(0.5), lambda n: 3),
    "relax": (lambda: relaxed(1.0), lambda n: 3),
    "relax, black box": (lambda: relaxed(0.0), lambda n: 1),
    "unordered set": (lambda: ff.expectation.UnorderedSet(3), lambda n: min(n, 3)),
    "set without baseline": (lambda: ff.expectation.UnorderedSet(9, False), lambda n: min(n, 9)),
}
SPARSE = {
    "sparse": ff.SparseMarginal,
    "two best": lambda: ff.SparseMarginal(k=2),
}


def rows(latents: list[Latent]) -> list:
    """All pairs of a latent and an estimator that serves it."""
    found = []
    for latent in latents:
        serves = dict(ANY)
        if latent in (CATEGORIES, BITS, ON_OFF):
            serves |= PARTLY
        if latent in (BITS, ON_OFF):
            serves["disarm"] = (ff.expectation.DisARM, lambda n: 2)
        serves |= {name: (make, None) for name, make in SPARSE.items()}
        for name, (make, count) in serves.items():
            found.append(pytest.param(latent, name, make, count, id=f"{latent.name}-{name}"))
    return found


NAMES = ("latent", "name", "make", "count")
every_row = pytest.mark.parametrize(NAMES, rows(LATENTS))
each_kind = pytest.mark.parametrize(NAMES, rows([CATEGORIES, BITS, SUBSET, SEQUENCE]))


def expected(latent, scores, **options):
    """The estimator on (2, 3) rows with all that it may need."""
    context = torch.linspace(-1, 1, 12, dtype=torch.float64).view(2, 3, 2)
    return partial(ff.expect, scores=scores, over=latent.over, context=context, **options)


@every_row
def test_the_cost_is_called_once_with_the_support(latent, name, make, count):
    scores, cost = latent.scores(2, 3).requires_grad_(), Cost(latent, rows=6)
    out = expected(latent, scores, generator=seeded())(cost, estimator=make())
    ((atoms, row),) = cost.asked
    assert atoms is out.support.atoms
    assert row is out.support.row
    assert row.dtype == torch.int64
    assert torch.equal(row.unique(), torch.arange(6))
    assert atoms.dtype == (torch.int64 if atoms.dim() == 1 else scores.dtype)
    assert torch.equal(out.calls.flatten(), torch.bincount(row, minlength=6))
    assert out.loss.shape == ()
    assert out.surrogate.shape == out.value.shape == out.entropy.shape == out.calls.shape == (2, 3)
    assert out.kl().shape == (2, 3)
    assert not out.value.requires_grad
    if count is not None:
        values = len(latent.every) if latent is not BARRED else 4
        assert (out.calls == count(values)).all()
    else:
        most = 2 if name == "two best" else math.prod(latent.event) + 1
        assert (out.calls >= 1).all()
        assert (out.calls <= most).all()
        assert (out.support.weights > 0).all()
    out.loss.backward()
    assert scores.grad.isfinite().all()
    assert cost.weight.grad.isfinite().all()
    # the loss is the mean over rows, and what a baseline has still to learn
    if name != "learned" and "relax" not in name:
        same(out.loss, out.surrogate.mean())


@each_kind
def test_without_gradients(latent, name, make, count):
    """Also where tensors were made in inference mode, of which autograd may keep none."""
    plain = latent.scores(2, 3)
    found = []
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            cost = Cost(latent, rows=6)
            out = expected(latent, plain * 1, generator=seeded())(cost, estimator=make())
            found.append((out.value.clone(), out.entropy.clone(), out.kl().clone()))
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0)


@each_kind
def test_batches_of_any_shape(latent, name, make, count):
    """The same rows in other shapes give the same numbers, each with its own cost."""
    flat = latent.scores(6)
    found = []
    for shape in ((6,), (2, 3), (1, 6, 1)):
        scores, cost = flat.view(*shape, *latent.event).clone(), Cost(latent, rows=6)
        context = torch.linspace(-1, 1, 12, dtype=torch.float64).view(*shape, 2)
        out = ff.expect(cost, scores, make(), latent.over, context=context, generator=seeded())
        assert out.value.shape == out.kl().shape == shape
        found.append([out.value.flatten(), out.entropy.flatten(), out.kl().flatten()])
    same(found[0], found[1])
    same(found[0], found[2])
    one = ff.expect(Cost(latent), flat[0], make(), latent.over, context=torch.zeros(2).double())
    assert one.value.shape == one.entropy.shape == one.kl().shape == one.calls.shape == ()


@each_kind
def test_an_empty_batch(latent, name, make, count):
    scores = latent.scores(0).requires_grad_()
    context = torch.zeros(0, 2, dtype=torch.float64)
    cost = Cost(latent)
    out = ff.expect(cost, scores, make(), latent.over, context=context)
    assert not cost.asked
    assert out.value.shape == out.calls.shape == out.entropy.shape == out.kl().shape == (0,)
    assert out.loss == 0
    out.loss.backward()
    assert scores.grad.shape == scores.shape


@each_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_numbers(latent, name, make, count, dtype):
    scores = latent.scores(2, 3).to(dtype).requires_grad_()
    cost = Cost(latent, rows=6)

    def narrow(atoms, row):
        return cost(atoms, row).to(dtype)

    context = torch.zeros(2, 3, 2, dtype=torch.float64)
    out = ff.expect(narrow, scores, make(), latent.over, context=context, generator=seeded())
    for found in (out.value, out.surrogate, out.entropy, out.kl(), out.support.weights):
        assert found.dtype == dtype
        assert found.isfinite().all()
    out.loss.backward()
    assert scores.grad.dtype == dtype
    assert scores.grad.isfinite().all()
    if name == "dense":
        tol = 1e-5 if dtype == torch.float32 else 0.1
        probs = latent.log_probs(scores.detach().double()).exp().view(6, -1)
        wanted = [p @ cost.every(latent, i).detach() for i, p in enumerate(probs)]
        scale = cost.every(latent).abs().max()
        found = out.value.double().flatten()
        torch.testing.assert_close(found / scale, torch.stack(wanted) / scale, rtol=0, atol=tol)


@each_kind
@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 100.0), (torch.float64, 1e4)])
def test_extreme_scores(latent, name, make, count, dtype, size):
    """What is all but certain has the cost of the best, and no number is lost."""
    # different powers of two, so that no two values have scores that are near each other
    powers = -(2.0 ** -latent.scores(2, 3).flatten(2).argsort(2).double().view(2, 3, *latent.event))
    signs = latent.scores(2, 3, seed=1).sign()
    scores = (size * signs * powers).to(dtype).requires_grad_()
    cost = Cost(latent, rows=6)
    out = expected(latent, scores, generator=seeded())(cost, estimator=make())
    out.loss.backward()
    for found in (out.value, out.entropy, out.kl(), scores.grad, cost.weight.grad):
        assert found.isfinite().all()
    assert (out.entropy >= 0).all()
    if size > 1000 and name not in ("gumbel", "rebar", "vimco"):
        best = latent.totals(scores.detach().double()).flatten(0, 1).argmax(1)
        wanted = torch.stack([cost.every(latent, i)[at] for i, at in enumerate(best)])
        torch.testing.assert_close(
            out.value.flatten().double(), wanted.detach(), rtol=1e-3, atol=1e-3
        )


@over(LATENTS)
@pytest.mark.parametrize("shape", [(), (3,), (2, 2)], ids=str)
def test_dense_is_the_sum_over_everything(latent, shape):
    count = math.prod(shape)
    scores, cost = latent.scores(*shape).requires_grad_(), Cost(latent, rows=max(count, 1))
    structure, more = latent.live()
    out = ff.expect(cost, scores, ff.Dense(), structure)
    probs = latent.log_probs(scores, more).exp().view(-1, len(latent.every))
    wanted = torch.stack([p @ cost.every(latent, i) for i, p in enumerate(probs)])
    same(out.value.flatten(), wanted.detach())
    inputs = [scores, cost.weight, *more]
    same(torch.autograd.grad(out.loss, inputs), torch.autograd.grad(wanted.mean(), inputs))


def test_dense_is_shannon():
    scores, cost = CATEGORIES.scores(5).requires_grad_(), Cost(CATEGORIES, rows=5)
    found = []
    for estimator in (ff.Dense(), ff.SparseMarginal(ff.Shannon())):
        out = ff.expect(cost, scores, estimator)
        grads = torch.autograd.grad(out.loss + out.entropy.sum(), [scores, cost.weight])
        found.append([out.value, out.entropy, out.kl(), out.calls, *grads])
    same(*found)


OMEGAS = {
    "sparsemax": ff.Gini(),
    "entmax 1.5": ff.Tsallis(1.5),
    "normmax": ff.Norm(2.0),
    "softmax": ff.Shannon(),
}


@pytest.mark.parametrize("name", OMEGAS)
def test_the_gradient_is_the_map_s_along_the_costs(name, path):
    omega, scores = OMEGAS[name], CATEGORIES.scores(6).requires_grad_()
    costs = torch.randn(6, 4, generator=seeded(), dtype=torch.float64)
    out = ff.expect(lambda atoms, row: costs[row, atoms], scores, ff.SparseMarginal(omega))
    same(out.value, (omega.argmax(scores.detach()) * costs).sum(1))
    _, wanted = torch.autograd.functional.jvp(omega.argmax, scores.detach(), costs)
    (found,) = torch.autograd.grad(out.surrogate.sum(), scores)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)
    assert torch.equal(out.calls, (omega.argmax(scores.detach()) > 0).sum(1))


def test_sparse_with_everything_in_it(path):
    """Then sparsemax is a shift of the scores, and the gradient the costs less their mean."""
    scores, cost = CATEGORIES.scores(3, scale=0.05).requires_grad_(), Cost(CATEGORIES)
    out = ff.expect(cost, scores, ff.SparseMarginal())
    costs = cost.every(CATEGORIES)
    probs = scores - scores.mean(1, keepdim=True) + 1 / 4
    same(out.value, (probs @ costs).detach())
    assert (out.calls == 4).all()
    inputs = [scores, cost.weight]
    wanted = torch.autograd.grad((probs @ costs).mean(), inputs)
    same(torch.autograd.grad(out.loss, inputs), wanted)


@pytest.mark.parametrize("name", ["sparsemax", "entmax 1.5", "normmax"])
def test_as_many_as_there_are_is_all(name, path):
    """k of at least the support changes nothing; fewer do, and are kept to."""
    omega = OMEGAS[name]
    scores = CATEGORIES.scores(8, scale=1.5).requires_grad_()
    calls = ff.expect(Cost(CATEGORIES), scores, ff.SparseMarginal(omega)).calls
    assert calls.unique().numel() > 1
    for k in (1, 2, 3, 4, 9):
        found = []
        for most in (k, None):
            cost = Cost(CATEGORIES, rows=8)
            out = ff.expect(cost, scores, ff.SparseMarginal(omega, k=most))
            fits = calls <= k
            kept = (out.surrogate + out.entropy)[fits].sum()
            grads = torch.autograd.grad(kept, [scores, cost.weight])
            found.append([out.value[fits], out.entropy[fits], out.kl()[fits], *grads])
            assert most is None or (out.calls <= most).all()
        torch.testing.assert_close(*found, rtol=0, atol=1e-9)


@over([latent for latent in LATENTS if latent.over is not None and latent.name != "tree"])
def test_the_k_best_structures_are_sparsemax_over_all(latent, path):
    structure, more = latent.live()
    scores, cost = latent.scores(4, scale=1.0).requires_grad_(), Cost(latent, rows=4)
    totals = latent.totals(scores, more)
    probs = ff.sparsemax(totals)
    k = int((probs > 0).sum(1).max())
    wanted = torch.stack([p @ cost.every(latent, i) for i, p in enumerate(probs)])
    out = ff.expect(cost, scores, ff.SparseMarginal(k=k), structure)
    same(out.value, wanted.detach())
    assert torch.equal(out.calls, (probs > 0).sum(1))
    inputs = [scores, cost.weight, *more]
    found, right = (torch.autograd.grad(v.sum(), inputs) for v in (out.surrogate, wanted))
    # a transition that is barred has a gradient of nothing, whoever asks
    torch.testing.assert_close(found, right, rtol=0, atol=1e-11)


@over([latent for latent in LATENTS if latent.over is not None])
def test_linear_costs_see_the_marginals(latent, path):
    """E<c, z> = <c, sparsemap(scores)>, with its gradients."""
    structure, more = latent.live()
    scores = latent.scores(4).requires_grad_()
    price = torch.randn(latent.event, generator=seeded(), dtype=torch.float64).requires_grad_()
    wanted = (ff.sparsemap(scores, structure) * price).flatten(1).sum(1)
    out = ff.expect(
        lambda atoms, row: (atoms * price).flatten(1).sum(1),
        scores,
        ff.SparseMarginal(),
        structure,
    )
    torch.testing.assert_close(out.value, wanted.detach(), rtol=0, atol=1e-9)
    inputs = [scores, price, *more]
    found, right = (torch.autograd.grad(v.sum(), inputs) for v in (out.surrogate, wanted))
    torch.testing.assert_close(found, right, rtol=0, atol=1e-8)
    said = ff.expect(Cost(latent), scores, ff.SparseMarginal(ff.SparseMAP(structure)))
    same(said.support.weights, out.support.weights)


def test_sparsemap_of_bits_needs_one_atom_more_than_bits(path):
    for scale in (0.3, 1.0, 4.0):
        scores = scale * torch.randn(60, 9, generator=seeded(), dtype=torch.float64)
        for structure in (ff.structures.Bits(), ff.structures.Bits(on_off=True)):
            out = ff.expect(lambda atoms, row: atoms.sum(1), scores, ff.SparseMarginal(), structure)
            assert (out.calls <= 10).all()
            same(out.value, ff.sparsemap(scores, structure).sum(1))


MASK = torch.tensor([True, False, True, True])


@every_row
def test_masked_is_minus_infinity_is_dropped(latent, name, make, count):
    """Masked parts are in no atom, and a score of -inf is the same as a mask."""
    scores = latent.scores(2, 3).requires_grad_()
    mask = torch.ones(latent.event, dtype=torch.bool)
    if len(latent.event) > 1:
        mask[0, 1] = False
    else:
        mask = MASK[: latent.event[0]]
    found = []
    for given, extra in ((scores, {"mask": mask}), (scores.masked_fill(~mask, -INF), {})):
        cost = Cost(latent, rows=6)
        out = expected(latent, given, generator=seeded(), **extra)(cost, estimator=make())
        ((atoms, _),) = cost.asked
        if atoms.dim() == 1:
            assert mask[atoms].all()
        else:
            assert (atoms[:, ~mask] == 0).all()
        grads = torch.autograd.grad(out.loss, [scores, cost.weight])
        assert all(grad.isfinite().all() for grad in grads)
        assert (grads[0][..., ~mask] == 0).all()
        found.append([out.value, out.entropy, out.kl(), out.calls, *grads])
    same(*found)
    if name == "dense":
        totals = latent.totals(scores.detach().masked_fill(~mask, -INF))
        probs = totals.softmax(-1).view(6, -1)
        wanted = [p @ cost.every(latent, i).detach() for i, p in enumerate(probs)]
        same(out.value.flatten(), torch.stack(wanted))


def test_a_leaf_with_minus_infinity_has_a_gradient():
    for latent in (CATEGORIES, BITS):
        for make, _ in (ANY | PARTLY).values():
            scores = latent.scores(2, 3)
            scores[..., 1] = -INF
            scores.requires_grad_()
            out = expected(latent, scores, generator=seeded())(Cost(latent), estimator=make())
            (out.loss + out.entropy.sum() + out.kl().sum()).backward()
            assert scores.grad.isfinite().all()


@pytest.mark.parametrize("estimator", [ff.Dense(), ff.SparseMarginal(), ff.SparseMarginal(k=2)])
def test_a_row_of_which_nothing_is_kept(estimator):
    scores = torch.tensor([[-INF, -INF, -INF], [0.3, -INF, 0.1]], requires_grad=True)
    out = ff.expect(lambda atoms, row: atoms + 1.0, scores, estimator)
    assert out.calls.tolist() == [0, 2]
    assert out.value[0] == out.entropy[0] == out.kl()[0] == 0
    (out.loss + out.entropy.sum() + out.kl().sum()).backward()
    assert (scores.grad[0] == 0).all()
    assert scores.grad.isfinite().all()


@pytest.mark.parametrize("latent", [BITS, SUBSET, SEQUENCE], ids=lambda latent: latent.name)
@pytest.mark.parametrize("name", ["dense", "score function", "vimco", "sparse", "two best"])
def test_a_structure_of_which_nothing_is_kept_is_empty(latent, name):
    make = SPARSE.get(name) or ANY[name][0]
    scores = latent.scores(2)
    scores[0] = -INF
    scores.requires_grad_()
    cost = Cost(latent)
    out = ff.expect(cost, scores, make(), latent.over, generator=seeded())
    atoms, row = cost.asked[0]
    assert (atoms[row == 0] == 0).all()
    same(out.value[0], cost.shift.square().sum())
    assert out.entropy[0] == out.kl()[0] == 0
    out.loss.backward()
    assert (scores.grad[0] == 0).all()
    assert scores.grad.isfinite().all()


@pytest.mark.parametrize("name", ANY | PARTLY | SPARSE)
def test_one_category(name):
    found = SPARSE.get(name)
    make = found or (ANY | PARTLY)[name][0]
    only = Latent("one", (1,))
    scores, cost = only.scores(2, 3).requires_grad_(), Cost(only)
    out = expected(only, scores, generator=seeded())(cost, estimator=make())
    same(out.value, cost.every(only).detach().expand(2, 3))
    assert (out.entropy == 0).all()
    assert (out.kl() == 0).all()
    out.loss.backward()
    if name != "best, identity":  # which takes the category for a score
        assert scores.grad.abs().max() < 1e-14


def test_nothing_is_left_to_draw():
    """Where the best have all of the probability nothing is drawn, in that row."""
    scores = torch.tensor([[1e4, 0.0, -1e4], [0.2, 0.1, 0.0]], dtype=torch.float64)
    baseline = ff.expectation.RunningMean()
    scores.requires_grad_()
    cost = Cost(CATEGORIES)
    out = ff.expect(cost, scores, ff.SumAndSample(1, baseline), generator=seeded())
    assert out.calls.tolist() == [1, 2]
    drawn = int(cost.asked[0][0][-1])
    assert baseline.mean == pytest.approx(float(cost.every(CATEGORIES)[drawn].detach()))
    out.loss.backward()
    assert (scores.grad[0] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bits_that_are_nearly_certain(dtype):
    """The probability of the others is not lost in rounding: about 1e-8 here."""
    scores = torch.tensor([[20.0, -19.0]], dtype=dtype, requires_grad=True)
    out = ff.expect(
        lambda atoms, row: 1 - atoms[:, 0] + atoms[:, 1],
        scores,
        ff.SumAndSample(1),
        ff.structures.Bits(),
        generator=seeded(),
    )
    mass = out.support.weights[1].detach()
    wanted = math.exp(-20) + math.exp(-19)
    assert float(mass) == pytest.approx(wanted, rel=1e-6)
    assert out.calls == 2


# Two latents, of which the cost takes both.


def both(atoms: torch.Tensor, bits: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return ((table[atoms] * (bits + 0.3)).sum(-1) - 0.4).square()


def inner_scores(own: torch.Tensor, atoms: torch.Tensor) -> torch.Tensor:
    """The second latent depends on the first."""
    return own + torch.linspace(-0.5, 0.4, 3, dtype=torch.float64)[atoms].unsqueeze(1)


def nested(outer, inner, scores, own, table):
    def cost(atoms, row):
        def price(bits, pair):
            return both(atoms[pair], bits, table)

        second = inner_scores(own[row], atoms)
        return ff.expect(price, second, inner, ff.structures.Bits()).surrogate

    return ff.expect(cost, scores, outer)


def weights(scores, own, sparse_first, sparse_second):
    """(3, 4) the joint probabilities."""
    pair = ON_OFF.every
    first = ff.sparsemax(scores) if sparse_first else scores.softmax(0)
    second = inner_scores(own.expand(3, 2), torch.arange(3))
    if sparse_second:  # of independent bits, listed
        support = ff.sparsemap_support(second, ff.structures.Bits())
        place = (support.atoms.unsqueeze(1) == pair).all(2).double().argmax(1)
        flat = torch.zeros(12, dtype=torch.float64)
        dist = flat.index_add(0, support.row * 4 + place, support.weights).view(3, 4)
    else:
        dist = ON_OFF.log_probs(second).exp()
    return first.unsqueeze(1) * dist


@pytest.fixture
def two():
    scores = torch.tensor([0.4, 0.1, -0.2], dtype=torch.float64, requires_grad=True)
    own = torch.tensor([0.5, 0.3], dtype=torch.float64, requires_grad=True)
    table = torch.randn(3, 2, generator=seeded(), dtype=torch.float64).requires_grad_()
    return scores, own, table


def all_costs(table):
    atoms, bits = torch.cartesian_prod(torch.arange(3), torch.arange(4)).T
    return both(atoms, ON_OFF.every[bits], table).view(3, 4)


def test_draws_outside_and_sparse_inside(two):
    scores, own, table = two
    wanted = (weights(scores, own, False, True) * all_costs(table)).sum()
    places, chance = tuples(scores.softmax(0), 2)
    count = len(chance)
    with drawing(CATEGORIES, places):
        estimator = ff.ScoreFunction(2, ff.expectation.LeaveOneOut())
        out = nested(
            estimator, ff.SparseMarginal(), scores.expand(count, 3), own.expand(count, 2), table
        )
    found = (chance * out.surrogate).sum()
    same(found, wanted)
    inputs = list(two)
    same(torch.autograd.grad(found, inputs), torch.autograd.grad(wanted, inputs))


def test_sparse_outside_and_draws_inside(two):
    """Each of the atoms of the outer latent has a draw of its own."""
    scores, own, table = two
    wanted = (weights(scores, own, True, False) * all_costs(table)).sum()
    assert (ff.sparsemax(scores) > 0).all()
    dist = ON_OFF.log_probs(inner_scores(own.expand(3, 2), torch.arange(3))).exp().detach()
    places = torch.cartesian_prod(*[torch.arange(4)] * 3)  # (64, 3): of each outer atom
    chance = dist[torch.arange(3), places].prod(1)
    with drawing(BITS, ON_OFF.every[places].flatten(0, 1).unsqueeze(1)):
        out = nested(
            ff.SparseMarginal(), ff.ScoreFunction(), scores.expand(64, 3), own.expand(64, 2), table
        )
    found = (chance * out.surrogate).sum()
    same(found, wanted)
    inputs = list(two)
    same(torch.autograd.grad(found, inputs), torch.autograd.grad(wanted, inputs))


def test_embedded_atoms():
    table = torch.randn(4, 3, generator=seeded())
    ids = torch.tensor([2, 0, 2])
    same(ff.expectation.embed_atoms(ids, table), table[ids])
    vectors = torch.nn.functional.one_hot(ids, 4).double()
    same(ff.expectation.embed_atoms(vectors, table), table[ids])
