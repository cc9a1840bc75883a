"""The comparison: one split, honest settings, and a verdict that follows the numbers."""

import pytest

import fewfold as ff
from fewfold._resources import format_bytes
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


def test_the_verdict_follows_the_interval(comparison: ff.recommender.Comparison) -> None:
    simple, gain, low, high = comparison.against
    assert low <= gain <= high

    def verdict(gain: float, low: float, high: float) -> str:
        found = ff.recommender.Comparison(
            "s", comparison.contenders, {}, comparison.metric, (simple, gain, low, high)
        )
        return found.verdict

    assert verdict(0.02, 0.01, 0.03).startswith("The simple method wins")
    assert f"--model {simple}" in verdict(0.02, 0.01, 0.03)
    assert verdict(-0.02, -0.03, -0.01).startswith("fastvae wins")
    assert "0.0200, 95 % interval 0.0100 to 0.0300" in verdict(-0.02, -0.03, -0.01)
    assert "equally good" in verdict(0.0, -0.01, 0.01)


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
