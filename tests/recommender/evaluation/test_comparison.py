"""The comparison: one split, honest settings, and a verdict that follows the numbers."""

from dataclasses import replace

import pytest

import fewfold as ff
from fewfold._resources import format_bytes
from fewfold.recommender.evaluation.paired_interval import PairedInterval
from tests.recommender.conftest import grouped


@pytest.fixture(scope="module")
def comparison() -> ff.recommender.Comparison:
    return ff.compare(grouped(200), training=ff.recommender.Training(epochs=8, batch=32), test=0.3)


def test_the_table_has_every_model_and_number(comparison: ff.recommender.Comparison) -> None:
    kinds = {one.kind for one in comparison.contenders}
    assert kinds == {"popularity", "item-knn", "ease", "fastvae"}
    means = [one.evaluation.overall[comparison.metric].mean for one in comparison.contenders]
    assert means == sorted(means, reverse=True)
    assert comparison.contenders[-1].kind == "popularity"  # tastes are there to be learned
    text = str(comparison)
    for word in (*kinds, "NDCG@10", "fit", "size", "users/s", "Held out", "hits in the first k"):
        assert word in text
    assert all(one.size > 0 and one.users_per_second > 0 for one in comparison.contenders)
    assert {row["model"] for row in comparison.as_dict()["models"]} == kinds


def _with_differences(
    comparison: ff.recommender.Comparison, *bounds: tuple[float, float]
) -> ff.recommender.Comparison:
    found = [PairedInterval((low + high) / 2, low, high) for low, high in bounds]
    return replace(
        comparison, contenders=comparison.contenders[: len(found) + 1], differences=found
    )


def test_the_verdict_follows_the_intervals(comparison: ff.recommender.Comparison) -> None:
    first, second, third = comparison.contenders[:3]
    assert all(one.mean >= 0 and one.low <= one.mean <= one.high for one in comparison.differences)
    clear = _with_differences(comparison, (0.01, 0.03), (0.02, 0.04))
    assert clear.equal == [first]
    assert clear.verdict.startswith(f"{first.kind} is the best")
    assert f"{second.kind}, the next best, by +0.0200, 95 % interval +0.0100 to" in clear.verdict
    assert f"--model {first.kind}{first.recipe.flags()}." in clear.verdict
    close = _with_differences(comparison, (-0.01, 0.03), (0.02, 0.04))
    assert close.equal == [first, second]
    assert f"{first.kind} and {second.kind} are equally good" in close.verdict
    assert close.cheapest is min(first, second, key=lambda one: one.seconds)
    # Intervals are not ordered as the means are: the third may be as good where the second is not.
    third_alone = _with_differences(comparison, (0.001, 0.03), (-0.02, 0.06))
    assert third_alone.equal == [first, third]
    assert _with_differences(comparison).verdict == f"{first.kind} is the only model here."


def test_what_cannot_be_fitted_is_left_out_aloud(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fewfold.recommender.models.ease.free_memory", lambda: 1000)
    found = ff.compare(grouped(60), models=("popularity", "ease"))
    assert [one.kind for one in found.contenders] == ["popularity"]
    assert "ease was left out: it needs an items x items matrix" in str(found)
    with pytest.raises(ValueError, match=r"models must be some of .*, got magic"):
        ff.compare(grouped(60), models=("magic",))


def test_sizes_are_readable() -> None:
    assert [format_bytes(n) for n in (7, 1500, 12_000, 3.2e6, 4.5e10)] == [
        "7 B", "1.5 kB", "12 kB", "3.2 MB", "45 GB"
    ]  # fmt: skip
