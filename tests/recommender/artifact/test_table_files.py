"""Model folders whose large tables are several files: written, mapped, and refused if damaged."""

import gc
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import fewfold as ff
from fewfold import _mapping
from fewfold._mapping import ALIGNMENT, FilePart, load_parts
from fewfold._tensors import read_header
from fewfold.distributed import Group
from fewfold.recommender.artifact import table_files
from fewfold.recommender.artifact.table_writing import write_tables
from tests.fuzz.artifact import resign
from tests.fuzz.mutations import pack, unpack
from tests.recommender.artifact.test_folder import answers

BYTES = "700"  # 40 items with 16, 8 and 8 numbers: 4, 2 and 2 files
TABLES = {"vae.inputs": 4, "vae.items": 2, "shortcut.table": 2}
INDEX, MODEL = "tables.json", "model.safetensors"


@pytest.fixture(scope="module")
def split(fitted: ff.Recommender, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of `fitted` with tables in several files; not to be changed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEWFOLD_FILE_BYTES", BYTES)
        return fitted.save(tmp_path_factory.mktemp("split") / "model")


@pytest.fixture
def copy(split: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    shutil.copytree(split, tmp_path / "copy")
    return tmp_path / "copy"


def test_a_folder_with_split_tables_answers_as_that_of_one_file(
    fitted: ff.Recommender, split: Path
) -> None:
    index = json.loads((split / INDEX).read_text())["tables"]
    assert {name: len(table["files"]) for name, table in index.items()} == TABLES
    names = [each["file"] for table in index.values() for each in table["files"]]
    assert names == [f"table-{n:05}.safetensors" for n in range(1, 9)]
    manifest = json.loads((split / "manifest.json").read_text())
    assert manifest["version"] == 2
    assert {*names, INDEX} <= set(manifest["files"]) == set(manifest["bytes"])
    assert not set(TABLES) & set(load_file(split / MODEL))
    for name, table in index.items():  # any program reads the files
        rows = [load_file(split / each["file"])[name] for each in table["files"]]
        assert torch.equal(torch.cat(rows), fitted.fitted.state()[name])
        assert table["shape"] == list(torch.cat(rows).shape)
    rec = ff.Recommender.load(split)
    assert answers(rec) == answers(fitted)
    for name, value in fitted.fitted.state().items():
        assert torch.equal(rec.fitted.state()[name], value)


def test_saving_updating_and_exporting_a_loaded_folder(
    split: Path, artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rec = ff.Recommender.load(split)
    single = rec.save(tmp_path / "model")
    assert not (single / INDEX).exists()
    for name in (MODEL, "manifest.json", "items.safetensors"):
        assert (single / name).read_bytes() == (artifact / name).read_bytes()
    monkeypatch.setenv("FEWFOLD_FILE_BYTES", BYTES)
    again = rec.save(single, overwrite=True)  # which is one file until then
    for file in split.iterdir():
        assert (again / file.name).read_bytes() == file.read_bytes()
    ff.Recommender.load(again).save(again, overwrite=True)  # over the files that are mapped
    new = {"user": ["u1", "u2", "u5", "new"], "item": ["a99", "a99", "a99", "b1"]}
    updated = ff.Recommender.load(again).update(new)
    expected = ff.Recommender.load(artifact).update(new)
    updated = ff.Recommender.load(updated.save(tmp_path / "updated"))
    assert len(updated.items) == len(expected.items) == 41
    assert answers(updated) == answers(expected)
    ff.recommender.export(rec, vectors=tmp_path / "vectors.parquet", faiss=tmp_path / "index")


def test_inspection_lists_all_files(split: Path) -> None:
    found = ff.recommender.inspect(split)
    sizes = {file.name: file.stat().st_size for file in split.iterdir()}
    assert found.sizes == sizes
    assert "table-00008.safetensors" in str(found)


@pytest.mark.parametrize("blocks", [7, 64, 1 << 22])
def test_values_are_checked_in_blocks(
    copy: Path, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_files, "_BLOCK", blocks * 4)
    ff.Recommender.load(copy)
    change_rows(copy, 2, lambda rows: rows[-1].fill_(float("nan")))
    with pytest.raises(ff.recommender.ArtifactError, match=r"00002.*vae.inputs must be finite"):
        ff.Recommender.load(copy)


def change_rows(copy: Path, number: int, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Change the rows in a file, and make the manifest fit."""
    file = copy / f"table-{number:05}.safetensors"
    ((name, rows),) = load_file(file).items()
    rows = rows.clone()
    found = change(rows)
    save_file({name: found if found.dim() == 2 else rows}, file)  # other rows, or changed ones
    resign(copy, file.name)


@pytest.mark.parametrize(
    ("number", "change", "words"),
    [
        (1, lambda rows: rows[1:].clone(), "00001.*vae.inputs must be .*got"),
        (1, lambda rows: rows.double(), "00001.*vae.inputs must be torch.float32"),
        (1, lambda rows: rows.t().contiguous(), "00001.*vae.inputs must be"),
        (5, lambda rows: rows[0].fill_(float("inf")), "00005.*vae.items must be finite"),
        (6, lambda rows: rows[0].fill_(1e38), "so large that scores would overflow"),
    ],
)
def test_rows_that_do_not_fit_are_refused(copy: Path, number: int, change: Any, words: str) -> None:
    change_rows(copy, number, change)
    with pytest.raises(ff.recommender.ArtifactError, match=words):
        ff.Recommender.load(copy)


def files(index: Any) -> Any:
    return index["tables"]["vae.inputs"]["files"]


INDEXES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "traversal": (lambda i: files(i)[0].update(file="../x"), r"files\[0\].file must be .*'../x'"),
    "absolute": (lambda i: files(i)[0].update(file="/etc/passwd"), "must be a file of"),
    "other file": (lambda i: files(i)[0].update(file=MODEL), "must be a file of the manifest"),
    "twice": (lambda i: files(i)[1].update(file=files(i)[0]["file"]), "each once"),
    "overlap": (lambda i: files(i)[1].update(first=9), r"files\[1\] must have rows from 10 on"),
    "gap": (lambda i: files(i)[1].update(first=11), "must have rows from 10 on, got 10 from 11"),
    "negative": (lambda i: files(i)[0].update(rows=-1), "must have rows from 0 on"),
    "none": (lambda i: files(i)[0].update(rows=0), "must have rows from 0 on"),
    "fewer": (lambda i: files(i).pop(), "files have 30 rows, and must have 40"),
    "no files": (lambda i: files(i).clear(), "files have 0 rows"),
    "order": (lambda i: files(i).reverse(), "must have rows from 0 on, got 10 from 30"),
    "more": (lambda i: files(i)[0].update(rows=20), r"00001.*must be .*\(20, 16\)"),
    "number": (lambda i: files(i)[0].update(rows="10"), "rows must be a whole number"),
    "key": (lambda i: files(i)[0].update(sum=1), "sum does not belong there"),
    "table": (lambda i: i["tables"].pop("vae.items"), "must have table-00005"),
    "tables": (lambda i: i["tables"].clear(), "tables must be at least one"),
    "name": (lambda i: i["tables"].update(x=i["tables"].pop("vae.items")), "00005.*x is missing"),
    "dtype": (lambda i: i["tables"]["vae.items"].update(dtype="F64"), "00005.*must be .*64 of"),
    "no dtype": (lambda i: i["tables"]["vae.items"].update(dtype="x"), "dtype must be one of"),
    "shape": (lambda i: i["tables"]["vae.items"].update(shape=[40, 9]), r"00005.*\(21, 9\), got"),
    "rows": (lambda i: i["tables"]["vae.items"].update(shape=[41, 8]), "rows, and must have 41"),
    "no shape": (lambda i: i["tables"]["vae.items"].update(shape=[]), "shape cannot be"),
    "minus": (lambda i: i["tables"]["vae.items"].update(shape=[40, -8]), "shape cannot be"),
    "list": (lambda i: i.update(tables=[]), "tables must be an object"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "words"), INDEXES.values(), ids=INDEXES)
def test_an_index_that_does_not_fit_is_refused(
    copy: Path, change: Callable[[Any], Any], words: str
) -> None:
    index = json.loads((copy / INDEX).read_text())
    change(index)
    (copy / INDEX).write_text(json.dumps(index))
    resign(copy, INDEX)
    with pytest.raises(ff.recommender.ArtifactError, match=words) as caught:
        ff.Recommender.load(copy)
    assert str(copy) in str(caught.value)
    assert caught.value.args[0].endswith("copy the folder again, or fit the model again")


def manifest_change(copy: Path, change: Callable[[Any], Any]) -> None:
    manifest = json.loads((copy / "manifest.json").read_text())
    change(manifest)
    (copy / "manifest.json").write_text(json.dumps(manifest))


def unlist(name: str) -> Callable[[Path], Any]:
    return lambda c: manifest_change(c, lambda m: (m["files"].pop(name), m["bytes"].pop(name)))


def flip(copy: Path, name: str) -> None:
    data = bytearray((copy / name).read_bytes())
    data[-1] ^= 1
    (copy / name).write_bytes(data)


FIRST, EXTRA = "table-00001.safetensors", "table-00009.safetensors"
FOLDERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing": (lambda c: (c / FIRST).unlink(), f"{FIRST} is missing"),
    "no index": (lambda c: (c / INDEX).unlink(), f"{INDEX} is missing"),
    "cut": (lambda c: os.truncate(c / FIRST, ALIGNMENT + 8), f"{FIRST} has .* bytes, and was"),
    "flipped": (lambda c: flip(c, FIRST), f"{FIRST} has changed since it was written"),
    "index": (lambda c: (c / INDEX).write_text("{}"), f"{INDEX} has .* bytes"),
    "extra": (lambda c: shutil.copy(c / FIRST, c / EXTRA), f"files.{EXTRA} is missing"),
    "unlisted": (unlist(FIRST), f"files.{FIRST} is missing"),
    "unlisted index": (unlist(INDEX), f"files.{INDEX} is missing"),
    "version 1": (lambda c: manifest_change(c, lambda m: m.update(version=1)), "is no part of a"),
    "traversal": (lambda c: manifest_change(c, lambda m: m["files"].update({f"../{FIRST}": "0"})),
                  "is no part of a model"),
    "directory": (lambda c: ((c / FIRST).unlink(), (c / FIRST).mkdir()), f"{FIRST} is missing"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "words"), FOLDERS.values(), ids=FOLDERS)
def test_files_that_do_not_fit_are_refused(
    copy: Path, change: Callable[[Path], Any], words: str
) -> None:
    change(copy)
    with pytest.raises(ff.recommender.ArtifactError, match=words):
        ff.Recommender.load(copy)


def test_version_2_needs_an_index(artifact: Path, tmp_path: Path) -> None:
    shutil.copytree(artifact, tmp_path / "copy")
    manifest_change(tmp_path / "copy", lambda m: m.update(version=2))
    with pytest.raises(ff.recommender.ArtifactError, match=f"files.{INDEX} is missing"):
        ff.Recommender.load(tmp_path / "copy")


def test_a_tensor_in_both_places_is_refused(copy: Path) -> None:
    tensors, metadata = unpack((copy / MODEL).read_bytes())
    tensors["vae.items"] = ("F32", [40, 8], bytes(40 * 8 * 4))
    (copy / MODEL).write_bytes(pack(tensors, metadata))
    resign(copy, MODEL)
    with pytest.raises(ff.recommender.ArtifactError, match=r"vae\.items is in model"):
        ff.Recommender.load(copy)


def test_linked_files_are_read_as_files(copy: Path, tmp_path: Path) -> None:
    """As a cache of downloaded models has them."""
    (copy / FIRST).rename(tmp_path / "blob")
    (copy / FIRST).symlink_to(tmp_path / "blob")
    ff.Recommender.load(copy)


def test_a_file_changed_after_its_checksum_is_refused(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify = table_files._Rows.verify

    def late(rows: Any) -> None:
        verify(rows)
        os.truncate(rows.header.file, rows.part.end - 4)

    monkeypatch.setattr(table_files._Rows, "verify", late)
    with pytest.raises(ff.recommender.ArtifactError, match=f"{FIRST} cannot be read"):
        ff.Recommender.load(copy)


def written(folder: Path, rows: int, width: int, most: int) -> tuple[torch.Tensor, list[FilePart]]:
    """Write a table, and return it with the parts of its files."""
    table = torch.randn(rows, width, generator=torch.Generator().manual_seed(0))
    found = write_tables(folder, {"t": table}, most, Group())
    parts = []
    for name in found.sizes:
        ((begin, end),) = read_header(folder / name).places.values()
        assert begin == ALIGNMENT
        assert end == found.sizes[name] == (folder / name).stat().st_size
        parts.append(FilePart(folder / name, begin, end))
    return table, parts


@pytest.mark.parametrize("rows", [16384, 16385, 40000])
def test_files_are_mapped_as_one_tensor(tmp_path: Path, rows: int) -> None:
    table, parts = written(tmp_path, rows, 16, 300_000)
    assert len(parts) == -(-rows * 64 // (4 * ALIGNMENT))
    found = load_parts(parts, torch.float32, table.shape)
    assert torch.equal(found, table)
    inode = os.stat(parts[-1].file).st_ino
    if sys.platform == "linux":
        assert f" {inode} " in Path("/proc/self/maps").read_text()
    found[0] = 7  # seen by this tensor alone
    assert torch.equal(load_parts(parts, torch.float32, table.shape), table)
    row = found[5:6]
    del found
    gc.collect()
    assert torch.equal(row, table[5:6])
    del row
    gc.collect()
    if sys.platform == "linux":
        assert f" {inode} " not in Path("/proc/self/maps").read_text()


def test_files_of_other_alignment_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, parts = written(tmp_path, 40, 16, 700)
    assert len(parts) == 4
    assert not _mapping._aligned(parts)
    assert torch.equal(load_parts(parts, torch.float32, table.shape), table)
    table, parts = written(tmp_path, 16384, 16, 300_000)
    monkeypatch.setattr(_mapping, "_libc", lambda: None)
    assert torch.equal(load_parts(parts, torch.float32, table.shape), table)
    assert load_parts([], torch.float32, (0, 3)).shape == (0, 3)
    os.truncate(parts[-1].file, parts[-1].end - 1)
    with pytest.raises(ValueError, match="it ends before byte"):
        load_parts(parts, torch.float32, table.shape)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="it ends before byte"):
        load_parts(parts, torch.float32, table.shape)


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_mapped_rows_are_in_memory_when_they_are_used(tmp_path: Path) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    table, parts = written(tmp_path, 1 << 18, 64, 16 << 20)
    assert len(parts) == 4
    before = resident()
    found = load_parts(parts, torch.float32, table.shape)
    assert torch.equal(found[::50_000], table[::50_000])
    assert resident() - before < table.nbytes / 8


def test_too_many_files_are_refused(fitted: ff.Recommender, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="set FEWFOLD_FILE_BYTES to more bytes"):
        write_tables(tmp_path, {"t": torch.zeros(10_001, 1)}, 4, Group())
    assert list(tmp_path.iterdir()) == []
