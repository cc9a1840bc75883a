"""Maps compared with torch.softmax: forward, backward, hard rows, threads, small inputs."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

import fewfold as ff
from benchmarks.harness import Case, Pair

Map = Callable[[Tensor], Tensor]

SHAPES = ((4096, 32), (1024, 512), (512, 4096), (128, 32768), (4, 2_000_000))
FORWARD_15 = (0.5, 0.6, 0.6, 0.6, 0.6)
GRADIENT = (0.9, 0.9, 0.7, 0.7, 0.7)
GENERAL = (4.5, 3.6, 2.4, 1.5, 0.7)


def softmax(scores: Tensor) -> Tensor:
    """Compute softmax, the peer."""
    return torch.softmax(scores, -1)


def general(scores: Tensor) -> Tensor:
    """Compute entmax for an alpha without a closed form."""
    return ff.entmax(scores, 1.25)


def cases() -> list[Case]:
    """Yield all rows of the suite, in the order of the claims."""
    return [*_forward(), *_gradient(), *_adversarial(), *_threads(), *_tiny()]


def _forward() -> Iterator[Case]:
    for shape in SHAPES:
        yield _race("sparsemax forward", ff.sparsemax, shape, 0.5)
    for shape, bar in zip(SHAPES, FORWARD_15, strict=True):
        yield _race("1.5-entmax forward", ff.entmax, shape, bar)
    for shape, bar in zip(SHAPES, GENERAL, strict=True):
        yield _race("1.25-entmax forward", general, shape, bar)
    for shape in SHAPES:
        yield _race("normmax(2) forward", ff.normmax, shape, 1.3, peer=("1.5-entmax", ff.entmax))
    for shape in SHAPES[:2]:
        for k in (3, shape[1] // 4):
            yield _race(f"ksubset({k}) forward", _ksubset(k), shape, 1.0)


def _gradient() -> Iterator[Case]:
    for name, fun in (("sparsemax", ff.sparsemax), ("1.5-entmax", ff.entmax)):
        for shape, bar in zip(SHAPES, GRADIENT, strict=True):
            yield Case(
                what=f"{name} forward+backward",
                size=_size(shape),
                peer="torch.softmax",
                bar=bar,
                build=partial(_both_ways, fun, shape),
            )


def _adversarial() -> Iterator[Case]:
    for kind in ("constant", "sorted", "narrow", "heavy-tailed"):
        for name, fun in (("sparsemax", ff.sparsemax), ("1.5-entmax", ff.entmax)):
            for shape in SHAPES:
                yield _race(f"{name} forward, {kind}", fun, shape, 2.0, kind=kind)


def _threads() -> Iterator[Case]:
    for name, fun in (("sparsemax", ff.sparsemax), ("1.5-entmax", ff.entmax)):
        for shape in SHAPES[3:]:
            yield Case(
                what=f"{name} forward, two threads",
                size=_size(shape),
                peer=f"{name}, one thread",
                bar=1 / 1.6,
                build=partial(_two_threads, fun, shape),
                threads=2,
            )
    for name, fun in (("sparsemax", ff.sparsemax), ("1.5-entmax", ff.entmax)):
        yield Case(
            what=f"torch.sigmoid right after {name}",
            size=_size(SHAPES[2]),
            peer="after torch.softmax",
            bar=1.1,
            build=partial(_following, fun, SHAPES[2]),
            threads=2,
        )


def _tiny() -> Iterator[Case]:
    for name, fun in (("sparsemax", ff.sparsemax), ("1.5-entmax", ff.entmax)):
        yield _race(f"{name} forward, tiny", fun, (8, 32), 2.0)


def _race(
    what: str,
    fun: Map,
    shape: tuple[int, int],
    bar: float,
    *,
    peer: tuple[str, Map] = ("torch.softmax", softmax),
    kind: str = "normal",
) -> Case:
    peer_name, peer_fun = peer

    def build() -> Pair:
        scores = draw(kind, shape)
        return Pair(lambda: fun(scores), lambda: peer_fun(scores), scores.clone)

    return Case(what=what, size=_size(shape), peer=peer_name, bar=bar, build=build)


def _both_ways(fun: Map, shape: tuple[int, int]) -> Pair:
    scores = draw("normal", shape).requires_grad_()
    upstream = draw("normal", shape, seed=1)
    return Pair(
        lambda: torch.autograd.grad(fun(scores), scores, upstream),
        lambda: torch.autograd.grad(softmax(scores), scores, upstream),
    )


def _two_threads(fun: Map, shape: tuple[int, int]) -> Pair:
    scores = draw("normal", shape)
    return Pair(
        lambda: fun(scores),
        lambda: fun(scores),
        before_ours=lambda: torch.set_num_threads(2),
        before_peer=lambda: torch.set_num_threads(1),
    )


def _following(fun: Map, shape: tuple[int, int]) -> Pair:
    """Time a threaded torch op on other data after each map; the map itself is not timed.

    A second pool of threads, still spinning for work, would slow it down.
    """
    scores, other = draw("normal", shape), draw("normal", shape, seed=1)
    return Pair(
        lambda: torch.sigmoid(other),
        lambda: torch.sigmoid(other),
        before_ours=lambda: fun(scores),
        before_peer=lambda: softmax(scores),
    )


def draw(kind: str, shape: tuple[int, int], seed: int = 0) -> Tensor:
    """Sample scores of a kind: normal, or rows that are hard for a threshold search."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(*shape, generator=generator)
    if kind == "constant":
        return torch.full(shape, 0.5)
    if kind == "sorted":
        return scores.sort(dim=-1).values
    if kind == "narrow":  # almost everything stays in the support
        return scores * 1e-3
    if kind == "heavy-tailed":
        return scores / torch.randn(*shape, generator=generator)
    return scores


def _ksubset(k: int) -> Map:
    return lambda scores: ff.ksubset(scores, k)


def _size(shape: tuple[int, int]) -> str:
    return f"{shape[0]} x {shape[1]}"
