"""Options of reading a log: names, types and defaults."""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

import numpy as np

from fewfold._check import known_names, whole_number
from fewfold.recommender.weighting import SCALES

__all__ = ["READ_DEFAULTS", "ReadOptions", "check_keywords", "complete_options"]


class ReadOptions(TypedDict, total=False):
    """Keyword arguments of `read_log`, and of everything that reads a log.

    Attributes:
        user: column of the users; None (the default) guesses it, as the next three. A file without
            a header has the columns 1, 2, 3, ...
        item: column of the items.
        rating: column of the ratings.
        time: column of the times; False ignores times.
        min_rating: only rows rated at least this are interactions; items that a user rated lower
            are dislikes, and never recommended to that user. None (the default) ignores ratings.
        core: drop users and items with fewer pairs, repeatedly (k-core); 1 by default.
        skip_bad_rows: drop and count invalid rows instead of raising; False by default.
        where: conditions that select rows, such as ``"event_type=purchase"``,
            ``"event_type=cart,purchase"``, ``"country!=XX"``, ``"rating>=4"`` (also <=, >, <) or
            ``"time!="`` (not missing); one condition, or a list of which all must hold. None by
            default.
        header: whether the first row of a text file names the columns; None (the default) detects
            it.
        time_format: strptime format of the times: ``"%d/%m/%Y %H:%M"``. Without it (the default)
            numbers, ISO 8601 and unambiguous common formats are recognised.
        strip_ids: strip whitespace around text ids; True by default.
        weight: column of weights, such as counts or ratings, finite and at least 0; those of one
            user and item are added, and models use them as confidence. True takes the values of a
            sparse matrix. None (the default) counts all interactions alike.
        weight_scale: "linear" (the default) or "log": how weights become confidences; see
            `confidences`.
        journal: file of events that a server wrote (see `Journal`), or several, which count as
            further rows of the log: liked, with a weight of 1, whatever `where` says. None by
            default.

    Example:
        >>> import fewfold as ff
        >>> shop: ff.recommender.ReadOptions = {"user": "customer", "item": "sku"}
        >>> log = {"customer": ["ann", "ann"], "sku": [7, 3], "shop": ["x", "y"]}
        >>> ff.read_log(log, **shop).interactions
        Interactions(users=1, items=2, pairs=2)
    """

    user: str | None
    item: str | None
    rating: str | None
    time: str | bool | None
    min_rating: float | None
    core: int
    skip_bad_rows: bool
    where: str | Sequence[str]
    header: bool | None
    time_format: str | None
    strip_ids: bool
    weight: str | bool | None
    weight_scale: str
    journal: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None


READ_DEFAULTS: ReadOptions = {
    "user": None, "item": None, "rating": None, "time": None, "min_rating": None, "core": 1,
    "skip_bad_rows": False, "where": (), "header": None, "time_format": None, "strip_ids": True,
    "weight": None, "weight_scale": "linear", "journal": None,
}  # fmt: skip


def complete_options(given: Mapping[str, Any], function: str) -> ReadOptions:
    """Return the options with defaults for those not given; raise if any is unknown or invalid.

    Args:
        given: some of the `ReadOptions`.
        function: name of the function that they were given to, for the message.
    """
    known_names(given, tuple(READ_DEFAULTS), function)
    options: ReadOptions = {**READ_DEFAULTS, **given}  # type: ignore[typeddict-item]
    whole_number(options["core"], "core")
    least = options["min_rating"]
    if least is not None and not np.isfinite(least):
        raise ValueError(f"min_rating must be a finite number or None, got {least}")
    if options["weight_scale"] not in SCALES:
        raise ValueError(
            f"weight_scale must be one of {', '.join(SCALES)}, got {options['weight_scale']!r}"
        )
    return options


def check_keywords(given: Mapping[str, Any], function: Callable[..., Any]) -> None:
    """Raise unless all keyword arguments of a function that reads a log are known.

    Args:
        given: those that are not parameters of the function.
        function: whose keyword-only parameters the message lists before the `ReadOptions`.
    """
    parameters = inspect.signature(function).parameters.values()
    own = (one.name for one in parameters if one.kind is one.KEYWORD_ONLY)
    known_names(given, (*own, *READ_DEFAULTS), function.__name__)
