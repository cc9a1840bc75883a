"""Fuzzing of model folders, checkpoints and anchor tables, with valid checksums.

    python -m tests.fuzz.artifact --minutes 5
    python -m tests.fuzz.artifact --only 1234          # one mutant again, with its traceback

The invariant: reading raises the documented error, which names the file, or the model recommends,
saves, loads again and is inspected without any other error, with the same recommendations as before
unless the mutation changed learned numbers or ids in a valid way.
"""

import argparse
import atexit
import contextlib
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch

import fewfold as ff
from fewfold.embeddings.files.mapped import MappedAnchors
from fewfold.embeddings.files.save_load import load_anchors
from fewfold.recommender.training.checkpoint import Checkpoint
from tests.fuzz.mutations import giant, mutate_json, mutate_tensors

FIXTURES = Path(__file__).parents[1] / "recommender" / "fixtures"
MADE = {"als": ff.recommender.ALS(factors=4, iterations=3),
        "sparse-ease": ff.recommender.SparseEASE(10.0, 5)}  # fmt: skip
STORED = ("fastvae", "anchored", "item-knn", "ease", "popularity")
SPLIT = {"split fastvae": "fastvae", "split ease": "ease"}  # stored ones, with tables in files
FOLDERS = (*STORED, *MADE, *SPLIT)
FILES = ("config.json", "metrics.json", "manifest.json", "model.safetensors", "items.safetensors",
         "users.safetensors")  # fmt: skip
INDEX = "tables.json"
SLOW, SLOW_ON_GIANT, GIANT = 2.0, 0.15, 1 << 28  # seconds of a processor, bytes


class Broken(Exception):  # noqa: N818
    """The invariant is violated; the first argument describes how."""


def run(seed: int, place: Path) -> tuple[str, str]:
    """One mutant: its outcome, and what was done."""
    draw = random.Random(seed)
    subject = draw.choice((*FOLDERS, *FOLDERS, "checkpoint", "anchors"))
    try:
        outcome, what = {"checkpoint": checkpoint, "anchors": anchors}.get(subject, folder)(
            subject, draw, place
        )
    except Broken as error:
        outcome, what = error.args
    if TAKEN[0] > (SLOW_ON_GIANT if "hole" in what else SLOW):
        outcome = f"BROKEN slow ({outcome})"
    return outcome, f"{subject}: {what} ({TAKEN[0]:.2f} s)"


TAKEN = [0.0]


@contextlib.contextmanager
def timed() -> Iterator[None]:
    """Notes the processor's time to read."""
    began = time.process_time()
    try:
        yield
    finally:
        TAKEN[0] = time.process_time() - began


def folder(subject: str, draw: random.Random, place: Path) -> tuple[str, str]:
    """A model folder with one or two files changed."""
    copy = place / "model"
    shutil.copytree(sound(subject), copy)
    may, whats = False, []
    for _ in range(draw.choice((1, 1, 1, 2))):
        name = draw.choice(names(copy, draw))
        try:
            changed, what = damage(copy / name, draw)
        except (ValueError, KeyError, IndexError, TypeError, RecursionError):
            continue  # damaged already
        may, whats = may or changed, [*whats, f"{name}: {what}"]
        if name != "manifest.json":
            resign(copy, name)
    what = "; ".join(whats)
    expected = original(subject)
    try:
        with timed():
            rec = ff.Recommender.load(copy)
    except ff.recommender.ArtifactError as error:
        return ("refused" if any(name in str(error) for name in (*FILES, "table"))
                else "BROKEN refused without naming a file"), f"{what} -> {error}"  # fmt: skip
    except Exception as error:
        raise Broken(f"BROKEN at load: {type(error).__name__}", f"{what} -> {error}") from error
    found = lawful(rec, copy, place, what)
    if found == expected:
        return "the same answers", what
    if may:
        return "other answers, rightly", what
    raise Broken("BROKEN other answers, silently", what)


def names(copy: Path, draw: random.Random) -> list[str]:
    """Files to change; of those of tables the index and a few, as likely as the others."""
    found = [name for name in FILES if (copy / name).exists()]
    tables = sorted(file.name for file in copy.glob("table-*"))
    return found + ([*draw.sample(tables, 3), INDEX, INDEX, INDEX] if tables else [])


def mutate_index(file: Path, draw: random.Random) -> tuple[bool, str]:
    """A change of rows or files that keeps the form of the index, or of the files themselves."""
    index = json.loads(file.read_text())
    table, other = (index["tables"][draw.choice(sorted(index["tables"]))] for _ in range(2))
    one, two = draw.choice(table["files"]), draw.choice(other["files"])
    how = draw.choice(("name", "swap", "move", "drop", "again", "rows", "reverse", "copy", "merge"))
    if how == "name":
        one["file"] = draw.choice(("../x", "/etc/passwd", "", ".", "model.safetensors", "\0",
                                   "table-00001.safetensors/../x", two["file"]))  # fmt: skip
    elif how == "swap":  # also of files with as many rows, which are then others
        one["file"], two["file"] = two["file"], one["file"]
    elif how == "move":
        count = draw.choice((1, -1, 2**40, -(2**40)))
        one["rows"], one["first"] = one["rows"] + count, one["first"] + draw.choice((0, count))
    elif how == "rows":
        table["shape"][0] += draw.choice((1, -1, 2**62))
    elif how in ("drop", "again"):
        table["files"].remove(one) if how == "drop" else table["files"].append(one)
    elif how == "reverse":
        table["files"].reverse()
    elif how == "merge":
        table["files"] += other["files"]
    else:
        file.with_name(one["file"]).write_bytes(file.with_name(two["file"]).read_bytes())
        resign(file.parent, one["file"])
    file.write_text(json.dumps(index))
    return how in ("swap", "copy"), f"{how} {one} {two}"


def damage(file: Path, draw: random.Random) -> tuple[bool, str]:
    """Whether other answers are right then, and what was done."""
    if file.name == INDEX and draw.random() < 0.6:
        return mutate_index(file, draw)
    if file.suffix == ".json":
        data, may, what = mutate_json(file.read_bytes(), draw)
    elif draw.random() < 0.02:
        return False, giant(file, draw, GIANT)
    else:
        data, may, what = mutate_tensors(file.read_bytes(), draw)
    file.write_bytes(data)
    return may, what


def resign(copy: Path, name: str) -> None:
    """The manifest made to fit a file again, as a forger would."""
    try:
        manifest = json.loads((copy / "manifest.json").read_text(encoding="utf-8"))
        with (copy / name).open("rb") as stream:
            manifest["files"][name] = hashlib.file_digest(stream, "sha256").hexdigest()
        if "bytes" in manifest:
            manifest["bytes"][name] = (copy / name).stat().st_size
        (copy / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    except (ValueError, KeyError, TypeError, RecursionError):
        pass  # the manifest was damaged first


@cache
def sound(subject: str) -> Path:
    """A model folder without damage: a stored one, perhaps split, or one that is made here."""
    if subject in STORED:
        return FIXTURES / subject
    place = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, place)
    if subject in SPLIT:
        before = os.environ.get("FEWFOLD_FILE_BYTES", "")
        os.environ["FEWFOLD_FILE_BYTES"] = "900"
        try:
            return ff.Recommender.load(FIXTURES / SPLIT[subject]).save(place / "model")
        finally:
            os.environ["FEWFOLD_FILE_BYTES"] = before
    generator = torch.Generator().manual_seed(0)
    users = torch.arange(40).repeat_interleave(6)
    items = torch.randint(30, users.shape, generator=generator)
    log = {"user": users.tolist(), "item": [f"item {item}" for item in items.tolist()]}
    rec = ff.Recommender(MADE[subject]).fit(log, test=0.2, progress=False)
    return rec.save(place / subject)


@cache
def original(subject: str) -> Any:
    return answers(ff.Recommender.load(sound(subject)))


def answers(rec: ff.Recommender) -> Any:
    """What it says to users, to histories and of items."""
    ids = rec.items.tolist()
    found = [rec.recommend_from_history([ids[:3], ids[7:8], [], ids[20:24]], k=5).to_dicts()]
    if rec.users is not None:
        found.append(rec.recommend(rec.users.take(range(min(3, len(rec.users)))), k=5).to_dicts())
    if not isinstance(rec.model, ff.recommender.MostPopular):
        found.append(rec.similar_items(rec.items.take(range(min(3, len(ids)))), k=4).to_dicts())
    return found


def lawful(rec: ff.Recommender, copy: Path, place: Path, what: str) -> Any:
    """The answers, after everything that one does with a model; raises `Broken`."""
    for ids in (rec.items.tolist(), [] if rec.users is None else rec.users.tolist()):
        if len(set(ids)) < len(ids):
            raise Broken("BROKEN an id comes twice", what)
    step = "answer"
    try:
        found = answers(rec)
        step = "answer when prepared"
        rec.prepare().recommend_from_history(rec.items.take([0]), k=3)
        step = "save"
        again = rec.save(place / "again", overwrite=True)
        step = "inspect"
        seen = ff.recommender.inspect(copy)
        str(seen), json.dumps(seen.as_dict(), allow_nan=False).encode()
        step = "load again"
        if answers(ff.Recommender.load(again)) != found:
            raise Broken("BROKEN other answers after saving", what)
    except Broken:
        raise
    except Exception as error:
        raise Broken(f"BROKEN at {step}: {type(error).__name__}", f"{what} -> {error}") from error
    return found


def pairs() -> ff.recommender.Interactions:
    """What the checkpoints of the fixtures were trained on."""
    generator = torch.Generator().manual_seed(0)
    who = torch.arange(20).repeat_interleave(3)
    what = torch.randint(12, who.shape, generator=generator)
    return ff.recommender.Interactions.from_pairs(who, what, shape=(20, 12))


def checkpoint(_: str, draw: random.Random, place: Path) -> tuple[str, str]:
    """A checkpoint with a tensor or a fact changed, and its checksum made right."""
    options: dict[str, Any] = {"epochs": 3, "batch": 5, "progress": False}
    name = draw.choice(("fastvae", "patient"))
    model = ff.recommender.FastVAE(12, hidden=8, latent=3)
    if name == "patient":
        model = ff.recommender.FastVAE(12, hidden=4, latent=2, layers=0)
        options |= {"validation": ff.recommender.random_split(pairs()), "patience": 2}
    file = place / "run"
    shutil.copy(FIXTURES / f"{name}.checkpoint", file)
    what = damaged_checkpoint(file, draw)
    try:
        with timed():
            ff.recommender.train(
                model, pairs(), checkpoint=Checkpoint(file, resume=True), **options
            )
    except ff.recommender.ArtifactError as error:
        return ("refused" if str(file) in str(error)
                else "BROKEN refused without naming a file"), f"{what} -> {error}"  # fmt: skip
    except Exception as error:
        words = "queries must be finite", "scores must be numbers"
        if any(one in str(error) for one in words):  # of numbers that were made too large
            return "resumed, and diverged", what
        raise Broken(f"BROKEN checkpoint: {type(error).__name__}", f"{what} -> {error}") from error
    if not all(part.isfinite().all() for part in model.state_dict().values()):
        raise Broken("BROKEN checkpoint: not finite", what)
    return "resumed", what


def damaged_checkpoint(file: Path, draw: random.Random) -> str:
    from tests.fuzz.mutations import pack, unpack

    if draw.random() < 0.4:
        tensors, metadata = unpack(file.read_bytes())
        facts = json.loads(metadata["fewfold checkpoint"])
        text, _, what = mutate_json(json.dumps(facts).encode(), draw)
        metadata["fewfold checkpoint"] = text.decode("utf-8", "replace")
        file.write_bytes(pack(tensors, metadata))
    else:
        data, _, what = mutate_tensors(file.read_bytes(), draw)
        file.write_bytes(data)
    try:
        tensors, metadata = unpack(file.read_bytes())
        facts = json.loads(metadata["fewfold checkpoint"])
        if draw.random() < 0.9:
            facts.pop("checksum", None)
            facts["checksum"] = checksum(facts, file)
            metadata["fewfold checkpoint"] = json.dumps(facts, sort_keys=True)
            file.write_bytes(pack(tensors, metadata))
    except Exception:
        pass  # it cannot even be read
    return what


def checksum(facts: dict[str, Any], file: Path) -> int:
    from safetensors.torch import load_file

    total = zlib.crc32(json.dumps(facts, sort_keys=True).encode())
    tensors = load_file(file)
    for name in sorted(tensors):
        tensor = tensors[name]
        total = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), total)
        total = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, total)
    return total


def anchors(_: str, draw: random.Random, place: Path) -> tuple[str, str]:
    """A file of `save_anchors`."""
    from tests.fuzz.mutations import pack, unpack

    file = place / "table.safetensors"
    shutil.copy(FIXTURES / f"{draw.choice(('floats', 'bits'))}.anchors.safetensors", file)
    if draw.random() < 0.3:
        tensors, metadata = unpack(file.read_bytes())
        key = draw.choice(sorted(metadata))
        pool = ("", "0", "-1", "1", "2", "3", "7", "8", "x", "1e3", "１", " 5", str(2**31),
                str(10**30), "9" * 5000, "rows", "full", "first few", "one width")  # fmt: skip
        metadata[key] = draw.choice(pool)
        if draw.random() < 0.2:
            del metadata[key]
        what = f"{key} = {metadata.get(key, 'nothing')[:40]}"
        file.write_bytes(pack(tensors, metadata))
    elif draw.random() < 0.05:
        what = giant(file, draw, GIANT)
    else:
        data, _, what = mutate_tensors(file.read_bytes(), draw)
        file.write_bytes(data)
    mapped = table = None
    try:
        with timed():
            table = load_anchors(file)
            mapped = MappedAnchors(file)
    except ValueError as error:
        if type(error) is not ValueError or str(file) not in str(error):
            raise Broken(
                f"BROKEN anchors: {type(error).__name__} without naming the file",
                f"{what} -> {error}",
            ) from error
        return "refused", f"{what} -> {error}"
    except Exception as error:
        raise Broken(f"BROKEN anchors: {type(error).__name__}", f"{what} -> {error}") from error
    try:
        dense = mapped.dense()
        if not table.weight.isfinite().all() or not dense.isfinite().all():
            raise Broken("BROKEN anchors: not finite", what)
        if not torch.allclose(dense, table.weight.detach().to(dense.dtype), rtol=1e-4, atol=1e-5):
            raise Broken("BROKEN anchors: mapped and loaded differ", what)
    except Broken:
        raise
    except Exception as error:
        raise Broken(f"BROKEN anchors: {type(error).__name__}", f"{what} -> {error}") from error
    return "loaded", what


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--count", type=int, help="so many mutants instead of minutes")
    parser.add_argument("--seed", type=int, default=0, help="of the first mutant")
    parser.add_argument("--only", type=int, help="one mutant, with its traceback")
    parser.add_argument("--examples", type=int, default=3, help="shown of each broken outcome")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.only is not None:
        with tempfile.TemporaryDirectory() as place:
            print(*run(options.only, Path(place)), sep="\n")
        return 0
    return child(options) if options.child else parent(options)


def child(options: argparse.Namespace) -> int:
    """So many mutants, a line of JSON for each."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # warnings of resumed training
    for subject in FOLDERS:  # what is imported late shall not count as slow
        original(subject)
    with tempfile.TemporaryDirectory() as place:
        checkpoint("", random.Random(0), Path(place))
    for seed in range(options.seed, options.seed + options.count):
        print(json.dumps([seed]), flush=True)  # so that a crash has a name
        with tempfile.TemporaryDirectory() as place:
            try:
                told = run(seed, Path(place))
            except Exception as error:
                told = ("BROKEN mutator", repr(error))
            print(json.dumps([seed, *told]), flush=True)
    return 0


def parent(options: argparse.Namespace) -> int:
    """Children of some hundred mutants each, until the time is over."""
    seed, outcomes, examples = options.seed, Counter[str](), dict[str, list[str]]()
    end = time.monotonic() + 60 * options.minutes
    last = None if options.count is None else options.seed + options.count
    while time.monotonic() < end if last is None else seed < last:
        many = 300 if last is None else min(300, last - seed)
        command = [sys.executable, "-m", "tests.fuzz.artifact", "--child", "--seed", str(seed),
                   "--count", str(many)]  # fmt: skip
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        for number, *found in lines:
            if found:
                outcomes[found[0]] += 1
                examples.setdefault(found[0], []).append(f"{number}: {found[1]}")
        seed += many
        if done.returncode:
            outcomes[f"BROKEN crash ({done.returncode})"] += 1
            examples.setdefault("BROKEN crash", []).append(str(lines[-1][0]))
            seed = lines[-1][0] + 1
    for outcome, count in outcomes.most_common():
        print(f"{count:7}  {outcome}")
        if "BROKEN" in outcome:
            for example in examples.get(outcome, [])[: options.examples]:
                print(f"           {example[:300]}")
    broken = sum(count for outcome, count in outcomes.items() if "BROKEN" in outcome)
    print(f"{sum(outcomes.values())} mutants, {broken} violated the invariant")
    return 1 if broken else 0


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except Exception:
        traceback.print_exc()
        raise
