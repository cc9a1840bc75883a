"""Public functions and classes take at most six arguments beside data."""

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import fewfold as ff

MOST = 6
# What a call is about, and where its tensors are made; everything else is an option.
DATA = {"cost", "interactions", "items_table", "log", "model", "proposal", "source", "structure"}
DATA |= {"filter_items", "histories", "items", "users", "users_table"}  # ids and lists of them
DATA |= {"reading"}  # how the source is read
DATA |= {"device", "dtype"}
EXCEPTIONS = {
    # The surfaces of torch's `Embedding`, `EmbeddingBag` and `MultiheadAttention`, and what we add.
    "AnchorEmbedding": 11,
    "AnchorEmbedding.from_pretrained": 7,
    "AnchorEmbeddingBag.from_pretrained": 7,
    "AnchorMixture": 9,
    "MultiheadAttention": 8,
    # The surface of torch's optimisers, and two settings that only Yogi has.
    "Yogi": 7,
    # Built by a `Transformer`, a dataclass with the same settings.
    "NextItemNetwork": 10,
}


def public_modules() -> Iterator[Any]:
    """The package and what it exports that has a table of contents of its own."""
    yield ff
    yield from (value for name in ff.__all__ if inspect.ismodule(value := getattr(ff, name)))


def public_functions() -> dict[str, Callable[..., Any]]:
    """Functions, constructors and methods by name; a dataclass is itself a group of options."""
    found: dict[str, Callable[..., Any]] = {}
    for module in public_modules():
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isfunction(value):
                found[name] = value
            if not inspect.isclass(value):
                continue
            if not dataclasses.is_dataclass(value) and _ours(value.__init__):
                found[name] = value
            for method, one in inspect.getmembers(value, callable):
                if _ours(one) and not method.startswith("_") and not inspect.isclass(one):
                    found[f"{name}.{method}"] = one
    return found


def _ours(function: Any) -> bool:
    return (getattr(function, "__module__", None) or "").startswith("fewfold.")


def options(function: Callable[..., Any]) -> list[str]:
    """Parameters that are neither tensors nor other data; keywords of a TypedDict count as one."""
    parameters = inspect.signature(function).parameters.values()
    return [
        one.name
        for one in parameters
        if "Tensor" not in str(one.annotation) and not _data(one) and one.name != "self"
    ]


def _data(one: inspect.Parameter) -> bool:
    return one.name in DATA and one.annotation is not int  # a number of items is a setting


def test_at_most_six_arguments_beside_data() -> None:
    functions = public_functions()
    assert {"read_log", "Recommender.fit", "compare", "FastVAE", "train"} <= set(functions)
    wide = {name: found for name, one in functions.items() if len(found := options(one)) > MOST}
    new = {name: found for name, found in wide.items() if name not in EXCEPTIONS}
    assert not new, "group what belongs together as a value, or as a TypedDict"
    assert {name: len(found) for name, found in wide.items()} == EXCEPTIONS
