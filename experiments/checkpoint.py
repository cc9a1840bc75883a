"""A training on its way, in one file without pickles: it goes on as if it had never stopped."""

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
    told: dict[str, Any],
) -> None:
    """All that the next step depends on, and what else is to be `told`; never half of it."""
    from safetensors.torch import save_file

    tensors = {f"learned.{name}": value for name, value in learned.state_dict().items()}
    for number, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{name}": value for name, value in state.items()}
    tensors["generator"] = generator.get_state()
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = {name: value.contiguous() for name, value in tensors.items()}
    with new_file(path) as partial:
        save_file(whole, partial, {"told": json.dumps(told)})


def load(
    path: Path,
    learned: nn.Module,
    optimizer: torch.optim.Optimizer,
    generator: torch.Generator,
) -> dict[str, Any]:
    """Put everything back to where `save` was called, and return what it was told."""
    from safetensors import safe_open

    modules: dict[str, Tensor] = {}
    states: dict[int, dict[str, Tensor]] = {}
    with safe_open(path, "pt") as file:
        told: dict[str, Any] = json.loads(file.metadata()["told"])
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
    return told
