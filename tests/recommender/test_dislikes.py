"""Items that a user rated low are never recommended to them, before and after saving."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fewfold as ff
from fewfold.recommender import (
    EASE,
    VAE,
    ArtifactError,
    Interactions,
    Training,
    last_out_split,
    random_split,
    temporal_split,
)
from tests.recommender.artifact.forging import forged, tensor
from tests.recommender.cases import pairs


def rated(users: int = 60, items: int = 12, seed: int = 0) -> dict[str, list[Any]]:
    draw = np.random.default_rng(seed)
    who, what = np.nonzero(draw.random((users, items)) < 0.6)
    ratings = draw.integers(1, 6, len(who))
    times = draw.integers(1, 1000, len(who))
    return {
        "user": [f"u{n}" for n in who], "item": [f"i{n:02}" for n in what],
        "rating": ratings.tolist(), "time": times.tolist(),
    }  # fmt: skip


def low(log: dict[str, list[Any]], user: str) -> set[str]:
    rows = zip(log["user"], log["item"], log["rating"], strict=True)
    return {item for who, item, rating in rows if who == user and rating < 4}


@pytest.fixture(scope="module")
def fitted() -> ff.Recommender:
    return ff.Recommender(EASE(5.0)).fit(rated(), min_rating=4, progress=False)


def test_dislikes_are_left_out_whatever_else_is_asked(
    fitted: ff.Recommender, tmp_path: Path
) -> None:
    log = rated()
    again = ff.Recommender.load(fitted.save(tmp_path / "model"))
    for rec in (fitted, again):
        for user in ("u0", "u8"):
            bad = low(log, user)
            assert bad
            for seen in (True, False):
                found = rec.recommend(user, k=12, exclude_seen=seen)
                assert bad.isdisjoint(found.items)
            assert len(rec.recommend(user, k=12, exclude_seen=False).items) == 12 - len(bad)
    assert again.history is not None
    assert again.history.dislikes is not None
    assert "dislikes are never recommended" in str(ff.recommender.inspect(tmp_path / "model"))
    assert "dislikes, never recommended" in (tmp_path / "model" / "README.md").read_text()


def test_damaged_dislikes_are_refused(fitted: ff.Recommender, tmp_path: Path) -> None:
    folder = str(fitted.save(tmp_path / "model"))
    longer = tensor("disliked_lengths", raw=lambda raw: (99).to_bytes(4, "little") + raw[4:])
    with pytest.raises(ArtifactError, match="disliked_lengths must add up to"):
        ff.Recommender.load(forged(folder, tmp_path, "users.safetensors", longer))
    liked = fitted.history.ids[0]  # type: ignore[union-attr]
    same = tensor("disliked", raw=lambda raw: int(liked).to_bytes(2, "little") + raw[2:])
    with pytest.raises(ArtifactError, match="cannot be used"):
        ff.Recommender.load(forged(folder, tmp_path, "users.safetensors", same))


def test_evaluations_exclude_them(fitted: ff.Recommender) -> None:
    log = rated()
    with_dislikes = ff.read_log(log, min_rating=4)
    pure = with_dislikes.interactions.with_values(dislikes=None)
    scores = []
    for given in (with_dislikes.interactions, pure):
        rec = ff.Recommender(EASE(5.0)).fit(given, test=0.3, progress=False)
        assert isinstance(rec.evaluation, ff.recommender.Evaluation)
        scores.append(rec.evaluation.overall.scores[0].mean)
    assert scores[0] > scores[1]  # fewer wrong items are left to rank
    again = fitted.evaluate(rated(seed=1))
    assert again.overall.users > 0


def test_splits_know_only_earlier_dislikes() -> None:
    times = torch.tensor([1, 5, 9, 2, 8])
    dislikes = Interactions.from_pairs([0, 0, 1], [3, 4, 3], [4, 9, 6], shape=(2, 5))
    log = Interactions.from_pairs([0, 0, 0, 1, 1], [0, 1, 2, 0, 1], times, shape=(2, 5))
    log = log.with_values(dislikes=dislikes)
    early = temporal_split(log, test=0.4)
    assert early.train.dislikes is not None
    assert pairs(early.train.dislikes) == {(0, 3)}  # up to time 5
    assert early.test.dislikes is None
    last = last_out_split(log).train.dislikes
    assert last is not None
    assert pairs(last) == {(0, 3), (1, 3)}  # before each user's last
    many = ff.read_log(rated(), min_rating=4, time=False).interactions
    assert many.dislikes is not None
    kept = random_split(many, test=0.5, seed=0).train.dislikes
    assert kept is not None
    assert 0.3 * many.dislikes.pairs < kept.pairs < 0.7 * many.dislikes.pairs
    unsplit = random_split(many.with_values(dislikes=None), test=0.5, seed=0).train
    assert pairs(unsplit) == pairs(random_split(many, test=0.5, seed=0).train)


def test_added_items_keep_dislikes() -> None:
    rec = ff.Recommender(VAE(hidden=8, latent=3, shortcut=0), training=Training(epochs=1))
    rec.fit(rated(), min_rating=4, progress=False)
    more = {"user": ["u0", "u0", "u1", "new"], "item": ["z1", "z2", "z2", "z1"]}
    bad = low(rated(), "u0")
    added = rec.add_items({**more, "rating": [5, 1, 5, 5]})
    found = added.recommend("u0", k=14, exclude_seen=False).items
    assert "z1" in found
    assert "z2" not in found
    assert bad.isdisjoint(found)
