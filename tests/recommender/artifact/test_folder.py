"""The model as a folder: whole or refused, the same bytes for the same seed, no half-writing."""

import errno
import json
import random
import shutil
import signal
import sys
from pathlib import Path

import pytest

import fewfold as ff
from fewfold.recommender.artifact import folder as artifacts
from fewfold.recommender.artifact import folder_writing
from tests.recommender.conftest import grouped

USERS = [f"u{i}" for i in range(0, 40, 3)]
FILES = (
    *("config.json", "items.safetensors", "manifest.json", "metrics.json", "model.safetensors"),
    *("README.md", "users.safetensors"),
)


def answers(rec: ff.Recommender) -> list[object]:
    histories = [["a1", "b3"], ["c2"], []]
    return [
        rec.recommend(USERS, k=5).to_dicts(),
        rec.recommend_from_history(histories, k=5).to_dicts(),
        rec.similar_items(["a1", "d4"], k=3).to_dicts(),
    ]


def test_an_artifact_answers_alone(fitted: ff.Recommender, artifact: Path) -> None:
    assert sorted(file.name for file in artifact.iterdir()) == sorted(FILES)
    again = ff.Recommender.load(artifact)
    assert answers(again) == answers(fitted)
    card = (artifact / "README.md").read_text()
    assert "120 users, 40 items, 720 interactions" in card


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        recipe = ff.VAE(hidden=8, latent=3, layers=1, shortcut=4)
        rec = ff.Recommender(recipe, training=ff.recommender.Training(epochs=2, batch=32), seed=3)
        rec.fit(grouped(80), test=0.2, progress=False).save(tmp_path / name)
    for name in FILES:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_the_curve_and_a_comparison_are_kept(fitted: ff.Recommender, tmp_path: Path) -> None:
    assert fitted.report is not None
    points = [(one.number, one.loss, one.ndcg) for one in fitted.report.epochs]
    compared = ff.compare(grouped(60), models=("popularity", "ease"), test=0.3, progress=False)
    rec = ff.Recommender.load(fitted.save(tmp_path / "plain"))
    assert rec.comparison is None
    rec.comparison = compared
    again = ff.Recommender.load(rec.save(tmp_path / "compared"))
    assert [(one.epoch, one.loss, one.ndcg) for one in again.curve] == points != []
    assert again.comparison == compared.as_dict()
    assert [one["model"] for one in again.comparison["models"]] == ["ease", "popularity"]
    card = (tmp_path / "compared" / "README.md").read_text()
    assert "## Beside other models" in card
    assert compared.verdict in card
    shown = str(ff.recommender.inspect(tmp_path / "compared"))
    assert f"training curve of {len(points)} epochs: loss {points[0][1]:.3f} to" in shown
    assert compared.verdict in shown
    again.comparison = None
    assert ff.Recommender.load(again.save(tmp_path / "without")).comparison is None


def test_without_users_histories_are_asked_for(fitted: ff.Recommender, tmp_path: Path) -> None:
    folder = fitted.save(tmp_path / "private", users=False)
    assert not (folder / "users.safetensors").exists()
    assert b"u11" not in b"".join(file.read_bytes() for file in folder.iterdir())
    again = ff.Recommender.load(folder)
    with pytest.raises(ValueError, match="saved without users"):
        again.recommend("u1")
    found = again.recommend_from_history(["a1"], k=4)
    assert found.items == fitted.recommend_from_history(["a1"], k=4).items


@pytest.mark.slow
def test_flipped_bytes_are_refused_or_harmless(
    fitted: ff.Recommender, artifact: Path, tmp_path: Path
) -> None:
    generator = random.Random(7)
    expected, refused = answers(fitted), 0
    files = sorted(artifact.iterdir())
    sizes = [file.stat().st_size for file in files]
    for number in range(200):
        # Half of the flips by size, half over files: small files must be hit as well.
        weights = sizes if number % 2 else None
        file = generator.choices(files, weights)[0]
        copy = tmp_path / "copy"
        shutil.copytree(artifact, copy)
        data = bytearray((copy / file.name).read_bytes())
        place = generator.randrange(len(data))
        data[place] ^= 1 << generator.randrange(8)
        (copy / file.name).write_bytes(data)
        try:
            loaded = ff.Recommender.load(copy)
        except ff.recommender.ArtifactError:
            refused += 1
        else:
            assert answers(loaded) == expected
        shutil.rmtree(copy)
    assert refused > 100  # else nothing was tried


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".safetensors")])
def test_tensors_with_another_value_are_refused(artifact: Path, tmp_path: Path, name: str) -> None:
    copy = tmp_path / "model"
    shutil.copytree(artifact, copy)
    data = bytearray((copy / name).read_bytes())
    data[-1] ^= 1
    (copy / name).write_bytes(data)
    with pytest.raises(
        ff.recommender.ArtifactError, match=f"{name}.* has changed since it was written"
    ):
        ff.Recommender.load(copy)


@pytest.mark.parametrize("name", [name for name in FILES if name != "README.md"])
def test_missing_cut_and_empty_files_are_refused(artifact: Path, tmp_path: Path, name: str) -> None:
    for damage in ("missing", "cut", "empty"):
        copy = tmp_path / damage
        shutil.copytree(artifact, copy)
        data = (copy / name).read_bytes()
        if damage == "missing":
            (copy / name).unlink()
        else:
            (copy / name).write_bytes(data[: len(data) // 2] if damage == "cut" else b"")
        with pytest.raises(ff.recommender.ArtifactError):
            ff.Recommender.load(copy)


def test_newer_and_foreign_folders_are_refused(artifact: Path, tmp_path: Path) -> None:
    copy = tmp_path / "newer"
    shutil.copytree(artifact, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps({**manifest, "version": 3}))
    with pytest.raises(ff.recommender.ArtifactError, match=r"by a newer fewfold.*upgrade"):
        ff.Recommender.load(copy)
    (tmp_path / "other").mkdir()
    with pytest.raises(ff.recommender.ArtifactError, match="is not a model of fewfold"):
        ff.Recommender.load(tmp_path / "other")
    with pytest.raises(ff.recommender.ArtifactError, match="there is no folder"):
        ff.Recommender.load(tmp_path / "nowhere")


def test_names_in_the_manifest_lead_nowhere(artifact: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(artifact, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["files"]["../../etc/passwd"] = "0" * 64
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(
        ff.recommender.ArtifactError, match=r"manifest.json: files\.\..* is no part of a model"
    ):
        ff.Recommender.load(copy)


def test_a_consistent_forgery_is_refused(artifact: Path, tmp_path: Path) -> None:
    """Checksums keep accidents out; a forger recomputes them, and must not crash us either."""
    from safetensors.torch import load_file, save_file

    def forged(name: str, change: object) -> Path:
        copy = tmp_path / f"forged-{len(list(tmp_path.iterdir()))}"
        shutil.copytree(artifact, copy)
        tensors = load_file(copy / name)
        change(tensors)  # type: ignore[operator]
        save_file(tensors, copy / name)
        manifest = json.loads((copy / "manifest.json").read_text())
        manifest["files"][name] = artifacts.sha256(copy / name)
        manifest["bytes"][name] = (copy / name).stat().st_size
        (copy / "manifest.json").write_text(json.dumps(manifest))
        return copy

    def far(tensors: dict) -> None:  # type: ignore[type-arg]
        tensors["touched"][0] = 60000

    def short(tensors: dict) -> None:  # type: ignore[type-arg]
        tensors["vae.items"] = tensors["vae.items"][:-1].clone()

    def shifted(tensors: dict) -> None:  # type: ignore[type-arg]
        tensors["ids.offsets"][3] = 10**9

    def renamed(tensors: dict) -> None:  # type: ignore[type-arg]
        tensors["vae.other"] = tensors.pop("vae.shift")

    for name, change in (
        ("users.safetensors", far),
        ("model.safetensors", short),
        ("items.safetensors", shifted),
        ("model.safetensors", renamed),
    ):
        with pytest.raises(ff.recommender.ArtifactError):
            ff.Recommender.load(forged(name, change))


def test_nothing_is_replaced_unasked(fitted: ff.Recommender, tmp_path: Path) -> None:
    folder = fitted.save(tmp_path / "model")
    with pytest.raises(FileExistsError, match="--overwrite"):
        fitted.save(folder)
    fitted.save(folder, overwrite=True)
    other = tmp_path / "photos"
    other.mkdir()
    (other / "cat.jpg").write_text("meow")
    with pytest.raises(FileExistsError, match="is not a model"):
        fitted.save(other, overwrite=True)
    assert (other / "cat.jpg").read_text() == "meow"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "photos"]


def test_a_full_disk_leaves_the_old_model(
    fitted: ff.Recommender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fitted.save(tmp_path / "model")
    before = {file.name: file.read_bytes() for file in folder.iterdir()}

    def full(file: Path) -> str:
        raise OSError(errno.ENOSPC, "No space left on device", str(file))

    monkeypatch.setattr(folder_writing, "sha256", full)
    with pytest.raises(OSError, match="No space left"):
        fitted.save(folder, overwrite=True)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_without_safetensors_it_is_said_what_to_install(
    fitted: ff.Recommender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(ImportError, match=r"pip install 'fewfold\[recommender\]'"):
        fitted.save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_really_full_is_told_as_one(fitted: ff.Recommender, tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            fitted.save(tmp_path / "model")
        with pytest.raises(OSError, match=r"File too large|No space"):
            ff.recommender.export(fitted, vectors=tmp_path / "v.parquet")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_missing_is_looked_for_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, seen = tmp_path / "model", []
    naps: list[float] = []
    monkeypatch.setattr(artifacts.time, "sleep", naps.append)

    def read(place: Path) -> str:
        seen.append(place)
        return (place / "name").read_text()

    with pytest.raises(FileNotFoundError):
        artifacts.read_consistently(folder, read)
    assert seen == [folder] * 4
    assert len(naps) == 3
    assert all(nap > 0 for nap in naps)

    def late(place: Path) -> str:
        if len(seen) == 6:  # the writer was between two renames
            folder.mkdir()
            (folder / "name").write_text("here")
        return read(place)

    assert artifacts.read_consistently(folder, late) == "here"


def test_a_folder_that_is_replaced_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    folder, seen = tmp_path / "model", []

    def replace() -> None:
        new = tmp_path / "new"
        new.mkdir()
        (new / "name").write_text(f"version {len(seen)}")
        if folder.exists():
            folder.rename(tmp_path / f"before {len(seen)}")
        new.rename(folder)

    def read(until: int, fails: bool) -> str:
        def once(place: Path) -> str:
            found = (place / "name").read_text()
            if len(seen) < until:
                seen.append(found)
                replace()
                if fails:
                    raise OSError("half of each")
            return found

        return artifacts.read_consistently(folder, once)

    replace()
    assert read(2, fails=False) == "version 2"
    assert read(4, fails=True) == "version 4"
    with pytest.raises(
        ff.recommender.ArtifactError, match="was replaced 50 times while it was read"
    ):
        read(10**6, fails=False)
    assert len(seen) == 4 + 50


def test_an_error_of_a_folder_that_stays_is_raised_at_once(tmp_path: Path) -> None:
    seen = []

    def read(place: Path) -> None:
        seen.append(place)
        raise ff.recommender.ArtifactError("damaged")

    with pytest.raises(ff.recommender.ArtifactError, match="damaged"):
        artifacts.read_consistently(tmp_path, read)
    assert seen == [tmp_path]
