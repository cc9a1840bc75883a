"""Public functions above the bindings, called with invalid arguments."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

import fewfold as ff
from fewfold.embeddings.table.anchor_sums import mixed, mixed_bags
from fewfold.embeddings.table.tied_logits import tied_scores
from tests.fuzz.recipes import offsets, real, size, whole
from tests.fuzz.spoil import Rng, other_tensor, tried
from tests.fuzz.spoil import spoiled_given as spoiled

__all__ = ["CALLS"]

CALLS: dict[str, Callable[[Rng], object]] = {}


def _call(make: Callable[[Rng], object]) -> Callable[[Rng], object]:
    CALLS[make.__name__.strip("_")] = make
    return make


def _some(rng: Rng, *options: object) -> object:
    return options[int(rng.integers(len(options)))]


def _proposal(rng: Rng) -> ff.sampling.Proposal:
    within = str(_some(rng, "uniform", "popularity", "exact"))
    return _some(  # type: ignore[return-value]
        rng, ff.Uniform(), ff.Popularity(), ff.MultiIndex(2, within=within),  # type: ignore[arg-type]
        ff.MultiIndex(2, codebooks=3, residual=True), ff.sampling.QuadraticKernel(),
        ff.sampling.Dynamic(),
    )  # fmt: skip


class _Odd(ff.sampling.Proposal):
    """Of the user's own: what it answers has been spoiled."""

    def __init__(self, rng: Rng, own: ff.sampling.Proposal) -> None:
        self.rng, self.own = rng, own

    def fit(self, item_vectors: Tensor, counts: Tensor | None = None) -> "_Odd":
        self.own.fit(item_vectors, counts)
        return self

    def given(self, queries: Tensor, *, shared: bool = False) -> ff.sampling.Given:
        rng, inner = self.rng, self.own.given(queries, shared=shared)

        class Spoiled(ff.sampling.Given):
            def sample(self, n: int, *, generator: object = None) -> tuple[Tensor, Tensor]:
                return tuple(spoiled(rng, list(inner.sample(n))))  # type: ignore[return-value]

            def log_prob(self, ids: Tensor, row: Tensor | None = None) -> Tensor:
                found = inner.log_prob(ids, row)
                return other_tensor(rng, found) if rng.random() < 0.2 else found  # type: ignore[return-value]

        return Spoiled()


def _leaf(value: object) -> object:
    """A leaf that takes a gradient, if it can: torch itself keeps sparse gradients to leaves."""
    fine = isinstance(value, Tensor) and value.is_floating_point()
    return value.detach().requires_grad_() if fine else value  # type: ignore[union-attr]


def _items(rng: Rng, n: int, d: int) -> object:
    slim = ff.AnchorEmbedding(n, d, anchors=3, width=2, sparse=bool(rng.integers(2)))
    table = real(rng, n, d, dtype=torch.float32)
    return _some(rng, table, table, nn.Embedding(n, d), slim, nn.Linear(d, n), table.double())


@_call
def _sampled(rng: Rng) -> object:
    n, d, rows = size(rng, 20, 3), size(rng, 6, 3), size(rng, 4)
    vectors = real(rng, n, d, dtype=torch.float32)
    proposal: ff.sampling.Proposal = _proposal(rng).fit(vectors, torch.ones(n))
    if rng.random() < 0.4:
        proposal = _Odd(rng, proposal)
    queries = real(rng, rows, d, dtype=torch.float32).requires_grad_()
    at = offsets(rng, rows)
    jagged = whole(rng, n, int(at[-1])), at
    positives = _some(rng, whole(rng, n, rows), whole(rng, n, rows, 2), jagged)
    if isinstance(positives, tuple):
        positives = tuple(spoiled(rng, list(positives)))
        arguments = [*spoiled(rng, [queries]), _items(rng, n, d), positives]
    else:
        queries, positives = spoiled(rng, [queries, positives])
        arguments = [queries, _items(rng, n, d), positives]
    loss = _some(rng, ff.sampled_softmax_loss, ff.noise_contrastive_loss)
    total = loss(  # type: ignore[operator]
        *arguments, proposal, samples=size(rng, 5, 1), shared=bool(rng.integers(2)),
        remove_hits=bool(rng.integers(2)),
    )  # fmt: skip
    if total.requires_grad:
        total.backward()
    return total


@_call
def _states(rng: Rng) -> object:
    n, d = size(rng, 20, 4), size(rng, 6, 3)
    vectors, queries = real(rng, n, d, dtype=torch.float32), real(rng, 3, d, dtype=torch.float32)
    proposal = _proposal(rng).fit(vectors, torch.ones(n))
    state = proposal.state_dict()
    name = sorted(state)[int(rng.integers(len(state)))]
    (other,) = spoiled(rng, [state[name]])
    told = tried(proposal.load_state_dict, {**state, name: other})
    if isinstance(told, Exception):
        assert proposal.state_dict().keys() == state.keys(), "a refused state changed the proposal"
    shared = bool(rng.integers(2))
    proposal.log_prob(queries, whole(rng, n, 3, 2), shared=shared)
    return proposal.sample(queries, 4, shared=shared)


@_call
def _mixes(rng: Rng) -> object:
    k, n, s, d = size(rng, 5, 1), size(rng, 9, 1), size(rng, 3, 1), size(rng, 9, 1)
    stored = _some(rng, torch.uint8, torch.int16, torch.int32)
    slots = whole(rng, k, n, s, dtype=stored)  # type: ignore[arg-type]
    weights, anchors = (real(rng, *shape, dtype=torch.float32) for shape in ((n, s), (k, d)))
    sparse, bags = bool(rng.integers(2)), size(rng, 4)
    if rng.random() < 0.4:
        a = spoiled(rng, [real(rng, size(rng, 40), k, dtype=torch.float32), weights, slots])
        out = tied_scores(*map(_leaf, a), sparse=sparse)  # type: ignore[arg-type]
    elif rng.random() < 0.5:
        a = spoiled(rng, [anchors, weights, slots, whole(rng, n, size(rng))])
        out = mixed(*map(_leaf, a), sparse=sparse)  # type: ignore[arg-type]
    else:
        at = offsets(rng, bags)
        by = real(rng, bags, dtype=torch.float32)
        a = spoiled(rng, [anchors, weights, slots, whole(rng, n, int(at[-1])), at, by])
        out = mixed_bags(*map(_leaf, a), sparse=sparse)  # type: ignore[arg-type]
    if out.requires_grad:
        out.sum().backward()
    return out


@_call
def _embedding(rng: Rng) -> object:
    n, d = size(rng, 9, 1), size(rng, 6, 1)
    table = ff.AnchorEmbedding(n, d, anchors=3, width=_some(rng, None, 2))  # type: ignore[arg-type]
    if rng.random() < 0.5:
        return table.logits(*spoiled(rng, [real(rng, 3, d, dtype=torch.float32)]))  # type: ignore[arg-type]
    return table(*spoiled(rng, [whole(rng, n, 2, 3)]))


@_call
def _steps(rng: Rng) -> object:
    rows, width = size(rng, 9, 1), size(rng, 6, 1)
    param = nn.Parameter(real(rng, rows, width, dtype=torch.float32))
    make = _some(rng, ff.optim.Adam, ff.optim.Adagrad, ff.optim.SGD, ff.optim.Yogi)
    optimiser = make([param], lr=0.1)  # type: ignore[operator]
    for _ in range(2):
        index = whole(rng, rows, 1, 4)
        values = real(rng, 4, width, dtype=torch.float32)
        if rng.random() < 0.5:
            index, values = index[:, :2], values[:2]
        param.grad = torch.sparse_coo_tensor(
            index + (int(rng.integers(-1, 2)) if rng.random() < 0.2 else 0), values,
            param.shape, check_invariants=False,
        )  # fmt: skip
        optimiser.step()
    state = optimiser.state_dict()
    held = state["state"].get(0, {})
    for name in list(held):
        if isinstance(held[name], Tensor) and rng.random() < 0.5:
            (held[name],) = spoiled(rng, [held[name]])
    optimiser.load_state_dict(state)
    optimiser.step()
    return param


@_call
def _structures(rng: Rng) -> object:
    rows, n, states = size(rng, 3), size(rng, 5, 1), size(rng, 4, 1)
    s = ff.structures
    steps, ends = real(rng, states, states), real(rng, states)
    if rng.random() < 0.3:
        steps = steps[:, :1].expand(states, states) if rng.random() < 0.5 else steps.T
        ends = ends[:1].expand(states)
    made = {
        "sequence": lambda: (
            s.Sequence(*spoiled(rng, [steps]), start=ends, stop=ends),
            (n, states),
        ),  # type: ignore[arg-type]
        "subset": lambda: (s.SequentialSubset(size(rng, n, 1), *spoiled(rng, [0.5])), (n,)),  # type: ignore[arg-type]
        "tree": lambda: (s.DependencyTree(projective=bool(rng.integers(2))), (n, n)),
        "assignment": lambda: (s.Assignment(), (n, n + size(rng, 2))),
        "matching": lambda: (s.Matching(), (n, states)),
        "budget": lambda: (s.Budget(size(rng, n, 1)), (n,)),
    }
    structure, event = made[sorted(made)[int(rng.integers(len(made)))]]()
    scores = real(rng, rows, *event, dtype=torch.float32)
    if rng.random() < 0.3 and scores.numel():
        scores = scores[..., :1].expand(scores.shape)  # an inner stride of 0
    (scores,) = spoiled(rng, [scores])  # type: ignore[assignment]
    if rng.random() < 0.5 and isinstance(scores, Tensor) and scores.is_floating_point():
        scores = scores.detach().requires_grad_()
    what = size(rng, 4)
    if what == 0:
        return structure.argmax(scores)
    if what == 1:
        return structure.k_best(scores, *spoiled(rng, [2]))  # type: ignore[arg-type]
    if what == 2:
        return ff.structured.topk_support(scores, structure, *spoiled(rng, [2]))  # type: ignore[arg-type]
    if what == 3:
        return ff.sparsemap_support(scores, structure)
    found = ff.sparsemap(scores, structure)
    if found.requires_grad:
        found.sum().backward()
    return found
