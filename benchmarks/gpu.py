"""The kernels for GPUs next to torch and the package entmax, and next to their predicted times.

Without a GPU it prints the predictions for an A100 and an H100, and measures nothing. With one, the
size of a row ends with the prediction for this GPU, whose peaks are measured first.
"""

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fewfold as ff
from benchmarks import roofline
from benchmarks.harness import Case, Pair
from benchmarks.roofline import A100, GPU, H100, Work
from fewfold.losses import linear_entmax_loss
from fewfold.losses.sampled_scores import picked_scores

__all__ = ["Claim", "cases", "claims", "predictions"]

Step = Callable[[], object]
DEVICE = "cuda"
ROWS = ((2**18, 32), (2**15, 512), (4096, 4096), (1024, 32768), (16, 2**20))
HEADS, WIDTH = 16, 128
ACTIVE = 1.0  # random queries and keys leave almost no block without weights


@dataclass(frozen=True)
class Claim:
    """A row: what it takes by our count, and how to build our step and that of the peer."""

    what: str
    size: str
    peer: str
    bar: float
    work: Work
    build: Callable[[], tuple[Step, Step]]


def cases() -> list[Case]:
    """Return the rows for the GPU; without one print the predictions and return none."""
    if not torch.cuda.is_available():
        print("There is no GPU, so nothing is measured. Predicted lower bounds of the times:\n")
        print(predictions())
        return []
    gpu = GPU.measured()
    print(
        f"{gpu.name}: a copy moves {gpu.bandwidth / 1e12:.2f} TB/s, a matrix product of bfloat16 "
        f"reaches {gpu.matrix / 1e12:.0f} TFLOP/s"
    )
    return [_case(claim, gpu) for claim in claims()]


def predictions() -> str:
    """Return a table of the predicted milliseconds."""
    lines = [f"| what | size | {A100.name} | {H100.name} |", "|---|---|--:|--:|"]
    for (what, size), work in {(one.what, one.size): one.work for one in claims()}.items():
        times = (f"{1e3 * work.seconds(gpu):.3g} ms" for gpu in (A100, H100))
        lines.append(f"| {' | '.join((what, size, *times))} |")
    return "\n".join(lines)


def _case(claim: Claim, gpu: GPU) -> Case:
    def build() -> Pair:
        ours, theirs = claim.build()
        return Pair(_synchronised(ours), _synchronised(theirs))

    size = f"{claim.size}, predicted {1e3 * claim.work.seconds(gpu):.3g} ms"
    return Case(claim.what, size, claim.peer, claim.bar, build)


def _synchronised(step: Step) -> Callable[[], None]:
    def call() -> None:
        step()
        torch.cuda.synchronize()

    return call


def claims() -> list[Claim]:
    """Return all rows; their inputs are made when a row is measured."""
    return [*_rows(), *_attention(), *_linear(), *_picked(), _adam(), _draws()]


def _rows() -> Iterator[Claim]:
    package = importlib.util.find_spec("entmax") is not None
    for name, ours in (("sparsemax", ff.sparsemax), ("1.5-entmax", ff.entmax)):
        peers = {"torch.softmax": torch.softmax}
        if package:
            theirs = importlib.import_module("entmax")
            peers["entmax"] = theirs.sparsemax if name == "sparsemax" else theirs.entmax15
        for shape in ROWS:
            size = f"{shape[0]} x {shape[1]}"
            forward = roofline.entmax(*shape)
            step = forward + roofline.entmax_backward(*shape)
            for peer, function in peers.items():
                bar = 2.0 if peer == "torch.softmax" else 0.2
                yield Claim(
                    f"{name}, forward", size, peer, bar, forward,
                    partial(_map_calls, shape, ours, function, False),
                )  # fmt: skip
                yield Claim(
                    f"{name}, a step", size, peer, bar, step,
                    partial(_map_calls, shape, ours, function, True),
                )  # fmt: skip


def _map_calls(
    shape: tuple[int, int], ours: Callable[..., Tensor], theirs: Callable[..., Tensor], learn: bool
) -> tuple[Step, Step]:
    scores = torch.randn(shape, device=DEVICE).requires_grad_(learn)
    grad = torch.randn(shape, device=DEVICE)

    def step(function: Callable[..., Tensor]) -> object:
        probs = function(scores, dim=-1)
        return torch.autograd.grad(probs, scores, grad) if learn else probs

    return lambda: step(ours), lambda: step(theirs)


def _attention() -> Iterator[Claim]:
    for length in (1024, 4096, 16384):
        shape = (HEADS, length, length, WIDTH)
        forward = roofline.attention(*shape, causal=True, active=ACTIVE)
        step = forward + roofline.attention_backward(*shape, causal=True, active=ACTIVE)
        for what, work, learn in (("forward", forward, False), ("a step", step, True)):
            yield Claim(
                f"causal 1.5-entmax attention, {what}",
                f"{HEADS} x {length} x {WIDTH} bfloat16",
                "torch's attention",
                5.0,
                work,
                partial(_attention_calls, length, learn),
            )


def _attention_calls(length: int, learn: bool) -> tuple[Step, Step]:
    given = [
        torch.randn(1, HEADS, length, WIDTH, device=DEVICE, dtype=torch.bfloat16).requires_grad_(
            learn
        )
        for _ in range(3)
    ]
    grad = torch.randn_like(given[0])

    def step(attend: Callable[..., Tensor]) -> object:
        out = attend(*given, is_causal=True)
        return torch.autograd.grad(out, given, grad) if learn else out

    return (
        lambda: step(ff.sparse_attention),
        lambda: step(F.scaled_dot_product_attention),
    )


def _linear() -> Iterator[Claim]:
    rows, features, classes = 4096, 768, 131072
    yield Claim(
        "linear_entmax_loss, a step",
        f"{rows} x {features} x {classes}",
        "F.linear, F.cross_entropy",
        1.0,
        roofline.linear_loss(rows, features, classes),
        partial(_linear_calls, rows, features, classes),
    )


def _linear_calls(rows: int, features: int, classes: int) -> tuple[Step, Step]:
    hidden = torch.randn(rows, features, device=DEVICE).requires_grad_()
    weight = (torch.randn(classes, features, device=DEVICE) / 10).requires_grad_()
    target = torch.randint(classes, (rows,), device=DEVICE)

    def ours() -> object:
        return torch.autograd.grad(linear_entmax_loss(hidden, weight, target), [hidden, weight])

    def theirs() -> object:
        loss = F.cross_entropy(F.linear(hidden, weight), target)
        return torch.autograd.grad(loss, [hidden, weight])

    return ours, theirs


def _picked() -> Iterator[Claim]:
    queries, picked, d = 4096, 200, 64
    work = roofline.picked_scores(queries, picked, d)
    work += roofline.picked_gradients(queries, picked, d)
    yield Claim(
        "scores of selected items, a step",
        f"{queries} x {picked} of 1000000, width {d}",
        "F.embedding and a product",
        0.5,
        work,
        partial(_picked_calls, queries, picked, d),
    )


def _picked_calls(queries: int, picked: int, d: int) -> tuple[Step, Step]:
    vectors = torch.randn(queries, d, device=DEVICE).requires_grad_()
    table = torch.randn(1_000_000, d, device=DEVICE).requires_grad_()
    ids = torch.randint(len(table), (queries, picked), device=DEVICE)
    none = ids.new_zeros(0), ids.new_zeros(queries + 1)
    grad = torch.randn(queries, picked, device=DEVICE)

    def theirs() -> object:
        scores = (F.embedding(ids, table, sparse=True) @ vectors.unsqueeze(2)).squeeze(2)
        return torch.autograd.grad(scores, [vectors, table], grad)

    def ours() -> object:
        scores, _ = picked_scores(vectors, table, ids, none)
        return torch.autograd.grad(scores, [vectors, table], grad)

    return ours, theirs


def _adam() -> Claim:
    rows, d = 100_000, 64
    return Claim(
        "Adam of touched rows",
        f"{rows} of 1000000, width {d}",
        "torch.optim.SparseAdam",
        0.7,
        roofline.adam(rows, d),
        partial(_adam_calls, rows, d),
    )


def _adam_calls(rows: int, d: int) -> tuple[Step, Step]:
    index = torch.randperm(1_000_000, device=DEVICE)[:rows].sort().values
    values = torch.randn(rows, d, device=DEVICE)
    steps = []
    for kind in (ff.optim.Adam, torch.optim.SparseAdam):
        table = nn.Parameter(torch.randn(1_000_000, d, device=DEVICE))
        table.grad = torch.sparse_coo_tensor(
            index.unsqueeze(0), values, table.shape, is_coalesced=True, check_invariants=False
        )
        steps.append(kind([table]).step)
    return steps[0], steps[1]


def _draws() -> Claim:
    queries, n, words = 4096, 200, 64
    return Claim(
        "draws of MultiIndex",
        f"{queries} x {n}, {words} x {words} codewords, 100000 items",
        "torch.multinomial of the cells",
        1.0,
        roofline.draws(queries, n, words * words),
        partial(_draw_calls, queries, n, words),
    )


def _draw_calls(queries: int, n: int, words: int) -> tuple[Step, Step]:
    items = torch.randn(100_000, 32, device=DEVICE)
    given = ff.MultiIndex(words).fit(items).given(torch.randn(queries, 32, device=DEVICE))
    chance = torch.rand(queries, words * words, device=DEVICE)
    return lambda: given.sample(n), lambda: torch.multinomial(chance, n, replacement=True)
