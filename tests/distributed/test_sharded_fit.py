"""Fits of a recommender by several processes, in Python and by torchrun."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.distributed.conftest import Worlds
from tests.distributed.processes import free_port
from tests.distributed.torchrun import Torchrun, environment, write_log


def test_processes_stop_alike(worlds: Worlds) -> None:
    expected = worlds[1][0]["stopped"]
    for world in (2, 3):
        ranks = [rank["stopped"] for rank in worlds[world]]
        assert all(rank == ranks[0] for rank in ranks)
        torch.testing.assert_close(ranks[0]["early"], expected["early"], rtol=1e-4, atol=0)
        torch.testing.assert_close(ranks[0]["ndcg"], expected["ndcg"], rtol=1e-4, atol=0)
        assert 0 < len(ranks[0]["timed"]) < 2000


def test_a_fit_of_several_processes_is_that_of_one(worlds: Worlds) -> None:
    expected = worlds[1][0]["fitted"]
    for world in (2, 3):
        first = worlds[world][0]["fitted"]
        for found in (first["tensors"], expected["tensors"]):
            table = found["shortcut.table"]  # the sign of a direction is arbitrary
            found["shortcut.table"] = table * table.sum(0).sign()
        torch.testing.assert_close(first["tensors"], expected["tensors"], rtol=2e-2, atol=5e-3)
        assert first["shares"] == {"vae.inputs": (60, 12), "vae.items": (60, 8)}
        for rank in worlds[world]:
            found = rank["fitted"]
            torch.testing.assert_close(found["losses"], expected["losses"], rtol=1e-4, atol=0)
            for metric, score in expected["evaluation"]["scores"].items():
                mean = found["evaluation"]["scores"][metric]["mean"]
                assert mean == pytest.approx(score["mean"], abs=2e-3), metric
            assert found["evaluation"] == first["evaluation"]
            assert found["recommended"] == first["recommended"]


def test_models_for_one_process_are_refused_and_none_is_chosen(worlds: Worlds) -> None:
    for world in (2, 3):
        for rank in worlds[world]:
            found = rank["automatic"]
            assert found["model"][1] == "fastvae"
            assert f"got {world}" in found["ease"]
            assert "anchors" in found["anchors"]
            assert "give days" in found["half-life"]


def test_another_log_or_option_of_a_process_is_refused(worlds: Worlds) -> None:
    expected = {
        "epochs": ("training", "Training(epochs=2", "the same options"),
        "seed": ("seed", "1", "the same options"),
        "width": ("model", '"hidden": 12', "the same options"),
        "budget": ("set of options", "time_budget", "the same options"),
        "pairs": ("log", "pairs of 20 items", "the same file"),
        "ids": ("set of items", "20 ids", "the same file"),
        "times": ("log", "pairs of 20 items", "the same file"),
    }
    for world in (2, 3):
        *others, last = (rank["disagreed"] for rank in worlds[world])
        for name, (what, shown, hint) in expected.items():
            assert f"rank {world - 1} has another {what} than rank 0: " in last[name]
            assert shown in last[name]
            assert last[name].endswith(hint)
            assert {each[name] for each in others} == {
                f"PeerError: rank {world - 1} failed; see its message"
            }
        assert {each["nothing"] for each in (*others, last)} == {"fitted"}
        *others, last = (rank["disagreed_streams"] for rank in worlds[world])
        assert f"rank {world - 1} has another prepared log than rank 0: " in last
        assert {*others} == {f"rank {world - 1} failed; see its message"}


def test_an_error_of_a_process_is_said_once(tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    file.write_text("user,item\nu1\n")
    with Torchrun("fit", file, "--out", tmp_path / "other", "--epochs", 2) as run:
        assert run.wait() != 0
    assert run.error.count("fewfold: ") == 1
    assert "(rank " in run.error
    assert not (tmp_path / "other").exists()


def test_a_process_without_others_says_whom_it_did_not_reach(tmp_path: Path) -> None:
    port = str(free_port())
    done = subprocess.run(
        [sys.executable, "-m", "fewfold", "fit", "--out", str(tmp_path / "model")],
        env=environment(
            RANK="1", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
            FEWFOLD_TIMEOUT="1",
        ),
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert f"rank 1 of 2 did not reach the others through 127.0.0.1:{port}" in done.stderr


@pytest.mark.nightly  # tests/distributed/test_restart.py kills a process, too
def test_a_killed_process_ends_the_others(tmp_path: Path) -> None:
    write_log(tmp_path / "log.csv")
    command = ["fit", str(tmp_path / "log.csv"), "--out", str(tmp_path / "model")]
    address = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    both = [
        subprocess.Popen(
            [sys.executable, "-m", "fewfold", *command, "--epochs", "100000"],
            env=environment(**address, RANK=rank), stderr=subprocess.PIPE, text=True,
        )
        for rank in ("0", "1")
    ]  # fmt: skip
    try:
        assert both[0].stderr is not None
        assert any("epoch 3/" in line for line in both[0].stderr)
        both[1].kill()
        _, error = both[0].communicate(timeout=60)
    finally:
        for process in both:
            process.kill()
            process.communicate()
    assert both[0].returncode == 3, error
    assert "rank 0 lost the connection to another process" in error
    assert not (tmp_path / "model").exists()
