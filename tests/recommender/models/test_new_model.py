"""A model defined outside the package works everywhere once it is registered."""

import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, field, fields
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest
import torch
from torch import Tensor

import fewfold as ff
from fewfold._tensors import Found, Spec
from fewfold.recommender import Baseline, Interactions, Jagged, Option, setting
from fewfold.recommender.models import registry
from fewfold.recommender.models.model_options import BUILT_IN
from tests.cli.invoke import fewfold
from tests.recommender.conftest import grouped


@dataclass(eq=False)
class Pairs(Baseline):
    """Score of an item: how many users have it together with the user's items, to a power."""

    name: ClassVar[str] = "pairs"
    most: ClassVar[int] = 1000
    power: float = field(
        default=1.0,
        metadata=setting(
            Option("pairs-power", "exponent of pairs", type=float, metavar="X"), "power {:g}"
        ),
    )
    counts: Tensor = field(init=False, repr=False)
    both: Tensor = field(init=False, repr=False)

    def fit(self, train: Interactions) -> Self:
        matrix = train.to_csr()
        self.both = torch.from_numpy((matrix.T @ matrix).toarray()).pow(self.power)
        self.counts, self.items = train.counts().float(), train.items
        return self

    def scores(self, history: Jagged, items: slice) -> Tensor:
        rows = torch.zeros(len(history.lengths), self.items)
        return rows.index_add_(0, history.row, self.both[history.values])[:, items]

    def layout(self, found: Found, items: int) -> Iterator[tuple[str, Spec]]:
        yield from super().layout(found, items)
        yield "both", Spec((items, items), least=0)

    @classmethod
    def grid(cls, items: int) -> "Sequence[Pairs]":
        return [cls(0.5), cls(2.0)]

    @classmethod
    def too_large(cls, items: int) -> str:
        return f"{items} items are too many" if items > cls.most else ""


class Elsewhere:
    """An entry point of another package, which counts how often it is loaded."""

    name, value = "pairs", "another_package.pairs:Pairs"
    loaded = 0

    def load(self) -> Any:
        self.loaded += 1
        return Pairs


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what a test registers; modules of built-in models register themselves only once."""
    for name in BUILT_IN:
        assert registry.models()[name].name == name
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))


@pytest.fixture
def registered(own_registry: None) -> None:
    registry.register(Pairs)


@pytest.fixture
def entry(own_registry: None, monkeypatch: pytest.MonkeyPatch) -> Elsewhere:
    found = Elsewhere()

    def entry_points(group: str) -> list[Elsewhere]:
        return [found] if group == "fewfold.models" else []

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    return found


@pytest.mark.usefixtures("registered")
def test_it_is_fitted_saved_loaded_asked_and_inspected(tmp_path: Path) -> None:
    rec = ff.Recommender(Pairs(power=2.0)).fit(grouped(), test=0.2, progress=False)
    folder = rec.save(tmp_path / "model")
    again = ff.Recommender.load(folder)
    assert isinstance(again.model, Pairs)
    assert again.model.power == 2.0
    for answer in (again.recommend_from_history(["a1", "a2"], k=3), again.similar_items("a1", k=3)):
        assert all(item.startswith("a") for item in answer.items)
    assert again.recommend(["u1"], k=5).items == rec.recommend(["u1"], k=5).items
    assert "pairs (power 2.0), seed 0" in str(ff.recommender.inspect(folder))
    assert json.loads((folder / "config.json").read_text())["model"] == {
        "kind": "pairs",
        "power": 2.0,
    }


@pytest.mark.usefixtures("registered")
def test_it_is_compared_with_its_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ff.compare(grouped(), models=("pairs", "popularity"), progress=False)
    best = found.contenders[0]
    assert best.kind == "pairs"
    assert isinstance(best.recipe, Pairs)
    assert best.recipe.power in (0.5, 2.0)
    assert f"power {best.recipe.power:g}" in str(found)
    assert best.recipe.flags() == f" --pairs-power {best.recipe.power:g}"
    monkeypatch.setattr(Pairs, "most", 39)
    with pytest.raises(ValueError, match="pairs: 40 items are too many"):
        ff.compare(grouped(), models=("pairs",), progress=False)


@pytest.mark.usefixtures("registered")
def test_the_command_line_offers_it(tmp_path: Path) -> None:
    assert "--pairs-power X" in fewfold("fit", "--help").out
    log, out = tmp_path / "log.csv", tmp_path / "model"
    rows = grouped()
    pairs = (f"{u},{i}\n" for u, i in zip(rows["user"], rows["item"], strict=True))
    log.write_text("user,item\n" + "".join(pairs))
    done = fewfold("fit", log, "--model", "pairs", "--pairs-power", "3", "--out", out, "-q")
    assert done.code == 0, done.err
    assert json.loads((out / "config.json").read_text())["model"]["power"] == 3.0
    assert fewfold("fit", log, "--model", "pairs", "--overwrite", "--out", out, "-q").code == 0
    assert json.loads((out / "config.json").read_text())["model"]["power"] == 1.0
    other = fewfold("fit", log, "--model", "pairs", "--anchors", "8", "--out", tmp_path / "o")
    assert "--anchors is for fastvae; pairs has no tables" in other.message
    exported = fewfold("export", out, "--onnx", tmp_path / "f.onnx")
    assert "a Pairs cannot be exported to ONNX" in exported.message


@pytest.mark.usefixtures("own_registry")
def test_what_is_not_registered_is_not_offered_and_not_saved(tmp_path: Path) -> None:
    assert "pairs" not in registry.models()
    assert "--pairs-power" not in fewfold("fit", "--help").out
    rec = ff.Recommender(Pairs()).fit(grouped(), progress=False)
    with pytest.raises(ValueError, match="Pairs cannot be saved"):
        rec.save(tmp_path / "model")


def test_an_entry_point_is_found_and_loaded_when_it_is_used(entry: Elsewhere) -> None:
    models = registry.models()
    assert list(models) == [*BUILT_IN, "pairs"]
    assert models["ease"] is ff.recommender.EASE
    assert entry.loaded == 0
    assert models["pairs"] is Pairs
    assert models["pairs"] is registry.models()["pairs"]
    assert entry.loaded == 1
    assert "--pairs-power X" in fewfold("fit", "--help").out


def test_an_entry_point_is_loaded_for_the_command_that_fits_it_alone(
    entry: Elsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    listed = fewfold("compare", "--help").out
    assert "pairs" in listed
    assert fewfold("--help").code == 0
    rows = grouped()
    pairs = (f"{u},{i}\n" for u, i in zip(rows["user"], rows["item"], strict=True))
    Path("log.csv").write_text("user,item\n" + "".join(pairs))
    assert fewfold("fit", "log.csv", "--model", "popularity", "-q").code == 0
    unknown = fewfold("fit", "log.csv", "--pairs-power", "2")
    assert (unknown.code, entry.loaded) == (2, 0)
    Path("fewfold.toml").write_text('[fit]\nmodel = "pairs"\npairs-power = 2\n')
    done = fewfold("fit", "log.csv", "--out", "two", "-q")
    assert (done.code, entry.loaded) == (0, 1), done.err
    assert json.loads(Path("two/config.json").read_text())["model"]["power"] == 2.0


def test_an_entry_point_that_fails_is_left_out(
    entry: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry, "name", "other", raising=False)
    with pytest.raises(ImportError, match=r"'other'.*cannot be loaded: its name is 'pairs'"):
        registry.models()["other"]
    assert set(registry.model_options()) == set(BUILT_IN)
    with pytest.raises(ImportError, match="'other' of the entry point another_package"):
        registry.model_options(["other"])
    with pytest.warns(UserWarning, match="'other' of the entry point another_package"):
        assert set(registry.model_options(["other"], skip_failing=True)) == set(BUILT_IN)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        shown = fewfold("fit", "--help")
    assert "--anchors" in shown.out
    assert "warning: the model 'other' of the entry point another_package" in shown.err
    failed = fewfold("fit", "log.csv", "--model", "other")
    assert failed.code == 2
    assert "cannot be loaded: its name is 'pairs'" in failed.message


@pytest.mark.usefixtures("registered")
def test_names_and_options_are_unique() -> None:
    class Nameless(Pairs):
        name = ""

    class Twin(Pairs):
        pass

    class Popular(Pairs):
        name = "popularity"

    @dataclass(eq=False)
    class Clash(Pairs):
        name: ClassVar[str] = "clash"
        power: float = field(default=1.0, metadata=setting(Option("l2", "of clash")))

    for model, fault in ((Nameless, "has no name"), (Twin, "Pairs; choose"), (Popular, "built-in")):
        with pytest.raises(ValueError, match=fault):
            registry.register(model)
    registry.register(Clash)
    clash = fewfold("fit", "--help")
    assert clash.code == 2
    assert "--l2 of the model clash is also one of ease" in clash.message


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_table_of_options_is_that_of_the_built_in_model(name: str) -> None:
    """Names, and defaults where the default of the field is a number."""
    model = registry.models()[name]
    assert model.name == name
    assert {option.dest: option for option in model.options()} == BUILT_IN[name].options
    for each in fields(model):  # type: ignore[arg-type]
        if "option" in each.metadata and "kinds" not in each.metadata:
            assert each.default is not MISSING
            assert each.metadata["option"].default == each.default
