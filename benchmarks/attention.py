"""Sparse attention and Hopfield retrieval compared with their dense counterparts.

``python -m benchmarks.attention NAME`` prints the peak memory, beyond its inputs, of one step of
the attention of that name. The process does nothing else: a high-water mark cannot be taken back.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import fewfold as ff
from benchmarks.harness import Case, Pair, Peak
from fewfold._resources import peak_memory

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]

LONG, SHORT, HEADS, WIDTH = 8192, 2048, 8, 64


def cases() -> list[Case]:
    """Yield all rows of the suite, in the order of the claims."""
    return [*_pooling(), *_long(), *_short()]


def _pooling() -> Iterator[Case]:
    for name, omega in (("sparsemax", ff.Gini()), ("1.5-entmax", ff.Tsallis(1.5))):
        yield Case(
            what=f"HopfieldPooling {name}, a step",
            size="64 x 1024 x 64",
            peer="the same with softmax",
            bar=1.0,
            build=partial(_pools, omega),
        )


def _pools(omega: ff.Omega) -> Pair:
    torch.manual_seed(0)
    ours, theirs = ff.HopfieldPooling(64, omega), ff.HopfieldPooling(64, ff.Shannon())
    theirs.load_state_dict(ours.state_dict())
    bags = torch.randn(64, 1024, 64).requires_grad_()

    def step(layer: ff.HopfieldPooling) -> None:
        torch.autograd.grad(layer(bags).square().sum(), [bags, *layer.parameters()])

    return Pair(partial(step, ours), partial(step, theirs))


def _long() -> Iterator[Case]:
    size = f"{HEADS} x {LONG} x {WIDTH}"
    for name in ("1.5-entmax", "sparsemax"):
        peer = f"{name} of all scores"
        yield Case(f"{name} attention, a step", size, peer, 1.0, partial(_race, name, peer, LONG))
        yield Case(f"{name} attention, peak memory", size, peer, 0.1, partial(_peaks, name, peer))


def _short() -> Iterator[Case]:
    size = f"{HEADS} x {SHORT} x {WIDTH}"
    peer = "F.scaled_dot_product_attention, math"
    for name in ("1.5-entmax", "sparsemax"):
        yield Case(f"{name} attention, a step", size, peer, 1.0, partial(_race, name, peer, SHORT))


def _softmax(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(query, key, value)


def _sparse(query: Tensor, key: Tensor, value: Tensor, omega: ff.Omega) -> Tensor:
    return ff.sparse_attention(query, key, value, omega)


def _whole(query: Tensor, key: Tensor, value: Tensor, omega: ff.Omega) -> Tensor:
    return omega.argmax(query @ key.mT / WIDTH**0.5) @ value


ATTENTIONS: dict[str, Attention] = {
    "1.5-entmax": partial(_sparse, omega=ff.Tsallis(1.5)),
    "sparsemax": partial(_sparse, omega=ff.Gini()),
    "1.5-entmax of all scores": partial(_whole, omega=ff.Tsallis(1.5)),
    "sparsemax of all scores": partial(_whole, omega=ff.Gini()),
    "F.scaled_dot_product_attention, math": _softmax,
}


def _inputs(length: int) -> list[Tensor]:
    """Return queries, keys and values whose scores are N(0, 1)."""
    generator = torch.Generator().manual_seed(0)
    shape = (1, HEADS, length, WIDTH)
    return [torch.randn(shape, generator=generator).requires_grad_() for _ in range(3)]


def _step(attention: Attention, inputs: list[Tensor]) -> None:
    """Run forward and backward, and discard the gradients."""
    torch.autograd.grad(attention(*inputs).sum(), inputs)


def _race(ours: str, peer: str, length: int) -> Pair:
    inputs = _inputs(length)
    return Pair(partial(_step, ATTENTIONS[ours], inputs), partial(_step, ATTENTIONS[peer], inputs))


def _peaks(ours: str, peer: str) -> Peak:
    return Peak(_peak(ours), _peak(peer))


def _peak(name: str) -> float:
    """Return the peak memory of one step, measured in a new process."""
    command = [sys.executable, "-m", "benchmarks.attention", name]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def main() -> None:
    """Measure the attention named on the command line."""
    torch.set_num_threads(1)
    attention = ATTENTIONS[sys.argv[1]]
    _step(attention, _inputs(2))  # what is loaded on first use is not the step's
    inputs = _inputs(LONG)
    before = peak_memory()
    _step(attention, inputs)
    print(peak_memory() - before)


if __name__ == "__main__":
    main()
