"""Windows of a prepared log: parts whose users are shuffled together, each read by one rank."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fewfold.recommender.prepared.prepared_manifest import PreparedManifest, part_name

__all__ = ["Window", "divide_into_windows"]


@dataclass(frozen=True)
class Window:
    """Consecutive parts, whose users are numbered from 0 in this order in any group of processes.

    Attributes:
        parts: their numbers.
        sizes: users of each.
        ranks: the rank that reads each.
    """

    parts: tuple[int, ...]
    sizes: tuple[int, ...]
    ranks: tuple[int, ...]

    @property
    def users(self) -> int:
        """Number of users, of all ranks."""
        return sum(self.sizes)

    def parts_of(self, rank: int) -> list[int]:
        """Return the parts that a rank reads."""
        return [part for part, reader in zip(self.parts, self.ranks, strict=True) if reader == rank]

    def counts(self, world: int) -> list[int]:
        """Return the number of users of each rank."""
        found = [0] * world
        for size, rank in zip(self.sizes, self.ranks, strict=True):
            found[rank] += size
        return found

    def owners(self) -> Tensor:
        """Return the rank that has each user, (users,)."""
        return torch.tensor(self.ranks).repeat_interleave(torch.tensor(self.sizes))

    def places(self, world: int) -> Tensor:
        """Return the number of each user among those of its rank, (users,)."""
        shifts, before, read = [], 0, [0] * world
        for size, rank in zip(self.sizes, self.ranks, strict=True):
            shifts.append(read[rank] - before)
            read[rank] += size
            before += size
        return torch.arange(before) + torch.tensor(shifts).repeat_interleave(
            torch.tensor(self.sizes)
        )


def divide_into_windows(manifest: PreparedManifest, most: int, world: int) -> list[Window]:
    """Return windows of about `most` pairs, independent of the number of processes.

    Each part is read by the rank with the fewest pairs of the window, of these by that with the
    fewest pairs of the windows before, the largest parts first. Parts without users are left out.
    """
    total, found = [0] * world, []
    for parts in _grouped(manifest, most):
        pairs = {part: int(manifest.files[part_name(part)]["pairs"]) for part in parts}
        mine, ranks = [0] * world, {}
        for part in sorted(parts, key=lambda part: (-pairs[part], part)):
            rank = min(range(world), key=lambda rank: (mine[rank], total[rank], rank))
            ranks[part] = rank
            mine[rank] += pairs[part]
        total = [one + other for one, other in zip(total, mine, strict=True)]
        sizes = tuple(int(manifest.files[part_name(part)]["rows"]) for part in parts)
        found.append(Window(parts, sizes, tuple(ranks[part] for part in parts)))
    return found


def _grouped(manifest: PreparedManifest, most: int) -> Iterator[tuple[int, ...]]:
    """Yield consecutive parts with users that have about as many pairs as fit into memory."""
    window: list[int] = []
    pairs = 0
    for number in range(manifest.parts):
        mine = manifest.files[part_name(number)]["pairs"]
        if mine == 0:
            continue
        if window and pairs + mine > most:
            yield tuple(window)
            window, pairs = [], 0
        window.append(number)
        pairs += mine
    if window:
        yield tuple(window)
