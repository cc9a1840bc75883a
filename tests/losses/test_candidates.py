"""The search for candidate classes: what it computes, stores and packs."""

import pytest
import torch

from fewfold import _native
from fewfold.losses.linear import candidates
from fewfold.losses.linear.candidates import Candidates, Layer, find_candidates
from fewfold.losses.linear.linear_operator import _pack, _unpack


def test_the_search_stops_when_every_row_is_crowded(monkeypatch):
    """Equal scores: after a chunk of more classes than a row may keep, no other is computed."""
    computed = []

    def chunks(self, hidden, size):
        for start, scores in usual(self, hidden, size):
            computed.append(start)
            yield start, scores

    usual = Layer.chunks
    monkeypatch.setattr(Layer, "chunks", chunks)
    with _native.disabled():
        found = find_candidates(torch.ones(2, 1), Layer(torch.ones(9000, 1), None), 1.5, 3000)
    assert found.crowded.all()
    assert len(found.row) == 0
    assert computed == [0]


def test_the_pool_drops_what_is_below_the_bound_before_it_grows():
    """Ever larger scores: each chunk rules out those before it, so that few are stored."""
    pool = candidates._Pool(torch.zeros(1, 1), 1024, 2.0)
    for start in range(0, 6400, 64):
        pool.add(
            torch.zeros(64).long(), torch.arange(start, start + 64), torch.arange(64.0) + start
        )
    assert pool._score.shape[1] <= 256
    pool.compact()
    assert 6399 in pool.candidates().column
    assert len(pool.candidates().column) <= 3


@pytest.mark.parametrize("crowded", [[False, False], [True, False]])
def test_packed_candidates_are_found_again(crowded):
    row = torch.tensor([1, 1] if crowded[0] else [0, 1, 1])
    column, score = torch.arange(len(row)) + 7, torch.arange(len(row)) / 2
    given = Candidates(row, column, score, torch.tensor(crowded))
    found = _unpack(*_pack(given, torch.zeros(2)), 2)
    assert found is not None
    for name in ("row", "column", "score", "crowded"):
        assert torch.equal(getattr(found, name), getattr(given, name)), name
    assert _unpack(*_pack(None, torch.zeros(2)), 2) is None
