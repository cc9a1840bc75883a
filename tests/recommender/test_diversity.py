"""Diversity: maximal marginal relevance and caps, against a loop over users and items."""

from collections import Counter
from typing import Any

import pytest
import torch

import fewfold as ff
from fewfold.recommender import (
    ALS,
    EASE,
    Attributes,
    Blend,
    Diversity,
    ItemKNN,
    MostPopular,
    SessionKNN,
    SparseEASE,
)  # fmt: skip
from fewfold.recommender import diversity as module
from fewfold.recommender.models.model import Fitted

ITEMS, USERS = 60, 40


def log_of(seed: int = 0) -> dict[str, list[Any]]:
    generator = torch.Generator().manual_seed(seed)
    group = torch.arange(USERS) % 3
    likes = torch.rand(USERS, ITEMS, generator=generator) < torch.where(
        torch.arange(ITEMS) % 3 == group.unsqueeze(1), 0.35, 0.08
    )
    users, items = likes.nonzero().unbind(1)
    times = torch.rand(len(users), generator=generator).tolist()
    return {"user": users.tolist(), "item": items.tolist(), "time": times}


def with_attributes(model: ff.recommender.Model) -> ff.Recommender:
    rec = ff.Recommender(model).fit(log_of(), progress=False)
    numbers = rec.items.tolist()
    rec.attributes = Attributes.of(
        {
            "kind": ["" if number % 7 == 0 else f"k{number % 3}" for number in numbers],
            "year": [number // 10 for number in numbers],
            "name": [f"n{number}" for number in numbers],
        }
    )
    return rec


@pytest.fixture(scope="module")
def als() -> ff.Recommender:
    return with_attributes(ALS(8, iterations=3))


def similarities(rec: ff.Recommender, by: str | None) -> list[list[float]]:
    """Similarity of all pairs of items, as documented."""
    if by is not None:
        values = [rec.attributes[number].get(by) for number in range(ITEMS)]
        return [[float(one == other and one is not None) for other in values] for one in values]
    vectors = rec.fitted.vectors
    cosine = torch.cosine_similarity(vectors.unsqueeze(0), vectors.unsqueeze(1), dim=2)
    return cosine.tolist()


def slowly(
    rec: ff.Recommender, pool: list[tuple[Any, float]], k: int, diversity: Diversity, first: int
) -> list[Any]:
    """Maximal marginal relevance of one list, item by item.

    The relevance is scaled by the first items of the pool; the others are looked at only when caps
    rule out all of these.
    """
    near = similarities(rec, diversity.by) if diversity.amount else [[0.0] * ITEMS] * ITEMS
    number = {item: place for place, item in enumerate(rec.items.tolist())}
    low, high = pool[min(first, len(pool)) - 1][1], pool[0][1]
    relevance = {i: (s - low) / (high - low) if high > low else 1.0 for i, s in pool}
    chosen: list[Any] = []

    def open_(item: Any) -> bool:
        for name, limit in diversity.at_most.items():
            value = rec.attributes[number[item]].get(name)
            same = sum(rec.attributes[number[one]].get(name) == value for one in chosen)
            if value is not None and same >= limit:
                return False
        return item not in chosen

    def value(item: Any) -> float:
        most = max([0.0, *(near[number[one]][number[item]] for one in chosen)])
        return (1 - diversity.amount) * relevance[item] - diversity.amount * most

    reach = first
    while len(chosen) < k:
        left = [item for item, _ in pool[:reach] if open_(item)]
        if left:
            chosen.append(max(left, key=value))
        elif reach >= len(pool):
            break
        else:  # the next `first` items whose values are not exhausted
            more = [place for place, (item, _) in enumerate(pool) if place >= reach and open_(item)]
            reach = more[first - 1] + 1 if len(more) >= first else len(pool)
    return chosen


CASES = [
    Diversity(0.3),
    Diversity(1.0),
    Diversity(0.5, by="kind"),
    Diversity(0.5, by="year", pool=12),
    Diversity(at_most={"kind": 2}),
    Diversity(0.2, at_most={"kind": 1}, pool=5),
    Diversity(0.6, by="kind", at_most={"year": 1, "kind": 2}, pool=7),
    Diversity(0.4, by="year", at_most={"kind": 3}, pool=3),
]


@pytest.mark.parametrize("k", [1, 6, 25])
@pytest.mark.parametrize("diversity", CASES, ids=str)
def test_equals_a_loop(als, diversity, k) -> None:
    users = list(range(0, USERS, 4))
    ranked = als.recommend(users, ITEMS)
    found = als.recommend(users, k, diversity=diversity)
    first = min(diversity.candidates(k), ITEMS)
    for mine, pool in zip(found, ranked, strict=True):
        assert mine.items == slowly(als, list(pool), k, diversity, first)
        assert dict(mine) == pytest.approx({i: dict(pool)[i] for i in mine.items}, rel=1e-5)


@pytest.mark.parametrize("diversity", CASES, ids=str)
def test_one_user_is_a_batch_of_one(als, diversity) -> None:
    many = als.recommend([3, 5], 6, diversity=diversity)
    assert als.recommend(5, 6, diversity=diversity).items == many.items[1]


def test_amount_zero_changes_nothing(als) -> None:
    plain = als.recommend([1, 2], 8)
    for nothing in (0, 0.0, Diversity(), Diversity(0.0, by="kind"), None):
        again = als.recommend([1, 2], 8, diversity=nothing)
        assert (again.items, again.scores) == (plain.items, plain.scores)


@pytest.mark.parametrize("limit", [1, 2, 30])
def test_caps_do_not_depend_on_the_pool(als, limit) -> None:
    found = [
        als.recommend([1, 2], 12, diversity=Diversity(at_most={"kind": limit}, pool=pool)).items
        for pool in (None, 1, 13, 59, 60, 61)
    ]
    assert all(one == found[0] for one in found)
    kinds = {item: als.attributes[n].get("kind") for n, item in enumerate(als.items.tolist())}
    for row in found[0]:
        counts = Counter(kinds[item] for item in row if kinds[item] is not None)
        assert max(counts.values()) <= limit
    if limit == 30:
        assert found[0] == als.recommend([1, 2], 12).items


def test_conditions_caps_and_lists_work_together(als) -> None:
    options = {"where": {"year": {"max": 4}}, "filter_items": [3, 4], "exclude_seen": False}
    diversity = Diversity(0.3, at_most={"kind": 2}, pool=4)
    found = als.recommend([0, 1], 9, diversity=diversity, explain=True, **options)
    ranked = als.recommend([0, 1], ITEMS, **options)
    for mine, pool in zip(found, ranked, strict=True):
        assert mine.items == slowly(als, list(pool), 9, diversity, 9)
        assert len(mine.because) == len(mine.items)


def test_an_index_finds_the_same(als) -> None:
    search = als.index(recall=1.0)
    diversity = Diversity(0.4, at_most={"kind": 2}, pool=8)
    exact, found = (als.recommend([0, 1], 8, diversity=diversity, search=s) for s in (None, search))
    assert exact.items == found.items


def test_histories_and_empty_batches(als) -> None:
    found = als.recommend_from_history({"a": [1, 2], "b": []}, 5, diversity=0.4)
    assert [len(one) for one in found.items] == [5, 5]
    assert found.of == ["a", "b"]
    assert als.recommend([], 5, diversity=0.4).items == []


MODELS = [EASE(l2=5.0), ItemKNN(10), SparseEASE(l2=5.0), SessionKNN(), Blend(EASE(5.0), ItemKNN(9))]


@pytest.fixture(scope="module", params=MODELS, ids=lambda model: model.name)
def weighing(request) -> ff.Recommender:
    """Models that weigh items by items."""
    return with_attributes(request.param)


def test_models_without_vectors_compare_items_as_in_similar_items(weighing) -> None:
    everything = weighing.recommend(list(range(USERS)), 20)
    found = weighing.recommend(list(range(USERS)), 20, diversity=Diversity(0.5, pool=20))
    assert [sorted(one) for one in found.items] == [sorted(one) for one in everything.items]
    assert found.items != everything.items
    assert [one[0] for one in found.items] == [one[0] for one in everything.items]


@pytest.mark.parametrize("model", MODELS[:4], ids=lambda model: model.name)
def test_similarity_orders_items_as_similar_does(model) -> None:
    fitted = with_attributes(model).fitted
    items = torch.arange(ITEMS)
    others = torch.stack([torch.cat([items[:one], items[one + 1 :]]) for one in range(ITEMS)])
    found = fitted.similarity_to(others)(items)
    ranked = fitted.similar(items, ITEMS - 1)
    for row in range(ITEMS):
        by_item = dict(zip(others[row].tolist(), found[row].tolist(), strict=True))
        scores = ranked.scores[row][(ranked.ids[row] >= 0) & (ranked.scores[row] > 0)]
        largest = float(scores[0]) if len(scores) else 1.0
        best = ranked.ids[row][: len(scores)].tolist()
        wanted = {i: s / largest for i, s in zip(best, scores.tolist(), strict=True)}
        assert {i: s for i, s in by_item.items() if s > 0} == pytest.approx(wanted, rel=1e-4)


def test_a_blend_weighs_both_similarities() -> None:
    fitted = with_attributes(MODELS[4]).fitted
    items, others = torch.tensor([0, 5]), torch.tensor([[1, 2, 3], [4, 9, 14]])
    first, second = (one.similarity_to(others)(items) for one in (fitted.first, fitted.second))
    torch.testing.assert_close(fitted.similarity_to(others)(items), 0.5 * first + 0.5 * second)


def test_a_model_of_another_author_with_vectors_is_compared_by_cosine() -> None:
    class Plain(Fitted):
        items = 3

        @property
        def vectors(self) -> torch.Tensor:
            return torch.tensor([[2.0, 0.0], [3.0, 3.0], [0.0, -1.0]])

    found = Plain().similarity_to(torch.tensor([[1, 2], [0, 1]]))(torch.tensor([0, 2]))
    torch.testing.assert_close(found, torch.tensor([[0.5**0.5, 0.0], [0.0, -(0.5**0.5)]]))


def test_a_model_of_another_author_without_vectors_is_compared_by_scores() -> None:
    weights = torch.tensor([[0.0, 4.0, 1.0], [2.0, 0.0, -1.0], [0.0, 0.0, 0.0]])

    class Weights(Fitted):
        items = 3

        def rank(self, history, k, *, exclude=None, allowed=None) -> ff.recommender.Ranking:
            scores = weights[history.values].masked_fill(~allowed, -torch.inf)
            best = scores.topk(k)
            return ff.recommender.Ranking(best.indices, best.values)

        def similar(self, items, k, *, allowed=None) -> ff.recommender.Ranking:
            best = weights[items].topk(k)
            return ff.recommender.Ranking(best.indices, best.values)

    others = torch.tensor([[1, 2, 1], [0, 2, 2], [0, 1, 0]])  # repetitions are of short pools
    found = Weights().similarity_to(others)(torch.tensor([0, 1, 2]))
    assert found.tolist() == [[1.0, 0.25, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]


def test_nothing_is_left_to_diversify(als) -> None:
    some = {"where": {"kind": "k1", "year": 0}, "diversity": Diversity(0.3, at_most={"kind": 1})}
    assert [len(one) for one in als.recommend([1, 2], **some).items] == [1, 1]
    some["where"] = {"kind": "none"}
    assert als.recommend([1, 2], **some).items == [[], []]


def test_popularity_compares_no_items() -> None:
    rec = with_attributes(MostPopular())
    with pytest.raises(ValueError, match=r"Diversity\(0.3, by='section'\)"):
        rec.recommend(1, diversity=0.3)
    found = rec.recommend(1, 6, diversity=Diversity(1.0, by="kind"))
    assert len(set(found.items)) == 6


@pytest.mark.parametrize(
    ("diversity", "error", "message"),
    [
        (1.5, ValueError, "from 0 to 1, got 1.5"),
        (float("nan"), ValueError, "from 0 to 1"),
        ("much", TypeError, "a number from 0 to 1 or a Diversity, got str"),
        (True, TypeError, "got bool"),
        ({"amount": 0.3}, TypeError, "got dict"),
    ],
    ids=str,
)
def test_amounts_are_checked(als, diversity, error, message) -> None:
    with pytest.raises(error, match=message):
        als.recommend(1, diversity=diversity)


def test_settings_are_checked(als) -> None:
    with pytest.raises(ValueError, match="at_most of 'kind' must be at least 1, got 0"):
        Diversity(at_most={"kind": 0})
    with pytest.raises(TypeError, match="mapping from attributes"):
        Diversity(at_most=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="pool must be at least 1"):
        Diversity(0.2, pool=0)
    for one in (Diversity(0.3, by="colour"), Diversity(at_most={"colour": 1})):
        with pytest.raises(ValueError, match="no item attribute 'colour'; there are kind, year"):
            als.recommend(1, diversity=one)
    bare = ff.Recommender(EASE(5.0)).fit(log_of(), progress=False)
    for one in (Diversity(0.3, by="kind"), Diversity(at_most={"kind": 1})):
        with pytest.raises(ValueError, match="attach"):
            bare.recommend(1, diversity=one)


def test_users_known_by_attributes_alone() -> None:
    log = log_of()
    table = {"user": list(range(USERS)), "group": [f"g{n % 3}" for n in range(USERS)]}
    rec = ff.Recommender(EASE(5.0)).fit(log, users_table=table, progress=False)
    rec.attributes = with_attributes(EASE(5.0)).attributes
    plain = rec.recommend_from_attributes({"group": "g1"}, ITEMS)
    diversity = Diversity(at_most={"kind": 2}, pool=4)
    found = rec.recommend_from_attributes({"group": "g1"}, 9, diversity=diversity)
    assert found.items == slowly(rec, list(plain), 9, diversity, 9)
    some = rec.recommend_from_attributes({"group": "g1"}, ITEMS, where={"year": 3})
    assert some.items == [
        item
        for item, more in zip(plain.items, plain.attributes, strict=True)
        if more["year"] == "3"
    ]


def test_rows_are_compared_in_blocks(als, monkeypatch) -> None:
    users, diversity = list(range(USERS)), Diversity(0.4, at_most={"kind": 1}, pool=10)
    whole = als.recommend(users, 5, diversity=diversity).items
    monkeypatch.setattr(module, "_COMPARED", 25)
    assert als.recommend(users, 5, diversity=diversity).items == whole
    monkeypatch.setattr(module, "_RANKED", 70)
    assert als.recommend(users, 5, diversity=diversity).items == whole
