"""Rows of the table of devices: proposals, sampled losses, tables of anchors, optimisers."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import fewfold as ff
from fewfold import embeddings as fe
from fewfold import sampling
from tests.optim import cases as optim
from tests.sampling import cases as proposals

from .functions import normal, whole
from .table import DATA, Case


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(1)


# Proposals -----------------------------------------------------------------------------------

ENTRIES = {
    "uniform": "Uniform", "popularity": "Popularity", "index": "MultiIndex",
    "index by popularity": "MultiIndex, popularity", "exact index": "MultiIndex, exact",
    "residual index": "MultiIndex, residual", "quadratic kernel": "sampling.QuadraticKernel",
    "dynamic": "sampling.Dynamic",
}  # fmt: skip


def sampled(case: proposals.Case) -> Callable[..., Any]:
    """Fit, draw for each query and for all, log q, and the same after its state was loaded."""

    def call(queries: Tensor, items: Tensor, counts: Tensor) -> tuple[Any, ...]:
        proposal = case.make().fit(items, counts).refresh(items)
        own = proposal.sample(queries, 5, generator=seeded())
        shared = proposal.sample(queries, 5, shared=True, generator=seeded())
        again = case.make()
        again.load_state_dict(proposal.state_dict())
        return own, shared, proposal.sample(queries, 5), again.log_prob(queries, own[0])

    return call


def fitted(queries: Tensor, items: Tensor, counts: Tensor) -> sampling.Proposal:
    return ff.MultiIndex(3, within="popularity").fit(items, counts)


def batch() -> tuple[Any, ...]:
    queries, items, counts = proposals.problem()
    return queries.requires_grad_(), items.requires_grad_(), counts, torch.tensor([[3, 4]] * 3)


def sampled_losses(loss: Callable[..., Tensor]) -> Callable[..., Any]:
    def call(queries: Tensor, items: Tensor, counts: Tensor, positives: Tensor) -> tuple[Any, ...]:
        proposal = ff.MultiIndex(3).fit(items.detach())
        lists = positives.flatten(), 2 * torch.arange(4, device=positives.device)
        return tuple(
            loss(queries, items, positive, proposal, samples=6, generator=seeded(), **options)
            for positive, options in (
                (positives, {}), (lists, {"shared": True}),
                (positives[:, 0], {"remove_hits": True}),
            )
        )  # fmt: skip

    return call


SAMPLING = [
    *(
        Case(
            ENTRIES[case.name], proposals.problem, sampled(case), no_data=DATA, tolerance=1e-5,
            also=("sampling.Proposal", "sampling.Given"),
        )
        for case in proposals.CASES if case.name in ENTRIES
    ),
    Case("sampling.kl_divergence", proposals.problem,
         lambda q, x, n: sampling.kl_divergence(fitted(q, x, n), q, x), no_data=DATA),
    Case("sampling.kl_bound", lambda: tuple(t.clamp(min=1) if t.dim() == 1 else t
                                            for t in proposals.problem()),
         lambda q, x, n: sampling.kl_bound(fitted(q, x, n), q, x), no_data=DATA),
    Case("sampled_softmax_loss", batch, sampled_losses(ff.sampled_softmax_loss), no_data=DATA,
         tolerance=1e-5),
    Case("noise_contrastive_loss", batch, sampled_losses(ff.noise_contrastive_loss), no_data=DATA,
         tolerance=1e-5),
    Case("sampled_softmax_loss, anchors",
         lambda: (batch()[0], anchors(width=3, sparse=True), batch()[1].detach(), batch()[3]),
         lambda q, table, x, y: ff.sampled_softmax_loss(
             q, table, y, ff.Uniform().fit(x), samples=6, generator=seeded()),
         no_data=DATA, tolerance=1e-5),
]  # fmt: skip

# Embeddings ----------------------------------------------------------------------------------


def anchors(**options: Any) -> ff.AnchorEmbedding:
    given = {"anchors": 6, "generator": torch.Generator().manual_seed(0), **options}
    return ff.AnchorEmbedding(60, 5, **given)


def looked_up(table: ff.AnchorEmbedding, ids: Tensor) -> tuple[Tensor, ...]:
    hidden = table(ids).detach()[0]
    offsets = torch.tensor([0, 3], device=ids.device)
    return table(ids), table.logits(hidden), table.weight, table.bag(ids.flatten(), offsets)


def of_table(name: str, call: Callable[..., Any], **options: Any) -> Case:
    return Case(name, lambda: (anchors(width=3), whole(60, 2, 4)), call, **options)


def trained(
    table: nn.Module, ids: Tensor, wrap: Callable[[Any, Any], Any] = lambda optimizer, _: optimizer
) -> list[Tensor]:  # fmt: skip
    """Parameters after some steps."""
    optimizer = wrap(ff.optim.Adam(table.parameters(), lr=0.1), table)
    with torch.enable_grad():
        for _ in range(4):
            optimizer.zero_grad()
            table(ids).square().sum().backward()
            optimizer.step()
    return [each.detach() for each in table.parameters()]


def shrunk(**options: Any) -> Callable[..., Any]:
    return lambda table, ids: trained(
        table, ids, lambda optimizer, table: ff.proximal(optimizer, table, **options)
    )


def initialised(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(table: ff.AnchorEmbedding, ids: Tensor) -> tuple[Tensor, ...]:
        device = table.anchors.device
        counts = torch.arange(60, device=device)
        features = torch.linspace(0, 1, 120, device=device).view(60, 2).sin()
        found = fe.initialise_anchors(table, method(counts, features), seeded())
        return (*table.parameters(), found.to(device))

    return call


def stored(table: ff.AnchorEmbedding, ids: Tensor) -> Tensor:
    with tempfile.TemporaryDirectory() as folder:
        fe.save_anchors(table, Path(folder) / "a")
        return fe.load_anchors(Path(folder) / "a").to(ids.device)(ids)


def mapped(table: ff.AnchorEmbedding, ids: Tensor) -> Tensor:
    with tempfile.TemporaryDirectory() as folder:
        fe.save_anchors(table, Path(folder) / "a")
        return fe.MappedAnchors(Path(folder) / "a")[ids]


def related(table: ff.AnchorEmbedding, ids: Tensor) -> list[Tensor]:
    known = fe.Relations.from_edges([(0, 3), (1, 2)], objects=60, anchors=[2, 3, 4, 5, 6, 7])
    return shrunk(l1=1e-2, relations=known.to(ids.device))(table, ids)


EMBEDDINGS = [
    of_table("AnchorEmbedding", looked_up),
    Case("AnchorEmbedding, in full", lambda: (anchors(), whole(60, 2, 4)), looked_up),
    Case("AnchorEmbedding, sparse gradients",
         lambda: (anchors(width=3, sparse=True), whole(60, 2, 4)), lambda table, ids: table(ids)),
    Case("AnchorEmbedding, padded, scaled",
         lambda: (anchors(padding_idx=1, max_norm=1.0, scale_grad_by_freq=True), whole(60, 2, 4)),
         lambda table, ids: table(ids), no_data=DATA),
    Case("AnchorEmbedding, made on the device", lambda: (whole(60, 2, 4),),
         lambda ids: anchors(device=ids.device)(ids)),
    Case("AnchorEmbeddingBag", lambda: (
        ff.AnchorEmbeddingBag(60, 5, anchors=6, generator=seeded()), whole(60, 8),
        torch.tensor([0, 3, 3])), lambda bag, ids, offsets: bag(ids, offsets)),
    Case("embeddings.AnchorMixture", lambda: (
        fe.AnchorMixture(60, 5, mixtures=2, anchors=6, generator=seeded()), whole(60, 2, 4)),
        lambda table, ids: (table(ids), table.weight)),
    of_table("proximal", shrunk(l1=1e-2), also=("embeddings.Proximal",), no_data=DATA,
             tolerance=1e-5),
    of_table("proximal, at most", shrunk(l1=fe.Warmup(1e-2, 1, 2), keep=2),
             also=("embeddings.Warmup",), no_data=DATA, tolerance=1e-5),
    of_table("embeddings.Narrowing", shrunk(keep=fe.Narrowing(6, 2, 3, every=1)), no_data=DATA,
             tolerance=1e-5),
    of_table("embeddings.Regrow", shrunk(keep=2, regrow=fe.Regrow(every=2)), no_data=DATA,
             tolerance=1e-5),
    of_table("embeddings.Relations", related, no_data=DATA, tolerance=1e-5),
    Case("embeddings.AnchorGrowth", lambda: (anchors(), whole(60, 2, 4)), lambda table, ids: (
        fe.AnchorGrowth(table, l1=1e-4, per_anchor=1e-2, start=5).epoch(0.9), table(ids)),
        also=("embeddings.GrowthStep",), no_data=DATA),
    *(of_table(f"embeddings.{name}", initialised(method),
               no_data="" if name == "RandomBasis" else DATA, tolerance=1e-5,
               also=("embeddings.initialise_anchors", "embeddings.AnchorInitialisation"))
      for name, method in (
          ("Frequent", lambda n, f: fe.Frequent(n)), ("Clusters", lambda n, f: fe.Clusters(f)),
          ("FrequentThenClusters", fe.FrequentThenClusters),
          ("TfIdf", lambda n, f: fe.TfIdf(n, n.clamp(min=1), 100)),
          ("RandomBasis", lambda n, f: fe.RandomBasis()),
          ("Pretrained", lambda n, f: fe.Pretrained(f.repeat(1, 3)[:, :5] + f[:, :1], 3)),
      )),
    of_table("embeddings.dissimilarity_penalty", lambda table, ids: fe.dissimilarity_penalty(
        table, ids.T[:, :2], 0.5, samples=2, generator=seeded())),
    of_table("embeddings.save_anchors", stored, also=("embeddings.load_anchors",), no_data=DATA,
             tolerance=1e-6),
    of_table("embeddings.MappedAnchors", mapped, no_data=DATA, tolerance=1e-6),
    of_table("embeddings.inspect_anchors", lambda table, ids: ids.new_tensor(
        fe.inspect_anchors(table).nonzeros), also=("embeddings.AnchorInspection",), no_data=DATA),
    of_table("embeddings.SparseRows", lambda table, ids: table.rows(), no_data=DATA),
    Case("embeddings.sparse_code", lambda: (normal(9, 5).detach(), normal(6, 5, seed=1).detach()),
         lambda rows, d: fe.sparse_code(rows, d, 3), no_data=DATA),
    Case("embeddings.nearest_code", lambda: (normal(9, 5).detach(), normal(6, 5, seed=1).detach()),
         lambda rows, d: fe.nearest_code(rows, d, 3), no_data=DATA),
    Case("embeddings.learn_dictionary", lambda: (normal(30, 5).detach(),),
         lambda rows: fe.learn_dictionary(rows, 6, 3, rounds=2, sample=20, generator=seeded()),
         also=("embeddings.Coding",), no_data=DATA, tolerance=1e-6),
    Case("embeddings.orthogonality", lambda: (normal(6, 5),), fe.orthogonality),
    Case("embeddings.cooccurrence_features", lambda: (whole(9, 90),),
         lambda documents: fe.cooccurrence_features(documents, 9, dim=3, generator=seeded()),
         no_data=DATA, tolerance=1e-5),
]  # fmt: skip

# Optimisers ----------------------------------------------------------------------------------


def stepped(case: optim.Case) -> Callable[..., Any]:
    """The parameter after steps with sparse gradients, and one with a dense gradient."""

    def call(param: Tensor) -> tuple[Any, ...]:
        param = nn.Parameter(param.detach().clone())
        optimizer = case.make(param)
        for t in range(3):
            rows = whole(len(param), 12, seed=t).to(param.device)
            values = normal(12, 3, seed=t).detach().to(param)
            param.grad = optim.sparse(rows, values, tuple(param.shape))
            optimizer.step()
        param.grad = torch.ones_like(param)
        optimizer.step()
        state = optimizer.state_dict()
        again = case.make(param)
        again.load_state_dict(state)
        return param.detach(), list(optimizer.state[param].values()), again.rates(param)

    return call


OPTIM = [
    Case(f"optim.{case.name.replace('-', ', ', 1)}", lambda: (normal(7, 3).detach(),),
         stepped(case), no_data=DATA)
    for case in optim.CASES
]  # fmt: skip

CASES = [*SAMPLING, *EMBEDDINGS, *OPTIM]
