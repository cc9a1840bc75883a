"""A set of pairs stays the same set through every way in and out; what is not one is refused."""

import subprocess
import sys

import hypothesis
import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import strategies as st

from fewfold.recommender import Interactions, random_split
from tests.recommender.cases import logs, pairs


@hypothesis.given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9), st.integers(-9, 9)), min_size=1)
)
def test_from_pairs_is_the_set_with_its_latest_times(drawn):
    users, items, times = zip(*drawn, strict=True)
    log = Interactions.from_pairs(np.array(users), torch.tensor(items), times=times)
    latest: dict[tuple[int, int], int] = {}
    for user, item, time in drawn:
        latest[user, item] = max(time, latest.get((user, item), -10))
    found = zip(log.row.tolist(), log.ids.tolist(), strict=True)
    assert list(zip(found, log.times.tolist(), strict=True)) == sorted(latest.items())
    assert (log.users, log.items) == (max(users) + 1, max(items) + 1)
    assert pairs(Interactions.from_pairs(users, items)) == set(latest)


@hypothesis.given(logs())
def test_csr_and_back(log):
    matrix = log.to_csr()
    assert matrix.shape == (log.users, log.items)
    assert pairs(Interactions.from_csr(matrix)) == pairs(log)
    assert torch.equal(log.counts(), torch.from_numpy(matrix.toarray().sum(0)).long())


@hypothesis.given(logs(timed=True), st.data())
def test_rows_and_select_are_python_indexing(log, data):
    ids = data.draw(st.lists(st.integers(0, log.users - 1)))
    batch, chosen = log.rows(np.array(ids, dtype=np.int64)), log.select(ids)
    bounds = log.offsets.tolist()
    rows = [log.ids[bounds[i] : bounds[i + 1]].tolist() for i in ids]
    assert [part.tolist() for part in batch.values.split(batch.lengths.tolist())] == rows
    assert torch.equal(chosen.ids, batch.values)
    assert torch.equal(chosen.offsets, batch.offsets)
    times = [time for i in ids for time in log.times[bounds[i] : bounds[i + 1]].tolist()]
    assert chosen.times.tolist() == times
    part = log.jagged.rows(slice(1, 3))
    assert part.values.tolist() == log.rows(range(1, min(3, log.users))).values.tolist()


@hypothesis.given(logs(timed=True), st.integers(1, 4))
def test_core_is_stable_and_the_largest(log, n):
    left = pairs(log)
    while True:  # the definition, one user or item at a time
        users = {u for u, _ in left if sum(a == u for a, _ in left) < n}
        items = {i for _, i in left if sum(b == i for _, b in left) < n}
        if not users and not items:
            break
        left = {(u, i) for u, i in left if u not in users and i not in items}
    if not left:
        with pytest.raises(ValueError, match=f"nothing is left of the {n}-core"):
            log.k_core(n)
        return
    core, kept_users, kept_items = log.k_core(n)
    rows, ids = kept_users[core.row].tolist(), kept_items[core.ids].tolist()
    assert set(zip(rows, ids, strict=True)) == left
    assert int(core.jagged.lengths.min()) >= n
    assert int(core.counts().min()) >= n
    assert pairs(core.k_core(n).interactions) == pairs(core)


def test_keep_and_repr():
    log = Interactions.from_pairs([0, 1], [1, 0], times=[1.5, 2])
    assert repr(log) == "Interactions(users=2, items=2, pairs=2, timed)"
    assert pairs(log.keep(torch.tensor([False, True]))) == {(1, 0)}
    assert log.times.dtype == torch.float64
    with pytest.raises(
        ValueError, match=r"mask must be boolean with shape \(2,\), got torch.int64"
    ):
        log.keep(torch.tensor([0, 1]))


def test_weights_are_added_and_go_where_their_pairs_go():
    users, items = [1, 0, 1, 2, 1, 0], [2, 1, 2, 0, 0, 0]
    log = Interactions.from_pairs(users, items, weights=[1, 2, 0.5, 4, 8, 16])
    assert repr(log) == "Interactions(users=3, items=3, pairs=5, weighted)"
    assert log.weights.dtype == torch.float32
    assert log.weights.tolist() == [16, 2, 8, 1.5, 4]
    timed = Interactions.from_pairs(users, items, [5, 1, 9, 2, 3, 4], (3, 3), [1, 2, 0.5, 4, 8, 16])
    assert timed.times.tolist() == [4, 1, 3, 9, 2]
    assert timed.weights.tolist() == log.weights.tolist()
    assert log.select([2, 1]).weights.tolist() == [4, 8, 1.5]
    assert log.keep(log.ids > 0).weights.tolist() == [2, 1.5]
    pair = Interactions.from_pairs([0, 0, 1, 1, 2], [0, 2, 0, 2, 1], weights=[1, 2, 3, 4, 5])
    assert pair.k_core(2).interactions.weights.tolist() == [1, 2, 3, 4]
    assert Interactions(log.offsets, log.ids, 3, None, log.weights.double()).weights.tolist() == [
        *(16, 2, 8, 1.5, 4)
    ]
    split = random_split(
        Interactions.from_pairs([0] * 10, range(10), weights=range(1, 11)), test=0.4, seed=0
    )
    for part in (split.train, split.test):
        assert part.weights.tolist() == (part.ids + 1).tolist()


def test_an_explicit_zero_is_no_interaction():
    matrix = scipy.sparse.csr_array(([1, 0, 1], [0, 1, 1], [0, 2, 3]), shape=(2, 2))
    assert pairs(Interactions.from_csr(matrix)) == {(0, 0), (1, 1)}


@pytest.mark.parametrize(
    ("users", "items", "options", "message"),
    [
        ([0, -1], [0, 0], {}, "users must be between 0 and 0, .* got -1 in row 1"),
        (
            [0, 1],
            [0, 5],
            {"shape": (2, 5)},
            "items must be between 0 and 4, .* 5 items; got 5 in r",
        ),
        ([0, 3], [0, 0], {"shape": (3, 5)}, "users must be between 0 and 2, .* got 3 in row 1"),
        ([0.0, float("nan")], [0, 0], {}, "users must be whole numbers, got nan in row 1; drop"),
        ([0.5], [0], {}, "users must be integers, got torch.float64"),
        (["ann"], [0], {}, "users must be whole numbers, got .*; number the names: names, users ="),
        ([True], [0], {}, "got torch.bool"),
        ([[0]], [0], {}, r"users must have shape \(n,\), got \(1, 1\)"),
        ([0, 1], [0], {}, "same length, got 2 and 1"),
        ([], [], {}, r"no pairs; to mean an empty log write shape=\(users, items\)"),
        ([0], [0], {"times": [float("nan")]}, "times must be numbers, got nan in row 0"),
        ([0], [0], {"weights": [1, 2]}, r"weights must have shape \(1,\), got \(2,\)"),
        ([0, 1], [0, 0], {"weights": [1, 0]}, "finite and above 0, got 0 in row 1; drop pairs"),
        ([0], [0], {"weights": [float("nan")]}, "finite and above 0, got nan in row 0"),
        ([0], [0], {"weights": [1e300]}, "finite and above 0, got 1e.300 in row 0"),
        ([0], [0], {"times": [1, 2]}, r"times must have shape \(1,\), got \(2,\)"),
        ([0], [0], {"times": np.array(["2020-01-01"], "M8[s]")}, "astype.'int64'. for dates"),
    ],
)
def test_bad_pairs(users, items, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Interactions.from_pairs(users, items, **options)


@pytest.mark.parametrize("value", [2.0, -1.0, float("nan"), 0.5])
def test_bad_values_in_a_matrix(value):
    matrix = scipy.sparse.csr_array(np.array([[1.0, 0.0], [1.0, value]]))
    with pytest.raises(ValueError, match=f"values must be 0 or 1, got {value} in row 1; say what"):
        Interactions.from_csr(matrix)


def test_bad_parts():
    with pytest.raises(TypeError, match=r"write scipy.sparse.csr_array\(matrix\)"):
        Interactions.from_csr(np.eye(2))
    with pytest.raises(ValueError, match="offsets must go from 0 to the number of ids, 2"):
        Interactions(torch.tensor([0, 1]), torch.tensor([0, 1]), 2)
    with pytest.raises(ValueError, match="step down after user 1"):
        Interactions(torch.tensor([0, 2, 1, 2]), torch.tensor([0, 1]), 2)
    with pytest.raises(ValueError, match="must increase, got 1 then 1 for user 1"):
        Interactions(torch.tensor([0, 1, 3]), torch.tensor([2, 1, 1]), 3)
    log = Interactions.from_pairs([0], [0])
    with pytest.raises(ValueError, match=r"ids must be between 0 and 0, .* got 1 in row 0"):
        log.rows([1])
    with pytest.raises(TypeError, match="n must be an int, got float"):
        log.k_core(1.5)


def test_scipy_is_asked_for_only_where_it_is_needed():
    code = (
        "import sys; sys.modules['scipy'] = sys.modules['scipy.sparse'] = None\n"
        "from fewfold.recommender import Interactions\n"
        "log = Interactions.from_pairs([0], [0])\n"
        "try: log.to_csr()\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, *(["-S"] if sys.flags.no_site else []), "-c", code],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.strip() == "to_csr needs scipy: pip install 'fewfold[recommender]'"
