"""The split that is chosen asks what the log can answer, and says why."""

import pytest
import torch

import fewfold as ff
from fewfold.recommender.evaluation.holdout import HoldOut, hold_out
from fewfold.recommender.interactions import Interactions
from tests.recommender.conftest import grouped


def sessions(count: int = 60, length: int = 4, *, step: int = 1) -> Interactions:
    """Sessions one after the other: chains of five; times within a session rise by `step`."""
    user = torch.arange(count).repeat_interleave(length)
    place = torch.arange(length).repeat(count)
    return Interactions.from_pairs(
        user, (user + place) % 10, times=user * 1000 + place * step, shape=(count, 10)
    )


def returning(new: int, old: int) -> Interactions:
    """Old users act at 1, 2 and 9, new users at 8 and 9; test=0.2 or less is after 8."""
    user = [u for u in range(old) for _ in range(3)]
    time = [t for _ in range(old) for t in (1, 2, 9)]
    user += [old + u for u in range(new)]
    time += [9] * new
    pad = 10 * (old + new)  # of a user who is not tested, so that time 9 is in the last fifth
    user += [old + new] * pad
    time += [3] * pad
    count: dict[int, int] = {}
    item = []
    for one in user:
        item.append(count.get(one, 0))
        count[one] = item[-1] + 1
    return Interactions.from_pairs(user, item, times=time)


def test_sessions_are_asked_for_their_last_item() -> None:
    log = sessions()
    split, words = hold_out(log)
    assert split.test.jagged.lengths.tolist() == [1] * 60
    assert torch.equal(split.test.ids, (torch.arange(60) + 3) % 10)
    assert "each user's last item by time" in words
    assert "100.0% of the users with interactions in the last 20% of the log have no" in words
    split, words = hold_out(log, split="temporal")
    assert split.test.pairs == 48
    assert words.startswith("the last 20% of all interactions, those after time 47003")
    assert "100.0% of tested users have no earlier interaction" in words


@pytest.mark.parametrize(("new", "old", "last"), [(5, 5, False), (6, 5, True), (5, 6, False)])
def test_most_tested_users_must_be_new(new: int, old: int, last: bool) -> None:
    split, words = hold_out(returning(new, old), test=0.09)
    assert ("each user's last item" in words) == last
    if not last:
        assert int((split.test.jagged.lengths > 0).sum()) == new + old
        assert "have no earlier" not in words


def test_tied_times_are_no_order() -> None:
    users = [0, 0, 0, 1, 1, 2, 2, 3]
    log = Interactions.from_pairs(users, [0, 1, 2, 0, 1, 3, 4, 5], times=[1, 2, 2, 3, 3, 5, 6, 7])
    split, words = hold_out(log, split="last")
    assert split.test.rows([0, 1, 2, 3]).values.tolist() == [1, 2, 4]
    assert split.test.jagged.lengths.tolist() == [2, 0, 1, 0]
    assert "1 user has several at their last time, and all are held out" in words
    assert "1 user has all items at one time, and no test item" in words


def test_sessions_at_one_moment_each_are_split_at_random() -> None:
    split, words = hold_out(sessions(step=0), test=0.25)
    assert split.test.jagged.lengths.tolist() == [1] * 60
    assert "at random; 100.0% of the users" in words
    assert "nor do times order items (seed 0)" in words
    with pytest.raises(ValueError, match=r"no user has items at two different times.*random"):
        hold_out(sessions(step=0), split="last")


def test_errors_say_what_to_write() -> None:
    timeless = Interactions.from_pairs([0, 0], [0, 1])
    for split in ("last", "temporal"):
        with pytest.raises(ValueError, match=rf"--split {split}\) needs times.*--time\)"):
            hold_out(timeless, split=split)
    with pytest.raises(ValueError, match="one of auto, temporal, last, random, got 'newest'"):
        hold_out(timeless, split="newest")


def test_fit_compare_and_evaluate_take_it() -> None:
    log = grouped(60)
    log["time"] = list(range(360))  # users one after the other
    rec = ff.Recommender(ff.recommender.EASE(5.0)).fit(log, test=0.2)
    assert isinstance(rec.evaluation, ff.recommender.Evaluation)
    assert rec.evaluation.overall.users == 60
    assert rec.evaluation.overall[ff.recommender.NDCG(10)].mean > 0.3
    assert "Held out: each user's last item by time; 100.0% of" in str(rec.report)
    assert "have no earlier interaction" in rec.evaluation.as_dict()["split"]
    temporal = ff.Recommender(ff.recommender.EASE(5.0)).fit(log, test=HoldOut(split="temporal"))
    assert temporal.evaluation.overall[ff.recommender.NDCG(10)].mean < 0.3
    found = ff.compare(log, models=("popularity", "item-knn"))
    assert found.split.startswith("each user's last item")
    found = ff.compare(log, models=("popularity",), test=HoldOut(split="random"))
    assert found.split.startswith("20% of each")
    new = {**log, "user": [f"new{u}" for u in log["user"]]}
    found = rec.evaluate(new)
    assert "each user's last item by time; the model knows nothing of 100.0%" in found.split
    assert (
        found.overall[ff.recommender.NDCG(10)].mean
        > rec.evaluate(new, split="all").overall[ff.recommender.NDCG(10)].mean
    )


def test_a_hold_out_is_checked_before_the_log_is_read() -> None:
    with pytest.raises(ValueError, match="test must be at least 0 and below 1"):
        ff.Recommender().fit("missing.csv", test=1.0)
    with pytest.raises(ValueError, match="split must be one of auto, temporal, last, random"):
        HoldOut(split="newest")
