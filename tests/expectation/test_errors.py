"""Error messages: what was expected, what was given, and what to write."""

import math

import pytest
import torch
from torch import nn

import fewfold as ff

INF = math.inf
SCORES = torch.zeros(2, 3)
BITS = ff.structures.Bits()
SUBSET = ff.structures.KSubset(2)
TRANSPORT = ff.structures.Assignment()
SEQUENCE = ff.structures.Sequence(torch.zeros(3, 3))


def ids(atoms, row):
    return atoms + 0.5


def vectors(atoms, row):
    return atoms.flatten(1).sum(1)


def lambda_module(value):
    found = nn.Module()
    found.forward = lambda inputs: value
    return found


def go(estimator=None, over=None, *, cost=None, scores=SCORES, **options):
    estimator = ff.Dense() if estimator is None else estimator
    cost = cost or (ids if over is None else vectors)
    return ff.expect(cost, scores, estimator, over, **options)


def score(baseline, samples=1, **options):
    return go(ff.ScoreFunction(samples, baseline), **options)


def likely(**options):
    given = {"samples": 2, "estimator": ff.SparseMarginal(), "cost": ids, **options}
    return ff.expectation.log_likelihood(given.pop("cost"), SCORES, given.pop("estimator"), **given)


# what is done, the error, and words of it
CASES = {
    "not an estimator": (
        lambda: go(ff.Dense),
        TypeError,
        ("estimator must be a value such as ff.SparseMarginal()", "class"),
    ),
    "not a structure": (
        lambda: go(ff.Dense(), ff.structures.Bits),
        TypeError,
        ("over must be a structure such as ff.structures.Bits()", "None for categories", "class"),
    ),
    "two structures": (
        lambda: go(ff.SparseMarginal(ff.SparseMAP(BITS)), SUBSET),
        ValueError,
        ("Bits", "KSubset", "leave over out"),
    ),
    "not a map": (
        lambda: ff.SparseMarginal(BITS),
        TypeError,
        ("omega must be a regulariser such as ff.Gini()", "over=ff.structures.Bits()"),
    ),
    "a map that is no distribution": (
        lambda: ff.SparseMarginal(ff.Subset(2)),
        ValueError,
        ("Subset(k=2", "not a distribution", "over=ff.structures.KSubset(k)"),
    ),
    "a map of categories for structures": (
        lambda: go(ff.SparseMarginal(ff.Tsallis(1.5)), BITS),
        ValueError,
        ("SparseMAP", "got Tsallis(alpha=1.5)", "write SparseMarginal()"),
    ),
    "k of nothing": (lambda: ff.SparseMarginal(k=0), ValueError, ("k must be at least 1, got 0",)),
    "half of a k": (lambda: ff.SumAndSample(0.5), TypeError, ("k must be an int, got float",)),
    "no samples": (
        lambda: ff.ScoreFunction(0),
        ValueError,
        ("samples must be at least 1, got 0",),
    ),
    "one sample for a bound of many": (
        lambda: ff.expectation.VIMCO(1),
        ValueError,
        ("samples must be at least 2, got 1",),
    ),
    "no temperature": (
        lambda: ff.Gumbel(0.0),
        ValueError,
        ("temperature must be finite and greater than 0, got 0.0",),
    ),
    "no strength": (
        lambda: ff.expectation.REBAR(strength=INF),
        ValueError,
        ("strength must be finite and at least 0, got inf",),
    ),
    "a network for a baseline": (
        lambda: ff.ScoreFunction(baseline=nn.Linear(2, 1)),
        TypeError,
        (
            "fewfold.expectation.Baseline such as ff.expectation.RunningMean()",
            "Linear",
            "ff.expectation.Learned(network)",
        ),
    ),
    "a class for a baseline": (
        lambda: ff.SumAndSample(baseline=ff.expectation.RunningMean),
        TypeError,
        ("fewfold.expectation.Baseline such as ff.expectation.RunningMean()", "class"),
    ),
    "one draw to leave out": (
        lambda: score(ff.expectation.LeaveOneOut()),
        ValueError,
        ("compares the samples of a row", "ScoreFunction(samples=2, baseline=LeaveOneOut())"),
    ),
    "one draw of sum and sample": (
        lambda: go(ff.SumAndSample(1, ff.expectation.LeaveOneOut())),
        ValueError,
        ("compares the samples of a row", "ScoreFunction(samples=2, baseline=LeaveOneOut())"),
    ),
    "no context": (
        lambda: score(ff.expectation.Learned(nn.Linear(2, 1))),
        ValueError,
        ("context of each row", "write expect(..., context=x)"),
    ),
    "a context of other rows": (
        lambda: score(ff.expectation.Learned(nn.Linear(2, 1)), context=torch.zeros(3, 2)),
        ValueError,
        ("context must start with the shape of the batch (2,)", "got (3, 2)"),
    ),
    "a context that is a list": (
        lambda: score(ff.expectation.Learned(nn.Linear(2, 1)), context=[1.0, 2.0]),
        TypeError,
        ("context must be a torch.Tensor, got list",),
    ),
    "a network with two columns": (
        lambda: score(ff.expectation.Learned(nn.Linear(2, 2)), context=torch.zeros(2, 2)),
        ValueError,
        ("one number for each of 2 rows", "got shape (2, 2)"),
    ),
    "bits for categories": (
        lambda: go(ff.expectation.DisARM()),
        TypeError,
        ("DisARM is for bits", "over=ff.structures.Bits()"),
    ),
    "sums of structures": (
        lambda: go(ff.SumAndSample(), SUBSET),
        TypeError,
        ("KSubset cannot be summed in part", "categories (over=None)", "ff.structures.Bits()"),
    ),
    "soft structures": (
        lambda: go(ff.Gumbel(), SUBSET),
        TypeError,
        ("KSubset cannot be relaxed", "Gumbel supports categories", "ff.structures.Bits()"),
    ),
    "coupled structures": (
        lambda: go(ff.expectation.REBAR(), SUBSET),
        TypeError,
        ("KSubset cannot be relaxed", "REBAR and RELAX support categories", "ff.structures.Bits()"),
    ),
    "a learned relaxation of structures": (
        lambda: go(ff.expectation.RELAX(nn.Linear(3, 1)), SUBSET),
        TypeError,
        ("KSubset cannot be relaxed", "REBAR and RELAX support categories"),
    ),
    "sets of structures": (
        lambda: go(ff.expectation.UnorderedSet(), SUBSET),
        TypeError,
        ("KSubset cannot be sampled without replacement", "categories (over=None)", "LeaveOneOut"),
    ),
    "a set of one with a baseline": (
        lambda: ff.expectation.UnorderedSet(1),
        ValueError,
        ("samples must be at least 2, got 1",),
    ),
    "a set of very many": (
        lambda: ff.expectation.UnorderedSet(13),
        ValueError,
        ("samples must be at most 12", "orders", "ScoreFunction(samples=13"),
    ),
    "another baseline for a set": (
        lambda: ff.expectation.UnorderedSet(2, ff.expectation.RunningMean()),
        TypeError,
        ("its own, True or False, got RunningMean", "ScoreFunction"),
    ),
    "a relaxation without a network": (
        lambda: ff.expectation.RELAX(0.5),
        TypeError,
        ("network must be a torch.nn.Module", "got 0.5", "REBAR()"),
    ),
    "a control variate with three columns": (
        lambda: go(ff.expectation.RELAX(nn.Linear(3, 3)), cost=vectors),
        ValueError,
        ("one number for each of 4 relaxed samples", "got shape (4, 3)"),
    ),
    "a control variate that is constant": (
        lambda: go(ff.expectation.RELAX(lambda_module(torch.ones(4))), cost=vectors),
        ValueError,
        ("network of RELAX must be a differentiable function",),
    ),
    "a cost that rounds": (
        lambda: go(ff.expectation.MuProp(), cost=lambda atoms, row: atoms.argmax(1) + 0.5),
        ValueError,
        ("MuProp needs the gradient of the cost", "embed_atoms(atoms, table)", "ScoreFunction()"),
    ),
    "no expansion": (
        lambda: ff.expectation.MuProp(0),
        ValueError,
        ("samples must be at least 1, got 0",),
    ),
    "several of the most likely": (
        lambda: ff.expectation.StraightThrough(2, argmax=True),
        ValueError,
        ("the most likely value is one, got samples=2",),
    ),
    "the best of structures without sums": (
        lambda: go(
            ff.expectation.StraightThrough(argmax=True), TRANSPORT, scores=torch.zeros(2, 3, 3)
        ),
        NotImplementedError,
        ("a sum over all assignments", "StraightThrough(argmax=True, identity=True)"),
    ),
    "too many": (
        lambda: go(ff.Dense(), BITS, scores=torch.zeros(1, 21)),
        ValueError,
        ("Bits of (21,) has 2,097,152 structures", "use SparseMarginal"),
    ),
    "no draws of it": (
        lambda: go(ff.ScoreFunction(), TRANSPORT, scores=torch.zeros(2, 3, 3)),
        NotImplementedError,
        ("Assignment has no sample", "sparsemap_support"),
    ),
    "a row of nothing": (
        lambda: go(ff.ScoreFunction(), scores=torch.tensor([[0.0, 0.0], [-INF, -INF]])),
        ValueError,
        ("row 1 has no unmasked category", "leave such rows out", "SparseMarginal"),
    ),
    "a structure too few": (
        lambda: go(ff.Dense(), SUBSET, scores=torch.tensor([[0.0] * 3, [0.0, -INF, -INF]])),
        ValueError,
        ("row 1 has no KSubset of (3,)", "use SparseMarginal or ScoreFunction"),
    ),
    "a cost that sums": (
        lambda: go(cost=lambda atoms, row: ids(atoms, row).sum()),
        ValueError,
        ("one number for each of the 6 pairs", "shape (6,), got ()"),
    ),
    "a cost that is none": (
        lambda: go(cost=lambda atoms, row: 1.0),
        ValueError,
        ("shape (6,), got float",),
    ),
    "a whole cost": (
        lambda: go(cost=lambda atoms, row: atoms),
        TypeError,
        ("cost must return floating-point numbers, got torch.int64",),
    ),
    "whole scores": (
        lambda: go(scores=torch.zeros(2, 3).long()),
        TypeError,
        ("scores must have a real floating-point dtype, got torch.int64", "scores.float()"),
    ),
    "no scores": (lambda: go(scores=[1.0, 2.0]), TypeError, ("got list", "torch.as_tensor")),
    "a mask of numbers": (
        lambda: go(mask=torch.ones(3)),
        TypeError,
        ("mask must be a boolean tensor", "write mask.bool()"),
    ),
    "a wide mask": (
        lambda: go(mask=torch.ones(4, dtype=torch.bool)),
        ValueError,
        ("mask must broadcast to the shape of the scores (2, 3), got (4,)",),
    ),
    "a prior of others": (
        lambda: go().kl(torch.zeros(4)),
        ValueError,
        ("prior must be scores that broadcast to (2, 3), got (4,)",),
    ),
    "a prior of more rows": (
        lambda: score(None).kl(torch.zeros(5, 2, 3)),
        ValueError,
        ("prior must be scores that broadcast to (2, 3), got (5, 2, 3)",),
    ),
    "a prior that is a list": (
        lambda: go().kl([0.0, 0.0, 0.0]),
        ValueError,
        ("prior must be scores", "got list"),
    ),
    "a prior that leaves transitions open": (
        lambda: go(ff.ScoreFunction(), SEQUENCE).kl(torch.zeros(2, 3)),
        ValueError,
        ("Sequence has additional scores", "write prior_over="),
    ),
    "a prior over something else": (
        lambda: go(ff.ScoreFunction(), SUBSET).kl(
            torch.zeros(3), prior_over=ff.structures.KSubset(1)
        ),
        ValueError,
        ("prior_over must equal KSubset(k=2)", "got KSubset(k=1)"),
    ),
    "a prior of categories over something": (
        lambda: go().kl(torch.zeros(3), prior_over=SUBSET),
        ValueError,
        ("categories have no additional scores; leave prior_over out",),
    ),
    "transitions of a prior without scores": (
        lambda: go(ff.ScoreFunction(), SEQUENCE).kl(prior_over=SEQUENCE),
        ValueError,
        ("prior_over has no scores of parts",),
    ),
    "a temperature that learns": (
        lambda: ff.Gumbel(nn.Parameter(torch.tensor(0.5))),
        ValueError,
        ("temperature is a constant and does not learn; write temperature=value.item()",),
    ),
    "a regulariser that is a class": (
        lambda: ff.SparseMarginal(ff.Gini),
        TypeError,
        ("omega must be a regulariser such as ff.Gini()", "class"),
    ),
    "a bound for each of the k best": (
        lambda: ff.SparseMarginal(ff.maps.Bounded(torch.tensor([0.2, 1.0, 1.0])), k=2),
        ValueError,
        ("a parameter for each category", "one parameter for all"),
    ),
    "a prior of nothing": (
        lambda: go(ff.ScoreFunction(), SUBSET).kl(torch.tensor([0.0, -INF, -INF])),
        ValueError,
        ("no structure of KSubset(k=2)", "leave nothing to choose from"),
    ),
    "no draws by importance": (
        lambda: likely(estimator=ff.ScoreFunction(), samples=0),
        ValueError,
        ("samples must be at least 1, got 0",),
    ),
    "fewer than no draws": (
        lambda: likely(samples=-1),
        ValueError,
        ("samples must be at least 0, got -1",),
    ),
    "no pairs": (lambda: likely(pairs=0), ValueError, ("pairs must be at least 1, got 0",)),
    "a likelihood that sums": (
        lambda: likely(cost=lambda atoms, row: ids(atoms, row).sum()),
        ValueError,
        ("one number for each of the", "got ()"),
    ),
    "a rate of nothing": (
        lambda: ff.expectation.annealed(3, rate=0.0),
        ValueError,
        ("rate must be finite and greater than 0",),
    ),
    "steps that are not whole": (
        lambda: ff.expectation.annealed(0.5, rate=1.0),
        TypeError,
        ("step must be an int, got float",),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_errors(name):
    act, error, words = CASES[name]
    with pytest.raises(error) as caught:
        act()
    for word in words:
        assert word in str(caught.value)


def test_a_dense_distribution_over_structures_is_no_sparse_marginal():
    with pytest.raises(ValueError, match=r"write SparseMAP\(structure\), or Dense\(\)"):
        ff.SparseMarginal(ff.Gibbs(SEQUENCE))
