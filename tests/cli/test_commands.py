"""Every command once: what it writes, and to which stream."""

import dataclasses
import gzip
import json
import re
import warnings
from pathlib import Path

import polars
import pytest

import fewfold as ff
from fewfold.recommender.datasets import public
from fewfold.recommender.models.fastvae import anchored_tables as anchored
from tests.cli.invoke import SMALL, Done, contents, fewfold
from tests.recommender.conftest import grouped
from tests.recommender.reading.test_public import Server, server  # noqa: F401 (a fixture)


def taste(found: list[dict[str, object]]) -> set[str]:
    """The groups that the items are of."""
    return {str(entry["item"])[0] for entry in found}


def answered(done: Done) -> list[dict[str, object]]:
    """What a command has written as JSON, and nothing beside it."""
    assert done.code == 0, done.err
    found: list[dict[str, object]] = json.loads(done.out)
    return found


@pytest.mark.parametrize("kind", ["fastvae", "ease", "sparse-ease", "item-knn", "popularity"])
def test_fit_writes_a_model_that_answers(kind: str, log: Path, here: Path) -> None:
    done = fewfold(
        *("fit", log, "--model", kind, *SMALL, "--l2", 5),
        *("--predictors", 9, "--neighbours", 7, "--weighting", "bm25"),
    )
    assert "--refit fits it again" in done.err
    assert done.code == 0
    assert "NDCG@10" in done.out
    assert "720 rows read" in done.err
    assert "model written to model" in done.err
    assert "\r" not in done.out + done.err
    assert "\033" not in done.out + done.err
    assert [path.name for path in here.iterdir()] == ["model"]
    rec = ff.Recommender.load("model")
    assert len(rec.recommend("u0", k=3).items) == 3
    if kind != "popularity":
        expected = {"ease": "l2=5.0", "item-knn": "neighbours=7, weighting=BM25"}
        expected["sparse-ease"] = "l2=5.0, predictors=9"
        assert {**expected, "fastvae": "hidden=16"}[kind] in (repr(rec.model))


def test_fit_as_json_is_json_alone(log: Path) -> None:
    done = fewfold("fit", log, "--model", "ease", "--json", "--quiet", "-o", "deep/er/model")
    assert done.err == ""
    told = json.loads(done.out)
    assert told["model"] == "deep/er/model"
    assert told["data"]["rows"] == 720
    assert told["evaluation"]["overall"]["users"] == 120
    assert Path("deep/er/model/manifest.json").exists()


def test_quiet_says_nothing_beside_the_data(log: Path, model: Path) -> None:
    assert fewfold("fit", log, *SMALL, "-q").err == ""
    assert fewfold("fit", log, *SMALL, "-q", "-o", "other", terminal=True).err == ""
    assert fewfold("compare", log, *SMALL[-2:], "-q").err == ""
    assert fewfold("recommend", model, "--history", "a1,nothing", "--quiet").err == ""
    # and is forgotten afterwards
    assert "epoch 1/3" in fewfold("fit", log, *SMALL, "-o", "third").err


def test_progress_draws_on_a_terminal_alone(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\r\033[K" in fewfold("fit", log, *SMALL, "-o", "one", terminal=True).err
    monkeypatch.setenv("FEWFOLD_PROGRESS", "0")
    done = fewfold("fit", log, *SMALL, "-o", "two", terminal=True)
    assert "\033" not in done.err
    assert "epoch 3/3" in done.err


def test_dry_run_reads_and_writes_nothing(log: Path, here: Path) -> None:
    for command in (("fit", "--dry-run"), ("compare", "--dry-run"), ("data", "show")):
        done = fewfold(*command, log)
        assert done.code == 0
        assert "user=user (guessed), item=item (guessed)" in done.out
        assert "u0 | " in done.out
    assert json.loads(fewfold("fit", log, "--dry-run", "--json").out)["format"] == "CSV"
    assert list(here.iterdir()) == []


def test_without_a_log_the_bundled_one_is_shown() -> None:
    done = fewfold("data", "show")
    assert "bundled" in done.err
    assert "Parquet" in done.out


def test_same_command_same_bytes(log: Path) -> None:
    for out in ("one", "two"):
        assert fewfold("fit", log, *SMALL, "--seed", 3, "--refit", "-o", out).code == 0
    assert fewfold("fit", log, *SMALL, "--seed", 4, "--refit", "-o", "three").code == 0
    one, two, three = (contents(Path(out)) for out in ("one", "two", "three"))
    assert one == two
    assert one["model.safetensors"] != three["model.safetensors"]


def test_columns_ratings_and_core(here: Path) -> None:
    rows = [f"{i % 7},{i % 5},{i % 3},{i}" for i in range(60)] + ["x,,1,5", "8,only,2,9"]
    Path("odd.csv").write_text("\n".join(["who,what,stars,at", *rows]) + "\n")
    named = ("--user", "who", "--item", "what", "--rating", "stars", "--time", "at")
    done = fewfold(
        "fit", "odd.csv", *named, "--min-rating", 1, "--skip-bad-rows", "--core", 2,
        "--model", "item-knn", "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    told = json.loads(done.out)["data"]
    assert told["below_rating"] == 20
    assert sum(told["bad_rows"].values()) == 1
    assert told["core"] == 2
    assert "only" not in ff.Recommender.load("model").items.tolist()
    refused = fewfold("fit", "odd.csv", *named, "--model", "item-knn", "-o", "other")
    assert refused.code == 3
    assert "odd.csv" in refused.err


def test_times_may_be_ignored(here: Path) -> None:
    rows = "".join(f"u{i % 5},i{i % 7},{i}\n" for i in range(60))
    (here / "timed.csv").write_text(f"user,item,time\n{rows}")
    asked = ("fit", "timed.csv", "--model", "popularity")
    assert "after time" in fewfold(*asked, "--out", "a").out
    assert "at random" in fewfold(*asked, "--ignore-times", "--out", "b").out


def test_without_users_and_refit(log: Path) -> None:
    common = ("fit", log, "--model", "ease")
    assert fewfold(*common, "--without-users", "-o", "private").code == 0
    assert not Path("private/users.safetensors").exists()
    assert fewfold("recommend", "private", "--history", "a1", "-k", 3).code == 0
    asked = fewfold("recommend", "private", "--users", "u0")
    assert asked.code == 2
    assert "use --history" in asked.message
    assert fewfold(*common, "-o", "part").code == 0
    assert fewfold(*common, "--refit", "-o", "all").code == 0
    part, everything = (
        json.loads(Path(name, "config.json").read_text())["learned from"]["pairs"]
        for name in ("part", "all")
    )
    assert part < everything == 720


def test_nothing_is_replaced_unasked(log: Path) -> None:
    common = ("fit", log, "--model", "popularity")
    assert fewfold(*common).code == 0
    again = fewfold(*common)
    assert again.code == 5
    assert "--overwrite" in again.message
    assert fewfold(*common, "--overwrite").code == 0
    Path("photos").mkdir()
    Path("photos/cat.jpg").write_text("meow")
    assert fewfold(*common, "-o", "photos", "--overwrite").code == 5
    assert Path("photos/cat.jpg").read_text() == "meow"


def test_a_time_budget_is_kept(log: Path) -> None:
    done = fewfold("fit", log, *SMALL, "--epochs", 100_000, "--time-budget", "4s", "--json")
    assert done.code == 0
    assert json.loads(done.out)["seconds"] < 20  # 100,000 epochs would take minutes
    assert " steps fit into " in done.err


def test_options_imply_their_model(log: Path) -> None:
    assert json.loads(fewfold("fit", log, "--l2", "5", "--json").out)["recipe"]["kind"] == "ease"
    done = fewfold("fit", log, "--l2", "5", "--hidden", "8", "--overwrite")
    assert done.code == 2
    assert (
        "--hidden and --l2: say for which model, --model with one of ease, fastvae, sparse-ease"
        in done.err
    )


def test_the_model_is_chosen_by_default(log: Path) -> None:
    done = fewfold("fit", log, "--json")
    assert done.code == 0
    assert "was chosen" in json.loads(done.out)["choice"]["why"]


def test_names_of_items_are_shown(log: Path) -> None:
    Path("names.csv").write_text('sku,name\na1,"Tea, green"\na2,Milk\n')
    names = ("--items-table", "names.csv", "--items-key", "sku")
    assert fewfold("fit", log, "--model", "ease", *names).code == 0
    asked = ("recommend", "model", "--history", "a3", "--items", "a1,a2")
    assert "Tea, green" in fewfold(*asked).out
    assert {entry.get("name") for entry in answered(fewfold(*asked, "--json"))} == {
        "Tea, green",
        "Milk",
    }


def test_a_wrong_table_of_items_is_told_before_training(log: Path, here: Path) -> None:
    Path("names.csv").write_text("sku,name\nq,r\n")
    for wrong, code in (("names.csv", 3), ("missing.csv", 3)):
        done = fewfold("fit", log, *SMALL, "--items-table", wrong)
        assert done.code == code
        assert "epoch" not in done.err
    assert [path.name for path in here.iterdir()] == ["names.csv"]


def test_compare(log: Path) -> None:
    done = fewfold("compare", log, "--models", "ease, popularity")
    assert done.code == 0
    assert done.out.index("ease") < done.out.index("popularity")
    told = json.loads(fewfold("compare", log, "--models", "ease,popularity", "--json").out)
    assert [one["model"] for one in told["models"]] == ["ease", "popularity"]
    wrong = fewfold("compare", log, "--models", "easy")
    assert wrong.code == 2
    assert "got easy" in wrong.message


def test_compare_keeps_its_results_in_a_model(log: Path, here: Path) -> None:
    assert fewfold("fit", log, "--model", "ease", "--without-users", "-q").code == 0
    answers = fewfold("recommend", "model", "--history", "a1", "--json").out
    assert len(json.loads(answers)) == 10
    done = fewfold("compare", log, "--models", "ease,popularity", "--into", "model", "--json")
    assert done.code == 0
    assert "results added to model" in done.err
    rec = ff.Recommender.load("model")
    assert rec.comparison == json.loads(done.out)
    assert rec.users is None
    assert fewfold("recommend", "model", "--history", "a1", "--json").out == answers
    assert "compared models, best first: ease, popularity." in fewfold("inspect", "model").out
    (here / "other").mkdir()
    wrong = fewfold("compare", log, "--into", "other")
    assert wrong.code == 4
    assert "other is not a model" in wrong.message
    assert "choosing" not in wrong.err


def test_evaluate(model: Path, log: Path) -> None:
    Path("new.csv").write_text("user,item\nu0,b1\nu1,c1\nnew,a1\n")
    done = fewfold("evaluate", model, "new.csv", "--user", "user")
    assert done.code == 0
    assert "new.csv, 3 interactions" in done.out
    told = json.loads(fewfold("evaluate", model, "new.csv", "--json").out)
    assert told["test pairs"] == 3
    seen = fewfold("evaluate", model, log)
    assert seen.code == 3
    assert "are in the log the model was fitted to" in seen.message


def test_recommend_to_users(model: Path) -> None:
    one = fewfold("recommend", model, "--users", "u0", "-k", 4)
    assert one.code == 0
    assert one.err == ""
    assert [line.split()[0] for line in one.out.splitlines()] == list("1234")
    some = answered(fewfold("recommend", model, "--users", "u0,u1", "--users", "u2", "--json"))
    assert [entry["of"] for entry in some] == ["u0"] * 10 + ["u1"] * 10 + ["u2"] * 10
    best = [entry for entry in some if entry["rank"] == 1]
    assert [str(entry["item"])[0] for entry in best] == ["a", "b", "c"]


def test_recommend_from_histories(model: Path) -> None:
    assert taste(answered(fewfold("recommend", model, "--history", "c1,c2", "-k4", "--json"))) == {
        "c"
    }
    two = answered(
        fewfold("recommend", model, "--history", "c1", "--history", "d1", "-k", 2, "--json")
    )
    assert [entry["of"] for entry in two] == [0, 0, 1, 1]
    Path("some.csv").write_text("user,item\nx,a1\nx,a2\ny,d1\ny,nothing\n")
    done = fewfold("recommend", model, "--histories", "some.csv", "-k", 2, "--json")
    assert [entry["of"] for entry in answered(done)] == ["x", "x", "y", "y"]
    assert done.err == "not known to the model and passed over: nothing\n"
    assert fewfold("recommend", model, "--history", "").code == 0  # of somebody new


def test_recommend_with_reasons(model: Path) -> None:
    done = fewfold("recommend", model, "--history", "a1,a2", "-k", 2, "--explain")
    lines = done.out.splitlines()
    assert [line.split()[0] for line in lines[::2]] == ["1", "2"]
    assert all(line.strip().startswith("because of a") for line in lines[1::2])
    entries = answered(
        fewfold("recommend", model, "--history", "a1,a2", "-k", 2, "--explain", "--json")
    )
    assert {one["item"] for entry in entries for one in entry["because"]} <= {"a1", "a2"}


def test_recommend_less_and_more(model: Path) -> None:
    asked = ("recommend", model, "--history", "a1,a2", "--json")
    plain = [entry["item"] for entry in answered(fewfold(*asked))]
    assert not {"a1", "a2"} & set(plain)
    assert {"a1", "a2"} <= {e["item"] for e in answered(fewfold(*asked, "--include-seen"))}
    without = answered(fewfold(*asked, "--filter-items", f"{plain[0]},{plain[1]}"))
    assert [entry["item"] for entry in without][:8] == plain[2:]
    assert {e["item"] for e in answered(fewfold(*asked, "--items", "b1,d4"))} == {"b1", "d4"}
    exact = fewfold(*asked, "--recall", 1)
    assert [entry["item"] for entry in answered(exact)] == plain
    assert "approximate: Search(recall@10=1.000" in exact.err
    everything = answered(fewfold(*asked, "-k", 2**31 - 1))
    assert len(everything) == 38


def test_ids_with_commas_and_numbers() -> None:
    rows = ['"a,b","x,y"', '"a,b",z', "c,z", 'c,"x,y"', 'd,"x,y"', "d,w", '"a,b",w']
    Path("log.csv").write_text("\n".join(["user,item", *rows]) + "\n")
    assert fewfold("fit", "log.csv", "--model", "ease", "--test", 0).code == 0
    found = answered(fewfold("recommend", "model", "--users", "a,b", "--include-seen", "--json"))
    assert {entry["of"] for entry in found} == {"a,b"}
    assert "x,y" in {entry["item"] for entry in found}
    assert fewfold("recommend", "model", "--history", "x,y", "--json").err == ""
    Path("numbers.csv").write_text("user,item\n1,10\n1,20\n2,10\n2,30\n")
    assert fewfold("fit", "numbers.csv", "--model", "ease", "--test", 0, "-o", "n").code == 0
    found = answered(fewfold("recommend", "n", "--users", "1, 2", "-k", 1, "--json"))
    assert [(entry["of"], entry["item"]) for entry in found] == [(1, 30), (2, 20)]


def test_similar(model: Path, simple: Path) -> None:
    for folder in (model, simple):
        found = answered(fewfold("similar", folder, "a1", "d1", "-k", 3, "--json"))
        assert [entry["of"] for entry in found] == ["a1"] * 3 + ["d1"] * 3
    best = [entry["item"] for entry in found[:3]]
    fewer = answered(fewfold("similar", simple, "a1", "--filter-items", best[0], "--json"))
    assert fewer[0]["item"] == best[1]
    assert len(fewfold("similar", model, "a1").out.splitlines()) == 10


def test_inspect(model: Path) -> None:
    shown = fewfold("inspect", model)
    assert re.search(r"learned from 5\d\d interactions of 120 users with 40 items", shown.out)
    assert "None" not in shown.out
    told = json.loads(fewfold("inspect", model, "--json").out)
    assert told["config"]["model"]["kind"] == "fastvae"
    assert told["bytes"]["model.safetensors"] > 0


def test_export(model: Path, simple: Path) -> None:
    done = fewfold("export", model, "--vectors", "v.parquet", "--faiss", "i.faiss", "--json")
    assert set(json.loads(done.out)) == {"vectors", "faiss"}
    frame = polars.read_parquet("v.parquet")
    assert frame.height == 40
    import faiss

    assert faiss.read_index("i.faiss").ntotal == 40
    again = fewfold("export", model, "--vectors", "v.parquet")
    assert again.code == 5
    assert fewfold("export", model, "--vectors", "v.parquet", "--overwrite").code == 0
    assert "name what to export" in fewfold("export", model).message
    none = fewfold("export", simple, "--faiss", "none.faiss")
    assert none.code == 2
    assert not Path("none.faiss").exists()


def test_export_as_onnx_of_what_is_no_graph(simple: Path) -> None:
    """What it is of a model that is one, the tests of `export` see."""
    done = fewfold("export", simple, "--onnx", "scorer.onnx")
    assert done.code == 2
    assert "cannot be exported to ONNX" in done.message
    assert not Path("scorer.onnx").exists()


def test_data_list() -> None:
    assert "ml-1m" in fewfold("data", "list").out
    assert json.loads(fewfold("data", "list", "--json").out)["ml-1m"]["items"] == 3706


def test_data_fetch(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    there = dataclasses.replace(public.PUBLIC["ml-1m"], url=f"{server.base}/ml-1m.zip")
    monkeypatch.setitem(public.PUBLIC, "ml-1m", there)
    done = fewfold("data", "fetch", "ml-1m", "--quiet")
    assert done.out == "data/ml-1m\n"
    assert "Licence: " in done.err  # whoever takes the data has seen it
    again = fewfold("data", "fetch", "ml-1m", "--json")
    assert json.loads(again.out) == {"folder": "data/ml-1m"}
    assert "--force" in again.err
    assert len(server.asked) == 1
    assert fewfold("data", "fetch", "ml-1m", "--force", "--to", "data").code == 0
    assert len(server.asked) == 2
    assert fewfold("fit", "data/ml-1m", "--model", "popularity", "--test", 0).code in (0, 3)
    server.codes = [500] * 9
    lost = fewfold("data", "fetch", "ml-1m", "--to", "elsewhere")
    assert lost.code == 3
    assert "answered 500" in lost.err


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_completion(shell: str) -> None:
    done = fewfold("completion", shell)
    assert done.code == 0
    assert "recommend" in done.out


def test_config_takes_the_threads() -> None:
    import torch

    before = torch.get_num_threads()
    try:
        assert "threads  2" in fewfold("config", "--threads", 2).out
    finally:
        torch.set_num_threads(before)


def test_compressed_and_odd_names(log: Path) -> None:
    name = "ein Log, größer.csv.gz"
    Path(name).write_bytes(gzip.compress(log.read_bytes()))
    assert fewfold("fit", name, "--model", "popularity", "-o", "ein Modell").code == 0
    assert fewfold("inspect", "ein Modell").code == 0


def test_fit_with_anchors(log: Path, here: Path) -> None:
    done = fewfold("fit", log, *SMALL, "--anchors", 8, "--anchor-width", 3, "--out", here / "few")
    assert done.code == 0
    assert "times smaller" in done.out
    assert "tables: trained dense, then cut to anchors" in done.out
    small = fewfold("fit", log, *SMALL, "--anchors", 8, "--anchor-bits", 4, "--out", here / "4")
    assert small.code == 0
    sizes = [(here / name / "model.safetensors").stat().st_size for name in ("few", "4")]
    assert json.loads((here / "4" / "config.json").read_text())["model"]["anchors"]["bits"] == 4
    assert sizes[0] != sizes[1]
    assert fewfold("recommend", here / "4", "--history", "a1", "-k", 2).code == 0
    found = fewfold("inspect", here / "few")
    assert "tied most to" in found.out
    alone = fewfold(
        "fit", log, *SMALL, "--anchors", "auto", "--anchor-width", 3, "--alone", "--out", here / "a"
    )
    assert alone.code == 0
    assert "times smaller" not in alone.out
    assert "tables: trained as anchors from the start" in alone.out
    for wrong in (
        ("--model", "ease", "--anchors", 8),
        *(("--anchor-width", 3), ("--anchor-bits", 3), ("--alone",)),
    ):
        assert "--anchors" in fewfold("fit", log, *wrong, "--out", here / "b").message
    wrong = fewfold("fit", log, "--anchors", "many", "--out", here / "b")
    assert "must be auto or a whole number" in wrong.message
    wrong = fewfold("fit", log, "--anchors", 8, "--anchor-bits", 9, "--out", here / "b")
    assert "must be a whole number from 2 to 8" in wrong.message


def test_the_split_is_chosen_said_and_overridden(here: Path) -> None:
    rows = grouped(60)
    lines = [
        f"{u},{i},{t}\n" for t, (u, i) in enumerate(zip(rows["user"], rows["item"], strict=True))
    ]
    (here / "sessions.csv").write_text("user,item,time\n" + "".join(lines))
    done = fewfold("fit", "sessions.csv", "--model", "item-knn", "--out", "m")
    assert "Held out: each user's last item by time; 100.0% of the users" in done.out
    assert "have no earlier interaction" in (here / "m" / "metrics.json").read_text()
    done = fewfold("compare", "sessions.csv", "--models", "popularity", "--split", "temporal")
    assert "Held out: the last 20% of all interactions" in done.out
    renamed = (here / "sessions.csv").read_text().replace("u", "v").replace("vser", "user")
    (here / "new.csv").write_text(renamed)
    done = fewfold("evaluate", "m", "new.csv")
    assert "each user's last item by time; the model knows nothing of 100.0%" in done.out
    assert "every interaction" in fewfold("evaluate", "m", "new.csv", "--split", "all").out


def test_a_table_that_collapses_is_told(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = anchored.proximal
    monkeypatch.setattr(anchored, "proximal", lambda *a, **o: inner(*a, **{**o, "l1": 1e3}))
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        done = fewfold("fit", log, *SMALL, "--anchors", 8, "--alone")
    told = [line for line in done.err.splitlines() if line.startswith("warning: an anchor table")]
    assert len(told) == 1
    assert "use a smaller l1" in told[0]
    assert "collapse.py" not in done.err
