"""The public functions on devices other than the CPU, and the table of what runs where.

Each row is run on the CPU, and again

* on the device of `apart.py`: the same numbers, forward and backward, and everything on the device;
* with fake tensors of "cuda", forward: shapes, dtypes and devices as they would be on a GPU;
* on "meta": shapes and dtypes.

`python -m tests.device FILE` writes the table for the documentation.
"""

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.utils._pytree import tree_map

from fewfold._native import dispatch

from .apart import APART
from .fake import CUDA, fake_gpu

DATA = "its result or its checks depend on values"
SOLVED = "structures are found on the CPU, from values"
BACKWARD = "it takes gradients, and fake tensors of a GPU have no backward pass"
SEEDED = "a generator on the CPU draws numbers, which are moved"

Given = Callable[[], tuple[Any, ...]]


@dataclass(frozen=True)
class Case:
    """A public name, a call of it, and what the call is given, made on the CPU.

    The name is that below `fewfold`; a variant follows a comma. `also` are names that this row
    tests as well. `no_data` says why neither fake nor meta tensors can be given, `without` why a
    column cannot be.
    """

    name: str
    given: Given
    call: Callable[..., Any]
    also: tuple[str, ...] = ()
    no_data: str = ""
    without: Mapping[str, str] = field(default_factory=dict)
    tolerance: float = 1e-9

    def names(self) -> set[str]:
        """The public names of the row."""
        return {self.name.partition(",")[0], *self.also}

    def limit(self, column: str) -> str:
        """Why a column cannot be; empty if it can."""
        return self.without.get(column) or (self.no_data if column != "apart" else "")


@dataclass(frozen=True)
class Outcome:
    """Tensors that a call returned, and the gradients of what it was given."""

    values: list[Tensor]
    gradients: list[Tensor | None]

    def all(self) -> list[Tensor | None]:
        """Both, in order."""
        return [*self.values, *self.gradients]


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in a result: also in dataclasses, named tuples, lists and dictionaries."""
    if isinstance(value, Tensor):
        yield value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for each in dataclasses.fields(value):
            yield from tensors(getattr(value, each.name))
    elif isinstance(value, dict):
        for each in value.values():
            yield from tensors(each)
    elif isinstance(value, Iterable) and not isinstance(value, (str, bytes, nn.Module)):
        for each in value:
            yield from tensors(each)


def moved(value: Any, device: torch.device) -> Any:
    """The same on a device: tensors as new leaves, modules as copies."""
    if isinstance(value, Tensor):
        copied = value.detach().to(device, copy=True)
        return copied.requires_grad_(value.requires_grad and torch.is_grad_enabled())
    if isinstance(value, nn.Module):
        return to_device(value, device)
    return value


def to_device(module: nn.Module, device: torch.device) -> nn.Module:
    """Move a module; fake parameters cannot be swapped in place, as `Module.to` does."""
    if device.type != CUDA.type:
        return module.to(device)
    for part in module.modules():
        for name, value in part._parameters.items():
            if value is not None:
                part._parameters[name] = nn.Parameter(value.to(device), requires_grad=False)
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = buffer.to(device)
    return module


def leaves(given: Any) -> Iterator[Tensor]:
    """What can get a gradient."""
    for each in given:
        if isinstance(each, nn.Module):
            yield from each.parameters()
        elif isinstance(each, Tensor) and each.requires_grad:
            yield each


def total(values: list[Tensor]) -> Tensor | None:
    """A number with a gradient that is nowhere the same; None if nothing has one."""
    terms = []
    for value in values:
        if value.requires_grad:
            place = torch.arange(value.numel(), dtype=value.dtype, device=value.device)
            terms.append((value * torch.cos(1.7 * place + 0.3).view(value.shape)).sum())
    return torch.stack([term.double() for term in terms]).sum() if terms else None


@contextmanager
def unchecked() -> Iterator[None]:
    """Do not validate the parameters of distributions, as there are no values to check."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)


def run(
    case: Case, device: torch.device, inside: AbstractContextManager[object] | None = None
) -> Outcome:
    """Call it on a device, forward and backward."""
    torch.manual_seed(0)
    given = tree_map(lambda x: copy.deepcopy(x) if isinstance(x, nn.Module) else x, case.given())
    torch.manual_seed(0)
    # In threads of their own, errors of a device written in Python end the process.
    with (
        inside or nullcontext(), dispatch.disabled(),
        torch.autograd.set_multithreading_enabled(False),
    ):  # fmt: skip
        given = tree_map(lambda value: moved(value, device), given)
        values = list(tensors(case.call(*given)))
        whole = total(values)
        if whole is not None:
            whole.backward()
    return Outcome(values, [leaf.grad for leaf in leaves(given)])


def same_place(found: Outcome, wanted: Outcome, kind: str) -> None:
    """All tensors are on the device, with the shapes and dtypes that the CPU gives."""
    assert len(found.values) == len(wanted.values)
    for got, want in zip(found.all(), wanted.all(), strict=True):
        assert (got is None) == (want is None), "a gradient is missing"
        if got is None or want is None:
            continue
        assert got.device.type == kind, f"a tensor of {tuple(got.shape)} is on {got.device}"
        assert got.dtype == want.dtype, f"{got.dtype} instead of {want.dtype}"
        assert got.shape == want.shape, f"{tuple(got.shape)} instead of {tuple(want.shape)}"


def on_apart(case: Case) -> None:
    """The numbers of the CPU on a device that mixes with no other."""
    wanted, found = run(case, torch.device("cpu")), run(case, APART)
    same_place(found, wanted, APART.type)
    for one, other in zip(found.all(), wanted.all(), strict=True):
        if one is not None and other is not None:
            got, want = (each.detach().cpu() for each in (one, other))
            got, want = (each.to_dense() if each.is_sparse else each for each in (got, want))
            torch.testing.assert_close(
                got, want, atol=case.tolerance, rtol=case.tolerance, equal_nan=True
            )


def on_fake_cuda(case: Case) -> None:
    """Fake tensors of a GPU, of which any operation that mixes devices raises; forward alone."""
    wanted = run(case, torch.device("cpu"))
    with unchecked():
        found = run(case, CUDA, fake_gpu())
    same_place(Outcome(found.values, []), Outcome(wanted.values, []), "cuda")


def on_meta(case: Case) -> None:
    """Shapes without data."""
    with unchecked():
        found = run(case, torch.device("meta"))
    same_place(found, run(case, torch.device("cpu")), "meta")


COLUMNS = {"apart": "another device", "cuda": "`cuda`, fake", "meta": "`meta`"}
CHECKS: dict[str, Callable[[Case], None]] = {
    "apart": on_apart,
    "cuda": on_fake_cuda,
    "meta": on_meta,
}


def daily(cases: Iterable[Case]) -> set[str]:
    """Rows that are tested in `make test`: enough for every name once. The others run at night."""
    seen: set[str] = set()
    chosen = set()
    for case in cases:
        if not case.names() <= seen:
            seen |= case.names()
            chosen.add(case.name)
    return chosen


def written(cases: Iterable[Case], passed: Callable[[Case, str], bool]) -> str:
    """The table: a line per row, a column per device, and a note for each reason."""
    lines = ["| name | " + " | ".join(COLUMNS.values()) + " |", "|---" * (len(CHECKS) + 1) + "|"]
    notes: list[str] = []
    for case in cases:
        cells = []
        for column in CHECKS:
            reason = case.limit(column) or ("" if passed(case, column) else "fails")
            if reason and reason not in notes:
                notes.append(reason)
            cells.append(f"no ({notes.index(reason) + 1})" if reason else "yes")
        lines.append(f"| `{case.name}` | " + " | ".join(cells) + " |")
    lines += ["", *(f"{i}. {note[0].upper()}{note[1:]}." for i, note in enumerate(notes, 1))]
    return "\n".join(lines) + "\n"
