"""Contributions of the items of a history to scores, and the explanations made of them."""

import pytest
import torch

import fewfold as ff
from fewfold.recommender import (
    ALS,
    EASE,
    VAE,
    Blend,
    Interactions,
    ItemKNN,
    Jagged,
    MostPopular,
    SessionKNN,
    SparseEASE,
)  # fmt: skip
from fewfold.recommender.explanations import explain
from fewfold.recommender.models.contributions import histories_without_one
from fewfold.recommender.models.model import Fitted

HISTORY = torch.tensor([1, 4, 9])
ITEMS = torch.tensor([7, 2, 30])


@pytest.fixture(scope="module")
def log() -> Interactions:
    """Three groups of users with items of their own, with times."""
    generator = torch.Generator().manual_seed(0)
    group = torch.arange(150) % 3
    likes = torch.rand(150, 36, generator=generator) < torch.where(
        torch.arange(36) % 3 == group.unsqueeze(1), 0.4, 0.05
    )
    users, items = likes.nonzero().unbind(1)
    times = torch.rand(len(users), generator=generator)
    return Interactions.from_pairs(users, items, times=times)


def rows(*histories: list[int]) -> Jagged:
    values = torch.tensor([one for row in histories for one in row], dtype=torch.int64)
    lengths = torch.tensor([0, *map(len, histories)])
    return Jagged(values, lengths.cumsum(0))


def test_histories_without_one() -> None:
    found = histories_without_one(torch.tensor([5, 3, 8]))
    assert [row.tolist() for row in found.values.split(found.lengths.tolist())] == [
        [5, 3, 8], [3, 8], [5, 8], [5, 3],
    ]  # fmt: skip
    alone = histories_without_one(torch.tensor([5]))
    assert alone.lengths.tolist() == [1, 0]


@pytest.mark.parametrize("length", [1, 3])
def test_ease_has_the_weights_of_its_matrix(log, length) -> None:
    fitted = EASE(l2=10.0).fit(log)
    wanted = fitted.weights[HISTORY[:length]][:, ITEMS].T
    torch.testing.assert_close(
        fitted.contributions(HISTORY[:length], ITEMS), wanted, rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("model", [ItemKNN(20), SparseEASE(l2=10.0)], ids=["knn", "sparse"])
@pytest.mark.parametrize("length", [1, 3])
def test_sparse_linear_models_add_up(log, model, length) -> None:
    fitted = model.fit(log)
    each = [fitted.rows.sums(rows([one]))[0, ITEMS] for one in HISTORY[:length].tolist()]
    found = fitted.contributions(HISTORY[:length], ITEMS)
    torch.testing.assert_close(found, torch.stack(each, 1), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("model", [VAE(8, 4), ALS(4), SessionKNN()], ids=lambda one: one.name)
def test_other_models_leave_one_out(log, model) -> None:
    fitted = model.fit(log)
    histories = [HISTORY.tolist(), [4, 9], [1, 9], [1, 4]]
    scores = []
    for history in histories:
        known = rows(history)
        ranked = fitted.rank(known, 36, exclude=known)
        place = {item: at for at, item in enumerate(ranked.ids[0].tolist())}
        scores.append(ranked.scores[0, [place[item] for item in ITEMS.tolist()]])
    wanted = torch.stack([scores[0] - one for one in scores[1:]], 1)
    found = fitted.contributions(HISTORY, ITEMS)
    torch.testing.assert_close(found.float(), wanted.float(), rtol=1e-3, atol=1e-5)


def test_a_blend_adds_both_as_it_adds_their_scores(log) -> None:
    fitted = Blend(EASE(l2=10.0), SparseEASE(l2=10.0), weight=0.25).fit(log)
    items = fitted.rank(rows(HISTORY.tolist()), 3, exclude=rows(HISTORY.tolist())).ids[0]
    wanted = torch.zeros(3, 3)
    for part, weight in ((fitted.first, 0.75), (fitted.second, 0.25)):
        scores = part.rank(rows(HISTORY.tolist()), 36, exclude=rows(HISTORY.tolist())).scores[0]
        scores = scores[scores.isfinite()]
        wanted += weight * part.contributions(HISTORY, items) / (scores.max() - scores.min())
    torch.testing.assert_close(fitted.contributions(HISTORY, items), wanted, rtol=1e-3, atol=1e-5)


def test_a_blend_of_a_model_with_order_and_one_without(log) -> None:
    fitted = Blend(SessionKNN(), EASE(l2=10.0), weight=0.5).fit(log)
    ordered = torch.tensor([9, 1, 4])
    items = fitted.rank(rows([9, 1, 4]), 3, exclude=rows([1, 4, 9])).ids[0]
    found = fitted.contributions(ordered, items)
    only = Blend(SessionKNN(), EASE(l2=10.0), weight=1 - 1e-9).fit(log)
    scores = only.second.rank(rows([1, 4, 9]), 36, exclude=rows([1, 4, 9])).scores[0]
    span = scores[scores.isfinite()].max() - scores[scores.isfinite()].min()
    weights = only.second.weights[ordered][:, items].T / span  # type: ignore[attr-defined]
    torch.testing.assert_close(only.contributions(ordered, items), weights, rtol=1e-3, atol=1e-5)
    assert found.shape == (3, 3)


def test_popularity_depends_on_no_history(log) -> None:
    assert not MostPopular().fit(log).contributions(HISTORY, ITEMS).any()


def test_reasons_of_a_recommendation(log) -> None:
    rec = ff.Recommender(EASE(l2=10.0)).fit(log, progress=False)
    plain = rec.recommend_from_history([1, 4, 9], 3)
    assert plain.because is None
    assert "because" not in plain.to_dicts()[0]
    found = rec.recommend_from_history([1, 4, 9], 3, explain=True)
    assert found.items == plain.items
    assert found.because is not None
    fitted = rec.fitted
    assert isinstance(fitted, EASE)
    for item, reasons in zip(found.items, found.because, strict=True):
        amounts = {one: float(fitted.weights[one, item]) for one in (1, 4, 9)}
        best = max(amounts, key=amounts.__getitem__)
        assert reasons[0][0] == best
        assert reasons[0][1] == pytest.approx(amounts[best], rel=1e-3)
        assert [much for _, much in reasons] == sorted((m for _, m in reasons), reverse=True)
    text = str(found)
    assert "      because of " in text
    assert found.to_dicts()[0]["because"][0].keys() == {"item", "contribution"}


def test_a_batch_with_a_user_without_a_history(log) -> None:
    rec = ff.Recommender(EASE(l2=10.0)).fit(log, progress=False)
    found = rec.recommend_from_history([[1, 4], []], 2, explain=True)
    first, second = found
    assert all(first.because)
    assert second.because == [[], []]
    assert "popular; no item of the history speaks for it" in str(second)


def test_a_blend_counts_only_the_lists_that_have_the_item(log) -> None:
    fitted = Blend(EASE(l2=10.0), ItemKNN(20), weight=0.5, depth=2).fit(log)
    known = rows(HISTORY.tolist())
    first, second = (one.rank(known, 2, exclude=known) for one in (fitted.first, fitted.second))
    others = [i for i in range(36) if i not in first.ids and i not in second.ids]
    assert not fitted.contributions(HISTORY, torch.tensor(others[:2])).any()
    assert fitted.contributions(HISTORY, first.ids[0]).any()


def test_a_history_of_one_item_explains_the_whole_score(log) -> None:
    fitted = SessionKNN().fit(log)
    alone = rows([4])
    best = fitted.rank(alone, 2, exclude=alone)
    found = fitted.contributions(torch.tensor([4]), best.ids[0])
    torch.testing.assert_close(found[:, 0].float(), best.scores[0].float(), rtol=1e-4, atol=1e-5)


def test_an_item_that_comes_twice_is_named_once_with_the_sum() -> None:
    class Fixed(Fitted):
        def contributions(self, history: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
            return torch.tensor([[1.0, 2.0, 4.0]])

    ids = ff.read_log({"user": [1, 1, 1], "item": ["a", "b", "c"]}).items
    found = explain(Fixed(), rows([0, 1, 0]), torch.tensor([[2]]), ids)
    assert found == [[[("a", 5.0), ("b", 2.0)]]]
