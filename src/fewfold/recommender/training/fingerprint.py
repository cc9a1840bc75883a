"""Descriptions of objectives and logs, by which a checkpoint is matched to its training."""

from dataclasses import fields, is_dataclass
from typing import Any

from fewfold.recommender.interactions import Interactions
from fewfold.recommender.training.checkpoint import digest
from fewfold.sampling.proposal import Proposal

__all__ = ["describe", "describe_log"]


def describe(value: Any) -> str:
    """Return a value's type and the arguments it was constructed with, as text."""
    if isinstance(value, Proposal):
        arguments = {name: it for name, it in vars(value).items() if not name.startswith("_")}
    elif is_dataclass(value):
        arguments = {each.name: getattr(value, each.name) for each in fields(value)}
    elif value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    else:
        return str(getattr(value, "__qualname__", type(value).__qualname__))
    inside = ", ".join(f"{name}={describe(it)}" for name, it in arguments.items())
    return f"{type(value).__qualname__}({inside})"


def describe_log(log: Interactions) -> str:
    """Return the size and a digest of the interactions, as text."""
    return f"{log.pairs} pairs of {log.items} items, {digest(log.offsets, log.ids)}"
