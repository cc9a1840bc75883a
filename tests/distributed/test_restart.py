"""Commands whose processes are killed, interrupted, or out of disk space."""

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import fewfold as ff
from tests.cli.invoke import fewfold
from tests.distributed.torchrun import Torchrun, model_bytes, write_log

FIT = (
    "--epochs", "40", "--hidden", "16", "--latent", "8", "--checkpoint-every", "0.01",
    "--without-users",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a log and the model that an unbroken fit by two processes writes."""
    found = tmp_path_factory.mktemp("restart")
    write_log(found / "log.csv", 300, 60)
    with Torchrun("fit", found / "log.csv", "--out", found / "unbroken", *FIT, "--json") as run:
        assert run.wait() == 0, run.error
    assert json.loads("".join(run.out))["recipe"]["kind"] == "fastvae"  # once, by rank 0
    assert run.error.count("epoch 1/40") == 1
    return found


def test_several_processes_write_one_model(folder: Path) -> None:
    rec = ff.Recommender.load(folder / "unbroken")
    assert len(rec.recommend_from_history(["i0", "i1"], k=3).items) == 3


def test_killed_processes_start_again_and_end_with_the_same_model(folder: Path) -> None:
    out = folder / "killed"
    with Torchrun(
        "fit", folder / "log.csv", "--out", out, *FIT, options=("--max-restarts", "3")
    ) as run:
        run.until("epoch 5/40")
        assert run.kill(1)
        run.until("resumed at step")
        assert run.wait() == 0, run.error
    assert "lost the connection to another process" in run.error
    assert run.error.count("model written to") == 1
    assert model_bytes(out) == model_bytes(folder / "unbroken")
    assert not list(folder.glob("*killed.checkpoint*"))


@pytest.mark.nightly  # the job `interrupted` sends the signal to a process of a group
def test_processes_that_are_killed_and_stopped_end_with_the_same_model(folder: Path) -> None:
    out = folder / "stopped"
    options = ("--max-restarts", "3")
    with Torchrun("fit", folder / "log.csv", "--out", out, *FIT, options=options) as run:
        run.until("epoch 5/40")
        assert run.kill(1)
        run.until("resumed at step")
        run.until("epoch 20/40")
        assert run.kill(0, signal.SIGTERM)
        run.until("resumed at step", times=2)
        assert run.wait() == 0, run.error
    assert run.error.count("fewfold: stopped by SIGTERM at step") == 1
    assert run.error.count("run the same command with --resume") == 1
    assert model_bytes(out) == model_bytes(folder / "unbroken")
    assert not list(folder.glob("*stopped.checkpoint*"))


@pytest.mark.nightly
def test_processes_killed_at_random_moments_end_with_the_same_model(folder: Path) -> None:
    draw, kills, runs = random.Random(1), 0, 0
    began = time.monotonic()
    with Torchrun("fit", folder / "log.csv", "--out", folder / "timed", *FIT) as run:
        assert run.wait() == 0, run.error
    usual = time.monotonic() - began
    while kills < 20:
        out, runs = folder / f"random-{runs}", runs + 1
        options = ("--max-restarts", "100")
        with Torchrun("fit", folder / "log.csv", "--out", out, *FIT, options=options) as run:
            while run.process.poll() is None and kills < 20:
                time.sleep(draw.uniform(0, 1.1 * usual))
                kills += run.process.poll() is None and run.kill(draw.randrange(2))
            assert run.wait() == 0, run.error
        assert model_bytes(out) == model_bytes(folder / "unbroken")
        assert not list(folder.glob(f"*{out.name}.checkpoint*"))


def test_an_interrupted_fit_is_resumed_by_one_process(folder: Path) -> None:
    out = folder / "interrupted"
    command = ["fit", folder / "log.csv", "--out", out, *FIT]
    with Torchrun(*command) as run:
        run.until("epoch 5/40")
        run.process.send_signal(signal.SIGINT)
        assert run.wait() != 0
    assert run.error.count("fewfold: stopped by Ctrl-C at step") == 1, run.error
    assert run.error.count("run the same command with --resume") == 1
    assert (folder / "interrupted.checkpoint.fit" / "checkpoint.json").is_file()
    refused = fewfold(*command)
    assert refused.code == 5, refused.err
    assert "resume it with --resume" in refused.err
    done = fewfold(*command, "--resume")
    assert done.code == 0, done.err
    assert "made with processes 2" in done.err
    assert "resumed at step" in done.err
    assert model_bytes(out).keys() == model_bytes(folder / "unbroken").keys()
    assert not list(folder.glob("*interrupted.checkpoint*"))


@pytest.mark.nightly
def test_a_refused_command_is_not_started_again_over_what_was_in_its_way(folder: Path) -> None:
    before = model_bytes(folder / "unbroken")
    options = ("--max-restarts", "1")
    with Torchrun(
        "fit", folder / "log.csv", "--out", folder / "unbroken", *FIT, options=options
    ) as run:
        assert run.wait() != 0
    assert run.error.count("holds a model already") >= 2
    assert model_bytes(folder / "unbroken") == before


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a folder with its own small file system in memory."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting is not permitted")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.nightly  # `failed_writes` of the jobs fills the disk of one process
def test_training_goes_on_while_the_disk_is_full(folder: Path, small_disk: Path) -> None:
    saved = small_disk / "model.checkpoint.fit"
    with Torchrun("fit", folder / "log.csv", "--out", small_disk / "model", *FIT) as run:
        run.until("epoch 3/40")
        while not saved.exists():
            assert run.process.poll() is None, run.error
            time.sleep(0.01)
        ballast = small_disk / "ballast"
        with ballast.open("wb") as file, pytest.raises(OSError, match="No space"):
            while True:
                os.write(file.fileno(), bytes(4096))
        run.until("warning: no checkpoint could be written")
        assert (saved / "checkpoint.json").is_file()
        ballast.unlink()
        assert run.wait() == 0, run.error
    assert "No space left on device" in run.error
    assert model_bytes(small_disk / "model") == model_bytes(folder / "unbroken")
    assert sorted(os.listdir(small_disk)) == ["model"]
