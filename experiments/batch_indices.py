"""Indices of batches: at random, of instances about as long, or in order."""

from collections.abc import Iterator, Sequence

import torch


def shuffled(lengths: Sequence[int], size: int, pool: int) -> Iterator[list[int]]:
    """Yield batches of all instances in random order, sorted by length within `pool` batches."""
    order = torch.randperm(len(lengths)).tolist()
    groups: list[list[int]] = []
    for start in range(0, len(order), pool * size):
        alike = sorted(order[start : start + pool * size], key=lambda i: lengths[i])
        groups += [alike[i : i + size] for i in range(0, len(alike), size)]
    for number in torch.randperm(len(groups)).tolist():
        yield groups[number]


def in_order(count: int, size: int) -> Iterator[range]:
    """Yield batches of `count` instances in their order."""
    for start in range(0, count, size):
        yield range(start, min(start + size, count))
