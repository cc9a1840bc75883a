"""Checkpoints of training in one file without pickles; a resumed run is bitwise the same."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fewfold._files import new_file


def save(
    path: Path,
    learned: nn.Module,
    optimizer: torch.optim.Optimizer,
    generator: torch.Generator,
    record: dict[str, Any],
) -> None:
    """Write the training state and a JSON-serialisable record, atomically."""
    from safetensors.torch import save_file

    tensors = {f"learned.{name}": value for name, value in learned.state_dict().items()}
    for number, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{name}": value for name, value in state.items()}
    tensors["generator"] = generator.get_state()
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = {name: value.contiguous() for name, value in tensors.items()}
    with new_file(path) as partial:
        save_file(whole, partial, {"told": json.dumps(record)})


def load(
    path: Path,
    learned: nn.Module,
    optimizer: torch.optim.Optimizer,
    generator: torch.Generator,
) -> dict[str, Any]:
    """Restore the state written by `save`, and return its record."""
    from safetensors import safe_open

    modules: dict[str, Tensor] = {}
    states: dict[int, dict[str, Tensor]] = {}
    with safe_open(path, "pt") as file:
        record: dict[str, Any] = json.loads(file.metadata()["told"])
        for key in file.keys():  # noqa: SIM118  (it is no dict)
            kind, _, name = key.partition(".")
            if kind == "learned":
                modules[name] = file.get_tensor(key)
            elif kind == "optimizer":
                number, _, name = name.partition(".")
                states.setdefault(int(number), {})[name] = file.get_tensor(key)
        generator.set_state(file.get_tensor("generator"))
    learned.load_state_dict(modules)
    optimizer.load_state_dict({**optimizer.state_dict(), "state": states})
    return record
