"""Rows of the table of devices: methods that the rows of their classes do not call."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import fewfold as ff
from fewfold import distributions as fd
from fewfold import embeddings as fe
from fewfold import structures as fs

from .functions import D, fc, normal, scores, whole
from .structures import quadratic, simplex
from .table import DATA, SOLVED, Case
from .tables import anchors, related, seeded, trained

SUBSET = fs.KSubset(2)


def of_support(x: Tensor) -> tuple[Tensor, ...]:
    found = ff.map_support(x)
    return found.to_dense(6), found.reduce(found.weights.unsqueeze(1) * 2)


def conjugates(x: Tensor) -> list[Tensor]:
    return [omega.conjugate(x) for omega in (
        ff.Shannon(), ff.Gini(), ff.Norm(3.0), ff.Subset(2), ff.maps.Fused(), ff.maps.Oscar(),
    )]  # fmt: skip


def of_nothing(x: Tensor, none: Tensor) -> list[Tensor]:
    """Rows without entries, and no rows."""
    return [call(rows) for rows in (x, none) for call in (
        ff.softmax, ff.sparsemax, ff.entmax, ff.normmax, ff.fusedmax, ff.oscarmax,
        lambda rows: ff.maps.topk_sparsemax_certified(rows, 2).probs,
        lambda rows: ff.sparse_attention(rows.mT, rows.mT, rows.mT),
    )]  # fmt: skip


def of_structures(x: Tensor) -> tuple[Tensor, ...]:
    best = SUBSET.argmax(x)
    return SUBSET.log_partition(x), SUBSET.log_prob(x, best), SUBSET.score_of(x, best)


def map_of_graph(x: Tensor) -> Tensor:
    made = ff.FactorGraph(batch_dims=1)
    u = made.variable(x)
    made.add(fs.Budget(2), u)
    return made.solve_map()[u]


def line(mu: Tensor, s: Tensor) -> list[Any]:
    made = fc.LineDensity(mu, s, 2.0), fc.LineDensity.from_moments(mu, s, 1.5)
    at = torch.linspace(-1, 1, 5, dtype=mu.dtype, device=mu.device)
    return [(one.pdf(at.unsqueeze(1)), one.variance) for one in made]


def plane(mu: Tensor) -> list[Any]:
    sigma = 0.3 * torch.eye(2, dtype=mu.dtype, device=mu.device).expand(len(mu), 2, 2)
    attended = fc.PlaneDensity.from_attention(mu.softmax(0).T, mu.detach() + mu.detach().sin())
    made = fc.PlaneDensity(mu, sigma, 2.0), fc.PlaneDensity.from_moments(mu, sigma, 1.5), attended
    return [(one.pdf(mu.detach()[: len(one.mu)] + 0.1), one.covariance) for one in made]


def moments(make: Callable[..., Any], *names: str) -> Callable[..., list[Tensor]]:
    """Properties of a distribution, and of one whose batch was expanded."""

    def call(*given: Tensor) -> list[Tensor]:
        made = make(*given)
        wide = made.expand((3, *made.batch_shape))
        return [getattr(one, name) for one in (made, wide) for name in names]

    return call


def of_face(x: Tensor) -> list[Tensor]:
    by_size, gibbs = fd.FacesBySize(x), fd.GibbsFaces(x)
    listed = fd.ListedFaces(x.new_full((7,), 1 / 7))
    return [
        *(one.marginals for one in (by_size, gibbs)), by_size.mode, gibbs.mode, listed.mode,
        gibbs.log_normaliser,
    ]  # fmt: skip


def of_quadratic(x: Tensor) -> list[Tensor]:
    made = quadratic(x)
    value = made.mode.detach() + 0.1
    covariance = 0.25 * torch.eye(2, dtype=x.dtype, device=x.device)
    same = fd.QGaussian.from_covariance(x, covariance, 1.5)
    return [
        made.mean, made.variance, made.covariance_matrix, made.threshold, made.radius,
        made.tsallis_entropy(), made.fenchel_young_loss(value), same.log_prob(value),
    ]  # fmt: skip


def pretrained(table: Tensor, ids: Tensor) -> Tensor:
    made = ff.AnchorEmbedding.from_pretrained(table, anchors=6, width=3, generator=seeded())
    return made(ids)


def resumed(table: ff.AnchorEmbedding, ids: Tensor) -> list[Tensor]:
    """Steps with the state of an optimiser that was saved and loaded."""
    states: list[Any] = []

    def wrap(optimizer: Any, own: Any) -> Any:
        made = ff.proximal(optimizer, own, l1=1e-2, keep=2)
        if states:
            made.load_state_dict(states[0].state_dict())
        states.append(made)
        return made

    trained(table, ids, wrap)
    return trained(table, ids, wrap)


CASES = [
    Case("Support, dense and reduced", scores, of_support, no_data=DATA),
    Case("Omega, conjugates", lambda: (normal(4, 6),), conjugates),
    Case("entmax, of nothing", lambda: (normal(3, 0), normal(0, 3)), of_nothing),
    Case("embeddings.Relations, touched rows",
         lambda: (anchors(width=3, sparse=True), whole(60, 2, 4)), related, no_data=DATA,
         tolerance=1e-5),
    Case("structures.Structure, of members", lambda: (normal(3, 5),), of_structures,
         no_data=SOLVED),
    Case("FactorGraph, best assignment", lambda: (normal(2, 4).detach(),), map_of_graph,
         no_data=SOLVED, tolerance=1e-5),
    Case("MultiheadAttention, with weights",
         lambda: (ff.MultiheadAttention(4, 2).double(), normal(3, 5, 4),
                  torch.arange(5) > torch.tensor([[4], [2], [0]])),
         lambda layer, x, padding: (layer.with_weights(x, key_padding_mask=padding), layer.alpha)),
    Case("MultiheadAttention, two masks",
         lambda: (ff.MultiheadAttention(4, 2).double(), normal(3, 5, 4),
                  torch.arange(5) > torch.tensor([[4], [2], [0]]), normal(5, 5, seed=1).detach()),
         lambda layer, x, padding, added: layer(x, key_padding_mask=padding, attn_mask=added)),
    Case("ProductKeyMemory, all scores",
         lambda: (ff.ProductKeyMemory(8, 25, k=6, heads=2).double(), normal(3, 8)),
         lambda layer, x: layer.scores(x)),
    Case("continuous.LineDensity, points", lambda: (normal(3), normal(3, seed=1).exp().detach()),
         line),
    Case("continuous.PlaneDensity, points", lambda: (normal(3, 2),), plane),
    Case("GaussianSparsemax, moments", lambda: simplex(2),
         moments(ff.GaussianSparsemax, "mean", "variance"), tolerance=1e-6),
    Case("distributions.BinaryHardConcrete, moments", lambda: (normal(2, 3),),
         moments(lambda x: fd.BinaryHardConcrete(x, 0.5), "nonzero", "mean", "variance"),
         tolerance=1e-6),
    Case("HardConcrete, moments", lambda: (normal(2, 2),),
         moments(lambda x: ff.HardConcrete(x, 0.5), "mean", "variance"), tolerance=1e-6),
    Case("distributions.SparseCategorical, mode", lambda: (normal(2, 3),), lambda x: (
        moments(lambda s: fd.SparseCategorical(ff.Gini(), s), "mode")(x),
        fd.SparseCategorical(ff.Gini(), x).enumerate_support())),
    Case("distributions.FaceDistribution, marginals", lambda: (normal(3),), of_face,
         no_data=DATA),
    Case("distributions.QGaussian, moments", lambda: (normal(2, 2),), of_quadratic,
         no_data=DATA),
    Case("AnchorEmbedding, pretrained", lambda: (normal(60, 5).detach(), whole(60, 2, 4)),
         pretrained, no_data=DATA, tolerance=1e-5),
    Case("embeddings.AnchorMixture, logits", lambda: (
        fe.AnchorMixture(60, 5, mixtures=2, anchors=6, generator=seeded()),
        normal(3, 5).detach().float()), lambda table, x: table.logits(x), tolerance=1e-5),
    Case("proximal, resumed", lambda: (anchors(width=3), whole(60, 2, 4)), resumed, no_data=DATA,
         tolerance=1e-5),
    Case("maps.Bounded, by entry", lambda: (normal(4, 6), torch.full((6,), 0.4, dtype=D)),
         lambda x, upper: ff.maps.Bounded(upper).argmax(x)),
]  # fmt: skip
