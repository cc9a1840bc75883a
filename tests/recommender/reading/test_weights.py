"""Weights and ratings at the border: what counts, what is refused, what is disliked."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

import fewfold as ff
from fewfold.recommender import DataError, Interactions
from fewfold.recommender.weighting import confidences
from tests.recommender.cases import pairs

LOG = {
    "user": ["a", "a", "b", "b", "a", "c", "a", "d"],
    "item": ["x", "y", "x", "z", "x", "x", "z", "x"],
    "plays": [1.0, 2.0, 3.0, 0.0, 4.0, 1e9, 1.0, 1.0],
    "rating": [5, 1, 4, 4, 4, 5, 2, 1],
    "time": [5, 4, 3, 2, 1, 6, 7, 8],
}


def csv(folder: Path, *, plays: str) -> Path:
    path = folder / "log.csv"
    path.write_text(f"user,item,plays\n1,10,2\n1,11,{plays}\n2,10,5\n")
    return path


def test_weights_are_added_scaled_and_described() -> None:
    log = ff.read_log(LOG, weight="plays")
    raw = [5.0, 2.0, 1.0, 3.0, 1e9, 1.0]  # a-x twice, b-z not at all
    assert log.interactions.weights is not None
    torch.testing.assert_close(log.interactions.weights, confidences(torch.tensor(raw)))
    assert "1 with a weight of 0 left out, 1 duplicate merged, their weights added" in str(
        log.summary
    )
    assert "weight=plays" in str(log.summary)
    slow = ff.read_log(LOG, weight="plays", weight_scale="log")
    assert slow.summary.as_dict()["weight_scale"] == "log"
    assert slow.interactions.weights is not None
    torch.testing.assert_close(slow.interactions.weights, confidences(torch.tensor(raw), "log"))
    square = {"user": [1, 1, 2, 2, 3], "item": [1, 2, 1, 2, 3], "n": [1, 2, 3, 4, 50]}
    core = ff.read_log(square, weight="n", core=2).interactions
    assert core.weights is not None
    assert float(core.weights.mean()) == pytest.approx(1)  # of the core, not of what was read


def test_without_weight_nothing_is_weighted() -> None:
    assert ff.read_log(LOG).interactions.weights is None


@pytest.mark.parametrize("plays", ["-1", "nan", "inf", "-inf", "", "many"])
def test_bad_weights_are_refused_with_their_line_or_skipped(tmp_path: Path, plays: str) -> None:
    path = csv(tmp_path, plays=plays)
    with pytest.raises(DataError, match=r"log\.csv, line 3: weight is not a finite number"):
        ff.read_log(path, weight="plays")
    log = ff.read_log(path, weight="plays", skip_bad_rows=True)
    assert log.interactions.pairs == 2
    assert log.summary.bad_rows == {"weight is not a finite number of at least 0": 1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight": "play"}, "there is no column 'play' for weight; did you mean 'plays'"),
        ({"weight": "user"}, "user, item, time and weight must be different columns"),
        ({"weight": True}, "weight=True takes the values of a sparse matrix"),
        ({"weight": "plays", "weight_scale": "root"}, "weight_scale must be one of linear, log"),
        ({"weight": "item", "item": "rating"}, "weights must be numbers|weight is not a finite"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises((DataError, ValueError), match=message):
        ff.read_log(LOG, **options)


def test_extreme_weights_stay_finite_and_positive(tmp_path: Path) -> None:
    log = ff.read_log(csv(tmp_path, plays="1e308"), weight="plays").interactions
    tiny = ff.read_log(csv(tmp_path, plays="1e-308"), weight="plays").interactions
    for found in (log.weights, tiny.weights):
        assert found is not None
        assert bool((found.isfinite() & (found > 0)).all())


def test_a_log_of_zeros_says_why_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="weight of 0: 2"):
        ff.read_log({"user": [1, 2], "item": [1, 2], "n": [0, 0]}, weight="n")


def test_low_ratings_are_dislikes_of_known_users_and_items() -> None:
    log = ff.read_log(LOG, min_rating=3)
    # y has no like and d likes nothing: neither is in the log, as without dislikes.
    assert log.users.tolist() == ["a", "b", "c"]
    assert log.items.tolist() == ["x", "z"]
    assert pairs(log.interactions) == {(0, 0), (1, 0), (1, 1), (2, 0)}
    dislikes = log.interactions.dislikes
    assert dislikes is not None
    assert pairs(dislikes) == {(0, 1)}
    assert dislikes.times is not None
    assert dislikes.times.tolist() == [7]
    assert log.interactions.times is not None
    assert log.interactions.times.tolist() == [5, 3, 2, 6]
    assert log.summary.below_rating == 3
    assert log.summary.disliked == 1
    assert "1 pair rated below 3: dislikes, never recommended" in str(log.summary)


def test_a_pair_that_was_rated_high_once_is_liked() -> None:
    twice = {"user": [1, 1, 2], "item": [1, 1, 1], "rating": [5, 1, 4]}
    assert ff.read_log(twice, min_rating=3).interactions.dislikes is None


def test_weights_and_ratings_together() -> None:
    log = ff.read_log(LOG, min_rating=3, weight="rating").interactions
    assert log.weights is not None
    torch.testing.assert_close(log.weights, confidences(torch.tensor([9.0, 4.0, 4.0, 5.0])))
    assert log.dislikes is not None
    assert log.dislikes.weights is None


def test_dislikes_follow_the_core() -> None:
    log = {"user": [1, 1, 2, 2, 3, 1], "item": [1, 2, 1, 2, 3, 3], "rating": [5, 5, 5, 5, 5, 1]}
    assert ff.read_log(log, min_rating=3).summary.disliked == 1
    core = ff.read_log(log, min_rating=3, core=2).interactions
    assert core.dislikes is not None
    assert core.dislikes.pairs == 0  # item 3 is not in the core
    assert core.dislikes.items == core.items


def test_untimed_dislikes_do_not_make_the_likes_untimed() -> None:
    log = {"user": [1, 1, 2, 2], "item": [1, 2, 1, 2], "rating": [5, 5, 5, 1]}
    found = ff.read_log({**log, "time": [5, 6, 7, None]}, min_rating=3)
    assert found.summary.untimed == 0
    assert found.interactions.times is not None
    assert found.interactions.dislikes is not None
    assert found.interactions.dislikes.times is not None
    assert found.interactions.dislikes.times.tolist() == [4]  # before all others


def test_a_matrix_has_weights_and_dislikes() -> None:
    matrix = csr_array(np.array([[4.0, 0, 1], [2, 6, 0]]))
    log = ff.read_log(matrix, weight=True, min_rating=2).interactions
    assert pairs(log) == {(0, 0), (1, 0), (1, 1)}
    assert log.weights is not None
    torch.testing.assert_close(log.weights, torch.tensor([1.0, 0.5, 1.5]))
    assert log.dislikes is not None
    assert pairs(log.dislikes) == {(0, 2)}
    with pytest.raises(DataError, match=r"finite and at least 0, got -1\.0 in row 1"):
        ff.read_log(csr_array(np.array([[1.0], [-1.0]])), weight=True)
    with pytest.raises(ValueError, match="has no columns to name; drop weight"):
        ff.read_log(matrix, weight="plays")


def test_dislikes_are_validated() -> None:
    log = Interactions.from_pairs([0, 1], [0, 1])
    with pytest.raises(ValueError, match="must have the 2 users and 2 items of the pairs, got 1"):
        Interactions(log.offsets, log.ids, 2, dislikes=Interactions.from_pairs([0], [1]))
    with pytest.raises(ValueError, match="liked and disliked, got both for user 1 and item 1"):
        Interactions(log.offsets, log.ids, 2, dislikes=log.keep(torch.tensor([False, True])))
    found = Interactions(
        log.offsets, log.ids, 2, dislikes=Interactions.from_pairs([1], [0], shape=(2, 2))
    )
    assert repr(found) == "Interactions(users=2, items=2, pairs=2, dislikes=1)"
    assert found.seen([1]).values.tolist() == [0, 1]
    assert found.with_items(5).dislikes is not None
    assert found.select([1]).dislikes is not None
    assert found.select([1]).seen().values.tolist() == [0, 1]
