"""What is computed from a model is computed once and mapped by every process."""

import multiprocessing
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fewfold as ff
from fewfold.recommender import Jagged, shared_tensors
from fewfold.recommender import ids as ids_module
from fewfold.recommender.models.registry import models
from fewfold.recommender.ranking.catalogue import Catalogue
from fewfold.recommender.ranking.search import Search
from fewfold.recommender.shared_lookup import share_lookup
from fewfold.recommender.shared_tensors import SharedTensors

LOG = {
    "user": ["ann", "ann", "ann", "bob", "bob", "cy", "cy", "dan", "dan", "eve", "eve"],
    "item": ["tea", "milk", "nuts", "tea", "milk", "nuts", "beer", "beer", "wine", "wine", "tea"],
    "time": [3, 1, 2, 1, 2, 1, 2, 2, 1, 1, 2],
}


def names(shared: SharedTensors) -> list[str]:
    return sorted(one.name.split("-", 2)[-1] for one in shared.folder.iterdir())


def test_a_tensor_is_computed_once_and_mapped(tmp_path: Path) -> None:
    calls: list[int] = []

    def build() -> dict[str, Tensor]:
        calls.append(1)
        return {"a": torch.arange(6.0).view(2, 3).T, "b": torch.tensor(2.0, dtype=torch.float64)}

    for _ in range(2):
        found = SharedTensors(tmp_path / "m", "v1").tensors("part", build)
        assert found["a"].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
        assert found["b"].dtype == torch.float64
    assert len(calls) == 1
    assert ".m.serving" in Path("/proc/self/maps").read_text() or os.name != "posix"
    found["a"][0, 0] = 7  # a private copy of the page
    assert SharedTensors(tmp_path / "m", "v1").tensors("part", build)["a"][0, 0] == 0


def test_files_of_other_versions_are_removed(tmp_path: Path) -> None:
    one, two = SharedTensors(tmp_path / "m", "v1"), SharedTensors(tmp_path / "m", "v2")
    kept = one.tensors("part", lambda: {"a": torch.ones(9)})
    (one.folder / ".v0-left.partial").write_bytes(b"half")
    one.inside("first").tensors("part", lambda: {"a": torch.zeros(1)})
    assert names(one) == ["first-part.safetensors", "lock", "part.safetensors"]
    two.tensors("part", lambda: {"a": torch.zeros(9)})
    assert names(two) == ["lock", "part.safetensors"]
    assert kept["a"].sum() == 9  # as long as it is in use
    assert one.tensors("part", lambda: {"a": torch.ones(9)})["a"].sum() == 9


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    shared = SharedTensors(tmp_path / "m", "v1")

    def full(file: Path) -> None:
        file.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        shared.opened("part", full, Path.read_bytes)
    assert names(shared) == ["lock"]


def test_a_file_removed_before_it_is_read_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, reads = SharedTensors(tmp_path / "m", "v1"), []

    def read(path: Path) -> bytes:
        reads.append(path)
        if len(reads) < 3:
            path.unlink()
        return path.read_bytes()

    assert shared.opened("part", lambda file: file.write_bytes(b"x"), read) == b"x"
    monkeypatch.setattr(shared_tensors, "_TRIES", 1)
    reads.clear()
    with pytest.raises(FileNotFoundError, match="again and again"):
        shared.opened("other", lambda file: file.write_bytes(b"x"), read)


def test_one_of_several_threads_computes(tmp_path: Path) -> None:
    calls: list[int] = []
    start = threading.Barrier(4)

    def build() -> dict[str, Tensor]:
        calls.append(1)
        return {"a": torch.ones(3)}

    def work() -> None:
        start.wait()
        SharedTensors(tmp_path / "m", "v1").tensors("part", build)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1


@pytest.mark.parametrize("d", [3, 32, 65])
def test_a_catalogue_of_parts_ranks_alike(d: int) -> None:
    generator = torch.Generator().manual_seed(d)
    vectors = torch.randn(700, d, generator=generator)
    whole = Catalogue(vectors)
    again = Catalogue.of_parts(vectors, whole.parts())
    queries = torch.randn(3, d, generator=generator)
    excluded = Jagged(torch.tensor([1, 2]), torch.tensor([0, 2, 2, 2]))
    one, other = (catalogue.best(queries, 5, excluded, None) for catalogue in (whole, again))
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])
    assert Catalogue.of_parts(vectors, {}).parts() == {}


def fitted(name: str) -> ff.Recommender:
    model: Any = {
        "fastvae": lambda: ff.recommender.VAE(hidden=8, latent=3),
        "anchors": lambda: ff.recommender.VAE(hidden=8, latent=3).with_anchors(3),
        "als": lambda: ff.recommender.ALS(factors=3),
        "warm": lambda: ff.recommender.ALS(factors=3),
        "blend": lambda: ff.recommender.Blend(
            ff.recommender.ALS(factors=3), ff.recommender.EASE(), weight=0.5
        ),
    }.get(name, lambda: models()[name]())()
    training = ff.recommender.Training(epochs=2)
    more: dict[str, Any] = {}
    if name == "warm":
        table = {"item": ["tea", "milk", "nuts", "beer", "wine"], "kind": ["a", "b", "a", "b", "a"]}
        more = {"items_table": ff.recommender.ItemsTable(table, use=True)}
    return ff.Recommender(model, training=training).fit(LOG, progress=False, **more)


@pytest.mark.parametrize("name", ["fastvae", "anchors", "als", "warm", "blend", "ease"])
def test_a_shared_model_answers_alike(name: str, tmp_path: Path) -> None:
    fitted(name).save(tmp_path / "m")
    plain = ff.Recommender.load(tmp_path / "m")
    plain.prepare()
    for _ in range(2):  # the first computes, the second maps
        mapped = ff.Recommender.load(tmp_path / "m")
        mapped.fitted.prepare(SharedTensors(tmp_path / "m", "v1"))
        for one, other in (
            (plain.recommend("ann", 3), mapped.recommend("ann", 3)),
            (plain.similar_items("tea", 3), mapped.similar_items("tea", 3)),
        ):
            assert one.items == other.items
            assert one.scores == pytest.approx(other.scores)


def test_an_index_is_mapped(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    fitted("als").save(tmp_path / "m")
    first, second = (ff.Recommender.load(tmp_path / "m") for _ in range(2))
    files = SharedTensors(tmp_path / "m", "v1")
    plain = first.index(recall=0.9, k=3)
    assert first.history is not None
    for rec in (first, second):
        search = Search.mapped(rec.fitted, rec.history, files, recall=0.9, k=3)
        assert repr(search) == repr(plain)
        one = rec.recommend(["ann", "cy"], 3, search=search)
        other = first.recommend(["ann", "cy"], 3, search=plain)
        assert one.items == other.items
        assert one.scores == other.scores
    assert sorted(name.split(".")[-1] for name in names(files)) == ["faiss", "lock", "safetensors"]


def test_ids_and_histories_are_found_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids_module, "_MOST_IN_DICT", 2)
    fitted("ease").save(tmp_path / "m")
    plain, mapped = (ff.Recommender.load(tmp_path / "m") for _ in range(2))
    share_lookup(mapped.state, SharedTensors(tmp_path / "m", "v1"))
    found = SharedTensors(tmp_path / "m", "v1").tensors("lookup", dict)
    assert set(found) == {"items.keys", "items.order", "users.keys", "users.order", "offsets"}
    assert mapped.items.find(["tea", "oil"]).tolist() == plain.items.find(["tea", "oil"]).tolist()
    assert mapped.recommend(["dan", "ann"], 2).items == plain.recommend(["dan", "ann"], 2).items
    few = ff.Recommender(ff.recommender.EASE()).fit(
        {"user": [1, 2], "item": [3, 3]}, progress=False
    )
    share_lookup(few.state, SharedTensors(tmp_path / "n", "v1"))
    assert names(SharedTensors(tmp_path / "n", "v1")) == []


def _share(folder: Path, version: str, report: Any) -> None:
    rec = ff.Recommender.load(folder)
    rec.fitted.prepare(SharedTensors(folder, version))
    vectors = rec.fitted.vectors
    report.put(None if vectors is None else vectors.sum().item())


def test_processes_share(tmp_path: Path) -> None:
    fitted("als").save(tmp_path / "m")
    context = multiprocessing.get_context("fork")
    report: Any = context.Queue()
    arguments = (tmp_path / "m", "v1", report)
    children = [context.Process(target=_share, args=arguments) for _ in range(2)]
    for child in children:
        child.start()
    found = [report.get(timeout=60) for _ in children]
    for child in children:
        child.join()
    assert found[0] == found[1]
    assert names(SharedTensors(tmp_path / "m", "v1")) == ["lock", "ranking.safetensors"]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / ".m.serving").write_bytes(b"in the way")
    with pytest.raises(OSError, match=r"\.m\.serving"):
        SharedTensors(tmp_path / "m", "v1")
