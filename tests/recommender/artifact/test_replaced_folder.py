"""Model folders that are replaced, moved or linked while they are read."""

import os
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

import fewfold as ff
from fewfold import _files
from fewfold.recommender.ids import Ids
from tests.fuzz.artifact import FIXTURES, answers
from tests.fuzz.mutations import pack, unpack
from tests.recommender.artifact.forging import ITEMS, MODEL, tensor


@pytest.mark.parametrize("way", ["exchange", "fallback"])
def test_readers_meet_the_old_model_or_the_new(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "fallback":
        monkeypatch.setattr(_files, "_renameat2", lambda: None)
    both = [ff.Recommender.load(FIXTURES / name) for name in ("ease", "popularity")]
    target, stop, errors, written = tmp_path / "model", threading.Event(), [], []
    both[0].save(target)
    expected = [answers(rec) for rec in both]

    def write() -> None:
        try:
            while not stop.is_set():
                for rec in both:
                    written.append(rec.save(target, overwrite=True))
        except BaseException as error:
            errors.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen, end = [], time.monotonic() + 60
        while time.monotonic() < end and not errors:
            if len(seen) >= 30 and len(written) >= 10 and set(seen) == {0, 1}:
                break
            seen.append(expected.index(answers(ff.Recommender.load(target))))
            if len(seen) % 10 == 0:
                str(ff.recommender.inspect(target))
    finally:
        stop.set()
        writer.join()
    assert not errors
    assert set(seen) == {0, 1}


def test_a_file_replaced_between_two_looks_is_no_other_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Headers of one model and bytes of another, as where a folder is copied over in place."""
    from fewfold.recommender.artifact import folder as artifact

    copy, kinds = tmp_path / "model", ["anchored", "item-knn", "popularity", "rows"]
    sum_of = artifact.sha256

    def late(file: Path) -> str:
        found = sum_of(file)
        for other in FIXTURES.glob(f"{kinds[-1]}/{file.name}"):
            shutil.copy(other, file)
        if kinds[-1] == "rows" and file.name == MODEL:
            tensors, metadata = unpack(file.read_bytes())
            tensor("vae.shift", shape=[11], raw=lambda raw: raw[:-4])(tensors)
            file.write_bytes(pack(tensors, metadata))
        return found

    monkeypatch.setattr(artifact, "sha256", late)
    while kinds:
        shutil.copytree(FIXTURES / "fastvae", copy, dirs_exist_ok=True)
        with pytest.raises(ff.recommender.ArtifactError, match="has changed while it was read"):
            ff.Recommender.load(copy)
        kinds.pop()


def test_a_folder_replaced_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a model that differs in its seed and its ids alone: a mixture would load, too."""
    from fewfold.recommender.artifact import folder as artifact

    target, other = tmp_path / "model", ff.Recommender.load(FIXTURES / "ease")
    other.save(target)
    ids = Ids.of([number + 1000 for number in other.items.tolist()])
    other = ff.Recommender._of(replace(other._state, seed=77, items=ids))
    sum_of, looks = artifact.sha256, []

    def replaced(file: Path) -> str:
        found = sum_of(file)
        if file.name == ITEMS and ".partial" not in file.parent.name:
            looks.append(file)
            if len(looks) == 1:
                other.save(target, overwrite=True)
        return found

    monkeypatch.setattr(artifact, "sha256", replaced)
    rec = ff.Recommender.load(target)
    assert (rec.seed, min(rec.items.tolist())) == (77, 1000)
    assert len(looks) == 2


def test_a_model_left_under_another_name_is_read_and_not_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "model"
    shutil.copytree(FIXTURES / "ease", tmp_path / ".model.old")  # killed in between
    rec = ff.Recommender.load(target)
    assert isinstance(rec.model, ff.recommender.EASE)
    assert not target.exists()
    with pytest.raises(FileExistsError, match="holds a model already"):
        rec.save(target)
    rec.save(target, overwrite=True)
    assert os.listdir(tmp_path) == ["model"]


def test_a_model_is_read_from_the_folder_one_is_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FIXTURES / "popularity")
    for here in (".", "", "../popularity"):
        assert isinstance(ff.Recommender.load(here).model, ff.recommender.MostPopular)


def test_a_link_to_a_folder_stays_a_link(tmp_path: Path) -> None:
    rec = ff.Recommender.load(FIXTURES / "popularity")
    (tmp_path / "disk").mkdir()
    shutil.copytree(FIXTURES / "ease", tmp_path / "disk" / "real")
    (tmp_path / "model").symlink_to(tmp_path / "disk" / "real")
    assert rec.save(tmp_path / "model", overwrite=True) == tmp_path / "disk" / "real"
    assert (tmp_path / "model").is_symlink()
    assert isinstance(ff.Recommender.load(tmp_path / "model").model, ff.recommender.MostPopular)
    assert sorted(os.listdir(tmp_path)) == ["disk", "model"]
    assert os.listdir(tmp_path / "disk") == ["real"]


def test_files_of_a_folder_have_the_rights_of_this_user(tmp_path: Path) -> None:
    folder = ff.Recommender.load(FIXTURES / "popularity").save(tmp_path / "model")
    (tmp_path / "plain").touch()
    rights = {file.stat().st_mode for file in folder.iterdir()}
    assert rights == {(tmp_path / "plain").stat().st_mode}


def test_more_items_than_two_bytes_can_number(tmp_path: Path) -> None:
    items = 2**16 + 5
    log = {"user": [0] * 3 + [1] * items, "item": [0, 2**16, items - 1, *range(items)]}
    rec = ff.Recommender(ff.recommender.MostPopular()).fit(log, progress=False)
    again = ff.Recommender.load(rec.save(tmp_path / "model"))
    assert again.history is not None
    assert again.history.rows([0]).values.tolist() == [0, 2**16, items - 1]
