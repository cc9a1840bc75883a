"""Baselines equal their formulas on small logs and are as good as is known on a real one."""

import numpy as np
import pytest
import torch

from experiments import datasets
from fewfold.recommender import (
    BM25,
    EASE,
    NDCG,
    Baseline,
    Cosine,
    Interactions,
    ItemKNN,
    Jagged,
    MostPopular,
    Recall,
    evaluate,
    random_split,
)

MODELS = [MostPopular(), ItemKNN(4), ItemKNN(4, BM25()), EASE(l2=2.0)]
names = {"ids": lambda model: repr(model)}


def log(users: int = 40, items: int = 12) -> Interactions:
    drawn = torch.rand(users, items, generator=torch.Generator().manual_seed(0)) < 0.3
    return Interactions.from_pairs(*drawn.nonzero().unbind(1), shape=(users, items))


def dense(model: Baseline, train: Interactions) -> np.ndarray:
    """The scores of every user by the formula, with numpy."""
    X = train.to_csr().toarray().astype(np.float64)
    per_user, per_item = X.sum(1), X.sum(0)
    if isinstance(model, MostPopular):
        return np.tile(per_item, (len(X), 1))
    if isinstance(model, EASE):
        P = np.linalg.inv(X.T @ X + model.l2 * np.eye(train.items))
        B = -P / np.diag(P)
        np.fill_diagonal(B, 0)
        return X @ B
    W = X / np.sqrt(per_item)
    if isinstance(model.weighting, BM25):
        k1, b = model.weighting.k1, model.weighting.b
        length = 1 - b + b * per_item / per_item.mean()
        W = X * (np.log(train.items / (1 + per_user))[:, None] * (k1 + 1) / (k1 * length + 1))
    S = W.T @ W
    np.fill_diagonal(S, 0)
    least = np.sort(S, 1)[:, [-model.neighbours]]
    S[least > S] = 0
    return X @ S


@pytest.mark.parametrize("model", MODELS, **names)
def test_scores_are_the_formula(model):
    train = log()
    model.fit(train)
    expected = torch.from_numpy(dense(model, train)).float()
    torch.testing.assert_close(model.scores(train.jagged, slice(0, 12)), expected)
    torch.testing.assert_close(model.scores(train.jagged, slice(3, 9)), expected[:, 3:9])


@pytest.mark.parametrize("model", MODELS, **names)
def test_recommends_to_strangers_what_they_lack(model):
    train = log()
    model.fit(train)
    strangers = Interactions.from_pairs([0, 0, 2], [1, 5, 7], shape=(3, 12))
    top = model.recommend(strangers, 12)
    assert torch.equal(top, model.recommend(strangers.jagged, 12))
    for row, known in zip(top.tolist(), ([1, 5], [], [7]), strict=True):
        assert sorted(row) == sorted([*set(range(12)) - set(known), *[-1] * len(known)])


@pytest.mark.parametrize("model", MODELS, **names)
def test_an_item_that_nobody_touched(model):
    train = Interactions.from_pairs([0, 0, 1], [0, 1, 1], shape=(2, 4))
    scores = model.fit(train).scores(train.jagged, slice(0, 4))
    assert bool(scores.isfinite().all())


def test_errors():
    with pytest.raises(ValueError, match=r"EASE has learned nothing yet; call fit\(train\) first"):
        EASE().recommend(log(), 3)
    with pytest.raises(ValueError, match=r"12 items need about 0.0 GB.* most_items=5; drop rare"):
        EASE(most_items=5).fit(log())
    many = Interactions.from_pairs([0], [300_000])
    with pytest.raises(ValueError, match=r"300001 items need about 1800.0 GB"):
        EASE().fit(many)
    with pytest.raises(ValueError, match="l2 must be finite and greater than 0, got 0"):
        EASE(l2=0)
    with pytest.raises(ValueError, match="neighbours must be at least 1"):
        ItemKNN(0)
    with pytest.raises(ValueError, match="item ids between 0 and 11, got 12 to 12"):
        MostPopular().fit(log()).recommend(Interactions.from_pairs([0], [12]), 3)
    calls = {"fit": lambda model: model.fit(log()), "scores": lambda model: model.scores(0, 0)}
    for name, call in calls.items():
        with pytest.raises(NotImplementedError, match=f"must define {name}"):
            call(Baseline())


@pytest.mark.skipif(not datasets.has("ml-100k-fastvae"), reason="FEWFOLD_DATA has no such dataset")
def test_on_a_real_log():
    """Each is better than the one before it, by far more than the noise of a split."""
    split = random_split(datasets.interactions("ml-100k-fastvae"), seed=0)
    reports = [
        evaluate(model.fit(split.train).recommend(split.fold_in, 50), split.test)
        for model in (MostPopular(), ItemKNN(100, Cosine()), EASE())
    ]
    for metric in (NDCG(50), Recall(50)):
        popular, near, linear = (report[metric] for report in reports)
        assert popular.high < near.low
        assert near.high < linear.low


@pytest.mark.parametrize("model", [EASE(1.0), ItemKNN(2), MostPopular()], ids=repr)
def test_who_has_nothing_gets_the_most_popular(model: Baseline) -> None:
    train = Interactions.from_pairs([0, 0, 1, 1, 2, 2, 3], [0, 3, 1, 3, 2, 3, 2])
    nobody = Jagged(torch.empty(0, dtype=torch.int64), torch.tensor([0, 0]))
    assert model.fit(train).recommend(nobody, 2).tolist() == [[3, 2]]
