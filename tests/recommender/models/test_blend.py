"""Blends of two models: merged lists, laws of a model, folders and flags."""

import math

import pytest
import torch

import fewfold as ff
from fewfold.recommender import (
    EASE,
    Interactions,
    ItemKNN,
    MostPopular,
    Ranking,
    SessionKNN,
    Training,
    Transformer,
)
from fewfold.recommender.models.blend import Blend, blended
from tests.recommender.test_order import circle


def naive(first, second, weight, k):
    """One user at a time, in Python."""
    rows = []
    for one in range(len(first.ids)):
        total = {}
        for part, share in ((first, 1 - weight), (second, weight)):
            pairs = [
                (int(i), float(s))
                for i, s in zip(part.ids[one], part.scores[one], strict=True)
                if i >= 0
            ]
            if not pairs:
                continue
            high, low = max(s for _, s in pairs), min(s for _, s in pairs)
            for item, score in pairs:
                unit = (score - low) / (high - low) if high > low else 1.0
                total[item] = total.get(item, 0.0) + share * unit
        best = sorted(total.items(), key=lambda pair: (-round(pair[1], 5), pair[0]))[:k]
        rows.append(best + [(-1, -math.inf)] * (k - len(best)))
    return rows


def lists(generator, users, depth, items):
    """Random lists; some are shorter, one is empty."""
    ids = torch.stack([torch.randperm(items, generator=generator)[:depth] for _ in range(users)])
    scores = torch.randn(users, depth, generator=generator).sort(1, descending=True).values
    lengths = torch.randint(0, depth + 1, (users,), generator=generator)
    lengths[0] = 0
    void = torch.arange(depth) >= lengths.unsqueeze(1)
    return Ranking(ids.masked_fill(void, -1), scores.masked_fill(void, -torch.inf))


@pytest.mark.parametrize("k", [1, 5, 30])
@pytest.mark.parametrize("weight", [0.2, 0.5, 0.9])
def test_equals_the_naive_merge(path, k, weight):
    generator = torch.Generator().manual_seed(k)
    first, second = lists(generator, 40, 12, 20), lists(generator, 40, 12, 20)
    found = blended(first, second, weight, k)
    for row, wanted in enumerate(naive(first, second, weight, k)):
        assert found.ids[row].tolist() == [item for item, _ in wanted]
        torch.testing.assert_close(
            found.scores[row].double(), torch.tensor([score for _, score in wanted]).double(),
            atol=1e-5, rtol=0,
        )  # fmt: skip


def test_lists_of_equal_scores_count_as_one_each():
    ids = torch.tensor([[3, 1]])
    same = Ranking(ids, torch.full((1, 2), 7.0))
    other = Ranking(torch.tensor([[2, 1]]), torch.tensor([[4.0, 0.0]]))
    found = blended(same, other, 0.5, 3)
    assert found.ids.tolist() == [[1, 2, 3]]
    assert found.scores.tolist() == [[0.5, 0.5, 0.5]]


@pytest.fixture(scope="module")
def log():
    generator = torch.Generator().manual_seed(0)
    users = torch.arange(60).repeat_interleave(6)
    items = (torch.randint(0, 10, (360,), generator=generator) + 10 * (users % 3)) % 30
    return Interactions.from_pairs(users, items, shape=(60, 30))


def test_excluded_and_disallowed_items_are_not_ranked(log):
    fitted = Blend(EASE(l2=5.0), ItemKNN(neighbours=5)).fit(log)
    allowed = torch.arange(30) % 2 == 0
    found = fitted.rank(log.jagged, 10, exclude=log.jagged, allowed=allowed)
    for user, ids in enumerate(found.ids.tolist()):
        own = set(log.rows([user]).values.tolist())
        assert not own & set(ids)
        assert all(item < 0 or item % 2 == 0 for item in ids)


def test_a_short_list_begins_a_long_one(log):
    fitted = Blend(EASE(l2=5.0), ItemKNN(neighbours=5), weight=0.3).fit(log)
    ten, three = fitted.rank(log.jagged, 10).ids, fitted.rank(log.jagged, 3).ids
    assert torch.equal(ten[:, :3], three)


def test_saved_and_loaded(log, tmp_path):
    rec = ff.Recommender(Blend(EASE(l2=5.0), ItemKNN(neighbours=5), weight=0.3))
    rec.fit(log, progress=False).save(tmp_path / "model")
    again = ff.Recommender.load(tmp_path / "model")
    assert repr(again.model) == repr(rec.model)
    known = [rec.items[0], rec.items[7]]
    for one in (rec, again):
        assert one.recommend_from_history(known, k=5).items == (
            rec.recommend_from_history(known, k=5).items
        )
    assert again.similar_items(known[0], k=3).items == rec.similar_items(known[0], k=3).items


def test_flags_give_the_same_blend():
    blend = Blend(EASE(l2=5.0), MostPopular(), weight=0.25)
    assert blend.flags() == " --blend-of ease,popularity --blend-weight 0.25 --l2 5"
    values = {"blend_of": "ease,popularity", "blend_weight": 0.25, "l2": 5.0}
    again = Blend.from_options(values)
    assert (again.first.name, again.second.name, again.weight) == ("ease", "popularity", 0.25)


@pytest.mark.parametrize("names", [None, "ease", "ease,blend", "ease,nothing", "a,b,c"])
def test_names_that_are_not_two_models(names):
    with pytest.raises(ValueError, match="--blend-of must name two of"):
        Blend.from_options({"blend_of": names, "blend_weight": 0.5})


@pytest.mark.parametrize("weight", [0.0, 1.0, -1.0, math.nan])
def test_weight_out_of_range(weight):
    with pytest.raises(ValueError, match="weight must be above 0 and below 1"):
        Blend(EASE(), MostPopular(), weight=weight)


def test_a_blend_of_next_item_models_follows_the_order(tmp_path) -> None:
    model = Blend(Transformer(width=16, length=8, dropout=0.0), SessionKNN(), 0.4)
    assert model.ordered
    rec = ff.Recommender(model, training=Training(epochs=20)).fit(
        circle(), time="time", progress=False
    )
    histories = [["i05", "i02"], ["i02", "i05"], ["i02", "i05", "i02", "i02"]]
    best = [rec.recommend_from_history(each, 1).items[0] for each in histories]
    assert best == ["i03", "i06", "i03"]
    rec.save(tmp_path / "model")
    again = ff.Recommender.load(tmp_path / "model")
    for each in histories:
        found = (one.recommend_from_history(each, 5).items for one in (again, rec))
        assert next(found) == next(found)
