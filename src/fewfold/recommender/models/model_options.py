"""Built-in models: their names, modules and command-line options; imports no torch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fewfold._options import Option, number, positive_integer, real_number

__all__ = [
    "ALS",
    "BLEND",
    "BUILT_IN",
    "EASE",
    "FASTVAE",
    "ITEM_KNN",
    "SESSION_KNN",
    "SPARSE_EASE",
    "TRANSFORMER",
    "BuiltIn",
    "Option",
    "setting",
]

_GROUP = "the model"


def setting(option: Option, text: str = "") -> dict[str, Any]:
    """Metadata of a model's field that `fewfold fit` sets by an option.

    Args:
        option: of the command line; without a default it has the default of the field.
        text: format of the value in tables, such as "l2 {:g}"; empty to leave it out.
    """
    return {"option": replace(option, group=_GROUP), "text": text}


@dataclass(frozen=True)
class BuiltIn:
    """Where a built-in model is defined, and its options in the order of the help."""

    module: str
    options: Mapping[str, Option]


def _anchors(text: str) -> Any:
    """Parse a number of anchors, or "auto"."""
    if text == "auto":
        return text
    return number(text, int, lambda n: 0 < n <= 32_000, "auto or a whole number from 1 to 32000")


def _bits(text: str) -> Any:
    """Parse a number of bits from 2 to 8."""
    return number(text, int, lambda n: 2 <= n <= 8, "a whole number from 2 to 8")


def _weight(text: str) -> Any:
    """Parse a weight between 0 and 1."""
    return number(text, float, lambda x: 0 < x < 1, "above 0 and below 1")


def _positive(text: str) -> Any:
    """Parse a finite number above 0."""
    return number(text, float, lambda x: 0 < x < math.inf, "a number above 0")


def _share(text: str) -> Any:
    """Parse a number from 0 to below 1."""
    return number(text, float, lambda x: 0 <= x < 1, "a number from 0 to below 1")


def _by_name(*options: Option) -> dict[str, Option]:
    return {option.dest: replace(option, group=_GROUP) for option in options}


_WITH_ANCHORS = ("anchors", "say how many: --anchors 64")
FASTVAE = _by_name(
    Option("hidden", "width of the encoder (default: 200)", 200, positive_integer, "N"),
    Option("latent", "width of the latent (default: 63)", 63, positive_integer, "N"),
    Option(
        "anchors", "tables of so many anchors, tens of times smaller", None, _anchors, "N|auto",
        exclusive="has no tables",
    ),
    Option(
        "anchor-width", "of an item, on average (default: 24, alone 8)", None, positive_integer,
        "N", requires=_WITH_ANCHORS,
    ),
    Option(
        "anchor-bits", "of an anchor's weight, 2 to 8 (default: 8)", None, _bits, "N",
        requires=_WITH_ANCHORS,
    ),
    Option(
        "alone", "train anchors from the start, no dense tables", False, switch=True,
        requires=_WITH_ANCHORS,
    ),
)  # fmt: skip
_L2 = Option("l2", "penalty of ease and sparse-ease (default: 250)", 250.0, real_number, "X")
EASE = _by_name(_L2)
SPARSE_EASE = _by_name(
    _L2,
    Option("predictors", "of each item, in sparse-ease (default: 200)", 200, positive_integer, "N"),
)
ITEM_KNN = _by_name(
    Option("weighting", "of item-knn", "cosine", choices=("cosine", "bm25")),
    Option("neighbours", "of item-knn (default: 100)", 100, positive_integer, "N"),
)
BLEND = _by_name(
    Option("blend-of", "two models to blend, as ease,fastvae", metavar="A,B"),
    Option("blend-weight", "of the second, 0 to 1 (default: 0.5)", 0.5, _weight, "X"),
)
SESSION_KNN = _by_name(
    Option(
        "session-neighbours", "sessions that session-knn reads (default: 200)", 200,
        positive_integer, "N",
    ),
    Option(
        "session-sample", "newest sessions of an item it chooses from (default: 1000)", 1000,
        positive_integer, "N",
    ),
    Option(
        "session-decay", "places back at which an item weighs 1/e (default: 2)", 2.0,
        _positive, "X",
    ),
    Option(
        "session-spread", "places apart at which an item counts 1/e (default: 4)", 4.0,
        _positive, "X",
    ),
)  # fmt: skip
TRANSFORMER = _by_name(
    Option("width", "of the transformer's item vectors (default: 96)", 96, positive_integer, "N"),
    Option("layers", "of the transformer (default: 1)", 1, positive_integer, "N"),
    Option("length", "last items the transformer reads (default: 50)", 50, positive_integer, "N"),
    Option("dropout", "of the transformer (default: 0.25, small logs 0.5)", None, _share, "X"),
)
ALS = _by_name(
    Option("factors", "length of the vectors of als (default: 256)", 256, positive_integer, "N"),
    Option(
        "regularisation", "of als, relative to the pairs (default: 0.01 to 0.003, by items)", None,
        real_number, "X",
    ),
    Option(
        "unobserved-weight", "of all pairs in als, next to 1 of a pair of the log (default: 0.03)",
        0.03, real_number, "X",
    ),
    Option("iterations", "of als (default: 16)", 16, positive_integer, "N"),
)  # fmt: skip
_MODELS = "fewfold.recommender.models"
BUILT_IN = {
    "auto": BuiltIn(f"{_MODELS}.auto", {}),
    "fastvae": BuiltIn(f"{_MODELS}.fastvae.recipe", FASTVAE),
    "ease": BuiltIn(f"{_MODELS}.ease", EASE),
    "als": BuiltIn(f"{_MODELS}.als", ALS),
    "sparse-ease": BuiltIn(f"{_MODELS}.sparse_linear", SPARSE_EASE),
    "item-knn": BuiltIn(f"{_MODELS}.item_knn", ITEM_KNN),
    "session-knn": BuiltIn(f"{_MODELS}.session_knn", SESSION_KNN),
    "popularity": BuiltIn(f"{_MODELS}.popularity", {}),
    "blend": BuiltIn(f"{_MODELS}.blend", BLEND),
    "transformer": BuiltIn(f"{_MODELS}.next_item.transformer", TRANSFORMER),
    "warm": BuiltIn(f"{_MODELS}.warm", {}),
}
