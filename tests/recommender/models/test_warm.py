"""Item vectors completed from attributes: items without interactions can be recommended."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.sparse import csr_array

import fewfold as ff
from fewfold.cli import main
from fewfold.recommender import ALS, EASE, VAE, HoldOut, ItemsTable, Recommender, Training
from fewfold.recommender.models.fastvae.fitted import FittedVAE
from fewfold.recommender.models.model import FitOptions
from fewfold.recommender.models.registry import models
from fewfold.recommender.models.warm import FittedWarm, Warm
from fewfold.recommender.selection.choose import choose
from fewfold.recommender.warm_vectors import WarmSettings

_KINDS = ("tea", "nut", "oil")
_WARM, _COLD = 20, 3  # items of each kind with interactions, and without
_SMALL = VAE(hidden=16, latent=7, shortcut=8)


def _log(users: int = 240) -> dict[str, list[str]]:
    """Users who take six items of one kind each."""
    generator = torch.Generator().manual_seed(0)
    log: dict[str, list[str]] = {"user": [], "item": []}
    for user in range(users):
        kind = _KINDS[user % len(_KINDS)]
        for item in torch.randperm(_WARM, generator=generator)[:6].tolist():
            log["user"].append(f"u{user}")
            log["item"].append(f"{kind}{item:02}")
    return log


def _table() -> dict[str, list[str]]:
    names = [f"{kind}{n:02}" for n in range(_WARM + _COLD) for kind in _KINDS]
    return {"item": names, "kind": [name[:3] for name in names]}


@pytest.fixture(scope="module")
def fitted() -> Recommender:
    rec, table = Recommender(_SMALL, training=Training(epochs=12)), ItemsTable(_table(), use=True)
    return rec.fit(_log(), items_table=table, test=HoldOut(split="random"), progress=False)


def test_a_cold_item_is_found_by_what_it_is(fitted: Recommender) -> None:
    assert len(fitted.items) == len(_KINDS) * (_WARM + _COLD)
    cold = [f"{kind}{n:02}" for kind in _KINDS for n in range(_WARM, _WARM + _COLD)]
    for kind in _KINDS:
        history = [f"{kind}{n:02}" for n in range(4)]
        best = fitted.recommend_from_history(history, k=_COLD, items=cold).items
        assert {item[:3] for item in best} == {kind}
        everything = fitted.recommend_from_history(history, k=30).items
        assert any(item in cold for item in everything)
    near = fitted.similar_items(f"tea{_WARM}", k=5).items
    assert {item[:3] for item in near} == {"tea"}
    # An item that the model was not trained on says nothing in a history, but is not recommended.
    known, more = (
        fitted.recommend_from_history(history, k=60).items
        for history in (["tea01"], ["tea01", f"nut{_WARM}"])
    )
    assert [item for item in known if item != f"nut{_WARM}"] == [*more][: len(known) - 1]


def test_the_report_says_what_was_chosen(fitted: Recommender) -> None:
    report = fitted.report
    assert report is not None
    assert report.attributes is not None
    found = report.attributes
    assert found.hidden_items == 6
    assert found.cold_recall_alone > 0.5
    assert found.warm_recall >= 0.95 * found.warm_recall_before
    assert "kind: category" in str(report)
    assert "6 items hidden" in str(report)
    assert report.as_dict()["features"] == {"kind": "category"}


def test_saved_and_loaded(fitted: Recommender, tmp_path: Path) -> None:
    folder = fitted.save(tmp_path / "model")
    again = Recommender.load(folder)
    users = ["u0", "u1", "u2"]
    assert again.recommend(users, k=20).items == fitted.recommend(users, k=20).items
    config = json.loads((folder / "config.json").read_text())
    assert config["model"]["kind"] == "warm"
    assert config["model"]["inner"]["kind"] == "fastvae"
    assert config["attributes"]["l2"] > 0
    assert again.attributes is not None
    assert again.attributes[int(again.items.find([f"oil{_WARM}"])[0])] == {"kind": "oil"}


def test_rankings_of_trained_items_are_unchanged_without_shrinkage(fitted: Recommender) -> None:
    warm = fitted.fitted
    assert isinstance(warm, FittedWarm)
    assert isinstance(warm.inner, FittedVAE)
    log = fitted.history
    assert log is not None
    matrix = csr_array(torch.eye(3)[torch.arange(warm.items) % 3].numpy())
    found = Warm(_SMALL).with_features(matrix).completed(warm.inner, log, WarmSettings(offset=1.0))
    cold = log.counts() == 0
    assert torch.equal(found.replaced, cold.nonzero().squeeze(1))
    history = log.rows(torch.arange(20))
    mine, before = (m.rank(history, 10, allowed=~cold) for m in (found, warm.inner))
    assert torch.equal(mine.ids, before.ids)
    drawn = (
        Warm(_SMALL).with_features(matrix).completed(warm.inner, log, WarmSettings(shrinkage=5.0))
    )
    assert len(drawn.replaced) == warm.items
    assert not torch.equal(drawn.vectors[~cold, :-1], warm.inner.vectors[~cold])


def test_a_log_without_cold_items_keeps_its_table() -> None:
    table: dict[str, Any] = _table()
    rec = Recommender(EASE(l2=1.0)).fit(_log(30), items_table=table, progress=False)
    assert len(rec.items) == len({*_log(30)["item"]})
    assert rec.recommend("u0", k=1).items
    assert rec.attributes is not None


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, columns in (("log", _log(60)), ("items", _table())):
        rows = [",".join(row) for row in zip(*columns.values(), strict=True)]
        (tmp_path / f"{name}.csv").write_text("\n".join([",".join(columns), *rows]) + "\n")
    command = ["fit", str(tmp_path / "log.csv"), "--items-table", str(tmp_path / "items.csv")]
    command += ["--use-attributes", "--out", str(tmp_path / "model"), "--epochs", "2", "--quiet"]
    assert main([*command, "--latent", "3", "--hidden", "8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["attributes"]["hidden_items"] == 6
    assert f"oil{_WARM}" in Recommender.load(tmp_path / "model").items.tolist()
    assert main(["fit", str(tmp_path / "log.csv"), "--use-attributes", "--quiet"]) == 2
    assert "needs a table of attributes; write --items-table FILE" in capsys.readouterr().err


def test_errors() -> None:
    log, table = _log(30), _table()
    with pytest.raises(ValueError, match="ease has none; fit fastvae"):
        Recommender(EASE()).fit(log, items_table=ItemsTable(table, use=True), progress=False)
    with pytest.raises(ValueError, match="says nothing that two items share"):
        Recommender(_SMALL).fit(
            log, items_table=ItemsTable({"item": table["item"]}, use=True), progress=False
        )
    pairs = ff.recommender.Interactions.from_pairs([0, 0, 1], [0, 1, 1])
    with pytest.raises(ValueError, match="features of the 2 items, got none"):
        Warm(_SMALL).fit(pairs)
    with pytest.raises(ValueError, match="--use-attributes"):
        Warm.from_options({})
    with pytest.raises(ValueError, match="warm_loss"):
        Warm(_SMALL, warm_loss=1.0)
    fitted = _SMALL.fit(pairs)
    known = torch.ones(2, dtype=torch.bool)
    with pytest.raises(ValueError, match="one more than the vectors"):
        FittedWarm(Warm(_SMALL), fitted, known, torch.tensor([1]), torch.zeros(1, 3))


def test_a_table_with_new_items_is_used_where_nothing_is_lost() -> None:
    rec = Recommender(_SMALL, training=Training(epochs=12))
    rec.fit(_log(), items_table=_table(), progress=False)
    assert isinstance(rec.fitted, FittedWarm)
    assert rec.fitted.recipe.warm_loss == 0
    assert rec.report is not None
    found = rec.report.attributes
    assert found is not None
    assert found.warm_recall >= found.warm_recall_before
    assert len(rec.items) == len(_KINDS) * (_WARM + _COLD)
    shown = Recommender(_SMALL, training=Training(epochs=1))
    shown.fit(_log(), items_table=ItemsTable(_table(), use=False), progress=False)
    assert len(shown.items) == len(_KINDS) * _WARM
    # Without new items there is nothing to gain, and nothing is fitted twice.
    same = {name: values[: len(_KINDS) * _WARM] for name, values in _table().items()}
    plain = Recommender(_SMALL, training=Training(epochs=1))
    plain.fit(_log(), items_table=same, progress=False)
    assert not isinstance(plain.fitted, FittedWarm)
    bare = {"item": _table()["item"]}  # which says nothing about them
    plain.fit(_log(), items_table=bare, progress=False)
    assert not isinstance(plain.fitted, FittedWarm)


@pytest.mark.parametrize("use", [True, None])
def test_the_automatic_choice_ranks_cold_items(use: bool | None, monkeypatch: Any) -> None:
    given: dict[str, Any] = {}
    plain = choose

    def spy(log: Any, options: Any, names: Any = None, **more: Any) -> Any:
        given.update(more, names=names, items=log.items)
        return plain(log, options, names or ["popularity", "als"], **more)

    monkeypatch.setattr("fewfold.recommender.models.auto.choose", spy)
    monkeypatch.setattr(ALS, "grid", classmethod(lambda cls, items: [ALS(6)]))
    for other in ("fastvae", "transformer"):
        monkeypatch.setattr(models()[other], "grid", classmethod(lambda cls, items: []))
    rec = Recommender().fit(_log(), items_table=ItemsTable(_table(), use=use), progress=False)
    assert given["items"] == len(_KINDS) * _WARM  # nothing is chosen on items without pairs
    if use:
        assert given["names"] == ["als"]
        assert given["blends"] is False
    else:
        assert given["prefer_completable"] is True
    assert rec.fitted.recipe.name == "warm"
    assert len(rec.items) == len(_KINDS) * (_WARM + _COLD)
    best = rec.recommend_from_history(["tea00", "tea01"], k=60).items
    assert f"tea{_WARM}" in best


def test_a_chosen_model_without_vectors_knows_the_items_of_the_log(monkeypatch: Any) -> None:
    def chosen(log: Any, options: Any, **more: Any) -> Any:
        return EASE(1.0), None

    monkeypatch.setattr("fewfold.recommender.models.auto.choose", chosen)
    hold = HoldOut(0.2, split="random")
    rec = Recommender().fit(_log(), items_table=_table(), test=hold, refit=True, progress=False)
    assert rec.fitted.recipe.name == "ease"
    assert len(rec.items) == rec.fitted.items == len(_KINDS) * _WARM
    assert rec.attributes is not None
    assert rec.recommend("u0", k=1).attributes
    assert rec.report is not None
    assert rec.report.features is None


def test_a_model_with_vectors_is_preferred_among_equals() -> None:
    pairs = ff.read_log(_log()).interactions
    options = FitOptions(progress=False)
    first, choice = choose(pairs, options, ["ease", "als"])
    second, other = choose(pairs, options, ["ease", "als"], prefer_completable=True)
    assert second.completable or "It cannot rank items without interactions" in other.why
    worse, third = choose(pairs, options, ["ease", "popularity"], prefer_completable=True)
    assert worse.name == "ease"
    assert "It cannot rank items without interactions" in third.why
    assert first.name in choice.why
