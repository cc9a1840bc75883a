"""Many random instances of each structure: ``python -m tests.structured.stress --instances 10000``

Prints, for each kind, the worst gap, how many had not converged, and how many calls of the oracle
were needed; the exit code is 1 when one had not converged or a gap is above 1e-8.
"""

import argparse
import time
from collections.abc import Iterator
from itertools import combinations

import torch

import fewfold as ff
from fewfold.structured import structures
from fewfold.structured.structures.structure import Structure

CHUNK = 250


def kinds(draw: torch.Generator) -> Iterator[tuple[str, Structure, tuple[int, ...]]]:
    """Name, structure and event of each."""

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=draw, dtype=torch.float64)

    yield "sequence 20 x 10", structures.Sequence(normal(19, 10, 10), by_position=True), (20, 10)
    yield "sequence 50 x 10", structures.Sequence(normal(49, 10, 10), by_position=True), (50, 10)
    yield "sequence 20 x 50", structures.Sequence(normal(19, 50, 50), by_position=True), (20, 50)
    yield "sequential 10 of 40", structures.SequentialSubset(10, bonus=normal(39)), (40,)
    for words in (20, 40):
        for options in ({}, {"single_root": True}, {"projective": True}):
            name = " ".join(["tree", str(words), *options])
            yield name, structures.DependencyTree(**options), (words, words)
    edges = torch.tensor(list(combinations(range(12), 2)))
    yield "spanning tree of 12", structures.SpanningTree(edges, 12), (len(edges),)
    yield "assignment 10 x 10", structures.Assignment(), (10, 10)
    yield "assignment 20 x 20", structures.Assignment(), (20, 20)
    yield "assignment 10 x 15", structures.Assignment(), (10, 15)
    yield "matching 8 x 12", structures.Matching(), (8, 12)
    yield "bits 64", structures.Bits(), (64,)
    yield "budget 8 of 64", structures.Budget(8), (64,)
    yield "subset 8 of 64", structures.KSubset(8), (64,)
    for logic in (structures.Xor, structures.AtMostOne, structures.Or, structures.OrOut):
        yield f"{logic.__name__} of 32", logic(), (32,)
    yield "pair", structures.Pair(normal(1)[0]), (2,)


def main() -> int:
    """Solve and tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.structured.stress", description=__doc__)
    parser.add_argument("--instances", type=int, default=10_000)
    parser.add_argument("--only", default="", help="kinds whose name contains this")
    parser.add_argument("--scale", type=float, default=1.0, help="of the scores")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    draw = torch.Generator().manual_seed(arguments.seed)
    bad = 0
    print(f"{'kind':<24} {'instances':>9} {'worst gap':>10} {'open':>6} {'turns':>7} {'most':>6} s")
    for name, structure, event in kinds(draw):
        if arguments.only not in name:
            continue
        start, worst, missed, turns, most = time.perf_counter(), 0.0, 0, 0, 0
        for first in range(0, arguments.instances, CHUNK):
            count = min(CHUNK, arguments.instances - first)
            scores = torch.randn(count, *event, generator=draw, dtype=torch.float64)
            found = ff.structured.sparsemap_solution(arguments.scale * scores, structure)
            worst = max(worst, float(found.gap.max()))
            missed += int((~found.converged).sum())
            turns += int(found.iterations.sum())
            most = max(most, int(found.iterations.max()))
        mean, taken = turns / arguments.instances, time.perf_counter() - start
        told = (
            f"{name:<24} {arguments.instances:>9} {worst:>10.2e} {missed:>6} {mean:>7.1f} {most:>6}"
        )
        print(f"{told} {taken:.1f}", flush=True)
        bad += missed > 0 or worst > 1e-8
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
