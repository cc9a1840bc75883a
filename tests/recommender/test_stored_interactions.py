"""Interactions as a folder stores them answer like plain ones, and convert nothing for it."""

import numpy as np
import pytest
import torch

from fewfold.recommender.interactions import Interactions
from fewfold.recommender.stored_interactions import StoredInteractions

ROWS = [[2, 5, 7], [], [0], [1, 2, 3, 4, 7], []]
RANKS = [[1, 0, 1], [], [0], [4, 3, 2, 1, 0], []]
DISLIKED = [[1], [0, 6], [], [5], []]


def flat(rows: list[list[int]], dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor([value for row in rows for value in row]).to(dtype)


def lengths(rows: list[list[int]]) -> torch.Tensor:
    return torch.tensor([len(row) for row in rows]).to(torch.uint32)


def stored(rows: list[list[int]] = ROWS, *, times: bool = True) -> StoredInteractions:
    order = flat(RANKS, torch.uint8) if times else None
    other = StoredInteractions(flat(DISLIKED, torch.uint16), lengths(DISLIKED), 8)
    return StoredInteractions(flat(rows, torch.uint32), lengths(rows), 8, order, other)


def plain(*, times: bool = True) -> Interactions:
    users = [user for user, row in enumerate(ROWS) for _ in row]
    found = Interactions.from_pairs(
        users, flat(ROWS, torch.int64), flat(RANKS, torch.int64) if times else None, shape=(5, 8)
    )
    disliked = [user for user, row in enumerate(DISLIKED) for _ in row]
    other = Interactions.from_pairs(disliked, flat(DISLIKED, torch.int64), shape=(5, 8))
    return found.with_values(dislikes=other)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("chosen", [[3, 0, 1, 3], [], torch.tensor([2]), slice(1, 4)])
def test_rows(chosen: object, ordered: bool) -> None:
    mine, expected = stored(), plain().rows(chosen, ordered=ordered)
    found = mine.rows(chosen, ordered=ordered)
    assert torch.equal(found.values, expected.values)
    assert torch.equal(found.offsets, expected.offsets)
    assert isinstance(chosen, slice) or "ids" not in vars(mine)  # not converted


def test_all_else() -> None:
    mine, expected = stored(), plain()
    assert repr(mine) == repr(expected)
    assert (mine.users, mine.pairs, mine.items) == (5, 9, 8)
    assert torch.equal(mine.counts(), expected.counts())
    for user in range(5):
        for ordered in (False, True):
            found = mine.items_of(user, ordered=ordered)
            assert np.array_equal(found, expected.items_of(user, ordered=ordered))
    assert mine.dislikes is not None
    assert mine.dislikes.rows([1]).values.tolist() == [0, 6]
    assert "ids" not in vars(mine)
    for one, other in ((mine, expected), (mine.k_core(2)[0], expected.k_core(2)[0])):
        assert torch.equal(one.ids, other.ids)
        assert torch.equal(one.offsets, other.offsets)
        assert torch.equal(one.times, other.times)  # type: ignore[arg-type]
        assert torch.equal(one.disliked.values, other.disliked.values)  # type: ignore[union-attr]


def test_order_must_be_known() -> None:
    for log in (stored(times=False), plain(times=False)):
        assert log.times is None
        with pytest.raises(ValueError, match="their order is not known"):
            log.items_of(0, ordered=True)
        with pytest.raises(ValueError, match="their order is not known"):
            log.rows([0], ordered=True)
    with pytest.raises(ValueError, match="ids must be between 0 and 4"):
        stored().rows([5])


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([[2, 5, 5], [], [0], [1, 2, 3, 4, 7], []], "got 5 then 5 for user 0"),
        ([[2, 5, 7], [], [0], [1, 2, 4, 3, 7], []], "got 4 then 3 for user 3"),
        ([[1, 5, 7], [], [0], [1, 2, 3, 4, 7], []], "liked and disliked, got both for user 0"),
    ],
)
def test_wrong_rows_are_refused(rows: list[list[int]], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        stored(rows)


def test_nothing_at_all() -> None:
    empty = StoredInteractions(flat([], torch.uint16), lengths([[], []]), 3)
    assert (empty.users, empty.pairs) == (2, 0)
    assert empty.counts().tolist() == [0, 0, 0]
    assert empty.rows([1, 0]).offsets.tolist() == [0, 0, 0]
