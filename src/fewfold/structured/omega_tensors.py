"""Read, replace and register the tensors inside a regulariser."""

import dataclasses
from typing import Any

from torch import Tensor, nn

from fewfold.maps.omega import Omega
from fewfold.structured.structures.structure import Structure

__all__ = ["register_tensors", "tensors", "with_tensors"]


def tensors(omega: Omega) -> dict[str, Tensor]:
    """Tensor fields of a regulariser and the additional scores of its structure, by name.

    The transitions of a structure in the field `structure` are named `structure_transitions`.
    """
    if not dataclasses.is_dataclass(omega):
        return {}
    found = {}
    for field in dataclasses.fields(omega):
        value = getattr(omega, field.name)
        if isinstance(value, Tensor):
            found[field.name] = value
        elif isinstance(value, Structure):
            found.update(zip(_additional_names(field.name, value), value.additional, strict=True))
    return found


def with_tensors(omega: Omega, changed: dict[str, Tensor]) -> Omega:
    """Return a copy of the regulariser with these tensors, named as by `tensors`."""
    if not changed:
        return omega
    fields: dict[str, Any] = dict(changed)
    for field in dataclasses.fields(omega):  # type: ignore[arg-type]
        value = getattr(omega, field.name)
        if isinstance(value, Structure):
            given = [fields.pop(name) for name in _additional_names(field.name, value)]
            fields[field.name] = value.with_additional(given)
    other: Omega = dataclasses.replace(omega, **fields)  # type: ignore[type-var]
    return other


def register_tensors(module: nn.Module, omega: Omega) -> tuple[str, ...]:
    """Register the tensors of a regulariser with a module, and return their names."""
    found = tensors(omega)
    for name, value in found.items():
        if isinstance(value, nn.Parameter):
            module.register_parameter(name, value)
        else:
            module.register_buffer(name, value)
    return tuple(found)


def _additional_names(field: str, structure: Structure) -> list[str]:
    """Names of the additional scores of a structure; without dots, which modules forbid."""
    names = structure.additional_names
    return [f"{field}_{name}" for name in names if isinstance(getattr(structure, name), Tensor)]
