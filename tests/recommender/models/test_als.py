"""Alternating least squares: its objective, users as lists of items, and its life as a model."""

import itertools
import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor

import fewfold as ff
from experiments import datasets
from fewfold.recommender import (
    ALS,
    NDCG,
    FittedALS,
    Interactions,
    Jagged,
    MostPopular,
    evaluate,
    random_split,
)
from fewfold.recommender.export_model import padded
from fewfold.recommender.models.model import FitOptions
from tests.cli.invoke import fewfold
from tests.paths import on_path
from tests.recommender.conftest import grouped


def log(users: int = 40, items: int = 24, weighted: bool = False, seed: int = 0) -> Interactions:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(users, items, generator=generator) < 0.2
    drawn[3] = drawn[:, 5] = False  # a user and an item without pairs
    drawn[4] = torch.arange(items) == 7  # a user with one item
    weights = torch.rand(int(drawn.sum()), generator=generator) * 3 + 0.2 if weighted else None
    pairs = drawn.nonzero().unbind(1)
    return Interactions.from_pairs(*pairs, shape=(users, items), weights=weights)


def loss(model: ALS, train: Interactions, users: Tensor, items: Tensor) -> Tensor:
    """The objective as the docstring has it, all pairs written out."""
    a, power, scores = model.unobserved_weight, model.frequency_exponent, users @ items.T
    seen = torch.zeros_like(scores)
    seen[train.row, train.ids] = 1
    weight = torch.zeros_like(scores)
    weight[train.row, train.ids] = 1.0 if train.weights is None else train.weights.to(scores)
    found = (weight * (1 - scores) ** 2).sum() + a * (scores**2).sum()
    for vectors, pairs, others in (
        (users, seen.sum(1), train.items),
        (items, seen.sum(0), len(users)),
    ):
        norms = (vectors**2).sum(1)
        found = found + model.regularisation * ((pairs + a * others) ** power * norms).sum()
    return found


@pytest.mark.parametrize("path", ["native", "torch"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("factors", [3, 17, 40])
def test_each_half_minimises_the_objective(factors: int, weighted: bool, path: str) -> None:
    """Users and items are stationary points given the other side; the loss falls."""
    train = log(weighted=weighted)
    model = ALS(factors, regularisation=0.02, unobserved_weight=0.3, frequency_exponent=0.5)
    start = torch.randn(train.items, factors, generator=torch.Generator().manual_seed(0)) / 3
    with on_path(path):
        users = model.solve_side(train.jagged, train.weights, start.clone())
        rotated = ff.recommender.models.least_squares.diagonalise(start.clone())[0]
    leaf = users.double().requires_grad_()
    (slope,) = torch.autograd.grad(loss(model, train, leaf, rotated.double()), leaf)
    assert float(slope.abs().max()) < 2e-4
    losses = []
    for iterations in (1, 2, 5):
        with on_path(path):
            fitted = ALS(factors, 0.02, 0.3, iterations, 0.5).fit(train)
            queries = fitted.queries(train.jagged)[:, :factors]
        if not weighted:  # otherwise a query has the mean weight of the log
            losses.append(float(loss(model, train, queries.double(), fitted.item_vectors.double())))
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize("factors", [4, 33])
def test_kernels_and_torch_agree(factors: int) -> None:
    train, found = log(weighted=True), []
    for path in ("native", "torch"):
        with on_path(path):
            fitted = ALS(factors, iterations=4).fit(train)
            found.append(fitted.queries(train.jagged) @ fitted.vectors.T)
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3)


def test_the_same_seed_gives_the_same_bits_on_any_number_of_threads() -> None:
    train, before, found = log(300, 90), torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(ALS(20, iterations=5).fit(train))
    finally:
        torch.set_num_threads(before)
    queries = [fitted.queries(train.jagged) for fitted in found]
    assert torch.equal(*queries)
    assert torch.equal(found[0].item_vectors, found[1].item_vectors)
    other = ALS(20, iterations=5).learn(train, FitOptions(seed=1)).fitted
    assert isinstance(other, FittedALS)
    assert not torch.equal(other.item_vectors, found[0].item_vectors)


def test_a_weight_of_two_is_a_stronger_wish() -> None:
    """A pair of more weight is fitted more closely, and scaling all weights alike is no change."""
    train = log()
    heavy = torch.ones(train.pairs)
    heavy[0] = 50.0
    user, item = int(train.row[0]), int(train.ids[0])
    weighted = Interactions(train.offsets, train.ids, train.items, weights=heavy)
    light = ALS(4).fit(train)
    scores = [float(f.item_vectors[item] @ f.queries(train.rows([user]))[0, :-1])
              for f in (light, ALS(4).fit(weighted))]  # fmt: skip
    assert scores[1] > scores[0]
    ones = Interactions(train.offsets, train.ids, train.items, weights=torch.ones(train.pairs))
    assert torch.equal(ALS(4).fit(ones).item_vectors, light.item_vectors)
    assert float(ALS(4).fit(weighted).confidence) == pytest.approx(float(heavy.mean()))


def test_strangers_and_those_without_items() -> None:
    train = log()
    fitted = ALS(8).fit(train)
    nobody = Jagged(torch.empty(0, dtype=torch.int64), torch.tensor([0, 0]))
    popular = MostPopular().fit(train).rank(nobody, 24)
    assert fitted.rank(nobody, 24).ids.tolist() == popular.ids.tolist()
    both = Jagged(torch.tensor([1, 6, 2]), torch.tensor([0, 2, 2, 3]))
    ranked = fitted.rank(both, 24, exclude=both).ids
    for row, known in zip(ranked.tolist(), ([1, 6], [], [2]), strict=True):
        assert sorted(row) == sorted([*set(range(24)) - set(known), *[-1] * len(known)])
    assert ranked[1].tolist() == popular.ids[0].tolist()
    alone = fitted.rank(Jagged(both.values[:2], torch.tensor([0, 2])), 24)
    torch.testing.assert_close(alone.scores[0], fitted.rank(both, 24).scores[0])
    fitted.prepare()
    assert fitted.rank(both, 3).ids.tolist() == ALS(8).fit(train).rank(both, 3).ids.tolist()


def test_saved_loaded_asked_indexed_and_inspected(tmp_path: Path) -> None:
    rec = ff.Recommender(ALS(6, iterations=5)).fit(grouped(), test=0.2, progress=False)
    folder = rec.save(tmp_path / "model")
    again = ff.Recommender.load(folder)
    assert again.model == ALS(6, 0.01, iterations=5)
    for answer in (again.recommend_from_history(["a1", "a2"], k=3), again.similar_items("a1", k=3)):
        assert all(item.startswith("a") for item in answer.items)
    assert again.recommend(["u1"], k=5).items == rec.recommend(["u1"], k=5).items
    search = again.index(recall=0.9)
    assert search.recall >= 0.9
    found = again.recommend_from_history(["b1", "b4"], k=3, search=search)
    assert all(item.startswith("b") for item in found.items)
    assert "als" in str(ff.recommender.inspect(folder))
    assert json.loads((folder / "config.json").read_text())["model"] == {
        "kind": "als", "factors": 6, "regularisation": 0.01, "unobserved_weight": 0.03,
        "iterations": 5, "frequency_exponent": 1.0,
    }  # fmt: skip
    told = ff.recommender.export(again, vectors=tmp_path / "v.parquet", faiss=tmp_path / "i.faiss")
    assert "40 vectors of 7" in told["vectors"]


@pytest.mark.parametrize("weighted", [False, True])
def test_onnx_gives_the_scores(tmp_path: Path, weighted: bool) -> None:
    train = log(weighted=weighted)
    fitted = ALS(16, regularisation=1e-4, unobserved_weight=0.02).fit(train)
    expected = fitted.queries(train.jagged) @ fitted.vectors.T
    torch.testing.assert_close(
        fitted.to_onnx()(padded(train.jagged)), expected, atol=1e-4, rtol=1e-4
    )
    if weighted:
        return
    rec = ff.Recommender(ALS(4)).fit(grouped(), progress=False)
    ff.recommender.export(rec, onnx=tmp_path / "scorer.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "scorer.onnx")
    rows = Jagged(torch.tensor([3, 1, 30]), torch.tensor([0, 2, 2, 3]))
    (scores,) = session.run(None, {"history": padded(rows).numpy()})
    wanted = rec.fitted.queries(rows) @ rec.fitted.vectors.T
    np.testing.assert_allclose(scores, wanted.numpy(), rtol=1e-4, atol=1e-4)


def test_compared_and_on_the_command_line(tmp_path: Path) -> None:
    found = ff.compare(grouped(200), models=("als", "popularity"), progress=False)
    best = found.contenders[0]
    assert best.kind == "als"
    assert best.recipe in ALS.grid(40)
    assert "256 factors, regularisation" in str(found)
    rows, path = grouped(), tmp_path / "log.csv"
    pairs = (f"{u},{i}\n" for u, i in zip(rows["user"], rows["item"], strict=True))
    path.write_text("user,item\n" + "".join(pairs))
    flags = ALS(5, 0.01, 0.25, 3).flags()
    assert flags == " --factors 5 --regularisation 0.01 --unobserved-weight 0.25 --iterations 3"
    out = tmp_path / "model"
    done = fewfold("fit", path, "--model", "als", *flags.split(), "--out", out, "-q")
    assert done.code == 0, done.err
    assert ff.Recommender.load(out).model == ALS(5, 0.01, 0.25, 3)


def test_the_default_regularisation_falls_with_the_number_of_items() -> None:
    found = [ALS().resolved(items).regularisation for items in (0, 5, 6_000, 40_000, 10**6)]
    assert found == pytest.approx([0.01, 0.01, 0.01, 0.003, 0.003])
    between = [ALS().resolved(items).regularisation for items in (6_001, 15_492, 39_999)]
    assert between == pytest.approx([0.01, (0.01 * 0.003) ** 0.5, 0.003], rel=1e-3)
    assert ALS(regularisation=0.5).resolved(10).regularisation == 0.5
    fitted = ALS(4).fit(log())
    assert fitted.recipe == ALS(4, 0.01)
    assert ALS(4).from_state(fitted.state(), fitted.items).recipe == fitted.recipe
    assert ALS().summary() == "256 factors, unobserved 0.03"
    assert "regularisation" not in ALS().flags()
    with pytest.raises(ValueError, match="resolved"):
        ALS().ridge(torch.ones(1), 5)


def test_the_evaluation_may_take_as_long_as_the_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    monkeypatch.setattr(
        "fewfold.recommender.fit_job.sample_users",
        lambda *_, training, **__: found.append(training),
    )
    ff.Recommender(ALS(6, iterations=5)).fit(grouped(), test=0.2, progress=False)
    assert found[0] > 0.5 * 5 * 40 * 6**2  # the Gram matrices of the items alone


def test_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ALS.too_large(10_000) == ""
    monkeypatch.setattr("fewfold.recommender.models.als.free_memory", lambda: 10**9)
    assert "vectors of 256 numbers" in ALS.too_large(2_000_000)


def test_errors() -> None:
    for name, value in (
        ("factors", 0), ("factors", 5000), ("iterations", 0), ("regularisation", 0.0),
        ("unobserved_weight", 0.0), ("unobserved_weight", float("nan")), ("frequency_exponent", -1),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"{name} must be"):
            ALS(**{name: value})
    from fewfold.recommender import Checkpoint

    with pytest.raises(ValueError, match="ALS is fitted in one run and needs no checkpoint"):
        ALS().learn(log(), FitOptions(checkpoint=Checkpoint("anywhere")))


def test_a_bound_of_the_scores() -> None:
    """`largest` is above every score, for histories of all items and of one."""
    for weighted, power in itertools.product((False, True), (0.0, 1.0)):
        train = log(weighted=weighted)
        model = ALS(8, 1e-3, 0.05, 4, power)
        fitted = model.fit(train)
        ranges = {n: (float(t.min()), float(t.max())) for n, t in fitted.state().items()}
        rows = Jagged(torch.cat([torch.arange(24), torch.tensor([3])]), torch.tensor([0, 24, 25]))
        assert float((fitted.queries(rows) @ fitted.vectors.T).abs().max()) < model.largest(
            ranges, 24
        )
    assert ALS(8).largest(ranges | {"items": (-1e30, 1e30)}, 24) > 1e17


@pytest.mark.skipif(not datasets.has("ml-100k-fastvae"), reason="FEWFOLD_DATA has no such dataset")
def test_on_a_real_log() -> None:
    """Better than popularity by far more than the noise of a split."""
    split = random_split(datasets.interactions("ml-100k-fastvae"), seed=0)
    known = split.fold_in.jagged
    found = [
        evaluate(model.fit(split.train).rank(known, 50, exclude=known).ids, split.test)[NDCG(50)]
        for model in (MostPopular(), ALS(32))
    ]
    assert found[0].high < found[1].low
