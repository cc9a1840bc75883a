"""`fewfold fit --journal` and `fewfold update`."""

import json
from pathlib import Path

from fewfold.recommender.journal import Event, Journal
from tests.cli.invoke import fewfold


def journal(*events: tuple[str, str]) -> None:
    with Journal("j.jsonl") as opened:
        opened.append([Event(user, item) for user, item in events])


def test_fit_with_a_journal(log: Path) -> None:
    journal(("u0", "new"), ("somebody", "a1"))
    with Path("j.jsonl").open("ab") as file:
        file.write(b"half a line\n")
    done = fewfold("fit", log, "--journal", "j.jsonl", "--model", "item-knn", "--test", 0)
    assert done.code == 0, done.err
    assert "2 events of the journal added, 1 line of the journal unreadable" in done.err
    done = fewfold("recommend", "model", "--users", "somebody", "-k", 3, "--json")
    assert all(one["item"].startswith("a") for one in json.loads(done.out))
    done = fewfold("fit", log, "--journal", "j.jsonl", "--dry-run")
    assert "the events of j.jsonl are added" in done.out
    done = fewfold("fit", log, "--overwrite", "--journal", log)
    assert (done.code, "expected a journal" in done.message) == (3, True)


def test_update(simple: Path) -> None:
    Path("new.csv").write_text("user,item\nu0,NEW\nu4,NEW\nsomebody,a1\n")
    done = fewfold("update", simple, "new.csv", "--out", "more")
    assert done.code == 0, done.err
    assert "added: 1 user, 1 item, 3 pairs" in done.out
    assert "item-knn: new items are compared with all" in done.out
    done = fewfold("recommend", "more", "--users", "u12", "-k", 40, "--json")
    assert "NEW" in [one["item"] for one in json.loads(done.out)]
    journal(("somebody", "a2"), ("somebody", "a1"))
    Path("names.csv").write_text("item,name\na3,The third\n")
    table = ("--items-table", "names.csv")
    done = fewfold("update", "more", "--journal", "j.jsonl", "--overwrite", *table, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["pairs"], found["users"], found["items"], found["folder"]) == (1, 0, 0, "more")
    done = fewfold("recommend", "more", "--users", "somebody", "-k", 30)
    assert "The third" in done.out
    assert "a2" not in done.out.split()


def test_what_an_update_cannot_do(log: Path, simple: Path) -> None:
    done = fewfold("update", simple, log)
    assert (done.code, "--out DIR, or --overwrite" in done.message) == (2, True)
    done = fewfold("update", simple, "--out", "more")
    assert (done.code, "a log, or --journal FILE" in done.message) == (2, True)
    done = fewfold("update", simple, log, "--out", simple)
    assert (done.code, "holds a model already" in done.message) != (0, False)
    assert fewfold("fit", log, "--model", "sparse-ease", "--test", 0).code == 0
    Path("new.csv").write_text("user,item\n" + "".join(f"u0,new{n}\n" for n in range(7)))
    done = fewfold("update", "model", "new.csv", "--out", "more")
    assert done.code == 0, done.err
    assert "added: 0 users, 0 items, 0 pairs" in done.out
    assert "left out: 7 new items, which sparse-ease cannot place without training" in done.out
    assert "and 2 more" in done.out
