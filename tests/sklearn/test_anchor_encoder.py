"""`AnchorEncoder`: scikit-learn's own checks, its vectors, unknown and missing categories."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import TargetEncoder
from sklearn.utils.estimator_checks import check_estimator

from fewfold.sklearn import AnchorEncoder
from fewfold.sklearn.categories import Categories

rng = np.random.default_rng(0)
COLOURS = rng.choice(["red", "blue", "pink", "grey"], 200).astype(object)
X = np.stack([COLOURS, rng.integers(0, 9, 200).astype(object)], axis=1)
y = np.isin(X[:, 0], ["red", "pink"]).astype(int)


def test_checks_of_scikit_learn() -> None:
    results = check_estimator(AnchorEncoder(dim=2, anchors=2, epochs=1), on_skip=None)
    assert {one["status"] for one in results} <= {"passed", "skipped"}
    assert len(results) > 40


def test_vectors_are_codes_times_anchors() -> None:
    encoder = AnchorEncoder(dim=3, anchors=5, nonzeros=2, random_state=0).fit(X, y)
    found = encoder.transform(X)
    for column, categories in enumerate(encoder.categories_):
        codes = encoder.codes_[column].toarray()
        assert codes.shape == (len(categories) + 1, min(5, len(categories)))
        assert ((codes[1:] > 0).sum(1) <= 2).all()
        assert (codes >= 0).all()
        for row in range(0, 200, 23):
            number = 1 + categories.tolist().index(X[row, column])
            expected = codes[number] @ encoder.anchors_[column]
            part = found[row, 3 * column : 3 * column + 3]
            np.testing.assert_allclose(part, expected, atol=1e-6)


def test_an_unknown_category_has_the_mean_vector() -> None:
    encoder = AnchorEncoder(random_state=0).fit(X, y)
    (unknown,) = encoder.transform([["violet", 77]])
    np.testing.assert_allclose(unknown, encoder.transform(X).mean(0), atol=1e-5)


def test_missing_values_are_a_category() -> None:
    frame = pd.DataFrame({"size": ["s", None, "m", np.nan] * 20, "age": [1.0, np.nan, 2, 3] * 20})
    encoder = AnchorEncoder(random_state=0).fit(frame, [0, 1, 0, 1] * 20)
    assert [one.tolist() for one in encoder.categories_] == [["m", "s", None], [1, 2, 3, None]]
    none, nan, other = encoder.transform(
        pd.DataFrame({"size": [None, np.nan, "x"], "age": [None, np.nan, 9.0]})
    )
    assert (none == nan).all()
    assert not (none == other).all()
    text = pd.DataFrame({"size": pd.array(["s", pd.NA], dtype="string"), "age": [1.0, 2.0]})
    assert (encoder.transform(text)[1, :8] == none[:8]).all()


def test_categories_are_numbered_alike_however_they_are_stored() -> None:
    texts = np.array([3, 1, 3, 2, 1])
    known, numbers = Categories.of(texts)
    assert numbers.tolist() == [3, 1, 3, 2, 1]
    for same in (texts.astype(object), texts.astype(float), texts.astype(float).astype(object)):
        assert known.numbers(same).tolist() == numbers.tolist()
    assert known.numbers(texts.astype(str)).tolist() == [0] * 5
    with pytest.raises(TypeError, match=r"astype\(str\)"):
        Categories.of(np.array([["a"], None], dtype=object))


@pytest.mark.parametrize("frame", [pd.DataFrame, lambda data: pl.DataFrame(data, strict=False)])
def test_frames_and_names(frame: type) -> None:
    data = {"colour": X[:, 0].tolist(), "size": [str(one) for one in X[:, 1]]}
    encoder = AnchorEncoder(dim=2, random_state=0).set_output(transform="pandas")
    found = encoder.fit_transform(frame(data), y)
    assert list(found.columns) == ["colour_0", "colour_1", "size_0", "size_1"]


def test_the_same_seed_gives_the_same_vectors_and_leaves_torch_alone() -> None:
    before = torch.random.get_rng_state()
    first, again, other = (
        AnchorEncoder(random_state=seed, epochs=1).fit_transform(X, y) for seed in (0, 0, 1)
    )
    assert (first == again).all()
    assert not (first == other).all()
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_number_as_target() -> None:
    effect = y * 3.0 + rng.normal(0, 0.1, 200)
    pipeline = make_pipeline(AnchorEncoder(random_state=0), LinearRegression())
    assert cross_val_score(pipeline, X, effect).mean() > 0.9
    assert clone(pipeline).fit(X, y.astype(float)).predict(X).std() > 0.4


def test_it_sees_what_columns_do_together() -> None:
    pairs = rng.integers(0, 20, (3000, 2))
    together = ((pairs[:, 0] % 2) ^ (pairs[:, 1] % 2)).astype(int)  # neither column tells alone
    scores = {
        type(encoder): cross_val_score(
            make_pipeline(encoder, HistGradientBoostingClassifier(max_iter=10)), pairs, together,
            cv=2,
        ).mean()
        for encoder in (AnchorEncoder(random_state=0), TargetEncoder())
    }  # fmt: skip
    assert scores[AnchorEncoder] > 0.95
    assert scores[TargetEncoder] < 0.75


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"dim": 0}, "dim"),
        ({"nonzeros": 1.5}, "nonzeros"),
        ({"l2": -1}, "l2"),
    ],
)
def test_invalid_parameters(wrong: dict[str, object], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        AnchorEncoder(**wrong).fit(X, y)
