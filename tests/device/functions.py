"""Rows of the table of devices: maps, losses, attention, Hopfield networks, basis functions."""

from typing import Any

import torch
from torch import Tensor

import fewfold as ff
from tests.attention import transforms as attention
from tests.losses import cases as losses
from tests.maps import cases as maps
from tests.transforms import Case as TransformCase

from .table import DATA, SOLVED, Case

D = torch.float64


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    """Normal numbers that can get a gradient."""
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(shape, generator=generator, dtype=D)).requires_grad_()


def whole(high: int, *shape: int, seed: int = 0) -> Tensor:
    """Random ids."""
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


def of_transforms(case: TransformCase, name: str, **options: Any) -> Case:
    """A row of a table of transforms, on other devices."""
    return Case(
        name,
        lambda: (case.module(), case.data(3).requires_grad_()),
        lambda module, data: module(data),
        **options,
    )


def scores() -> tuple[Tensor]:
    """Scores with a tie, and an entry that is dropped."""
    found = normal(4, 6)
    with torch.no_grad():
        found[0, 1], found[1] = -torch.inf, 0.25
    return (found,)


def masked() -> tuple[Tensor, Tensor]:
    return normal(4, 6), torch.arange(6).expand(4, 6) < torch.tensor([[6], [3], [1], [0]])


MAPPED = ("softmax", "sparsemax", "entmax(1.5)", "entmax(1.25)", "entmax(3)", "entmax(tensor)",
          "normmax(2)", "normmax(5)", "ksubset(2)", "ksubset(2, at_most)", "topk_sparsemax(3)",
          "constrained_sparsemax", "fusedmax(0.1)", "oscarmax(0.1)")  # fmt: skip
LOST = ("softmax", "sparsemax", "entmax 1.5", "entmax 1.4 learnt", "normmax 2", "ksubset 2")

MAPS = [
    *(Case(case.name.replace("(", ", ").rstrip(")"), scores, case) for case in maps.CASES
      if case.name in MAPPED),
    Case("maps.constrained_softmax", lambda: (normal(4, 6), torch.full((6,), 0.4, dtype=D)),
         ff.maps.constrained_softmax),
    *(Case(f"{name}, masked", masked, lambda x, keep, f=f: f(x, mask=keep)) for name, f in (
        ("softmax", ff.softmax), ("sparsemax", ff.sparsemax), ("entmax", ff.entmax),
        ("fusedmax", ff.fusedmax),
    )),
    Case("sparsemax, over columns", scores, lambda x: ff.sparsemax(x, dim=0)),
    Case("sparsemax, long rows", lambda: (normal(2, 3000),), ff.sparsemax),
    Case("entmax, long rows", lambda: (normal(2, 3000),), ff.entmax),
    Case("maps.topk_sparsemax_certified", scores,
         lambda x: ff.maps.topk_sparsemax_certified(x, 3), also=("maps.TopK",)),
    Case("map_support", scores, ff.map_support, also=("Support",), no_data=DATA),
    Case("AdaptiveEntmax", lambda: (ff.AdaptiveEntmax(3).double(), normal(2, 3, 2, 6)),
         lambda layer, x: layer(x)),
    *(Case(type(omega).__name__ if direct else f"maps.{type(omega).__name__}",
           lambda: (normal(4, 6),),
           lambda x, omega=omega: (ff.Map(omega)(x), omega.value(omega.argmax(x))),
           also=("Map", "Omega"))
      for direct, omega in (
          (True, ff.Shannon()), (True, ff.Gini()), (True, ff.Tsallis(1.3)), (True, ff.Norm(3.0)),
          (True, ff.Subset(2)), (False, ff.maps.Fused()), (False, ff.maps.Oscar()),
          (False, ff.maps.Bounded(0.4)),
      )),
]  # fmt: skip

LOSSES = [
    *(
        Case(
            f"fenchel_young_loss, {case.name}",
            lambda case=case: (normal(4, 6), case.target(normal(4, 6).detach())),
            case,
        )
        for case in losses.CASES
        if case.name in LOST
    ),
    *(
        Case(f"{case.member.__name__}, {case.name}",
             lambda case=case: (normal(4, 6), whole(6, 4) if case.indexed
                                else case.target(normal(4, 6).detach())),
             case.by_name)
        for case in losses.CASES
        if case.name in LOST
    ),
    Case("FenchelYoungLoss, weights",
         lambda: (ff.FenchelYoungLoss(weight=torch.arange(6, dtype=D)),
                  normal(4, 6), torch.tensor([0, 3, -100, 5])),
         lambda loss, x, y: loss(x, y)),
    Case("softmax_loss, smoothed", lambda: (normal(4, 6), whole(6, 4)),
         lambda x, y: ff.softmax_loss(x, y, label_smoothing=0.1, reduction="none")),
    *(Case(f"linear_entmax_loss, {name}",
           lambda: (normal(5, 4), normal(7, 4, seed=1), whole(7, 5), normal(7, seed=2)),
           lambda h, w, y, b, options=options: ff.linear_entmax_loss(
               h, w, y, linear_bias=b, **options))
      for name, options in (
          ("alpha 1.5", {}), ("alpha 2", {"alpha": 2.0}), ("softmax", {"alpha": 1.0}),
          ("chunks", {"chunk_size": 2}), ("by row", {"reduction": "none"}),
      )),
    Case("linear_entmax_loss, sparse gradient",
         lambda: (normal(5, 4), normal(7, 4, seed=1), whole(7, 5)),
         lambda h, w, y: ff.linear_entmax_loss(h, w, y, sparse_grad=True)),
    Case("losses.epsilon_perplexity", lambda: (normal(4, 6).softmax(-1).detach(), whole(6, 4)),
         ff.losses.epsilon_perplexity),
    Case("losses.optimal_epsilon", lambda: (normal(4).sigmoid().detach(),),
         lambda p: p.new_tensor(ff.losses.optimal_epsilon(p, 6)), no_data=DATA),
    Case("losses.jensen_shannon", lambda: (normal(4, 6), whole(6, 4)),
         lambda x, y: ff.losses.jensen_shannon(x.softmax(-1), y)),
    Case("losses.sparsemax_score", lambda: (normal(4, 6), whole(6, 4)),
         lambda x, y: ff.losses.sparsemax_score(x.softmax(-1), y)),
    Case("losses.sample", lambda: (normal(4, 6),), lambda x: ff.losses.sample(x, samples=3),
         no_data=DATA),
    Case("losses.sample_support", lambda: (normal(4, 6),),
         lambda x: ff.losses.sample_support(ff.map_support(x), 3,
                                            generator=torch.Generator().manual_seed(1)),
         no_data=DATA),
]  # fmt: skip


def memories() -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of two heads."""
    return normal(2, 2, 5, 4), normal(2, 2, 5, 4, seed=1), normal(2, 2, 5, 4, seed=2)


def watched(q: Tensor, k: Tensor, v: Tensor) -> list[Any]:
    with ff.attention.watch_attention() as seen:
        ff.sparse_attention(q, k, v)
    return [one.support for one in seen]


ALSO = {
    "ContinuousAttention": ("continuous.QueryHeads",),
    "ContinuousAttention, signal": ("continuous.SignalHeads",),
    "ContinuousAttention, moments": ("continuous.AttentionMoments",),
    "continuous_attention": ("continuous.LineDensity",),
    "continuous_attention, image": ("continuous.PlaneDensity",),
}
ATTENTION = [
    *(of_transforms(case, case.name.replace(".", ", "), also=ALSO.get(case.name, ()),
                    without={"cuda": SOLVED} if "SparseMAP" in case.name else {})
      for case in attention.CASES),
    Case("sparse_attention, causal and masked",
         lambda: (*memories(), torch.ones(5, 5, dtype=torch.bool).tril(2)),
         lambda q, k, v, keep: (ff.sparse_attention(q, k, v, is_causal=True),
                                ff.sparse_attention(q, k, v, mask=keep))),
    Case("sparse_attention, chunks, dropout",
         lambda: (normal(1, 2, 70, 4), *(normal(1, 2, 1100, 4, seed=seed) for seed in (1, 2))),
         lambda q, k, v: ff.sparse_attention(q, k, v, dropout_p=0.3), tolerance=1e-8),
    Case("sparse_attention, dropout", memories,
         lambda q, k, v: ff.sparse_attention(q, k, v, dropout_p=0.3,
                                             generator=torch.Generator().manual_seed(1))),
    Case("sparse_attention, grouped heads",
         lambda: (normal(2, 4, 5, 4), *memories()[1:]),
         lambda q, k, v: ff.sparse_attention(q, k, v, enable_gqa=True)),
    Case("attention.attention_support", memories,
         lambda q, k, v: ff.attention.attention_support(q, k), no_data=DATA),
    Case("attention.watch_attention", memories, watched, also=("attention.Attended",),
         no_data=DATA),
    Case("MultiheadAttention, adaptive",
         lambda: (ff.MultiheadAttention(4, 2, ff.AdaptiveEntmax(2), dropout=0.2).double(),
                  normal(3, 5, 4)),
         lambda layer, x: layer(x, x, x, is_causal=True)),
    Case("attention.product_topk", lambda: (normal(3, 5), normal(3, 4, seed=1)),
         lambda one, two: ff.attention.product_topk(one, two, 6), also=("attention.ProductTopK",)),
    Case("ProductKeyMemory", lambda: (
        ff.ProductKeyMemory(8, 25, k=6, heads=ff.attention.KeyHeads(2, normalize=True)),
        normal(3, 8).detach().float()), lambda layer, x: (layer(x), layer.lookup(x)),
        also=("attention.KeyHeads", "attention.MemorySlots"), tolerance=1e-5),
    Case("attention.LengthScaling", lambda: (ff.attention.LengthScaling(2, beta=0.5).double(),
                                             *memories()[:2]),
         lambda layer, q, k: layer(q, k, is_causal=True)),
    Case("attention.AdaptiveLengthScaling", lambda: (
        ff.attention.AdaptiveLengthScaling(2, 8).double(), *memories()[:2], normal(2, 5, 8)),
        lambda layer, q, k, x: layer(q, k, vectors=x)),
]  # fmt: skip


def patterns() -> tuple[Tensor, Tensor]:
    return normal(3, 2, 4), normal(3, 5, 4, seed=1)


def bits() -> tuple[Tensor, Tensor]:
    return normal(3, 2, 8).sign().detach(), normal(3, 4, 8, seed=1).sign().detach()


HOPFIELD = [
    *(Case(f"hopfield.{type(energy).__name__}", bits,
           lambda q, m, energy=energy: (energy.value(q, m), energy.step(q, m)),
           also=("hopfield.Energy",))
      for energy in (ff.hopfield.Classical(), ff.hopfield.DenseAssociative(),
                     ff.hopfield.Exponential())),
    *(Case(name, patterns,
           lambda q, m, psi=psi: (ff.FenchelYoung(ff.Gini(), 0.7, psi).value(q, m),
                                  ff.FenchelYoung(ff.Gini(), 0.7, psi).step(q, m)))
      for name, psi in (("hopfield.Quadratic", ff.hopfield.Quadratic()),
                        ("hopfield.LayerNormed", ff.hopfield.LayerNormed()),
                        ("hopfield.Sphere", ff.hopfield.Sphere()))),
    Case("hopfield_retrieve, until it converges", patterns, ff.hopfield_retrieve,
         also=("hopfield.Retrieval",)),
    Case("Hopfield, tensors", lambda: (
        ff.Hopfield(4, beta=torch.tensor([1.0, 2.0]), heads=ff.hopfield.Heads(2, 3, 0.2),
                    steps=2).double(), normal(3, 5, 4)),
        lambda layer, x: layer(x, x), also=("hopfield.Heads",)),
    Case("hopfield.is_stored", patterns,
         lambda q, m: ff.hopfield.is_stored(m, ff.FenchelYoung(ff.Gini(), 4.0))),
    Case("hopfield.retrieved_in_one_step", patterns,
         lambda q, m: ff.hopfield.retrieved_in_one_step(
             q, m, torch.tensor([[0, 3]] * 3).to(m.device), ff.FenchelYoung(ff.Gini(), 4.0))),
    Case("hopfield.separation", patterns, lambda q, m: ff.hopfield.separation(m)),
]  # fmt: skip

fc = ff.continuous
LINE = fc.GaussianBasis.grid(4, [0.2])


def remembered(memory: Any, x: Tensor) -> tuple[Any, ...]:
    return memory.update(x).coefficients, memory.update(x.flip(-2)).coefficients


def sticky(memory: Any, x: Tensor, mu: Tensor) -> Tensor:
    attended = fc.LineDensity(mu.sigmoid(), 0.02 + 0 * mu.square(), 2.0)
    memory.update(x)
    return memory.update(x.flip(-2), attended=attended).coefficients


CONTINUOUS = [
    *(Case(f"continuous.{type(basis).__name__}",
           lambda dim=dim: (normal(7, dim).sigmoid().detach() if dim > 1 else
                            normal(7).sigmoid().detach(),),
           basis, also=("continuous.Basis",))
      for dim, basis in (
          (1, LINE), (1, fc.FourierBasis([1.0, 2.0])), (1, fc.PowerBasis(3)),
          (1, fc.RectangularBasis([0.0, 0.5, 1.0])),
      )),
    Case("ContinuousMemory", lambda: (ff.ContinuousMemory(LINE, samples=16), normal(2, 6, 4)),
         remembered, also=("continuous.Signal",)),
    Case("ContinuousMemory, sticky",
         lambda: (ff.ContinuousMemory(LINE, samples=16, sticky=fc.Sticky(8)), normal(2, 6, 4),
                  normal(2, 3)), sticky, also=("continuous.Sticky",), without={"cuda": DATA}),
    Case("continuous_attention, mask", lambda: (
        normal(3, 6, 4), normal(3, 2).sigmoid().detach(), torch.full((3, 2), 0.05, dtype=D),
        torch.arange(6) < torch.tensor([[6], [4], [2]])),
        lambda x, mu, s, keep: ff.continuous_attention(
            x, mu, s, LINE, mask=keep, ridge=fc.Ridge(0.1, padded=True)),
        also=("continuous.Ridge",)),
]  # fmt: skip

CASES = [*MAPS, *LOSSES, *ATTENTION, *HOPFIELD, *CONTINUOUS]
