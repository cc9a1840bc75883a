"""`MatrixRecommender`: scikit-learn's own checks, and agreement with `Recommender`."""

import pickle

import numpy as np
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.utils.estimator_checks import check_estimator

from fewfold.recommender import EASE, ItemKNN, MostPopular, Recall, Recommender
from fewfold.sklearn import MatrixRecommender

rng = np.random.default_rng(0)
KIND = rng.integers(0, 2, 120)
X = (rng.random((120, 14)) < np.where((np.arange(14) < 7) == (KIND[:, None] == 0), 0.6, 0.1)) * 1.0
SPARSE = scipy.sparse.csr_array(X)

RANKING = "predict returns a ranking of k items for each row, not one value"


def test_checks_of_scikit_learn() -> None:
    failing = {f"check_estimator_sparse_{kind}": RANKING for kind in ("array", "matrix")}
    results = check_estimator(
        MatrixRecommender(EASE(), k=2), expected_failed_checks=failing, on_skip=None
    )
    assert {one["status"] for one in results} <= {"passed", "skipped", "xfail"}
    assert {one["check_name"] for one in results if one["status"] == "xfail"} == set(failing)
    assert len(results) > 35


@pytest.mark.parametrize("weighted", [False, True])
def test_agrees_with_the_recommender(weighted: bool) -> None:
    values = X * rng.integers(1, 5, X.shape)
    found = MatrixRecommender(EASE(l2=5.0), k=4, weighted=weighted).fit(values)
    own = Recommender(EASE(l2=5.0)).fit(
        scipy.sparse.csr_array(values), weight=True if weighted else None, progress=False
    )
    assert found.predict(values).tolist() == own.recommend(range(120), k=4).items
    assert (found.predict(SPARSE) == found.predict(X)).all()


def test_no_item_left_is_minus_one() -> None:
    found = MatrixRecommender(MostPopular(), k=20).fit(X).predict(np.ones((1, 14)))
    assert found.tolist() == [[-1] * 14]


def test_the_score_is_of_hidden_items() -> None:
    recommender = MatrixRecommender(EASE(l2=5.0), k=5).fit(X)
    assert recommender.score(SPARSE) == recommender.score(X)
    assert recommender.score(X) > MatrixRecommender(MostPopular(), k=5).fit(X).score(X)
    others = recommender.set_params(random_state=np.random.RandomState(1)).score(X)
    assert 0 < others != MatrixRecommender(EASE(l2=5.0), k=5).fit(X).score(X)
    # A hit is an item that was hidden: recall of all items is one.
    assert recommender.set_params(metric=Recall(14)).score(X) == 1.0


def test_grid_search_over_models_and_their_settings() -> None:
    grid = [
        {"model": [EASE()], "model__l2": [1.0, 1e6]},
        {"model": [MostPopular(), ItemKNN(10)]},
    ]
    search = GridSearchCV(MatrixRecommender(EASE(), k=5), grid, cv=3).fit(SPARSE)
    assert len(search.cv_results_["params"]) == 4
    assert not np.isnan(search.cv_results_["mean_test_score"]).any()
    best = search.best_estimator_
    assert not isinstance(best.model, MostPopular)
    again = pickle.loads(pickle.dumps(best))
    assert (again.predict(X) == best.predict(X)).all()
    mine = cross_val_score(clone(best), SPARSE, cv=3).mean()
    assert mine == pytest.approx(search.best_score_)


def test_settings_of_the_model_are_parameters() -> None:
    model = EASE(l2=3.0)
    recommender = MatrixRecommender(model)
    assert recommender.get_params()["model__l2"] == 3.0
    recommender.set_params(model__l2=7.0, k=3)
    assert (recommender.model.l2, recommender.k, model.l2) == (7.0, 3, 3.0)
    recommender.set_params(model=ItemKNN(10), model__neighbours=4)
    assert repr(recommender.model) == repr(ItemKNN(4))
    with pytest.raises(ValueError, match="ItemKNN has no setting 'l2'"):
        recommender.set_params(model__l2=1.0)
    with pytest.raises(ValueError, match="give a model"):
        MatrixRecommender().set_params(model__l2=1.0)
    with pytest.raises(ValueError, match="Invalid parameter 'kk'"):
        recommender.set_params(kk=3)


def test_wrong_parameters_are_named() -> None:
    fitted = MatrixRecommender(EASE()).fit(X)
    with pytest.raises(ValueError, match="hidden must be above 0 and below 1, got 2"):
        fitted.set_params(hidden=2).score(X)
    for wrong in ("ease", EASE):
        with pytest.raises(TypeError, match=r"model must be a model such as EASE\(\), got "):
            MatrixRecommender(wrong).fit(X)


def test_negative_values_are_refused() -> None:
    with pytest.raises(ValueError, match="Negative values"):
        MatrixRecommender(EASE()).fit(-X)
