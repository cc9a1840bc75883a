"""Folders of earlier versions load; folders that were made wrong are refused, naming the field."""

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import fewfold as ff
from fewfold.embeddings.files.save_load import load_anchors
from fewfold.recommender.training.checkpoint import Checkpoint
from fewfold.recommender.training.checkpoint_file import read
from tests.fuzz.artifact import FIXTURES, STORED, answers, pairs, resign, run
from tests.fuzz.mutations import giant, unpack
from tests.recommender.artifact.forging import (
    CONFIG,
    ITEMS,
    MANIFEST,
    METRICS,
    MODEL,
    USERS,
    Change,
    drop,
    first,
    forged,
    put,
    tensor,
)


@pytest.mark.parametrize("name", STORED)
def test_folders_of_the_first_format_answer_as_they_did(name: str, tmp_path: Path) -> None:
    rec = ff.Recommender.load(FIXTURES / name)
    told = json.loads((FIXTURES / "answers.json").read_text())[name]
    found = {"history": rec.recommend_from_history(told["asked"], k=5).to_dicts()}
    if rec.users is not None:
        found["users"] = rec.recommend(rec.users.take(range(3)), k=5).to_dicts()
    if name != "popularity":
        found["similar"] = rec.similar_items(rec.items.take(range(3)), k=4).to_dicts()
    assert set(found) == set(told["answers"])
    for question, expected in told["answers"].items():
        for one, other in zip(found[question], expected, strict=True):
            assert one.pop("score") == pytest.approx(other.pop("score"), rel=1e-3, abs=1e-4)
            assert one == other
    again = rec.save(tmp_path / "again", users=rec.users is not None)
    for file in ("model.safetensors", "items.safetensors", "users.safetensors", "metrics.json"):
        if (FIXTURES / name / file).exists():
            assert (again / file).read_bytes() == (FIXTURES / name / file).read_bytes()
    old, new = (json.loads((f / "config.json").read_text()) for f in (FIXTURES / name, again))
    assert holds({**new, "versions": None}, {**old, "versions": None})
    assert answers(ff.Recommender.load(again)) == answers(rec)


def holds(new: Any, old: Any) -> bool:
    """Whether everything that was in the old document is in the new one, which may have more."""
    if isinstance(old, dict):
        return isinstance(new, dict) and all(k in new and holds(new[k], v) for k, v in old.items())
    return bool(new == old)


@pytest.mark.parametrize("name", ["floats", "bits"])
def test_tables_of_the_first_formats_load(name: str) -> None:
    expected = torch.tensor(json.loads((FIXTURES / "anchors.json").read_text())[name])
    found = load_anchors(FIXTURES / f"{name}.anchors.safetensors").weight
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


OPTIONS: dict[str, Any] = {"epochs": 3, "batch": 5, "progress": False}


@pytest.mark.parametrize("name", ["fastvae", "patient"])
def test_checkpoints_of_the_first_format_are_resumed(name: str, tmp_path: Path) -> None:
    small: dict[str, Any] = {"hidden": 8, "latent": 3}
    options = OPTIONS
    if name == "patient":
        small = {"hidden": 4, "latent": 2, "layers": 0}
        options = {**OPTIONS, "validation": ff.recommender.random_split(pairs()), "patience": 2}
    shutil.copy(FIXTURES / f"{name}.checkpoint", tmp_path / "run")
    resumed, straight = ff.recommender.FastVAE(12, **small), ff.recommender.FastVAE(12, **small)
    epochs = ff.recommender.train(resumed, pairs(), checkpoint=Checkpoint(tmp_path / "run", resume=True),
                      **options)  # fmt: skip
    again = ff.recommender.train(straight, pairs(), **options)
    assert len(epochs) == len(again)
    torch.testing.assert_close(resumed.items, straight.items, rtol=1e-3, atol=1e-4)


SCORE = {"mean": 0.5, "low": 0.4, "high": 0.6}
CONTENDER: dict[str, Any] = {
    "model": "ease", "settings": "EASE()", "summary": "", "seconds": 1.0, "bytes": 9,
    "users per second": 2.0, "users ranked": "all", "users": 3, "level": 0.95,
    "scores": {"NDCG@10": SCORE}, "slices": {}, "behind the best": None,
}  # fmt: skip
COMPARED: dict[str, Any] = {
    "split": "some", "metric": "NDCG@10", "models": [CONTENDER], "formulas": {"NDCG@10": "f"},
    "skipped": {}, "verdict": "ease",
}  # fmt: skip
POINT = {"epoch": 1, "loss": 2.5, "ndcg": None}


def test_results_that_fit_are_taken(tmp_path: Path) -> None:
    """So that what is refused below is refused for the one thing that was changed."""
    copy = forged("ease", tmp_path, CONFIG, put("comparison", to=COMPARED))
    assert ff.Recommender.load(copy).comparison == COMPARED
    copy = forged("ease", tmp_path, CONFIG, put("curve", to=[POINT]))
    assert [point.loss for point in ff.Recommender.load(copy).curve] == [2.5]


def compared(**changes: Any) -> Change:
    return put("comparison", to={**COMPARED, **changes})


NAN, HUGE = b"\x00\x00\xc0\x7f", b"\x00\x00\x00\x7f"
FORGED: dict[str, tuple[str, str, Change, str]] = {
    "no kind": ("ease", CONFIG, drop("model", "kind"), "model.kind must be one of"),
    "kind of a number": ("ease", CONFIG, put("model", "kind", to=7), "model.kind must be one of"),
    "another kind": ("ease", CONFIG, put("model", "kind", to="item-knn"), r"model\.(l2|most_items)"),
    "weighting": ("item-knn", CONFIG, put("model", "weighting", "kind", to="x"), "weighting.kind"),
    "weighting's number": ("item-knn", CONFIG, put("model", "weighting", "k1", to="1"),
                           r"model.weighting.k1 must be a number, got '1'"),
    "setting too many": ("ease", CONFIG, put("model", "extra", to=1), "model.extra does not belong"),
    "setting of a text": ("fastvae", CONFIG, put("model", "hidden", to="12"),
                          "model.hidden must be a whole number, got '12'"),
    "setting of a truth": ("fastvae", CONFIG, put("model", "layers", to=True),
                           "model.layers must be a whole number"),
    "setting of half": ("fastvae", CONFIG, put("model", "latent", to=5.0),
                        "model.latent must be a whole number"),
    "hidden": ("fastvae", CONFIG, put("model", "hidden", to=13), r"vae.shift must be .*\(13,\)"),
    "layers": ("fastvae", CONFIG, put("model", "layers", to=10**9), "norms.2.weight is missing"),
    "fewer layers": ("fastvae", CONFIG, put("model", "layers", to=0), "does not belong there"),
    "curve": ("ease", CONFIG, put("curve", to={}), "curve must be a list"),
    "point": ("ease", CONFIG, put("curve", to=[{"epoch": 1}]), r"curve\[0\].loss is missing"),
    "loss": ("ease", CONFIG, put("curve", to=[POINT, {**POINT, "loss": "1"}]), r"curve\[1\].loss must"),
    "comparison": ("ease", CONFIG, put("comparison", to=[]), "comparison must be an object"),
    "no models": ("ease", CONFIG, compared(models=[]), "comparison cannot be used: models must"),
    "contender": ("ease", CONFIG, compared(models=[{**CONTENDER, "bytes": "9"}]),
                  r"comparison.models\[0\].bytes must be a whole number"),
    "deciding metric": ("ease", CONFIG, compared(metric="MRR", formulas={"NDCG@10": "f", "MRR": ""}),
                        "scores of ease must have 'MRR'"),
    "unexplained": ("ease", CONFIG, compared(formulas={}), "formulas must have 'NDCG@10'"),
    "slice": ("ease", CONFIG, compared(models=[{**CONTENDER, "slices": {"all": {"users": 1}}}]),
              r"models\[0\].slices.all.level is missing"),
    "rank": ("fastvae", CONFIG, put("model", "shortcut", to=7), r"shortcut.table must .*1 to 7"),
    "no rank": ("fastvae", CONFIG, put("model", "shortcut", to=0), "shortcut.* does not belong"),
    "dense": ("anchored", CONFIG, put("model", "anchors", to=None), "vae.inputs is missing"),
    "anchors": ("anchored", CONFIG, put("model", "anchors", "count", to=4), "table.anchors must be"),
    "bits": ("anchored", CONFIG, put("model", "anchors", "bits", to=9), "bits must be between"),
    "other bits": ("anchored", CONFIG, put("model", "anchors", "bits", to=5), "table cannot be used"),
    "neighbours": ("item-knn", CONFIG, put("model", "neighbours", to=5), r"ids must be .*\(72, 5\)"),
    "training": ("fastvae", CONFIG, put("training", "lr", to=None), "training.lr must be a number"),
    "training too much": ("fastvae", CONFIG, put("training", "speed", to=1), "training.speed"),
    "no batch": ("fastvae", CONFIG, put("training", "batch", to=0), "training cannot be used"),
    "seed": ("fastvae", CONFIG, put("seed", to=-1), "seed must be at least 0"),
    "no seed": ("fastvae", CONFIG, drop("seed"), "seed is missing"),
    "data": ("fastvae", CONFIG, put("data", to=[]), "data must be an object"),
    "size": ("fastvae", CONFIG, put("data", "after", "users", to="many"), "data.after.users must"),
    "column": ("fastvae", CONFIG, put("data", "plan", "columns", "user", to="u"),
               "data.plan.columns.user must be an object"),
    "file names": ("fastvae", CONFIG, put("data", "plan", "files", to=[1]), r"files\[0\] must be"),
    "learned": ("fastvae", CONFIG, drop("learned from", "pairs"), "learned from.pairs is missing"),
    "versions": ("fastvae", CONFIG, put("versions", "torch", to=2), "versions.torch must be a text"),
    "a list": ("fastvae", CONFIG, lambda _: [], "config.json must be an object"),
    "nan": ("fastvae", CONFIG, put("data", "rows", to=float("nan")), "NaN is not valid JSON"),
    "infinite": ("fastvae", METRICS, put("split", to=float("inf")), "Infinity is not valid JSON"),
    "half a character": ("fastvae", METRICS, put("split", to="\ud800"), "surrogates not allowed"),
    "score": ("fastvae", METRICS, put("overall", "scores", "NDCG@10", to=0.5), "NDCG@10 must be an"),
    "mean": ("fastvae", METRICS, put("overall", "scores", "NDCG@10", "mean", to="x"), "10.mean must"),
    "formula": ("fastvae", METRICS, drop("formulas", "NDCG@10"), "formulas must have 'NDCG@10'"),
    "no overall": ("fastvae", METRICS, drop("overall"), "overall is missing"),
    "metrics of nothing": ("fastvae", METRICS, lambda _: 0, "metrics.json must be an object"),
    "sum": ("fastvae", MANIFEST, put("files", MODEL, to=7), f"files.{MODEL} must be a text"),
    "unlisted": ("fastvae", MANIFEST, drop("files", USERS), f"files.{USERS} is missing"),
    "not listed": ("fastvae", MANIFEST, drop("files", MODEL), f"files.{MODEL} is missing"),
    "format": ("fastvae", MANIFEST, put("format", to="x"), "format must be"),
    "version 0": ("fastvae", MANIFEST, put("version", to=0), "version must be 1 or 2, got 0"),
    "version -1": ("fastvae", MANIFEST, put("version", to=-1), "version must be 1 or 2, got -1"),
    "version of a truth": ("fastvae", MANIFEST, put("version", to=True), "version must be a whole"),
    "version of a text": ("fastvae", MANIFEST, put("version", to="1"), "version must be a whole"),
    "version of half": ("fastvae", MANIFEST, put("version", to=1.0), "version must be a whole"),
    "no version": ("fastvae", MANIFEST, drop("version"), "version is missing"),
    "size said": ("fastvae", MANIFEST, put("bytes", to={MODEL: 7}), f"{MODEL} has .* bytes, and was"),
    "more": ("fastvae", MANIFEST, put("more", to=1), "more does not belong there"),
    "no weights": ("ease", MODEL, drop("weights"), "weights is missing"),
    "more weights": ("ease", MODEL, put("extra", to=("F32", [1], bytes(4))), "extra does not belong"),
    "no learned": ("ease", MODEL, drop("learned"), "learned is missing"),
    "learned of none": ("ease", MODEL, tensor("learned", shape=[0], raw=b""), "learned must be"),
    "learned of fewer": ("ease", MODEL, tensor("learned", shape=[71], raw=lambda r: r[:-1]),
                         r"learned must be torch.bool of shape \(72,\)"),
    "learned of bytes": ("ease", MODEL, tensor("learned", dtype="U8"), "learned must be torch.bool"),
    "learned of two": ("ease", MODEL, tensor("learned", raw=first(b"\x02")), "learned must hold"),
    "double": ("ease", MODEL, tensor("counts", dtype="F64", raw=lambda r: r + r), "counts must be"),
    "rows": ("ease", MODEL, tensor("weights", shape=[71, 72], raw=lambda r: r[: -72 * 4]),
             r"weights must be torch.float32 of shape \(72, 72\)"),
    "counts of fewer": ("popularity", MODEL, tensor("counts", shape=[71], raw=lambda r: r[:-4]),
                        r"counts must be .*\(72,\)"),
    "nan in weights": ("ease", MODEL, tensor("weights", raw=first(NAN)), "weights must be finite"),
    "nan in shift": ("fastvae", MODEL, tensor("vae.shift", raw=first(NAN)), "vae.shift must be fin"),
    "negative count": ("ease", MODEL, tensor("counts", raw=first(b"\x00\x00\x80\xbf")),
                       "counts must hold numbers of at least 0, got -1"),
    "overflow": ("ease", MODEL, tensor("weights", raw=first(HUGE)), "scores would overflow"),
    "overflow of a mean": ("fastvae", MODEL, tensor("vae.posterior.bias", raw=first(HUGE)),
                           "scores would overflow"),
    "overflow of a norm": ("anchored", MODEL, tensor("vae.layers.norms.0.weight", raw=first(HUGE)),
                           "scores would overflow"),
    "overflow of a scale": ("anchored", MODEL, tensor("table.value_scales", raw=first(HUGE)),
                            "scores would overflow"),
    "division": ("fastvae", MODEL, tensor("shortcut.scale", raw=first(b"\x01\x00\x00\x00")),
                 "scores would overflow"),
    "no scale": ("fastvae", MODEL, tensor("shortcut.scale", raw=first(bytes(4))), "must be positive"),
    "part of a shortcut": ("fastvae", MODEL, drop("shortcut.strength"), "strength is missing"),
    "neighbour": ("item-knn", MODEL, tensor("ids", raw=first((72).to_bytes(8, "little"))),
                  "ids must hold numbers below 72, got 72"),
    "neighbour below": ("item-knn", MODEL, tensor("ids", raw=first(b"\xff" * 8)), "at least 0, got -1"),
    "length of a row": ("anchored", MODEL, tensor("table.lengths", raw=first(b"\x09")),
                        "table.lengths must hold numbers below"),
    "lengths": ("anchored", MODEL, tensor("table.lengths", raw=lambda r: bytes([r[0] ^ 1]) + r[1:]),
                "table cannot be used"),
    "starts": ("anchored", MODEL, tensor("table.starts", raw=first(b"\x01")), "table cannot be used"),
    "an item twice": ("ease", ITEMS, tensor("ids", raw=lambda r: r[8:16] + r[8:]), "got one twice"),
    "no ids": ("ease", ITEMS, drop("ids"), "ids is missing"),
    "no items": ("ease", ITEMS, tensor("ids", shape=[0], raw=b""), "ids must be at least one"),
    "one id": ("ease", ITEMS, tensor("ids", shape=[], raw=lambda r: r[:8]), "ids must be"),
    "not UTF-8": ("fastvae", ITEMS, tensor("ids.data", raw=first(b"\xff")), "ids is no UTF-8 at byte 0"),
    "falling": ("fastvae", ITEMS, tensor("ids.offsets", raw=lambda r: r[:8] + r[16:24] + r[8:16] + r[24:]),
                "ids has offsets that do not rise"),
    "not from 0": ("fastvae", ITEMS, tensor("ids.offsets", raw=first(b"\x01")), "do not rise from 0"),
    "end": ("fastvae", ITEMS, tensor("ids.data", shape=lambda s: [s[0] + 1], raw=lambda r: r + b"x"),
            "ids.offsets must end with"),
    "half a column": ("fastvae", ITEMS, drop("attribute:000:section.data"), "section.data is missing"),
    "attribute": ("fastvae", ITEMS, tensor("attribute:000:section.data", raw=first(b"\xff")),
                  "section is no UTF-8"),
    "attribute rows": ("fastvae", ITEMS, tensor("attribute:000:section.offsets", shape=[1], raw=bytes(8)),
                       r"section.offsets must be .*\(73,\)"),
    "a user twice": ("item-knn", USERS, tensor("ids", raw=lambda r: r[8:16] + r[8:]), "one twice"),
    "touched": ("item-knn", USERS, tensor("touched", raw=first(b"\x48\x00")), "below 72, got 72"),
    "touched twice": ("item-knn", USERS, tensor("touched", raw=lambda r: r[2:4] + r[2:]),
                      "touched cannot be used: the items of a user must increase"),
    "wide": ("item-knn", USERS, tensor("touched", dtype="U32", raw=lambda r: bytes(2 * len(r))),
             "touched must be torch.uint16"),
    "lengths of users": ("item-knn", USERS, tensor("lengths", raw=first(b"\xff")), "must add up to"),
    "fewer lengths": ("item-knn", USERS, tensor("lengths", shape=[294], raw=lambda r: r[:-4]),
                      r"lengths must be torch.uint32 of shape \(295,\)"),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "name", "change", "words"), FORGED.values(), ids=FORGED)
def test_what_does_not_fit_is_refused_by_name(
    kind: str, name: str, change: Change, words: str, tmp_path: Path
) -> None:
    copy = forged(kind, tmp_path, name, change)
    with pytest.raises(ff.recommender.ArtifactError, match=words) as caught:
        ff.Recommender.load(copy)
    assert str(copy) in str(caught.value)
    assert name in (CONFIG, MANIFEST) or str(copy / name) in str(caught.value)


@pytest.mark.parametrize("kind", STORED)
@pytest.mark.parametrize("name", [MODEL, ITEMS, USERS])
def test_every_tensor_is_needed_as_it_is(kind: str, name: str, tmp_path: Path) -> None:
    """Without it, with a row less or more, a dimension more, or in another dtype."""
    if not (FIXTURES / kind / name).exists():
        pytest.skip("it has none")
    size = {"F64": 8, "I64": 8, "F32": 4, "U32": 4, "U16": 2, "I8": 1, "U8": 1, "BOOL": 1}
    other = {8: "U64", 4: "I32", 2: "I16", 1: "F8_E4M3"}
    for each, (dtype, shape, raw) in unpack((FIXTURES / kind / name).read_bytes())[0].items():
        changes = [
            drop(each),
            tensor(each, shape=[1, *shape]),
            tensor(each, dtype=other[size[dtype]]),
        ]
        if shape:
            row = len(raw) // shape[0]
            changes += [
                tensor(each, shape=[shape[0] - 1, *shape[1:]], raw=raw[:-row]),
                tensor(each, shape=[shape[0] + 1, *shape[1:]], raw=raw + raw[:row]),
            ]
        for change in changes:
            copy = forged(kind, tmp_path, name, change)
            with pytest.raises(ff.recommender.ArtifactError, match="safetensors"):
                ff.Recommender.load(copy)


def test_two_columns_of_a_name_are_refused(tmp_path: Path) -> None:
    def twice(tensors: Any) -> None:
        for part in ("data", "offsets"):
            tensors[f"attribute:001:section.{part}"] = tensors[f"attribute:000:section.{part}"]

    with pytest.raises(
        ff.recommender.ArtifactError, match="attribute:001:section is a column whose name"
    ):
        ff.Recommender.load(forged("fastvae", tmp_path, ITEMS, twice))


def test_texts_that_begin_within_a_character_are_refused(tmp_path: Path) -> None:
    def split(tensors: Any) -> None:
        _, size, raw = tensors["ids.data"]
        offsets = tensors["ids.offsets"][2]
        end = int.from_bytes(offsets[8:16], "little")
        tensors["ids.data"] = ("U8", size, raw[: end - 1] + "é".encode() + raw[end + 1 :])

    with pytest.raises(ff.recommender.ArtifactError, match="ids has offsets within a character"):
        ff.Recommender.load(forged("fastvae", tmp_path, ITEMS, split))


@pytest.mark.parametrize("text", [b'{"a": 1, "a": 2}', b"[" * 10**5, b"\xef\xbb\xbf{}", b"1" * 99])
def test_other_json_is_refused(text: bytes, tmp_path: Path) -> None:
    copy = forged("ease", tmp_path, CONFIG, lambda _: None)
    (copy / CONFIG).write_bytes(text)
    resign(copy, CONFIG)
    with pytest.raises(ff.recommender.ArtifactError, match=r"config\.json cannot be read"):
        ff.Recommender.load(copy)


@pytest.mark.parametrize(("name", "old", "new"), [(CONFIG, "1737", "1736"), (METRICS, "0", "1")])
def test_documents_have_checksums_too(name: str, old: str, new: str, tmp_path: Path) -> None:
    copy = tmp_path / "model"
    shutil.copytree(FIXTURES / "fastvae", copy)
    text = (copy / name).read_text()
    (copy / name).write_text(text.replace(old, new, 1))
    with pytest.raises(
        ff.recommender.ArtifactError, match=f"{name} has changed since it was written"
    ):
        ff.Recommender.load(copy)


@pytest.mark.parametrize("name", [MODEL, ITEMS, USERS])
def test_giant_files_are_refused_unread(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fewfold.recommender.artifact import folder as artifact

    def unread(_: Path) -> str:
        raise AssertionError("it was read")

    monkeypatch.setattr(artifact, "sha256", unread)
    for seed in range(6):
        copy = forged("fastvae", tmp_path, name, lambda _: None)
        giant(copy / name, random.Random(seed), 1 << 40)
        with pytest.raises(ff.recommender.ArtifactError, match=name):
            ff.Recommender.load(copy)
    copy = forged("fastvae", tmp_path, CONFIG, lambda _: None)
    os.truncate(copy / CONFIG, 1 << 40)
    with pytest.raises(
        ff.recommender.ArtifactError, match=r"config.json has more than 16,777,216 bytes"
    ):
        ff.Recommender.load(copy)


@pytest.mark.parametrize("first", range(0, 120, 30))
def test_a_fixed_part_of_the_fuzzing(first: int, tmp_path: Path) -> None:
    outcomes = []
    for seed in range(first, first + 30):
        place = tmp_path / str(seed)
        place.mkdir()
        outcomes.append((*run(seed, place), seed))
        shutil.rmtree(place)
    assert [found for found in outcomes if "BROKEN" in found[0]] == []
    assert {found[0] for found in outcomes} >= {"refused", "the same answers"}


def forged_checkpoint(place: Path, change: Change) -> Path:
    """The checkpoint of the fixtures with its tensors and facts changed."""
    from fewfold.recommender.training.checkpoint_file import Saved, write

    saved = read(FIXTURES / "fastvae.checkpoint")
    parts = {"tensors": dict(saved.tensors), "facts": {**saved.facts}}
    change(parts)
    write(place / "run", Saved(**parts))
    return place / "run"


TORN: dict[str, tuple[Change, str]] = {
    "no settings": (drop("facts", "made"), "made is missing"),
    "settings of a list": (put("facts", "made", to=[]), "made must be an object"),
    "machine": (drop("facts", "machine"), "machine is missing"),
    "step": (put("facts", "step", to="6"), "step must be a whole number"),
    "too many steps": (put("facts", "step", to=13), "step is 13 of 12"),
    "more steps than planned": (put("facts", "steps", to=13), "there are at most 12"),
    "before the start": (put("facts", "step", to=-1), "step is -1"),
    "epochs": (put("facts", "log", to=[]), "log has 0 epochs, which do not fit 6 steps"),
    "finished": (put("facts", "finished", to=True), "log has 1 epochs, too few for 6 steps"),
    "finished of a number": (put("facts", "finished", to=1), "finished must be true or false"),
    "epoch": (put("facts", "log", to=[[1, 2.0]]), r"log\[0\] must be a list"),
    "total": (put("facts", "total", to=float("nan")), "total must be finite"),
    "best": (put("facts", "best", to=[1.0]), "best must be a list"),
    "pace": (put("facts", "pace", to={}), "pace.spent is missing"),
    "pace without end": (put("facts", "pace", "spent", to=float("inf")), "pace.spent must be finite"),
    "growth": (put("facts", "growth", to={}), "growth belongs to tables"),
    "no weights": (drop("tensors", "model.items"), "model.items is missing"),
    "rows": (put("tensors", "model.items", to=torch.zeros(11, 4)), r"model.items must be .*\(12, 4\)"),
    "nan": (put("tensors", "model.shift", to=torch.full((8,), torch.nan)), "model.shift must be fin"),
    "dtype": (put("tensors", "model.shift", to=torch.zeros(8).double()), "must be torch.float32"),
    "more": (put("tensors", "extra", to=torch.zeros(1)), "extra does not belong there"),
    "moment": (drop("tensors", "others.3.exp_avg_sq"), "others.3.exp_avg_sq is missing"),
    "negative": (put("tensors", "others.0.exp_avg_sq", to=-torch.ones(8)), "at least 0, got -1"),
    "negative step": (put("tensors", "others.0.step", to=torch.tensor(-1.0)), "at least 0, got -1"),
    "rows of moments": (put("tensors", "tables.1.square", to=torch.zeros(11)), r"tables.1.square must be .*\(12,\)"),
    "another table": (put("tensors", "tables.x.square", to=torch.zeros(1)), "tables.x.square does not"),
    "generator": (put("tensors", "generator.now", to=torch.zeros(5056, dtype=torch.uint8)),
                  "generator cannot be used"),
    "generator's size": (put("tensors", "generator.begin", to=torch.zeros(9, dtype=torch.uint8)),
                         "generator.begin must be"),
    "proposal": (drop("tensors", "proposal.codes"), "proposal cannot be used"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "words"), TORN.values(), ids=TORN)
def test_checkpoints_that_do_not_fit_are_refused_by_name(
    change: Change, words: str, tmp_path: Path
) -> None:
    file = forged_checkpoint(tmp_path, change)
    with pytest.raises(ff.recommender.ArtifactError, match=words) as caught:
        ff.recommender.train(ff.recommender.FastVAE(12, hidden=8, latent=3), pairs(),
                 checkpoint=Checkpoint(file, resume=True), **OPTIONS)  # fmt: skip
    assert str(file) in str(caught.value)


def test_giant_checkpoints_are_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(6):
        shutil.copy(FIXTURES / "fastvae.checkpoint", tmp_path / "run")
        giant(tmp_path / "run", random.Random(seed), 1 << 40)
        with pytest.raises(
            ff.recommender.ArtifactError, match=r"run: \S+ must be torch\.\w+ of shape"
        ):
            ff.recommender.train(ff.recommender.FastVAE(12, hidden=8, latent=3), pairs(),
                     checkpoint=Checkpoint(tmp_path / "run", resume=True), **OPTIONS)  # fmt: skip
