"""Expected costs of discrete latents: the support alone compared with a loop over all pairs.

``python -m benchmarks.expectation`` prints the seconds of both sides of the row of bits.
"""

import heapq
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fewfold as ff
from benchmarks.harness import Case, Pair, Peak, threads
from experiments.semisupervised_vae.digits import Digits, Split, digits
from experiments.semisupervised_vae.run import METHODS
from experiments.semisupervised_vae.training import Budget, Training
from fewfold._timing import Call, race

BATCH = 64
WARM = Budget(warm=20, batch=BATCH)
# glibc gives freed memory back to the system, and a step with tensors of megabytes then waits for
# new pages; other allocators keep it, and this asks glibc to.
KEEPING = {"MALLOC_TRIM_THRESHOLD_": str(2**30), "MALLOC_MMAP_THRESHOLD_": str(2**30)}


def cases() -> list[Case]:
    """Yield all rows of the suite, in the order of the claims."""
    return [
        Case(
            "sparse marginal, a step",
            f"{BATCH} x 256, about 3 each",
            "a loop over the values in use",
            1 / 20,
            _categories,
        ),
        Case(
            "top-k bits, a step",
            f"{BATCH} x 128, k=10",
            "a loop over the examples",
            1 / 5,
            _bits,
        ),
        Case(
            "top-k bits, freed memory is kept",
            f"{BATCH} x 128, k=10",
            "a loop over the examples",
            1 / 5,
            _keeping,
        ),
        Case(
            "semi-supervised VAE, a step",
            f"{BATCH} + {BATCH} images, 10 labels",
            "ff.Dense()",
            0.35,
            _labels,
        ),
    ]


def _categories() -> Pair:
    torch.manual_seed(0)
    symbols, width = 256, 256
    scores = 1.3 * torch.randn(BATCH, symbols)  # sparsemax leaves about 3
    images = torch.randn(BATCH, 16, width)
    target = torch.randint(16, (BATCH,))
    table = nn.Parameter(torch.randn(symbols, width) / width**0.5)
    given = scores.requires_grad_()

    def answer(message: Tensor, seen: Tensor, right: Tensor) -> Tensor:
        logits = torch.bmm(seen, message.unsqueeze(2)).squeeze(2)
        return F.cross_entropy(logits, right, reduction="none")

    def ours() -> None:
        out = ff.expect(
            lambda atoms, row: answer(
                ff.expectation.embed_atoms(atoms, table), images[row], target[row]
            ),
            given,
            ff.SparseMarginal(),
        )
        _learn(out.loss - 0.1 * out.entropy.mean(), given, table)

    def peer() -> None:
        probs = ff.sparsemax(given)
        total = given.new_zeros(())
        used = (probs.detach() > 0).any(0).nonzero()[:, 0].tolist()  # as the reference does
        for symbol in used:
            message = table[symbol].expand(BATCH, width)
            total = total + (probs[:, symbol] * answer(message, images, target)).mean()
        entropy = -(probs * probs.clamp(min=1e-10).log()).sum(1).mean()
        _learn(total - 0.1 * entropy, given, table)

    _agree(ours, peer, given)
    return Pair(ours, peer)


def _bits() -> Pair:
    torch.manual_seed(0)
    size, k = 128, 10
    scores = torch.randn(BATCH, size, requires_grad=True)
    pixels = torch.rand(BATCH, 784)
    last = nn.Linear(128, 784)
    body = nn.Sequential(nn.Linear(size, 128), nn.ReLU())
    decoder = nn.Sequential(body, last)

    def cost(atoms: Tensor, row: Tensor) -> Tensor:
        return ff.expectation.linear_bernoulli_cost(
            body(atoms), last.weight, last.bias, pixels, row
        )

    def plain_cost(bits: Tensor, row: Tensor) -> Tensor:  # for few pairs no slower than the other
        found = decoder(bits)
        return F.binary_cross_entropy_with_logits(found, pixels[row], reduction="none").sum(1)

    estimator, over = ff.SparseMarginal(k=k), ff.structures.Bits()

    def ours() -> None:
        out = ff.expect(cost, scores, estimator, over)
        _learn(out.loss - out.entropy.mean(), scores, *decoder.parameters())

    def peer() -> None:
        total = scores.new_zeros(())
        for i in range(BATCH):
            bits = torch.tensor(_best_bits(scores[i].tolist(), k))
            probs = ff.sparsemax(bits @ scores[i])
            used = probs.detach() > 0
            probs, bits = probs[used], bits[used]
            value = (probs * plain_cost(bits, torch.full((len(bits),), i))).sum()
            total = total + value + (probs * probs.log()).sum()
        _learn(total / BATCH, scores, *decoder.parameters())

    _agree(ours, peer, scores)
    return Pair(ours, peer)


def _keeping() -> Peak:
    """Measure the row before with both sides in one process whose allocator keeps freed memory."""
    command = [sys.executable, "-m", "benchmarks.expectation"]
    found = subprocess.run(command, env={**os.environ, **KEEPING}, capture_output=True, check=True)
    ours, peer = json.loads(found.stdout)
    return Peak(ours, peer, "seconds")


def _labels() -> Pair:
    """Steps of `experiments.semisupervised_vae` from its warm start, on drawn digits."""
    split = _drawn_digits()
    sparse, dense = (Training(METHODS[name], split, WARM, 0) for name in ("sparse", "dense"))
    return Pair(_steps(sparse), _steps(dense))


def _steps(state: Training) -> Call:
    for _ in range(WARM.warm):
        state.warm_epoch()
    found = (out for _ in itertools.count() for out in state.steps())
    return lambda: next(found)


def _drawn_digits() -> Split:
    """Images of ten classes that a classifier tells apart, a fifth of their pixels white."""
    draw = torch.Generator().manual_seed(0)
    bright = torch.rand(10, 784, generator=draw).lt(0.2)

    def part(count: int) -> Digits:
        labels = torch.randint(10, (count,), generator=draw)
        odd = torch.rand(count, 784, generator=draw) < 0.05
        return digits(255 * (bright[labels] ^ odd), labels)

    return Split(part(10 * BATCH), part(100 * BATCH), part(BATCH), part(BATCH))


def _best_bits(scores: list[float], k: int) -> list[list[float]]:
    """Return the k best bit vectors by flipping the least certain bits of the best, in a heap."""
    price = sorted((abs(score), i) for i, score in enumerate(scores))
    best = [float(score > 0) for score in scores]
    found = [best]
    heap: list[tuple[float, int, tuple[int, ...]]] = [(price[0][0], 0, (price[0][1],))]
    while heap and len(found) < k:
        cost, last, flips = heapq.heappop(heap)
        bits = list(best)
        for i in flips:
            bits[i] = 1 - bits[i]
        found.append(bits)
        if last + 1 < len(price):
            more, i = price[last + 1]
            heapq.heappush(heap, (cost + more, last + 1, (*flips, i)))
            without = cost - price[last][0] + more
            heapq.heappush(heap, (without, last + 1, (*flips[:-1], i)))
    return found


def _learn(loss: Tensor, *parameters: Tensor) -> None:
    for parameter in parameters:
        parameter.grad = None
    loss.backward()


def _agree(ours: Callable[[], None], peer: Callable[[], None], scores: Tensor) -> None:
    """Raise unless both sides compute the same values."""
    grads = []
    for call in (ours, peer):
        call()
        assert scores.grad is not None
        grads.append(scores.grad.clone())
    torch.testing.assert_close(*grads, atol=1e-3, rtol=1e-3)


def main() -> None:
    """Time both sides of the row of bits and print their seconds."""
    with threads(1):
        pair = _bits()
        times = race({"ours": pair.ours, "peer": pair.peer}, seconds=1.5)
    print(json.dumps([times["ours"].median, times["peer"].median]))


if __name__ == "__main__":
    main()
