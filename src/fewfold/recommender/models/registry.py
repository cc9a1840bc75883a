"""The registry of recommender models: built-in, registered, and of entry points; imports no torch.

Another package offers a model by an entry point of the group `fewfold.models`; its name is that of
the model, its value the class:

    [project.entry-points."fewfold.models"]
    my-model = "my_package.my_module:MyModel"
"""

import importlib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from typing import TYPE_CHECKING, TypeVar

from fewfold._options import Option
from fewfold.recommender.models.model_options import BUILT_IN

if TYPE_CHECKING:  # it needs torch, and the help of the command line must not
    from fewfold.recommender.models.model import Model

__all__ = ["GROUP", "model_options", "models", "register"]

GROUP = "fewfold.models"

M = TypeVar("M", bound="Model")
_registered: "dict[str, type[Model]]" = {}


def register(model: type[M]) -> type[M]:
    """Register a subclass of `Model` under its `name`; use as a class decorator.

    It can then be fitted by `fewfold fit --model NAME`, compared, saved and loaded.
    """
    name = getattr(model, "name", "")
    if not isinstance(name, str) or not name:
        raise ValueError(
            f"{model.__name__} has no name; write name: ClassVar[str] = '...' into the class"
        )
    if name in BUILT_IN and model.__module__ != BUILT_IN[name].module:
        raise ValueError(f"the name {name!r} belongs to a built-in model; choose another")
    earlier = _registered.setdefault(name, model)
    if (earlier.__module__, earlier.__qualname__) != (model.__module__, model.__qualname__):
        raise ValueError(
            f"the name {name!r} belongs to {earlier.__module__}.{earlier.__qualname__}; "
            "choose another"
        )
    _registered[name] = model  # the newer class of a module that was reloaded
    return model


def models() -> "Mapping[str, type[Model]]":
    """All models by name; a class is imported when it is looked up."""
    return _Models()


def model_options(
    plugins: Iterable[str] = (), *, skip_failing: bool = False
) -> dict[str, list[Option]]:
    """Return the command-line options of built-in, registered and these other models, by name.

    Built-in models are not imported for it, nor is any entry point that is not named.

    Args:
        plugins: names of models whose entry points are loaded.
        skip_failing: warn instead of raising an ImportError if one cannot be loaded.
    """
    found = {name: list(model.options.values()) for name, model in BUILT_IN.items()}
    every = models()
    for name in dict.fromkeys([*_registered, *plugins]):
        if name in found:
            continue
        try:
            found[name] = list(every[name].options())
        except ImportError as error:
            if not skip_failing:
                raise
            warnings.warn(str(error), stacklevel=2)
    return found


class _Models(Mapping[str, "type[Model]"]):
    """Names are listed without importing anything."""

    def __init__(self) -> None:
        self._entries = {entry.name: entry for entry in metadata.entry_points(group=GROUP)}
        self._names = list(dict.fromkeys([*BUILT_IN, *_registered, *self._entries]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __getitem__(self, name: str) -> "type[Model]":
        if name in BUILT_IN:
            importlib.import_module(BUILT_IN[name].module)
        elif name not in _registered:
            _load(self._entries[name])
        return _registered[name]


def _load(entry: metadata.EntryPoint) -> None:
    """Import the class of an entry point and register it."""
    try:
        model = entry.load()
        if getattr(model, "name", None) != entry.name:
            raise ValueError(f"its name is {getattr(model, 'name', None)!r}")
        register(model)
    except Exception as error:  # whatever another package may raise
        raise ImportError(
            f"the model {entry.name!r} of the entry point {entry.value} cannot be loaded: {error}"
        ) from error
