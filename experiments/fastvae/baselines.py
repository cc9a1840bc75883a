"""The other methods of the published table: one trainer of a matrix factorisation, many losses.

``python -m experiments.fastvae.baselines ml10m`` adds what is missing to results.json. A method is
a proposal of negatives and a loss of their scores; WRMF is the library's ALS. Every setting of a
method's grid is first trained for a fifth of the epochs and judged on a validation part of the
training set with one seed, into tuning.json.
"""

import argparse
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

import fewfold as ff
from experiments.fastvae import run
from experiments.record import Record, origin

TUNING = Record(Path(__file__).parent / "tuning.json")
FACTORS, BATCH, EPOCHS, WARP_TRIALS = 32, 4096, 50, 50
_NEVER = -1e9  # score of a negative that is an item of the user: it counts in no loss
WRMF = "WRMF"
# Scores of positives (B,) and negatives (B, n), log q of the negatives (B, n), number of items.
Loss = Callable[[Tensor, Tensor, Tensor, int], Tensor]


@dataclass(frozen=True)
class Method:
    """A proposal of `negatives` per pair, and the loss of a pair."""

    proposal: Callable[[], ff.sampling.Proposal]
    negatives: int
    loss: Loss


def pairwise(positive: Tensor, negative: Tensor, log_q: Tensor, items: int) -> Tensor:
    """Return the loss of BPR, the mean over negatives."""
    return F.softplus(negative - positive.unsqueeze(1)).mean(1)


def hardest(positive: Tensor, negative: Tensor, log_q: Tensor, items: int) -> Tensor:
    """Return the loss of DNS, that of BPR for the negative of the highest score."""
    return F.softplus(negative.amax(1) - positive)


def first_violation(positive: Tensor, negative: Tensor, log_q: Tensor, items: int) -> Tensor:
    """Return the loss of WARP: the hinge of the first negative within the margin, by its rank.

    The rank is estimated from the number of trials; its weight is log(items / trials), as in
    LightFM. No negative within the margin gives no loss.
    """
    hinge = (1 + negative - positive.unsqueeze(1)).relu()
    trials = (hinge > 0).int().argmax(1, keepdim=True)  # the first; 0 if there is none, of hinge 0
    weight = ((items - 1) // (trials + 1)).clamp(min=1).log()
    return (weight * hinge.gather(1, trials)).squeeze(1)


def importance_weighted(positive: Tensor, negative: Tensor, log_q: Tensor, items: int) -> Tensor:
    """Return the loss of PRIS: BPR with weights exp(score) / q, which sum to one."""
    weights = (negative.detach() - log_q).softmax(1)
    return (weights * F.softplus(negative - positive.unsqueeze(1))).sum(1)


def self_adversarial(positive: Tensor, negative: Tensor, log_q: Tensor, items: int) -> Tensor:
    """Return the logistic loss with negatives weighted by the softmax of their scores."""
    weights = negative.detach().softmax(1)
    return F.softplus(-positive) + (weights * F.softplus(negative)).sum(1)


class Oversampling(ff.sampling.Proposal):
    """The adaptive oversampling of AOBPR: an item of small rank in a factor that matters.

    A factor f is drawn in proportion to |z_f| times the deviation of the items in it, a rank from
    a geometric distribution of mean `depth`, and the item of that rank by its f-th entry, from the
    top or, if z_f is negative, from the bottom. Its log q is not computed: BPR needs none.

    Reference: Rendle and Freudenthaler, "Improving pairwise learning for item recommendation from
    implicit feedback", 2014.
    """

    def __init__(self, depth: float = 500.0) -> None:
        self.depth = depth
        self._order = self._deviation = torch.empty(0)

    def fit(self, item_vectors: Tensor, counts: Tensor | None = None) -> Self:
        return self.refresh(item_vectors)

    def refresh(self, item_vectors: Tensor) -> Self:
        self._order = item_vectors.argsort(0, descending=True)
        self._deviation = item_vectors.std(0)
        return self

    def given(self, queries: Tensor, *, shared: bool = False) -> ff.sampling.Given:
        return _Oversampled(self._order, queries, queries.abs() * self._deviation, self.depth)


class _Oversampled(ff.sampling.Given):
    shared = False

    def __init__(self, order: Tensor, queries: Tensor, weights: Tensor, depth: float) -> None:
        self._order, self._queries, self._depth = order, queries, depth
        self._weights = weights + torch.finfo(weights.dtype).tiny

    def sample(self, n: int, *, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        factor = torch.multinomial(self._weights, n, replacement=True, generator=generator)
        chance = torch.rand(factor.shape, generator=generator)
        rank = (-(1 - chance).log() * self._depth).long() % len(self._order)
        down = self._queries.gather(1, factor) < 0
        rank = torch.where(down, len(self._order) - 1 - rank, rank)
        return self._order[rank, factor], torch.zeros(factor.shape)

    def log_prob(self, ids: Tensor, row: Tensor | None = None) -> Tensor:
        raise NotImplementedError("AOBPR is trained without its log q")


METHODS: dict[str, Method] = {
    "BPR": Method(ff.Uniform, 5, pairwise),
    "WARP": Method(ff.Uniform, WARP_TRIALS, first_violation),
    "AOBPR": Method(Oversampling, 1, pairwise),
    "DNS": Method(ff.Uniform, 16, hardest),
    "PRIS": Method(lambda: ff.MultiIndex(16, within="popularity"), 20, importance_weighted),
    "Self-adversarial": Method(ff.Uniform, 20, self_adversarial),
}
GRID: dict[str, Sequence[dict[str, float]]] = {
    name: [{"lr": lr, "l2": l2} for lr in (3e-3, 1e-2) for l2 in (1e-6, 1e-5, 1e-4)]
    for name in METHODS
} | {
    WRMF: [
        {"regularisation": l2, "unobserved_weight": weight}
        for l2 in (0.003, 0.01, 0.03)
        for weight in (0.01, 0.03, 0.1, 0.3)
    ]
}


def factorise(
    name: str, log: ff.recommender.Interactions, *, epochs: int, seed: int, lr: float, l2: float
) -> tuple[Tensor, Tensor]:
    """Return the vectors of users and items of a method; rows move when they are used."""
    method, generator = METHODS[name], torch.Generator().manual_seed(seed)
    users, items = (
        (0.1 * torch.randn(n, FACTORS, generator=generator)).requires_grad_()
        for n in (log.users, log.items)
    )
    optimizer = ff.optim.Adam([users, items], lr=lr, weight_decay=l2)
    proposal = method.proposal().fit(items.detach(), log.counts().log1p() + 1e-6)
    row, ids, last = log.row, log.ids, epochs * -(-len(log.ids) // BATCH)
    pairs, step = (row * log.items + ids).sort().values, 0
    for epoch in range(epochs):
        if epoch:
            proposal.refresh(items.detach())
        for batch in torch.randperm(len(ids), generator=generator).split(BATCH):
            for group in optimizer.param_groups:
                group["lr"] = lr * (1 + math.cos(math.pi * step / last)) / 2
            query = F.embedding(row[batch], users, sparse=True)
            chosen, log_q = proposal.given(query.detach()).sample(
                method.negatives, generator=generator
            )
            both = torch.cat([ids[batch].unsqueeze(1), chosen], 1)
            scores = torch.einsum("bd,bnd->bn", query, F.embedding(both, items, sparse=True))
            own = _among(pairs, row[batch, None] * log.items + chosen)
            negative = scores[:, 1:].masked_fill(own, _NEVER)
            loss = method.loss(scores[:, 0], negative, log_q, log.items)
            loss.sum().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
    return users.detach(), items.detach()


def _among(sorted_values: Tensor, values: Tensor) -> Tensor:
    """Return which values occur among the sorted ones."""
    place = torch.searchsorted(sorted_values, values).clamp_(max=len(sorted_values) - 1)
    return sorted_values[place] == values


def ranked(
    name: str, split: ff.recommender.Split, *, epochs: int, seed: int, **settings: float
) -> Tensor:
    """Train a method, and return the best 50 items of the users of the test."""
    if name == WRMF:
        model = ff.recommender.ALS(FACTORS, **settings)
        known = split.fold_in.jagged
        return model.fit(split.train).rank(known, 50, exclude=known).ids
    users, items = factorise(name, split.train, epochs=epochs, seed=seed, **settings)
    scores = ff.recommender.DotProduct(users[split.users], items)
    return ff.recommender.top_k(scores, 50, exclude=split.fold_in).ids


def tuned(dataset: str, name: str, epochs: int) -> dict[str, float]:
    """Return the setting of the grid with the best NDCG@50 on a validation part."""
    split = ff.recommender.random_split(run.DATA[dataset].split(0).train, seed=0)
    short = max(1, epochs // 5)
    rows = [
        TUNING.once(
            lambda s=setting: run.quality(ranked(name, split, epochs=short, seed=0, **s), split),
            data=dataset, model=name, epochs=short, **setting,
        )
        for setting in GRID[name]
    ]  # fmt: skip
    best = max(rows, key=lambda row: row["NDCG@50"])
    return {field: best[field] for field in GRID[name][0]}


def row(dataset: str, name: str, seed: int, epochs: int) -> dict[str, Any]:
    """Return the row of a method."""
    settings, split = tuned(dataset, name, epochs), run.DATA[dataset].split(seed)
    start = time.process_time()
    top = ranked(name, split, epochs=epochs, seed=seed, **settings)
    seconds = {"processor seconds": round(time.process_time() - start, 1)}
    return {**run.quality(top, split), **seconds, **settings}


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", choices=run.DATA)
    parser.add_argument("--models", help="separated by semicolons; by default all")
    parser.add_argument("--seeds", default="0,1,2", help="separated by commas")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for seed in map(int, options.seeds.split(",")):
        for name in options.models.split(";") if options.models else GRID:
            epochs = 16 if name == WRMF else options.epochs
            key = {"protocol": "baseline", "data": options.dataset, "model": name, "seed": seed,
                   "epochs": epochs}  # fmt: skip
            if not run.RECORD.rows(**key):
                made = row(options.dataset, name, seed, epochs)
                print(key, made, flush=True)
                run.RECORD.add([{**key, **made, **origin()}])


if __name__ == "__main__":
    main()
