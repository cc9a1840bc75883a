"""Training steps of the processes of the tests, whose bytes are counted."""

from benchmarks.scaling_out import Step, training_step
from tests.distributed.processes import job

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


@job
def step_traffic() -> dict[str, tuple[float, float]]:
    """Return bytes that this process sends in a step, and exchanges, by the name of the step."""
    found = {}
    for name, sizes in STEPS.items():
        tables = sizes.tables(ITEMS)
        step = training_step(sizes, tables)
        tables.group.traffic.clear()
        step()
        step()
        counted = tables.group.traffic
        found[name] = counted.total / 2, sum(counted.calls.values()) / 2
    return found
