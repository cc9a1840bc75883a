"""Examples of the documentation that are no doctests run, on inputs of this file."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

import fewfold as ff

DOCS = Path(__file__).parents[2] / "docs"
NEEDS_MORE = {
    "anchors": "several processes, and a model of transformers: tests/embeddings/test_in_models.py",
    "hub": "the network: tests/recommender/artifact/test_hub.py",
    "settings_search": "Optuna",
}
"""Pages whose examples do not run here."""
SMALLER = {'"cuda")': '"cpu")', 'device="cuda"': 'device="cpu"', "epochs=200": "epochs=1"}


def examples(page: Path) -> list[str]:
    """Return the blocks of Python of a page that have no prompts."""
    block = re.compile(
        r"^```(?:python|py|\{code-block\} python)\n(.*?)^```", re.MULTILINE | re.DOTALL
    )
    return [source for source in block.findall(page.read_text()) if ">>>" not in source]


def rows(users: int = 60, items: int = 30) -> tuple[list[int], list[int]]:
    """Users and items of a log in which users of each parity like items of that parity."""
    chance = torch.rand(users, items, generator=torch.Generator().manual_seed(0))
    parity = (torch.arange(users)[:, None] + torch.arange(items)) % 2
    who, what = (chance < 0.1 + 0.4 * parity).nonzero().unbind(1)
    return who.tolist(), what.tolist()


def write_log(file: Path, **names: str) -> None:
    """Write that log with the columns user, item and time, or others."""
    pl = pytest.importorskip("polars")
    who, what = rows()
    item = [(*"ab", "first", "second", "latest")[i] if i < 5 else f"i{i}" for i in what]
    frame = pl.DataFrame({"user": who, "item": item, "time": range(len(who))}).rename(names)
    file.parent.mkdir(exist_ok=True)
    frame.write_csv(file) if file.suffix == ".csv" else frame.write_parquet(file)


def nothing(_: Path) -> dict[str, Any]:
    """Examples that need no more than what they import."""
    return {}


def index(_: Path) -> dict[str, Any]:
    scores = torch.randn(4, 9)
    return {"scores": scores, "keep": scores > -9, "target": torch.tensor([0, 1, 2, 3])}


def catalogues(_: Path) -> dict[str, Any]:
    rec = ff.Recommender(ff.recommender.ALS(8)).fit({"user": rows()[0], "item": rows()[1]})
    return {"rec": rec, "items": [1, 3]}


def log_file(folder: Path) -> dict[str, Any]:
    write_log(folder / "log.parquet")
    return {}


def feedback(folder: Path) -> dict[str, Any]:
    pl = pytest.importorskip("polars")
    who, what = rows(400)
    log = {"user": [f"u{user}" for user in who], "item": what}
    pl.DataFrame(log).write_parquet(folder / "log.parquet")
    names = [*(f"u{user}" for user in range(400)), "somebody who is in the table alone"]
    table = {"user": names, "age": [25, 40] * 200 + [25], "gender": list("FM" * 200 + "F")}
    pl.DataFrame(table).write_parquet(folder / "users.parquet")
    return {}


def prepare(folder: Path) -> dict[str, Any]:
    write_log(folder / "log" / "part.csv", user="customer", item="sku")
    return {}


def quickstart(folder: Path) -> dict[str, Any]:
    pl = pytest.importorskip("polars")
    who, what = rows(200, 60)
    frame = {"user_id": [user + 100 for user in who], "item_id": [3 * item + 50 for item in what]}
    frame["item_id"] = [181 if item == 182 else item for item in frame["item_id"]]
    log = pl.DataFrame(frame | {"timestamp": range(len(who))})
    log.write_csv(folder / "yourlog.csv")
    log.select("user_id", pl.col("item_id").reverse(), "timestamp").write_csv(folder / "july.csv")
    items = log["item_id"].unique(maintain_order=True)
    pl.DataFrame({"item_id": items, "name": [f"n{i}" for i in items]}).write_csv(
        folder / "names.csv"
    )
    return {}


def recommender(folder: Path) -> dict[str, Any]:
    pl = pytest.importorskip("polars")
    write_log(folder / "log.parquet")
    names = [*"ab", "first", "second", "latest", *(f"i{i}" for i in range(5, 32))]
    table = {"item": names, "kind": [["even", "odd"][place % 2] for place in range(len(names))]}
    pl.DataFrame(table).write_parquet(folder / "items.parquet")
    log = ff.recommender.Interactions.from_pairs(*rows())
    jagged = ff.recommender.Jagged
    values = torch.arange(40) % 7
    return {
        "log": log, "values": values, "offsets": torch.arange(0, 41, 5), "count": 30,
        "history": jagged(torch.tensor([1, 2]), torch.tensor([0, 2])),
    }  # fmt: skip


def sampling(_: Path) -> dict[str, Any]:
    gru, table = torch.nn.GRU(8, 8), torch.nn.Parameter(torch.randn(2000, 8))
    words = torch.randint(2000, (5, 3))
    proposal = ff.Popularity().fit(table.detach(), torch.ones(2000))
    return {
        "F": functional, "gru": gru, "words": words, "table": table, "state": None,
        "proposal": proposal, "next_words": words.flatten(),
    }  # fmt: skip


def optim(_: Path) -> dict[str, Any]:
    return {"net": torch.nn.Linear(2, 2)}


def structured(_: Path) -> dict[str, Any]:
    return {"gold": functional.one_hot(torch.randint(10, (64, 20)), 10).float()}


INPUTS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "catalogues": catalogues,
    "devices": log_file,
    "feedback": feedback,
    "index": index,
    "optim": optim,
    "prepare": prepare,
    "quickstart": quickstart,
    "recommender": recommender,
    "sampling": sampling,
    "serving": nothing,
    "structured": structured,
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.filterwarnings("default")
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        space = {"torch": torch, "ff": ff, **INPUTS[name](tmp_path)}
        for source in examples(DOCS / f"{name}.md"):
            for whole, part in SMALLER.items():
                source = source.replace(whole, part)
            exec(source, space)


def test_every_page_with_examples_is_known() -> None:
    assert {page.stem for page in DOCS.glob("*.md") if examples(page)} == {*INPUTS, *NEEDS_MORE}
