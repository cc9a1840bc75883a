"""Fits by two machines: network namespaces with an address each, joined by a cable of their own."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import fewfold as ff
from tests.distributed.torchrun import PATIENCE, environment, write_log


@dataclass
class Machines:
    """Two namespaces: their names, addresses and network interfaces."""

    names: tuple[str, str]
    addresses: tuple[str, str]
    interfaces: tuple[str, str]

    def start(self, rank: int, *arguments: str, **env: str) -> "subprocess.Popen[str]":
        """Start a process of a fit on one of them."""
        variables = environment(
            RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR=self.addresses[0], MASTER_PORT="29500",
            GLOO_SOCKET_IFNAME=self.interfaces[rank], **env,
        )  # fmt: skip
        return subprocess.Popen(
            ["ip", "netns", "exec", self.names[rank], sys.executable, "-m", "fewfold", *arguments],
            env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip


def _ip(*arguments: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(["ip", *arguments], capture_output=True)


@pytest.fixture
def machines() -> Iterator[Machines]:
    """Return two namespaces whose interfaces are connected and up."""
    tag, net = f"{os.getpid() % 100000}", os.getpid() % 250
    found = Machines(
        (f"fewfold-{tag}-0", f"fewfold-{tag}-1"), (f"10.99.{net}.1", f"10.99.{net}.2"),
        (f"ff{tag}a", f"ff{tag}b"),
    )  # fmt: skip
    if shutil.which("ip") is None or _ip("netns", "add", found.names[0]).returncode:
        pytest.skip("network namespaces are not permitted")
    try:
        one, two = found.interfaces
        inside = ("netns", found.names[0]), ("netns", found.names[1])
        commands = [("netns", "add", found.names[1])]
        commands += [("link", "add", one, *inside[0], "type", "veth", "peer", two, *inside[1])]
        for name, address, link in zip(found.names, found.addresses, found.interfaces, strict=True):
            commands += [
                ("-n", name, "address", "add", f"{address}/24", "dev", link),
                ("-n", name, "link", "set", link, "up"),
                ("-n", name, "link", "set", "lo", "up"),
            ]
        if any(_ip(*each).returncode for each in commands):
            pytest.skip("network interfaces may not be made")
        yield found
    finally:
        for name in found.names:  # their interfaces go with them
            _ip("netns", "delete", name)


def _ends(processes: "list[subprocess.Popen[str]]") -> list[str]:
    """Wait for all, and return what they wrote to standard error."""
    try:
        return [process.communicate(timeout=PATIENCE)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.nightly
def test_two_machines_fit_together(tmp_path: Path, machines: Machines) -> None:
    file = write_log(tmp_path / "log.csv")
    command = ["fit", str(file), "--out", str(tmp_path / "model"), "--epochs", "2"]
    processes = [machines.start(rank, *command) for rank in (0, 1)]
    errors = _ends(processes)
    assert [process.returncode for process in processes] == [0, 0], errors
    assert "2 processes fit together" in errors[0]
    assert len(ff.Recommender.load(tmp_path / "model").recommend("u0", k=3).items) == 3


def test_machines_without_a_connection_say_so(tmp_path: Path, machines: Machines) -> None:
    down = _ip("-n", machines.names[1], "link", "set", machines.interfaces[1], "down")
    assert down.returncode == 0
    began = time.monotonic()
    command = ["fit", "--out", str(tmp_path / "model")]
    processes = [machines.start(rank, *command, FEWFOLD_TIMEOUT="1") for rank in (0, 1)]
    errors = _ends(processes)
    for rank, error in enumerate(errors):
        expected = (
            f"rank {rank} of 2 did not reach the others through {machines.addresses[0]}:29500"
        )
        assert processes[rank].returncode == 3, error
        assert expected in error
    assert time.monotonic() - began < PATIENCE / 2


@pytest.mark.nightly  # with rules of addresses and ports, as a firewall has them
def test_machines_that_reach_the_first_port_alone_say_so(
    tmp_path: Path, machines: Machines
) -> None:
    for name, side in zip(machines.names, ("sport", "dport"), strict=True):
        store = ("rule", "add", "pref", "10", "ipproto", "tcp", side, "29500", "lookup", "main")
        for rule in (store, ("rule", "add", "pref", "20", "blackhole")):
            if _ip("-n", name, *rule).returncode:
                pytest.skip("rules for ports may not be made")
    began, command = time.monotonic(), ["fit", "--out", str(tmp_path / "model")]
    processes = [machines.start(rank, *command, FEWFOLD_TIMEOUT="20") for rank in (0, 1)]
    errors = _ends(processes)
    for rank, error in enumerate(errors):
        expected = f"rank {rank} of 2 met the others through {machines.addresses[0]}:29500"
        assert processes[rank].returncode == 3, error
        assert expected in error
        assert machines.interfaces[rank] in error
    assert time.monotonic() - began < 60
