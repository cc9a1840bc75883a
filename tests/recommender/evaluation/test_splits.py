"""Every split is a partition, keeps its promise per user, and repeats itself."""

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from fewfold.recommender import (
    Interactions,
    held_out_users,
    last_out_split,
    random_split,
    temporal_split,
)
from tests.recommender.cases import logs, pairs


def is_partition(log, split):
    train, test = pairs(split.train), pairs(split.test)
    assert train | test == pairs(log)
    assert not train & test
    assert (split.train.users, split.train.items) == (log.users, log.items)
    assert split.fold_in is split.train
    assert split.users.tolist() == list(range(log.users))


@hypothesis.given(logs(), st.sampled_from([0.1, 0.2, 0.25, 0.5, 0.9]), st.integers(0, 99))
def test_random(log, test, seed):
    split = random_split(log, test=test, seed=seed)
    is_partition(log, split)
    lengths = log.jagged.lengths.tolist()
    assert split.train.jagged.lengths.tolist() == [round((1 - test) * n) for n in lengths]
    again = random_split(log, test=test, seed=seed)
    assert torch.equal(split.train.ids, again.train.ids)
    assert torch.equal(split.train.offsets, again.train.offsets)


def test_random_is_random():
    """Each of 5 items is held out 1/5 of the time; a fair draw fails this once in 10,000."""
    log = Interactions.from_pairs(torch.arange(4000).repeat_interleave(5), list(range(5)) * 4000)
    held = random_split(log, seed=3).test.counts().float() / 4000
    assert float((held - 0.2).abs().max()) < 4.3 * (0.2 * 0.8 / 4000) ** 0.5
    other = random_split(log, seed=4)
    assert not torch.equal(random_split(log, seed=3).test.ids, other.test.ids)


@hypothesis.given(logs(timed=True, least=1), st.sampled_from([0.1, 0.2, 0.5, 0.9]))
def test_temporal(log, test):
    rank = max(1, round((1 - test) * log.pairs))
    moment = sorted(log.times.tolist())[rank - 1]
    if moment == int(log.times.max()):
        with pytest.raises(ValueError, match=f"nothing happened after {moment}, which leaves"):
            temporal_split(log, test=test)
        return
    split = temporal_split(log, test=test)
    is_partition(log, split)
    assert int(split.train.times.max()) == moment < int(split.test.times.min())
    assert split.test.pairs <= log.pairs - rank


@hypothesis.given(logs(timed=True, least=1))
def test_last_out(log):
    split = last_out_split(log)
    is_partition(log, split)
    for user in range(log.users):
        mine = [
            (time, item)
            for row, item, time in zip(
                log.row.tolist(), log.ids.tolist(), log.times.tolist(), strict=True
            )
            if row == user
        ]
        times = [time for time, _ in mine]
        one_moment = len(set(times)) < 2
        expected = [] if one_moment else [item for time, item in mine if time == max(times)]
        assert split.test.rows([user]).values.tolist() == expected


@hypothesis.given(logs(), st.data())
def test_held_out(log, data):
    hypothesis.assume(log.users > 1)
    count = data.draw(st.integers(1, log.users - 1))
    ids = data.draw(st.permutations(range(log.users)))[:count]
    users = data.draw(st.sampled_from([count, ids, torch.tensor(ids)]))
    split = held_out_users(log, users=users, fold_in=0.5, seed=2)
    held = split.users.tolist()
    assert len(held) == len(set(held)) == count
    rest = [user for user in range(log.users) if user not in held]
    assert pairs(split.train) == pairs(log.select(rest))
    known, asked = pairs(split.fold_in), pairs(split.test)
    assert known | asked == pairs(log.select(held))
    assert not known & asked
    lengths = [round(0.5 * n) for n in log.select(held).jagged.lengths.tolist()]
    assert split.fold_in.jagged.lengths.tolist() == lengths
    again = held_out_users(log, users=users, fold_in=0.5, seed=2)
    assert pairs(again.test) == asked


def test_a_validation_set_is_a_split_of_train():
    log = Interactions.from_pairs(torch.arange(3).repeat_interleave(10), list(range(10)) * 3)
    outer = random_split(log)
    inner = random_split(outer.train, test=0.25)
    assert (inner.train.pairs, inner.test.pairs, outer.test.pairs) == (18, 6, 6)


def test_errors():
    log = Interactions.from_pairs([0, 1], [0, 1])
    for share in (0, 1, 1.5, float("nan")):
        with pytest.raises(ValueError, match=f"test must be a share between 0 and 1, got {share}"):
            random_split(log, test=share)
    for split in (temporal_split, last_out_split):
        with pytest.raises(ValueError, match=r"from_pairs\(users, items, times\), or use random_s"):
            split(log)
    with pytest.raises(ValueError, match="leave at least one user to train on: got 2 of 2"):
        held_out_users(log, users=2)
    with pytest.raises(ValueError, match="got none or a repetition"):
        held_out_users(log, users=[0, 0])
    with pytest.raises(ValueError, match=r"ids must be between 0 and 1, .* got 7"):
        held_out_users(log, users=[7])
