"""Anchor tables compared with dense ones: training step, memory, lookups and logits."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import cycle

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fewfold as ff
from benchmarks.harness import Case, Pair, Peak
from fewfold.embeddings.sparsify.proximal import Proximal, proximal
from fewfold.embeddings.table.embedding import AnchorEmbedding

ROWS, WIDTH, ANCHORS, NONZEROS, BATCH = 1_000_000, 128, 512, 8, 8192
WORDS, HIDDEN, QUERIES = 262_144, 256, 128  # of an output layer

Step = Callable[[Tensor, Tensor], object]
Make = Callable[[list[Tensor]], torch.optim.Optimizer]


def cases() -> list[Case]:
    """Yield all rows of the suite, in the order of the claims."""
    return [*_rows()]


def _rows() -> Iterator[Case]:
    table = "1M x 128, 512 anchors, 8 each"
    dense: list[tuple[str, bool, Make, float]] = [
        ("nn.Embedding(sparse=True), SparseAdam", True, torch.optim.SparseAdam, 1.1),
        ("nn.Embedding, Adam(fused=True)", False, partial(torch.optim.Adam, fused=True), 0.05),
        ("nn.Embedding, Adam", False, torch.optim.Adam, 0.05),
    ]
    for threads in (1, 2):
        for peer, sparse, make, bar in dense:
            build = partial(_training, sparse, make)
            yield Case("AnchorEmbedding training step", table, peer, bar, build, threads)
        yield Case("AnchorEmbedding lookup", table, "nn.Embedding", 2.0, _lookup, threads)
        yield Case("AnchorEmbedding.bag", table, "F.embedding_bag", 2.0, _bags, threads)
        yield Case(
            "AnchorEmbedding.logits", "128 x 262k, 512 anchors, 8 each", "hidden @ table.T", 0.2,
            _scores, threads,
        )  # fmt: skip
    yield Case(
        "AnchorEmbedding and its state", table, "nn.Embedding and SparseAdam's", 1 / 16, _bytes
    )


def _batches() -> Iterator[tuple[Tensor, Tensor]]:
    """Return random ids and gradients of their vectors."""
    draw = torch.Generator().manual_seed(0)
    ids = [torch.randint(ROWS, (BATCH,), generator=draw) for _ in range(8)]
    pull = torch.randn(BATCH, WIDTH, generator=draw)
    return cycle([(batch, pull) for batch in ids])


def _anchored() -> tuple[Step, Proximal, torch.optim.Optimizer, AnchorEmbedding]:
    """Build a training step (lookup, gradient, proximal update) with its optimisers and tables."""
    table = AnchorEmbedding(ROWS, WIDTH, anchors=ANCHORS, width=NONZEROS, sparse=True)
    rows = proximal(ff.optim.Adam([table.transform], lr=1e-3, by_row=True), table, l1=1e-6)
    anchors = torch.optim.Adam([table.anchors], fused=True)
    return partial(_step, table, [rows, anchors]), rows, anchors, table


def _step(
    table: nn.Module, optimizers: list[torch.optim.Optimizer], ids: Tensor, pull: Tensor
) -> None:
    for optimizer in optimizers:
        optimizer.zero_grad()
    table(ids).backward(pull)
    for optimizer in optimizers:
        optimizer.step()


def _dense(sparse: bool, make: Make) -> tuple[Step, torch.optim.Optimizer, nn.Embedding]:
    table = nn.Embedding(ROWS, WIDTH, sparse=sparse)
    optimizer = make(list(table.parameters()))
    return partial(_step, table, [optimizer]), optimizer, table


def _training(sparse: bool, make: Make) -> Pair:
    ours, peer = _anchored()[0], _dense(sparse, make)[0]
    own, its = _batches(), _batches()
    for _ in range(8):  # the pages of the state are made when they are first touched
        ours(*next(own))
    for _ in range(8 if sparse else 1):
        peer(*next(its))
    return Pair(lambda: ours(*next(own)), lambda: peer(*next(its)))


def _bytes() -> Peak:
    """Return the bytes of parameters, buffers and optimiser state, each after one step."""
    step, rows, anchors, table = _anchored()
    other, optimizer, dense = _dense(True, torch.optim.SparseAdam)
    batch = next(_batches())
    step(*batch)
    other(*batch)
    deferred = [value for part in rows._parts for value in vars(part._deferred).values()]
    return Peak(_held(table, rows, anchors) + _sum(deferred), _held(dense, optimizer))


def _held(table: nn.Module, *optimizers: torch.optim.Optimizer) -> int:
    state = [
        value
        for optimizer in optimizers
        for entry in optimizer.state.values()
        for value in entry.values()
    ]
    return _sum([*table.parameters(), *table.buffers(), *state])


def _sum(values: Iterable[object]) -> int:
    return sum(value.nbytes for value in values if isinstance(value, Tensor))


def _lookup() -> Pair:
    ours = AnchorEmbedding(ROWS, WIDTH, anchors=ANCHORS, width=NONZEROS).requires_grad_(False)
    peer = nn.Embedding(ROWS, WIDTH).requires_grad_(False)
    own, its = _batches(), _batches()
    return Pair(lambda: ours(next(own)[0]), lambda: peer(next(its)[0]))


def _bags() -> Pair:
    ours = AnchorEmbedding(ROWS, WIDTH, anchors=ANCHORS, width=NONZEROS).requires_grad_(False)
    peer = nn.Embedding(ROWS, WIDTH).weight.detach()
    own, its = _batches(), _batches()
    offsets = torch.arange(0, BATCH, 32)
    return Pair(
        lambda: ours.bag(next(own)[0], offsets),
        lambda: F.embedding_bag(next(its)[0], peer, offsets, mode="sum"),
    )


def _scores() -> Pair:
    ours = AnchorEmbedding(WORDS, HIDDEN, anchors=ANCHORS, width=NONZEROS).requires_grad_(False)
    weight, hidden = torch.randn(WORDS, HIDDEN), torch.randn(QUERIES, HIDDEN)
    return Pair(lambda: ours.logits(hidden), lambda: hidden @ weight.T)
