"""Models on the Hugging Face Hub, against a server of our own."""

import hashlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import huggingface_hub.constants
import pytest

import fewfold as ff
from fewfold.recommender.artifact.hub import HubAddress, local_folder, push_folder
from fewfold.recommender.errors import ArtifactError
from tests.cli.invoke import fewfold
from tests.recommender.artifact.hub_server import Hub, running_hub

TOKEN = "hf_NobodyMaySeeThis"


@pytest.fixture(scope="module")
def server() -> Iterator[Hub]:
    """One server for all tests."""
    with running_hub() as hub:
        yield hub


@pytest.fixture
def hub(server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """The server, empty, and this process logged in to it, with an empty cache."""
    constants = huggingface_hub.constants
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    server.repositories, server.requests, server.token = {}, [], TOKEN
    return server


@pytest.fixture(scope="module")
def rec() -> ff.Recommender:
    """A fitted and evaluated recommender."""
    log = {"user": ["ann", "ann", "bob", "bob", "cy", "cy", "dan", "dan"] * 2,
           "item": ["tea", "milk", "tea", "milk", "nuts", "beer", "nuts", "tea"] * 2}  # fmt: skip
    log["user"] = [*log["user"][:8], *(f"{name}2" for name in log["user"][8:])]
    log["user"] += ["eve"] * 4
    log["item"] += ["tea", "milk", "nuts", "beer"]
    return ff.Recommender(ff.recommender.EASE(l2=1.0)).fit(log, test=0.3, progress=False)


def test_push_and_load(
    rec: ff.Recommender, hub: Hub, caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    caplog.set_level(logging.DEBUG)
    address = rec.push("hf://me/tea")
    assert address == f"hf://me/tea@{hub.repositories['me/tea'].branches['main']}"
    assert hub.repositories["me/tea"].private
    expected = rec.recommend_from_history(["tea"], k=3)
    for source in (address, "hf://me/tea", "hf://me/tea@main", Path("hf://me/tea")):
        found = ff.Recommender.load(source)
        assert found.recommend_from_history(["tea"], k=3).items == expected.items
        assert found.users is None
    assert ff.recommender.inspect("hf://me/tea").folder == "hf://me/tea"
    written = [
        data for files in hub.repositories["me/tea"].commits.values() for data in files.values()
    ]
    said = caplog.text + "".join(capfd.readouterr())
    assert TOKEN not in said
    assert not any(TOKEN.encode() in data for data in written)


def test_the_card_is_that_of_the_hub(rec: ff.Recommender, hub: Hub) -> None:
    rec.push("hf://me/tea")
    text = hub.repositories["me/tea"].files("main")[1]["README.md"].decode()
    card = huggingface_hub.ModelCard(text)
    assert card.data.library_name == "fewfold"
    assert {"recommender-system", "ease"} <= set(card.data.tags)
    ndcg = next(one for one in card.data.eval_results if one.metric_name == "NDCG@10")
    assert ndcg.metric_value == rec.evaluation.overall[ff.recommender.NDCG(10)].mean
    assert 'ff.Recommender.load("hf://me/tea")' in card.text
    assert "# Recommender" in card.text
    # The server itself was asked whether the metadata are valid.
    assert any(path == "/api/validate-yaml" for _, path, _ in hub.requests)


def test_a_card_with_metadata_of_its_own_keeps_them(
    rec: ff.Recommender, hub: Hub, tmp_path: Path
) -> None:
    folder = rec.save(tmp_path / "model")
    (folder / "README.md").write_text("---\nlicense: mit\n---\n\n# Tea\n")
    (folder / "notes.txt").write_text("mine")
    (folder / "weights.pkl").write_bytes(b"mine")
    push_folder(folder, "hf://me/tea", private=False)
    files = hub.repositories["me/tea"].files("main")[1]
    assert files["README.md"].decode() == "---\nlicense: mit\n---\n\n# Tea\n"
    assert not {"notes.txt", "weights.pkl"} & files.keys()
    assert not hub.repositories["me/tea"].private


def test_a_commit_pins_a_model(rec: ff.Recommender, hub: Hub) -> None:
    first = rec.push("hf://me/tea", users=True)
    second = rec.push("hf://me/tea", message="Without users")
    assert ff.Recommender.load(first).users is not None
    assert ff.Recommender.load(second).users is None
    assert "users.safetensors" not in hub.repositories["me/tea"].files("main")[1]
    branch = rec.push("hf://me/tea@try/1", users=True)
    assert ff.Recommender.load("hf://me/tea@try/1").users is not None
    assert ff.Recommender.load("hf://me/tea").users is None
    assert hub.repositories["me/tea"].branches["try/1"] == branch.rpartition("@")[2]
    del hub.repositories["me/tea"]  # what is in the cache needs no server
    assert ff.Recommender.load(second).users is None


def test_what_is_not_a_model_is_neither_fetched_nor_replaced(rec: ff.Recommender, hub: Hub) -> None:
    rec.push("hf://me/tea")
    repository = hub.repositories["me/tea"]
    files = repository.files("main")[1]
    repository.commit({**files, "weights.pkl": b"x", "code.py": b"x", "sub/config.json": b"{}"})
    folder = local_folder("hf://me/tea")
    assert not {"weights.pkl", "code.py", "sub"} & {one.name for one in folder.iterdir()}
    ff.Recommender.load("hf://me/tea")
    rec.push("hf://me/tea")
    assert {"weights.pkl", "sub/config.json"} <= repository.files("main")[1].keys()
    repository.commit({**files, "model.safetensors": files["items.safetensors"]})
    with pytest.raises(ArtifactError, match=r"model.safetensors"):
        ff.Recommender.load("hf://me/tea")
    repository.commit({"pytorch_model.bin": b"x", "big.safetensors": b"x", "README.md": b"# Mine"})
    hub.requests.clear()
    with pytest.raises(ArtifactError, match=r"^hf://me/tea is not a model .* no manifest.json"):
        ff.Recommender.load("hf://me/tea")
    assert {path.rpartition("/")[2] for _, path, _ in hub.requests} == {"manifest.json"}
    before = dict(repository.commits)
    with pytest.raises(FileExistsError, match=r"holds other files \(big.safetensors, pytorch"):
        rec.push("hf://me/tea")
    assert repository.commits == before


@pytest.mark.parametrize(
    "name",
    ["../../evil.safetensors", "/evil.safetensors", "a/../../../evil.safetensors", "..\\evil"],
)
def test_names_that_lead_out_of_the_folder(
    name: str, rec: ff.Recommender, hub: Hub, tmp_path: Path
) -> None:
    rec.push("hf://me/tea")
    repository = hub.repositories["me/tea"]
    files = repository.files("main")[1]
    repository.commit({**files, name: b"evil"})
    assert ff.Recommender.load("hf://me/tea").items.tolist() == rec.items.tolist()
    listing = json.loads(files["manifest.json"])
    listing["files"][name] = hashlib.sha256(b"evil").hexdigest()
    repository.commit({**files, name: b"evil", "manifest.json": json.dumps(listing).encode()})
    with pytest.raises(ArtifactError, match="is no part of a model"):
        ff.Recommender.load("hf://me/tea")
    assert not [one for one in tmp_path.rglob("*") if "evil" in one.name]


def test_what_the_server_refuses(
    rec: ff.Recommender, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    rec.push("hf://me/tea")
    with pytest.raises(ArtifactError, match=r"^hf://me/tea@v9: there is no such branch"):
        ff.Recommender.load("hf://me/tea@v9")
    with pytest.raises(ArtifactError, match="no such repository, or it is private"):
        ff.Recommender.load("hf://me/coffee")
    monkeypatch.setenv("HF_TOKEN", "hf_AnotherOne")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", "/nonexistent")
    with pytest.raises(ArtifactError, match="no such repository, or it is private") as raised:
        ff.Recommender.load("hf://me/tea")
    assert "hf_" not in str(raised.value)


def test_no_network(rec: ff.Recommender, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    constants, nowhere = huggingface_hub.constants, "http://127.0.0.1:9"
    monkeypatch.setattr(constants, "ENDPOINT", nowhere)
    template = nowhere + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between attempts
    with pytest.raises(ArtifactError, match="the Hub cannot be reached, and no copy is here"):
        ff.Recommender.load("hf://me/tea")
    with pytest.raises(ArtifactError, match="the Hub cannot be reached; check the network"):
        rec.push("hf://me/tea")


@pytest.mark.parametrize(
    "wrong", ["hf://tea", "hf://me/tea/model", "hf://me/te a", "hf://me/tea@", "hf://me/tea@v?1"]
)
def test_wrong_addresses(wrong: str, rec: ff.Recommender) -> None:
    with pytest.raises(ArtifactError, match="expected hf://owner/name"):
        ff.Recommender.load(wrong)


def test_paths_are_paths(rec: ff.Recommender, tmp_path: Path) -> None:
    assert local_folder("hf/me") == Path("hf/me")
    assert str(HubAddress.parse("hf://me/tea@v1")) == "hf://me/tea@v1"
    with pytest.raises(ValueError, match=r"upload it with push\(address\)"):
        rec.save("hf://me/tea")
    with pytest.raises(ValueError, match="address must be hf://owner/name, got 'tea'"):
        rec.push("tea")


def test_commands(rec: ff.Recommender, hub: Hub, tmp_path: Path) -> None:
    folder = rec.save(tmp_path / "model")
    done = fewfold("push", folder, "hf://me/tea", "--public", "--json")
    assert done.code == 0, done.err
    address = json.loads(done.out)["address"]
    assert not hub.repositories["me/tea"].private
    done = fewfold("recommend", address, "--history", "tea", "-k", "1", "--json")
    assert done.code == 0, done.err
    (first,) = json.loads(done.out)
    assert [first["item"]] == rec.recommend_from_history(["tea"], k=1).items
    assert fewfold("recommend", "hf://me/none", "--history", "tea").code == 4
    for wrong in (("update", address, "--journal", "j", "--overwrite"),
                  ("compare", "--into", address), ("fit", "--out", "hf://me/new")):  # fmt: skip
        done = fewfold(*wrong)
        assert done.code == 2
        assert "is an address; write the model to a folder" in done.message
