"""Sparse EASE equals EASE with all predictors and its plain form with few; rankings are exact."""

import importlib
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

import fewfold as ff
from fewfold._native import dispatch
from fewfold.recommender import (
    EASE,
    NDCG,
    Baseline,
    Interactions,
    ItemKNN,
    Jagged,
    SparseEASE,
    evaluate,
    random_split,
)
from fewfold.recommender.models.sparse_item_rows import SparseRows, SparseRowsBaseline

native = pytest.mark.skipif(not dispatch.available(), reason="the compiled module is missing")


def log(users: int = 60, items: int = 23, share: float = 0.15, seed: int = 0) -> Interactions:
    drawn = torch.rand(users, items, generator=torch.Generator().manual_seed(seed)) < share
    return Interactions.from_pairs(*drawn.nonzero().unbind(1), shape=(users, items))


def clustered(users: int = 600, items: int = 120, seed: int = 0) -> Interactions:
    """Users with tastes: most of their items come from one of ten groups, popular ones first."""
    draw = np.random.default_rng(seed)
    group = draw.integers(10, size=users)
    popular = 1 / (1 + np.arange(items) // 10) ** 0.7
    near = np.arange(items)[None] % 10 == group[:, None]
    drawn = draw.random((users, items)) < np.where(near, 0.5, 0.04) * popular
    return Interactions.from_csr(csr_array(drawn.astype(np.float32)))


def dense(rows: SparseRows) -> np.ndarray:
    shape = (rows.items, rows.items)
    parts = (rows.weights.numpy(), rows.ids.numpy(), rows.offsets.numpy())
    return csr_array(parts, shape=shape).toarray()


@pytest.fixture(params=["native", "plain"])
def path(request: pytest.FixtureRequest) -> str:
    if request.param == "native" and not dispatch.available():
        pytest.skip("the compiled module is missing")
    return str(request.param)


def fitted(path: str, train: Interactions, l2: float, predictors: int) -> SparseEASE:
    if path == "native":
        return SparseEASE(l2, predictors).fit(train)
    with dispatch.disabled():
        return SparseEASE(l2, predictors).fit(train)


@pytest.mark.parametrize("items", [2, 3, 5, 23, 40])
def test_all_predictors_are_ease(path: str, items: int) -> None:
    train = log(items=items, share=0.3)
    found = dense(fitted(path, train, 2.0, items + 5).rows)
    expected = EASE(2.0).fit(train).weights.numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("predictors", [1, 3, 8, 17])
def test_weights_solve_the_regression_on_the_predictors(path: str, predictors: int) -> None:
    train = log(users=90, items=31)
    found = dense(fitted(path, train, 3.0, predictors).rows)
    X = train.to_csr().toarray().astype(np.float64)
    G = X.T @ X + 3.0 * np.eye(31)
    for item in range(31):
        chosen = found[:, item].nonzero()[0]
        assert item not in chosen
        assert len(chosen) == predictors
        expected = np.linalg.solve(G[np.ix_(chosen, chosen)], G[chosen, item])
        np.testing.assert_allclose(found[chosen, item], expected, rtol=1e-3, atol=1e-5)
    if predictors == 1:  # the one that alone explains most
        gain = (G - np.diag(G.diagonal())) ** 2 / G.diagonal()
        assert np.array_equal(np.abs(found).argmax(0), gain.argmax(1))


@native
@pytest.mark.parametrize("many", [10, 1000])  # items from which there is one round
@pytest.mark.parametrize("predictors", [4, 15, 16, 33, 70])
def test_kernels_equal_the_plain_path(
    predictors: int, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 120 items, a quarter of them hubs whose rows the kernels do not read again."""
    module = importlib.import_module("fewfold.recommender.models.sparse_ridge")
    monkeypatch.setattr(module, "_MANY_ITEMS", many)
    train = clustered()
    one, other = (dense(fitted(path, train, 10.0, predictors).rows) for path in ("native", "plain"))
    same = (one != 0) == (other != 0)
    assert same.mean() > 0.999  # two items may explain the same up to rounding
    columns = same.all(0)
    np.testing.assert_allclose(one[:, columns], other[:, columns], rtol=2e-3, atol=2e-5)


@native
def test_kernels_with_large_gaps_and_counts() -> None:
    """Ids further apart and counts larger than 16 bits hold."""
    sizes = {3: 70_000, 90_000: 30_000, 199_999: 70_000}
    users = torch.cat([torch.arange(n) for n in sizes.values()])
    ids = torch.cat([torch.full((n,), item) for item, n in sizes.items()])
    far = Interactions.from_pairs(users, ids, shape=(70_000, 200_000))
    near = Interactions.from_pairs(
        far.row, torch.searchsorted(torch.tensor([3, 90_000, 199_999]), far.ids)
    )
    found = SparseEASE(5.0, 10).fit(far).rows
    expected = EASE(5.0).fit(near).weights
    place = torch.tensor([3, 90_000, 199_999])
    source = torch.repeat_interleave(torch.arange(200_000), found.offsets.diff())
    assert source.unique().tolist() == place.tolist()
    at = torch.searchsorted(place, source), torch.searchsorted(place, found.ids.long())
    torch.testing.assert_close(found.weights, expected[at], rtol=1e-3, atol=1e-4)


def test_more_predictors_are_better() -> None:
    split = random_split(clustered(), seed=0)
    found = [
        evaluate(model.fit(split.train).recommend(split.fold_in, 10), split.test, [NDCG(10)])
        for model in (*(SparseEASE(10.0, n) for n in (1, 8, 119)), EASE(10.0))
    ]
    one, few, every, ease = (report[NDCG(10)].mean for report in found)
    assert one < few < every
    assert every == pytest.approx(ease, rel=0.005)


def test_repeated_items_and_a_tiny_penalty(path: str) -> None:
    """Items with the same users: the matrix is singular but for the penalty."""
    twice = torch.arange(40).repeat_interleave(6)
    items = torch.tensor([0, 1, 2, 3, 4, 5]).repeat(40)
    train = Interactions.from_pairs(twice, items)
    for l2 in (1e-6, 1.0):
        weights = fitted(path, train, l2, 5).weights
        assert bool(weights.isfinite().all())
        assert float(weights.abs().max()) < 2


def test_edge_cases(path: str) -> None:
    alone = fitted(path, Interactions.from_pairs([0, 1], [0, 0]), 1.0, 5)
    assert len(alone.ids) == 0
    assert alone.recommend(Jagged(torch.tensor([0]), torch.tensor([0, 1])), 2).tolist() == [
        [-1, -1]
    ]
    train = Interactions.from_pairs([0, 0, 1, 1, 1], [0, 2, 0, 2, 3], shape=(3, 6))
    model = fitted(path, train, 1.0, 4)  # nobody has items 1, 4 and 5
    assert {1, 4, 5}.isdisjoint(model.ids.tolist())
    history = Jagged(torch.tensor([0, 1]), torch.tensor([0, 1, 1, 2]))
    assert model.recommend(history, 2).tolist() == [[2, 3], [0, 2], [0, 2]]
    empty = fitted(path, Interactions.from_pairs([], [], shape=(2, 3)), 1.0, 4)
    assert len(empty.ids) == 0


@native
@pytest.mark.parametrize("k", [1, 7, 30, 120, 125])
@pytest.mark.parametrize("model", [SparseEASE(10.0, 12), ItemKNN(6)], ids=repr)
def test_ranking_by_touched_rows_is_the_ranking_of_all(model: Baseline, k: int) -> None:
    train = clustered()
    model.fit(train)
    history = Interactions.from_pairs(
        *clustered(40, seed=1).to_csr().nonzero(), shape=(42, 120)
    ).jagged
    allowed = torch.rand(120, generator=torch.Generator().manual_seed(0)) < 0.7
    for exclude in (history, None):
        for mask in (allowed, None):
            found = model.rank(history, k, exclude=exclude, allowed=mask)
            with dispatch.disabled():
                expected = model.rank(history, k, exclude=exclude, allowed=mask)
            torch.testing.assert_close(found.scores, expected.scores)
            assert (found.ids == expected.ids).float().mean() > 0.999


def test_saved_loaded_compared(tmp_path: Path) -> None:
    train = clustered().to_csr()
    rec = ff.Recommender(SparseEASE(10.0, 12)).fit(train, progress=False)
    again = ff.Recommender.load(rec.save(tmp_path / "model"))
    asked = rec.recommend_from_history([1, 5], k=5).to_dicts()
    assert again.recommend_from_history([1, 5], k=5).to_dicts() == asked
    assert len(again.similar_items([3], k=4).to_dicts()) == 4
    found = ff.compare(train, models=("popularity", "sparse-ease"))
    assert "predictors" in str(found)


def test_a_folder_with_wrong_offsets_is_refused() -> None:
    model = SparseEASE(10.0, 3).fit(log())
    tensors = model.state()
    tensors["offsets"] = tensors["offsets"].flip(0)
    with pytest.raises(ValueError, match="offsets must rise from 0 to the number of ids"):
        SparseEASE(10.0, 3).from_state(tensors, 23)


def test_exported_module_scores_the_same() -> None:
    model = SparseEASE(10.0, 7).fit(log())
    padded = torch.tensor([[3, 5, -1], [-1, -1, -1], [0, 22, 7]])
    history = Jagged(torch.tensor([3, 5, 0, 22, 7]), torch.tensor([0, 2, 2, 5]))
    expected = model.scores(history, slice(0, 23))
    expected[1] = model.counts
    torch.testing.assert_close(model.to_onnx()(padded), expected)


def test_large_catalogues_have_few_predictors() -> None:
    assert [one.predictors for one in SparseEASE.grid(10_000)] == [200] * 3
    assert [one.predictors for one in SparseEASE.grid(100_000)] == [200] * 2
    assert [one.predictors for one in SparseEASE.grid(1_000_000)] == [50]
    work = [SparseEASE(20.0, width).work(clustered()) for width in (5, 50, 500)]
    assert work[0] < work[1] < work[2]


def test_errors() -> None:
    with pytest.raises(ValueError, match="l2 must be finite and greater than 0, got 0"):
        SparseEASE(0)
    with pytest.raises(ValueError, match="predictors must be at least 1"):
        SparseEASE(1.0, 0)
    with pytest.raises(ValueError, match="SparseEASE has learned nothing yet"):
        SparseEASE().recommend(log(), 3)
    with pytest.raises(NotImplementedError, match="must define rows"):
        _ = SparseRowsBaseline().rows
    assert "50 predictors of 10,000,000,000 items need" in SparseEASE.too_large(10**10)


@native
def test_kernels_refuse_what_does_not_fit() -> None:
    offsets, ids, users = torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1])
    users = users.int()
    size = [torch.zeros(3, dtype=torch.int64) for _ in range(2)]
    count, write = (dispatch.kernel(n) for n in ("count_shared_users", "shared_users_u8"))
    log_ = (offsets, ids, torch.tensor([0, 1, 3]), users)
    count(*log_, 0, 2, *size, 1)
    assert [one.tolist() for one in size] == [[0, 1, 1], [0, 1, 1]]
    steps = torch.empty(2, 2, dtype=torch.uint8)
    for start in ([0, 0, 2], [0, 2, 2]):  # too little room for one row, too much for another
        with pytest.raises(ValueError, match="start does not agree with the log"):
            write(*log_, 0, 2, torch.tensor(start), steps, 1)
    with pytest.raises(ValueError, match="items from 1 to 3 are not among 2"):
        count(*log_, 1, 3, *size, 1)
    with pytest.raises(IndexError):
        count(offsets, ids + 1, *log_[2:], 0, 2, *size, 1)
    with pytest.raises(IndexError, match="users must be between 0 and 1"):
        count(*log_[:3], users + 1, 0, 2, *size, 1)
    write(*log_, 0, 2, torch.tensor([0, 1, 2]), steps, 1)
    assert steps.tolist() == [[2, 1], [1, 1]]
    ridge, start, both = dispatch.kernel("SparseRidge_u8"), torch.tensor([0, 1, 2]), torch.ones(2)
    for wrong in ([[3, 1], [1, 1]], [[0, 1], [1, 1]]):
        with pytest.raises(ValueError, match="the steps of item 0 leave the items"):
            ridge(start, torch.tensor(wrong, dtype=torch.uint8), both, *log_[2:], 2, 1.0, 1, 2)
    with pytest.raises(IndexError, match="users must be between 0 and 0"):
        ridge(start, steps, both, *log_[2:], 1, 1.0, 1, 1)
    rows = SparseRows(torch.tensor([0, 1, 1]), torch.tensor([2], dtype=torch.int32), torch.ones(1))
    history = Jagged(torch.tensor([0]), torch.tensor([0, 1]))
    with pytest.raises(IndexError):
        rows.best(history, 1, history, None)
