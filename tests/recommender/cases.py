"""What the tests of the room draw: logs of every shape, small enough to check by hand."""

import torch
from hypothesis import strategies as st

from fewfold.recommender import Interactions


@st.composite
def logs(draw: st.DrawFn, timed: bool = False, least: int = 0) -> Interactions:
    """Up to 8 users and 10 items; users and items without a pair, repetitions, equal times."""
    users, items = draw(st.integers(1, 8)), draw(st.integers(1, 10))
    pair = st.tuples(st.integers(0, users - 1), st.integers(0, items - 1), st.integers(-3, 3))
    drawn = draw(st.lists(pair, min_size=least, max_size=60))
    who, what, when = torch.tensor(drawn, dtype=torch.int64).view(-1, 3).unbind(1)
    return Interactions.from_pairs(who, what, when if timed else None, (users, items))


def pairs(log: Interactions) -> set[tuple[int, int]]:
    """The log as a Python set."""
    return set(zip(log.row.tolist(), log.ids.tolist(), strict=True))
