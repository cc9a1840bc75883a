"""Bytes that a training step sends, compared with the formula of the page on scaling out."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.scaling_out import Step
from tests.distributed.processes import ROOT

ITEMS = 20_011
STEPS = {
    "own draws": Step(batch=48, length=16, draws=30, hidden=24, latent=15),
    "shared draws": Step(batch=48, length=16, draws=70, shared=True, hidden=24, latent=15),
    "few items": Step(batch=96, length=3, draws=30, hidden=40, latent=15, layers=0),
    "anchors": Step(batch=48, length=16, draws=30, hidden=24, latent=15, anchors=20),
    "anchors, few items": Step(batch=48, length=3, draws=30, hidden=24, latent=15, anchors=20),
    "anchors, shared draws": Step(
        batch=48, length=16, draws=70, shared=True, hidden=24, latent=15, anchors=20
    ),
}
# Processes are forks of one that has loaded everything, which takes seconds.
_FORKS = """
import json, os, sys, traceback
import torch, torch.distributed as dist
from benchmarks.scaling_out import training_step
from tests.distributed.test_traffic import ITEMS, STEPS

torch.set_num_threads(1)

def child(rank, world, folder):
    code = 1
    try:
        store = dist.FileStore(f"{folder}/store-{world}", world)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
        found = {}
        for name, sizes in STEPS.items():
            tables = sizes.tables(ITEMS)
            step = training_step(sizes, tables)
            tables.group.traffic.clear()
            step()
            step()
            counted = tables.group.traffic
            found[name] = [counted.total / 2, sum(counted.calls.values()) / 2]
        with open(f"{folder}/{world}-{rank}.json", "w") as file:
            json.dump(found, file)
        dist.destroy_process_group()
        code = 0
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(code)

for world in (2, 3):
    started = [os.fork() or child(rank, world, sys.argv[1]) for rank in range(world)]
    assert all(os.waitpid(one, 0)[1] == 0 for one in started)
"""


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, tuple[float, float]]]:
    """Return bytes of all processes and exchanges of a step, by world and name."""
    folder: Path = tmp_path_factory.mktemp("traffic")
    subprocess.run([sys.executable, "-c", _FORKS, str(folder)], cwd=ROOT, timeout=60, check=True)
    found = {}
    for world in (2, 3):
        ranks = [json.loads((folder / f"{world}-{r}.json").read_text()) for r in range(world)]
        found[world] = {
            name: (sum(rank[name][0] for rank in ranks), ranks[0][name][1]) for name in STEPS
        }
    return found


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("name", STEPS)
def test_the_formula_is_what_a_step_sends(sent, world: int, name: str) -> None:
    sizes = STEPS[name]
    assert sizes.fetches(world) == (name == "few items")
    total, exchanges = sent[world][name]
    assert total / sizes.batch == pytest.approx(sizes.bytes(world), rel=0.05)
    assert exchanges == sizes.exchanges(world)
