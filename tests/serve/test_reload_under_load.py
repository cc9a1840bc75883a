"""Models that take over while requests come in: none fails, each is answered by one model."""

import hashlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import fewfold as ff
from tests.recommender.conftest import grouped
from tests.serve.load import load
from tests.serve.running import Running, lines, serving

HISTORY = ["a1", "a2", "c3"]
PATIENCE = 60


class Side:
    """One of two models; its name is in the attributes of all items."""

    def __init__(self, name: str, users: int, l2: float) -> None:
        items = [f"{taste}{number}" for taste in "abcd" for number in range(10)]
        table = {
            "item": items,
            "side": [name] * len(items),
            "title": [f"{name}-{i}" for i in items],
        }
        self.name, self.users, self.l2 = name, users, l2
        self.recommender = ff.Recommender(ff.recommender.EASE(l2=l2)).fit(
            grouped(users), progress=False, items_table=ff.recommender.ItemsTable(table)
        )
        self.expected = {
            "history": self.recommender.recommend_from_history(HISTORY, 5),
            "user": self.recommender.recommend("u7", 5),
            "similar": self.recommender.similar_items("a3", 5),
        }

    def save(self, folder: Path) -> str:
        """Put it in place, and return its version."""
        self.recommender.save(folder, overwrite=True)
        return hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()[:16]

    def check(self, kind: str, answer: dict[str, Any]) -> None:
        """Compare an answer that bears the version of this model with its own."""
        if kind in self.expected:
            ours, told = self.expected[kind], answer["items"]
            assert [one["item"] for one in told] == ours.items
            assert [one["score"] for one in told] == pytest.approx(ours.scores)
            assert {one["attributes"]["side"] for one in told} == {self.name}
        elif kind == "model":
            assert answer["settings"]["l2"] == self.l2
            assert f"{self.users} users" in answer["card"]
            assert answer["counts"]["users"] == self.users
            assert answer["attributes"]["side"] == {"values": [self.name]}
        elif kind == "item":
            assert answer["attributes"]["side"] == self.name
        elif kind == "items":
            assert {one["attributes"]["side"] for one in answer["items"]} == {self.name}
        else:
            assert kind == "seen"
            assert {one["attributes"]["side"] for one in answer["history"]} == {self.name}


QUESTIONS: dict[str, tuple[str, str, Any]] = {
    "history": ("POST", "/v1/recommendations", {"history": HISTORY, "k": 5}),
    "user": ("GET", "/v1/users/u7/recommendations?k=5", None),
    "item": ("GET", "/v1/items/a1", None),
    "similar": ("GET", "/v1/items/a3/similar?k=5", None),
    "model": ("GET", "/v1/model", None),
    "items": ("GET", "/v1/items?search=-b&limit=5", None),
    "seen": ("GET", "/v1/users/u7", None),
}


def question(kind: str) -> Callable[[httpx.Client], tuple[str, dict[str, Any]]]:
    """Ask, and return the kind of question with the answer."""
    method, path, body = QUESTIONS[kind]

    def ask(client: httpx.Client) -> tuple[str, dict[str, Any]]:
        response = client.request(method, path, json=body)
        assert response.status_code == 200, f"{path}: {response.status_code} {response.text[:500]}"
        return kind, response.json()

    return ask


def version(server: Running) -> str:
    """Version of the model that answers on a new connection."""
    found: str = httpx.get(f"{server.url}v1/items/a1", timeout=30).json()["model"]
    return found


def wait_for(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.02)


@pytest.fixture(scope="module")
def sides() -> list[Side]:
    """Two models with the same items."""
    return [Side("left", 120, 1.0), Side("right", 100, 50.0)]


@pytest.mark.parametrize(
    ("times", "workers"),
    [(10, 1), pytest.param(50, 1, marks=pytest.mark.nightly),
     pytest.param(50, 2, marks=pytest.mark.nightly)],
)  # fmt: skip
def test_models_that_take_over(times: int, workers: int, sides: list[Side], tmp_path: Path) -> None:
    """Every second time the server is told, otherwise it finds out by itself."""
    folder = tmp_path / "model"
    by_version = {side.save(folder): side for side in (*sides, sides[0])}
    assert len(by_version) == 2
    options = ("--no-feedback", "--watch", 0.05, "--workers", workers)
    with serving(folder, *options, folder=tmp_path) as server:
        with load(server.url, map(question, QUESTIONS), threads=3) as asked:
            for number in range(1, times + 1):
                new = sides[number % 2].save(folder)
                if number % 2:
                    told = httpx.post(f"{server.url}v1/admin/reload", timeout=PATIENCE)
                    assert told.status_code == 200, told.text
                    assert told.json()["model"] == new
                wait_for(lambda wanted=new: version(server) == wanted, "it was not loaded")  # type: ignore[misc]
        assert not asked.errors
        assert len(asked.answers) > 5 * times
        assert {answer["model"] for _, answer in asked.answers} == set(by_version)
        for kind, answer in asked.answers:
            by_version[answer["model"]].check(kind, answer)
        assert server.get("/v1/stats").json()["reloads"] == times
        assert "Traceback" not in server.log()


def put_in_place(folder: Path, damage: Callable[[Path], None]) -> None:
    """Replace a model by a damaged copy.

    Not by writing into its files, which a server has mapped into its memory.
    """
    bad, old = folder.with_name("bad"), folder.with_name("old")
    shutil.copytree(folder, bad)
    damage(bad)
    folder.rename(old)
    bad.rename(folder)
    shutil.rmtree(old)


def cut(folder: Path) -> None:
    """As a copy that ended in the middle."""
    weights = folder / "model.safetensors"
    with weights.open("r+b") as file:
        file.truncate(weights.stat().st_size // 2)
    touch(folder)


def touch(folder: Path) -> None:
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text() + " ")


def other_weights(folder: Path) -> None:
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-8:] = b"\xff" * 8  # not a number
    weights.write_bytes(data)
    touch(folder)


def not_json(folder: Path) -> None:
    (folder / "manifest.json").write_bytes(b"\xff{")


def without_users(folder: Path) -> None:
    (folder / "users.safetensors").write_bytes(b"")
    touch(folder)


def no_items(folder: Path) -> None:
    (folder / "items.safetensors").unlink()
    touch(folder)


def deep(folder: Path) -> None:
    (folder / "manifest.json").write_text('{"format":' + "[" * 100_000)


DAMAGES = (cut, other_weights, not_json, without_users, no_items, deep)


def test_damaged_models_are_refused_and_the_old_one_stays(
    sides: list[Side], tmp_path: Path
) -> None:
    left, right = sides
    folder = tmp_path / "model"
    good = left.save(folder)
    with serving(folder, "--watch", 0.05, "--log-json", folder=tmp_path) as server:
        workers = server.workers()
        with load(server.url, map(question, QUESTIONS)) as asked:
            for number, damage in enumerate(DAMAGES, 1):
                put_in_place(folder, damage)
                wait_for(
                    lambda n=number: reported(server) == n,  # type: ignore[misc]
                    f"{damage.__name__} was not reported",
                )
                refused = httpx.post(f"{server.url}v1/admin/reload", timeout=PATIENCE)
                assert refused.status_code == 409
                assert refused.json()["error"]["code"] == "not_loaded"
                assert version(server) == good
                shutil.rmtree(folder)
                missing = httpx.post(f"{server.url}v1/admin/reload", timeout=PATIENCE)
                assert missing.status_code == 409
                assert left.save(folder) == good  # nothing new to load
        assert not asked.errors
        for kind, answer in asked.answers:
            assert answer["model"] == good
            left.check(kind, answer)
        failed = [line for line in lines(server.log()) if line["event"] == "reload failed"]
        assert all(line["reason"] and line["model"] == good for line in failed)
        failures = "fewfold_failed_reloads_total"
        counted = [x for x in server.get("/metrics").text.splitlines() if x.startswith(failures)]
        assert float(counted[0].split()[1]) >= len(DAMAGES)
        new = right.save(folder)
        wait_for(lambda: version(server) == new, "it was not loaded")
        assert server.workers() == workers
        assert "Traceback" not in server.log()


def reported(server: Running) -> int:
    """How many models the log says could not be loaded."""
    return server.log().count('"reload failed"')


def test_a_model_is_described_as_it_was_when_loaded(sides: list[Side], tmp_path: Path) -> None:
    """Also if the folder is replaced or removed before anybody asks."""
    left, right = sides
    folder = tmp_path / "model"
    old = left.save(folder)
    sizes = {file.name: file.stat().st_size for file in folder.iterdir()}
    with serving(folder, "--watch", 0, "--no-feedback", folder=tmp_path) as server:
        right.save(folder)
        told = server.get("/v1/model").json()
        assert told["model"] == old
        assert told["sizes"] == sizes
        left.check("model", told)
        new = server.post("/v1/admin/reload", None).json()["model"]
        shutil.rmtree(folder)
        with httpx.Client(base_url=server.url, timeout=30) as client:
            for kind in QUESTIONS:
                _, answer = question(kind)(client)
                assert answer["model"] == new
                right.check(kind, answer)
