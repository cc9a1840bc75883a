"""Order of the users of a streamed log in an epoch."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import torch
from torch import Tensor

from fewfold.recommender.prepared.streamed_interactions import StreamedInteractions

__all__ = ["StreamedEpoch"]


@dataclass(frozen=True)
class StreamedEpoch(Sequence[Tensor]):
    """Users of each step of an epoch: windows in random order, the users of each shuffled.

    A window is read while that before it is trained on. The order is that of the seed, and the
    number of steps that of the manifest, in any group of processes.

    Attributes:
        log: the interactions.
        order: numbers of the windows.
        seed: of the order of the users.
        batch: most users of a step.
        first: steps that are left out at the start.
        last: step before which it ends; None for all.
    """

    log: StreamedInteractions
    order: tuple[int, ...]
    seed: int
    batch: int
    first: int = 0
    last: int | None = None
    _shuffled: dict[int, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def draw(
        cls, log: StreamedInteractions, batch: int, generator: torch.Generator
    ) -> "StreamedEpoch":
        """Draw the order of an epoch."""
        order = torch.randperm(log.windows, generator=generator).tolist()
        seed = int(torch.randint(2**62, (), generator=generator))
        return cls(log, tuple(order), seed, batch)

    @staticmethod
    def steps(log: StreamedInteractions, batch: int) -> int:
        """Return the number of steps of every epoch."""
        sizes = (after - before for before, after in itertools.pairwise(log.starts))
        return sum(-(-size // batch) for size in sizes)

    def __len__(self) -> int:
        steps = self.steps(self.log, self.batch)
        return max(0, min(steps, steps if self.last is None else self.last) - self.first)

    @overload
    def __getitem__(self, index: int) -> Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> "StreamedEpoch": ...

    def __getitem__(self, index: int | slice) -> "Tensor | StreamedEpoch":
        if isinstance(index, slice):
            start, stop, _ = index.indices(len(self))
            return StreamedEpoch(
                self.log, self.order, self.seed, self.batch, self.first + start, self.first + stop
            )
        if not 0 <= index < len(self):
            raise IndexError(f"there are {len(self)} steps, got {index}")
        step = self.first + index
        for place, number in enumerate(self.order):
            size = self.log.starts[number + 1] - self.log.starts[number]
            steps = -(-size // self.batch)
            if step < steps:
                found = self._users(place, number, size, steps)
                self.log.expect(found[step : min(step + 2, steps, step + len(self) - index)])
                return found[step]
            step -= steps
        raise AssertionError

    def _users(self, place: int, number: int, size: int, steps: int) -> Sequence[Tensor]:
        """Return the users of each step of a window, whose items and the next are in memory."""
        if number not in self._shuffled:
            following = self.order[place + 1] if place + 1 < len(self.order) else None
            self.log.enter(number, following)
            generator = torch.Generator().manual_seed(self.seed + place)
            order = torch.randperm(size, generator=generator) + self.log.starts[number]
            self._shuffled.clear()
            self._shuffled[number] = order.tensor_split(steps)
        found: Sequence[Tensor] = self._shuffled[number]
        return found
