"""A window in memory whose users are divided among processes."""

from collections.abc import Callable

import torch
from torch import Tensor

from fewfold.distributed.group import Group
from fewfold.recommender.interactions import Interactions
from fewfold.recommender.jagged import Jagged, offsets_of
from fewfold.recommender.prepared.window import Window

__all__ = ["SharedWindow"]

_NAME = "histories"  # of the traffic


class SharedWindow:
    """Users of a window, of which each process has those of its parts.

    All processes construct it together and call its methods in the same order, with the same users,
    given by their numbers in the window. Item numbers are sent as int32, which parts are stored in.

    Args:
        group: the processes.
        window: the parts, and the rank that reads each.
        own: users of the parts of this process.

    Attributes:
        lengths: (users,) number of items of each user of the window.
    """

    def __init__(self, group: Group, window: Window, own: Interactions) -> None:
        self._group, self._own, self.lengths = group, own, own.jagged.lengths
        if group.world == 1:
            return
        self._owners, self._places = window.owners(), window.places(group.world)
        counts = window.counts(group.world)
        gathered = group.gather(self.lengths.int(), counts, _NAME).long()
        starts = offsets_of(torch.tensor(counts))
        self.lengths = gathered[starts[self._owners] + self._places]

    def start(self, users: Tensor, times: Tensor | None = None) -> Callable[[], Jagged]:
        """Start to gather the items of these users.

        Args:
            users: numbers in the window.
            times: of each pair that this process has; gathered in place of the items.

        Returns:
            Function that waits for the items, and returns a row per user, in the given order.
        """
        if self._group.world == 1:
            offsets, positions = self._own.jagged.positions(users)
            found = (self._own.ids if times is None else times)[positions]
            return lambda: Jagged(found, offsets)
        owners, lengths = self._owners[users], self.lengths[users]
        mine = self._places[users[owners == self._group.rank]]
        _, positions = self._own.jagged.positions(mine)
        sent = self._own.ids[positions].int() if times is None else times[positions]
        counts = lengths.new_zeros(self._group.world).index_add_(0, owners, lengths)
        wait = self._group.start_gather(sent, counts.tolist(), _NAME)

        def finish() -> Jagged:
            values = wait()  # of the users of rank 0 first
            order = owners.argsort(stable=True)
            gathered = Jagged(values, offsets_of(lengths[order]))
            offsets, positions = gathered.positions(order.argsort())
            values = values[positions]
            return Jagged(values.long() if times is None else values, offsets)

        return finish
