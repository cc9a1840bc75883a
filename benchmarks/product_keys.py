"""A memory of products of keys compared with dense layers and with softmax over all slots.

A step is forward, backward and the optimiser; times are those of the processor.
``python -m benchmarks.product_keys NAME`` prints the peak memory, beyond the model, of forward and
backward by the reading of that name, in a process that does nothing else.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

import fewfold as ff
from benchmarks.harness import Case, Pair, Peak
from fewfold._resources import peak_memory
from fewfold._timing import race

VECTORS, DIM, HIDDEN = 512, 256, 6144
MANY, FEW = 1024**2, 256**2
Reading = Callable[[ff.ProductKeyMemory, Tensor], Tensor]


def cases() -> list[Case]:
    """Yield all rows of the suite, in the order of the claims."""
    size, dense = f"{VECTORS} x {DIM}, {MANY:,} slots", f"dense layers {DIM}-{HIDDEN}-{DIM}"
    small, all_slots = f"{VECTORS} x {DIM}, {FEW:,} slots", "softmax over all slots"
    own = "ProductKeyMemory"
    return [
        Case(f"{own}, a step", size, dense, 1.0, _steps),
        Case(f"{own}, a step per million parameters", size, dense, 0.05, _per_parameter),
        # sixteen times the slots have four times the sub-keys
        Case(f"{own}, a step", size, f"{FEW:,} slots", 4.0, _sizes),
        Case(f"{own}, forward and backward", small, all_slots, 0.05, _readings),
        Case(f"{own}, peak memory of both", small, all_slots, 0.05, _peaks),
    ]


def _vectors() -> Tensor:
    return torch.randn(VECTORS, DIM, generator=torch.Generator().manual_seed(1))


def _memory(slots: int) -> ff.ProductKeyMemory:
    return ff.ProductKeyMemory(DIM, slots, generator=torch.Generator().manual_seed(0))


def _memory_step(memory: ff.ProductKeyMemory) -> Callable[[], None]:
    """Return a step that updates the values that are read, and all other parameters."""
    rest = [one for name, one in memory.named_parameters() if not name.startswith("values")]
    return _step(
        memory,
        ff.optim.Adam(memory.values.parameters(), by_row=True),
        torch.optim.Adam(rest, fused=True),
    )


def _dense_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(DIM, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, DIM))


def _step(model: nn.Module, *optimizers: torch.optim.Optimizer) -> Callable[[], None]:
    generator = torch.Generator().manual_seed(1)

    def step() -> None:
        vectors = torch.randn(VECTORS, DIM, generator=generator)  # others read other rows
        model(vectors).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return step


def _models() -> tuple[ff.ProductKeyMemory, nn.Module]:
    return _memory(MANY), _dense_layers()


def _pair(memory: ff.ProductKeyMemory, dense: nn.Module) -> Pair:
    peer = _step(dense, torch.optim.Adam(dense.parameters(), fused=True))
    return Pair(_memory_step(memory), peer, clock=time.thread_time)


def _steps() -> Pair:
    return _pair(*_models())


def _per_parameter() -> Peak:
    """Seconds of a step divided by the number of parameters, in millions."""
    models = _models()
    pair = _pair(*models)
    timing = race({"ours": pair.ours, "peer": pair.peer}, seconds=1.5, clock=pair.clock)
    ours, peer = (sum(one.numel() for one in model.parameters()) / 1e6 for model in models)
    return Peak(
        timing["ours"].median / ours,
        timing["peer"].median / peer,
        unit="seconds",
        details={"ours_million_parameters": ours, "peer_million_parameters": peer},
    )


def _sizes() -> Pair:
    steps = _memory_step(_memory(MANY)), _memory_step(_memory(FEW))
    return Pair(*steps, clock=time.thread_time)


def _softmax(memory: ff.ProductKeyMemory, vectors: Tensor) -> Tensor:
    """Read all slots: the output of the memory, with softmax of all scores."""
    weights = memory.scores(vectors).softmax(-1)
    return weights.sum(-2) @ memory.values.weight


READINGS: dict[str, Reading] = {
    "entmax": lambda memory, vectors: memory(vectors),
    "softmax": _softmax,
}


def _gradients(reading: Reading, memory: ff.ProductKeyMemory, vectors: Tensor) -> None:
    memory.zero_grad()
    reading(memory, vectors).square().mean().backward()


def _readings() -> Pair:
    memory, vectors = _memory(FEW), _vectors()
    ours, peer = (partial(_gradients, one, memory, vectors) for one in READINGS.values())
    return Pair(ours, peer, clock=time.thread_time)


def _peaks() -> Peak:
    ours, peer = map(_peak, READINGS)
    return Peak(ours, peer)


def _peak(name: str) -> float:
    """Return the peak memory, measured in a new process."""
    command = [sys.executable, "-m", "benchmarks.product_keys", name]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def main() -> None:
    """Measure the reading named on the command line."""
    torch.set_num_threads(1)
    reading, memory = READINGS[sys.argv[1]], _memory(FEW)
    _gradients(reading, memory, _vectors()[:1])  # what is loaded on first use is not counted
    memory.zero_grad()
    vectors, before = _vectors(), peak_memory()
    _gradients(reading, memory, vectors)
    print(peak_memory() - before)


if __name__ == "__main__":
    main()
