"""Rows of the table of devices: structures, expectations, distributions."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import fewfold as ff
from fewfold import distributions as fd
from fewfold import expectation as fe
from fewfold import structures as fs
from tests.distributions import transforms as distributions
from tests.structured import cases as structured

from .functions import D, normal, of_transforms
from .table import BACKWARD, DATA, SEEDED, SOLVED, Case

Scored = Callable[[Tensor], Any]


def with_structure(case: structured.Case) -> tuple[Any, ...]:
    """Scores, and what they are over, whose additional scores learn too."""
    return (case.scores(2).requires_grad_(), *(v.clone() for v in case.structure.additional))


def solve(case: structured.Case) -> Callable[..., Any]:
    def call(scores: Tensor, *additional: Tensor) -> tuple[Any, ...]:
        over = case.structure.with_additional(additional) if additional else case.structure
        found = [ff.sparsemap(scores, over), over.argmax(scores)]
        if case.name in SAMPLED:
            found += [over.log_partition(scores), over.sample(scores, 2)]
            found += [ff.structured.gibbs_marginals(scores, over)]
        return tuple(found)

    return call


SAMPLED = ("bits", "subset", "sequence", "tree", "spanning tree", "sequential subset")
NAMED = {
    "bits": "Bits", "budget": "Budget", "subset": "KSubset", "custom": "Custom",
    "exactly one": "Xor", "at most one": "AtMostOne", "at least one": "Or", "imply": "Imply",
    "or, output": "OrOut", "one of, output": "XorOut", "and, output": "AndOut", "pair": "Pair",
    "sequence": "Sequence", "sequential subset": "SequentialSubset", "tree": "DependencyTree",
    "spanning tree": "SpanningTree", "constituency tree": "ConstituencyTree",
    "segmentation, transitions": "Segmentation", "alignment, steps": "Alignment",
    "assignment": "Assignment", "matching": "Matching",
}  # fmt: skip
SUBSET = fs.KSubset(2)
# Marginals have the shape of the scores, which "meta" knows.
MARGINALS: dict[str, Any] = {"no_data": "", "without": {"cuda": SOLVED}}
GRADIENTS: dict[str, Any] = {"no_data": "", "without": {"cuda": BACKWARD}}


def over_subsets(call: Scored, name: str, **options: Any) -> Case:
    return Case(name, lambda: (normal(3, 5),), call, **{"no_data": SOLVED, **options})


def graph(scores: Tensor, transitions: Tensor) -> tuple[Any, ...]:
    made = ff.FactorGraph(batch_dims=1)
    u = made.variable(scores)
    made.add(fs.Sequence(transitions), u)
    made.add(fs.Budget(2), u[:, 0])
    found = made.solve()
    return found[u], found[~u], found.objective, found.status


STRUCTURES = [
    *(
        Case(
            f"structures.{NAMED[case.name]}", lambda case=case: with_structure(case), solve(case),
            also=("structures.Structure",), no_data=SOLVED, tolerance=1e-7,
        )
        for case in structured.CASES if case.name in NAMED
    ),
    over_subsets(lambda x: ff.sparsemap(x, fs.Knapsack((1.0, 2.0, 1.0, 2.0, 1.0), 3.0)),
                 "structures.Knapsack", **MARGINALS),
    over_subsets(lambda x: ff.sparsemap(x, SUBSET), "sparsemap", **MARGINALS),
    over_subsets(lambda x: ff.sparsemap(
        x, SUBSET, mask=torch.arange(5, device=x.device) != 1, temperature=0.5),
        "sparsemap, masked", **MARGINALS),
    over_subsets(lambda x: ff.sparsemap_support(x, SUBSET), "sparsemap_support"),
    over_subsets(lambda x: ff.structured.sparsemap_solution(x, SUBSET).support,
                 "structured.sparsemap_solution", also=("structured.Solution",)),
    over_subsets(lambda x: ff.structured.topk_support(x, SUBSET, 3), "structured.topk_support",
                 also=("structured.TopSupport",)),
    over_subsets(lambda x: ff.structured.gibbs_marginals(x, SUBSET), "structured.gibbs_marginals",
                 **GRADIENTS),
    over_subsets(lambda x: SUBSET.k_best(x.detach(), 2), "structures.KBest"),
    over_subsets(lambda x: (ff.Map(ff.SparseMAP(SUBSET))(x),
                            ff.SparseMAP(SUBSET).value(x.sigmoid())), "SparseMAP", **MARGINALS),
    over_subsets(lambda x: ff.Map(ff.Gibbs(SUBSET))(x), "Gibbs", **GRADIENTS),
    Case("fenchel_young_loss, SparseMAP",
         lambda: (normal(3, 5), torch.tensor([[1.0, 1, 0, 0, 0]] * 3, dtype=D)),
         lambda x, y: ff.fenchel_young_loss(x, y, ff.SparseMAP(SUBSET), cost=1.0),
         **MARGINALS),
    Case("FactorGraph", lambda: (normal(2, 3, 2), normal(2, 2, seed=1)), graph,
         also=("structured.GraphSolution",), no_data=SOLVED, tolerance=1e-5),
]  # fmt: skip


class Cost(nn.Module):
    """A cost with a parameter, of ids, bits or relaxed vectors."""

    def __init__(self, parts: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(normal(parts, 3).detach())

    def forward(self, atoms: Tensor, row: Tensor) -> Tensor:
        return (fe.embed_atoms(atoms, self.weight) - 0.1 * row.unsqueeze(1)).square().sum(1)


def expected(
    name: str, estimator: Callable[..., fe.Estimator], *, over: Any = None,
    module: Callable[[], nn.Module] | None = None, **options: Any,
) -> Case:  # fmt: skip
    """The loss, and how often the cost was called; a module is a part of the estimator."""

    def call(cost: Cost, scores: Tensor, *modules: nn.Module) -> tuple[Tensor, ...]:
        found = ff.expect(cost, scores, estimator(*modules), over, context=scores.detach())
        return found.loss, found.calls

    def given() -> tuple[Any, ...]:
        return Cost(4), normal(3, 4), *([] if module is None else [module().double()])

    also = ("expect", "expectation.embed_atoms", "expectation.Estimator", "expectation.Expectation",
            "expectation.Choice", "expectation.LatentDistribution")  # fmt: skip
    return Case(name, given, call, also=also, tolerance=1e-6, **options)


def learned() -> nn.Module:
    return fe.Learned(nn.Linear(4, 1))


BITS = fs.Bits()
EXPECTATION = [
    expected("Dense", ff.Dense),
    expected("Dense, bits", ff.Dense, over=BITS, without={"cuda": DATA}),
    expected("SparseMarginal", ff.SparseMarginal, no_data=DATA),
    expected("SparseMarginal, structures", ff.SparseMarginal, over=SUBSET, no_data=SOLVED),
    expected("ScoreFunction", lambda: ff.ScoreFunction(3)),
    expected("ScoreFunction, structures", lambda: ff.ScoreFunction(3), over=SUBSET),
    expected("SumAndSample", lambda: ff.SumAndSample(2), no_data=DATA),
    expected("Gumbel", lambda: ff.Gumbel(0.5, straight_through=True)),
    expected("expectation.StraightThrough", fe.StraightThrough),
    expected("expectation.UnorderedSet", lambda: fe.UnorderedSet(2), no_data=DATA),
    expected("expectation.VIMCO", fe.VIMCO),
    expected("expectation.DisARM", fe.DisARM, over=BITS),
    expected("expectation.MuProp", fe.MuProp, over=BITS),
    expected("expectation.REBAR", fe.REBAR),
    expected("expectation.RELAX", fe.RELAX, module=lambda: nn.Linear(8, 1)),
    expected("expectation.LeaveOneOut", lambda: ff.ScoreFunction(3, fe.LeaveOneOut())),
    expected("expectation.SelfCritic", lambda: ff.ScoreFunction(3, fe.SelfCritic())),
    expected("expectation.RunningMean", lambda own: ff.ScoreFunction(3, own),
             module=fe.RunningMean),
    expected("expectation.Learned", lambda own: ff.ScoreFunction(3, own), module=learned),
    Case("expectation.log_likelihood, samples", lambda: (Cost(4), normal(3, 4)),
         lambda cost, x: fe.log_likelihood(cost, x, ff.ScoreFunction(2), samples=8),
         tolerance=1e-6),
    Case("expectation.log_likelihood", lambda: (Cost(4), normal(3, 4)),
         lambda cost, x: fe.log_likelihood(cost, x, ff.SparseMarginal(), samples=8),
         no_data=DATA),
    Case("expectation.bernoulli_cost",
         lambda: (normal(3, 4), normal(2, 4, seed=1).sigmoid(), torch.tensor([1, 0, 1])),
         fe.bernoulli_cost),
    Case("expectation.linear_bernoulli_cost",
         lambda: (normal(3, 5), normal(4, 5), normal(4), normal(2, 4, seed=1).sigmoid(),
                  torch.tensor([1, 0, 1])),
         fe.linear_bernoulli_cost),
]  # fmt: skip


def of_scores(name: str, call: Callable[..., Any], *sizes: int, **options: Any) -> Case:
    return Case(name, lambda: (normal(*(sizes or (2, 3))),), call, **options)


def simplex(n: int = 3) -> tuple[Tensor, Tensor]:
    return normal(2, n), torch.full((n,), 0.5, dtype=D)


def generated() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def quadratic(loc: Tensor) -> ff.distributions.QGaussian:
    factor = torch.eye(2, dtype=loc.dtype, device=loc.device) * 0.5
    return fd.QGaussian(loc, factor, 1.5)


def name_of(name: str) -> str:
    """What a row of the table of transforms is called here."""
    name = name.replace(".", ", ", 1)
    return name if hasattr(ff, name.partition(",")[0]) else f"distributions.{name}"


LOOKS = ("GaussianSparsemax.log_prob", "GaussianSparsemax.log_prob, full")
DISTRIBUTIONS = [
    *(of_transforms(case, name_of(case.name), no_data=DATA if case.name in LOOKS else "")
      for case in distributions.CASES),
    Case("GaussianSparsemax, generator", simplex,
         lambda loc, s: ff.GaussianSparsemax(loc, s).rsample((4,), generator=generated())),
    Case("GaussianSparsemax, draws in chunks", lambda: (normal(3), torch.full((3,), 0.5, dtype=D)),
         lambda loc, s: ff.GaussianSparsemax(loc, s).sample((40000,), generator=generated())),
    Case("MixedDirichlet, draws", lambda: (normal(2, 3), torch.full((3,), 0.5, dtype=D)),
         lambda x, c: ff.MixedDirichlet(x, c).sample((4,), generator=generated()), no_data=SEEDED),
    of_scores("distributions.GibbsFaces, draws",
              lambda x: fd.GibbsFaces(x).sample((4,), generator=generated()),
              without={"cuda": SEEDED}),
    of_scores("distributions.FacesBySize, draws",
              lambda x: fd.FacesBySize(x).sample((4,), generator=generated()),
              without={"cuda": SEEDED}),
    of_scores("distributions.SparseCategorical, draws", lambda x: fd.SparseCategorical(
        ff.Gini(), x).sample((4,), generator=generated()), without={"meta": SEEDED}),
    of_scores("distributions.ListedFaces", lambda x: (
        fd.ListedFaces(x.softmax(-1)).sample((4,)), fd.ListedFaces(x.softmax(-1)).entropy()), 2, 7,
        also=("distributions.FaceDistribution",)),
    of_scores("distributions.LogisticNormal, draws", lambda x: fd.LogisticNormal(
        x, 0.5).rsample((4,), generator=generated())),
    of_scores("distributions.QGaussian, draws",
              lambda x: quadratic(x).rsample((4,), generator=generated()), 2, 2,
              without={"meta": SEEDED}),
    of_scores("distributions.BinaryHardConcrete, draws", lambda x: fd.BinaryHardConcrete(
        x, 0.5).rsample((4,), generator=generated())),
    of_scores("distributions.Concrete, draws",
              lambda x: fd.Concrete(x, 0.5).rsample((4,), generator=generated()),
              without={"cuda": SEEDED}),
    Case("distributions.direct_sum_entropy", simplex,
         lambda loc, s: fd.direct_sum_entropy(ff.GaussianSparsemax(loc, s), samples=50,
                                              generator=generated()),
         also=("distributions.Estimate",), no_data=DATA, tolerance=1e-6),
    Case("distributions.direct_sum_kl", simplex,
         lambda loc, s: fd.direct_sum_kl(
             ff.GaussianSparsemax(loc, s), ff.GaussianSparsemax(-loc, s), samples=50),
         no_data=DATA, tolerance=1e-6),
    Case("distributions.mutual_information", simplex,
         lambda loc, s: fd.mutual_information(ff.GaussianSparsemax(loc, s), samples=50),
         no_data=DATA, tolerance=1e-6),
    Case("distributions.face_dimension", lambda: (normal(4, 3).detach() > 0,), fd.face_dimension),
    Case("distributions.face_index", lambda: (normal(4, 3).detach() > -2,), fd.face_index),
    of_scores("distributions.face_of", lambda x: fd.face_of(ff.sparsemax(x))),
    of_scores("distributions.all_faces", lambda x: fd.all_faces(3, x.device)),
    of_scores("distributions.log_ndtr", fd.log_ndtr),
    of_scores("distributions.MaxEntropyMixed", lambda x: (
        fd.MaxEntropyMixed(3, 1, device=x.device).entropy(),
        fd.MaxEntropyMixed(3, device=x.device).sample((4,))), no_data=DATA),
    of_scores("distributions.uniform_faces", lambda x: fd.uniform_faces(
        3, device=x.device).entropy()),
    of_scores("distributions.wasserstein2",
              lambda x: fd.wasserstein2(quadratic(x), quadratic(2 * x)), 2, 2, no_data=DATA),
]  # fmt: skip

CASES = [*STRUCTURES, *EXPECTATION, *DISTRIBUTIONS]
