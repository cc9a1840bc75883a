"""The files in deploy/ start the server as it is: arguments, health check, user, settings."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed import run as torchrun

from fewfold.cli.arguments import parse
from fewfold.serve.app import ENDPOINTS

DEPLOY = Path(__file__).parents[1] / "deploy"


def instructions(name: str) -> list[str]:
    """Return the arguments of all instructions of this name of the Dockerfile."""
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    return re.findall(rf"^{name} (.*)$", text, re.MULTILINE)


def unit() -> str:
    return (DEPLOY / "fewfold.service").read_text()


def test_the_container_starts_the_server_with_arguments_that_it_has():
    (entry,), (arguments,) = instructions("ENTRYPOINT"), instructions("CMD")[-1:]
    words = [*json.loads(entry), *json.loads(arguments)]
    assert words[0] == "fewfold"
    found = parse(words[1:])
    assert (found.command, found.host, found.port) == ("serve", "0.0.0.0", 8000)
    assert instructions("EXPOSE") == [str(found.port)]
    assert found.api_key_file == "/run/secrets/fewfold_key"
    assert found.auth


def test_the_container_does_not_run_as_root():
    (user,) = instructions("USER")
    assert user not in ("0", "root")


def test_the_health_check_asks_an_endpoint_that_needs_no_key():
    (check,) = instructions("HEALTHCHECK")
    (port, path) = re.findall(r"http://127\.0\.0\.1:(\d+)(/[\w/]+)", check)[0]
    assert [port] == instructions("EXPOSE")
    assert [one.public for one in ENDPOINTS if one.path == path] == [True]


def test_every_file_that_is_named_is_there():
    compose = (DEPLOY / "compose.yaml").read_text()
    assert "dockerfile: deploy/Dockerfile" in compose
    for name in re.findall(r" \./([\w.]+):/", compose):
        assert (DEPLOY / name).is_file()
    ignored = (DEPLOY.parent / ".dockerignore").read_text()
    kept = re.findall(r"^!(.*)$", ignored, re.MULTILINE)
    assert kept
    for name in kept:
        assert (DEPLOY.parent / name).exists()


def test_the_service_starts_the_server_with_arguments_that_it_has():
    (start,) = re.findall(r"^ExecStart=(.*)$", unit(), re.MULTILINE)
    program, *words = shlex.split(start)
    assert Path(program).name == "fewfold"
    assert parse(words).command == "serve"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_accepts_the_service(tmp_path):
    program = re.findall(r"^ExecStart=(\S+)", unit(), re.MULTILINE)[0]
    copy = tmp_path / "fewfold.service"
    copy.write_text(unit().replace(program, sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_several_machines_start_a_command_that_there_is():
    slurm = (DEPLOY / "fit-slurm.sh").read_text().replace("\\\n", " ")
    (line,) = re.findall(r"^srun torchrun (.*)$", slurm, re.MULTILINE)
    for name in ("SLURM_NNODES", "SLURM_JOB_ID"):
        line = line.replace(f"${name}", "4")
    kubernetes = (DEPLOY / "fit-kubernetes.yaml").read_text()
    (listed,) = re.findall(r"args:\n((?: +- \S+\n)+)", kubernetes)
    for words in (shlex.split(line), re.findall(r"- (\S+)\n", listed)):
        run = torchrun.parse_args(words)
        assert (run.nnodes, run.nproc_per_node, run.rdzv_backend) == ("4", "1", "c10d")
        assert run.rdzv_endpoint.endswith(":29500")
        assert (run.module, run.training_script) == (True, "fewfold")
        assert parse(run.training_script_args).command == "fit"
    (job, service) = re.findall(r"name: (\S+)\n", kubernetes)[0], run.rdzv_endpoint.split(":")[0]
    assert service == f"{job}-0.{job}"
    assert f"subdomain: {job}\n" in kubernetes
    (pods,) = set(re.findall(r"(?:completions|parallelism): (\d+)", kubernetes))
    assert pods == run.nnodes
