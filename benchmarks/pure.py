"""The plain torch path, kernels disabled, compared with the exact maps of the package entmax."""

from collections.abc import Callable
from functools import partial

import entmax
from torch import Tensor

import fewfold as ff
from benchmarks.harness import Case, Pair
from benchmarks.maps import SHAPES, draw
from fewfold import _native

PEERS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "sparsemax": (ff.sparsemax, lambda scores: entmax.sparsemax(scores, dim=-1)),
    "1.5-entmax": (ff.entmax, lambda scores: entmax.entmax15(scores, dim=-1)),
}


def cases() -> list[Case]:
    """Yield the rows: five times faster for rows of at least 4096 entries, never slower."""
    return [
        Case(
            what=f"{name} forward, pure torch",
            size=f"{shape[0]} x {shape[1]}",
            peer="entmax 1.3",
            bar=0.2 if shape[1] >= 4096 else 1.0,
            build=partial(_build, name, shape),
        )
        for name in PEERS
        for shape in SHAPES
    ]


def _build(name: str, shape: tuple[int, int]) -> Pair:
    scores = draw("normal", shape)
    ours, peer = PEERS[name]

    def pure() -> Tensor:
        with _native.disabled():
            return ours(scores)

    return Pair(pure, lambda: peer(scores))
