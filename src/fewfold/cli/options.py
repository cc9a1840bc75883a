"""Options of every command: names, help, types and defaults."""

import argparse
import math
import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from fewfold._options import (
    Option,
    non_negative_integer,
    number,
    positive_integer,
    real_number,
)
from fewfold.recommender.models.registry import model_options, models

__all__ = [
    "ANSWER",
    "COMMON",
    "EVALUATE",
    "EXPORT",
    "FETCH",
    "JSON",
    "OUT",
    "PUSH",
    "READING",
    "RECOMMEND",
    "SHOW",
    "UPDATE",
    "compare_options",
    "fit_options",
    "in_group",
    "named",
    "recall_share",
    "seconds",
]


def _threads(text: str) -> Any:
    most = max(64, os.cpu_count() or 1)  # thousands would do nothing but wait for each other
    return number(text, int, lambda n: 0 < n <= most, f"a whole number from 1 to {most}")


def _share(text: str) -> Any:
    return number(text, float, lambda x: 0 <= x < 1, "at least 0 and below 1")


def recall_share(text: str) -> Any:
    """A share above 0."""
    return number(text, float, lambda x: 0 < x <= 1, "above 0 and at most 1")


def _amount(text: str) -> Any:
    return number(text, float, lambda x: 0 <= x <= 1, "from 0 to 1")


def seconds(text: str) -> Any:
    """Seconds, or 10m, 2h."""
    scale = {"s": 1, "m": 60, "h": 3600}.get(text[-1:], 0)
    figure = text[:-1] if scale else text
    what = "a time above 0 such as 90, 10m or 2h"
    return number(figure, float, lambda x: 0 < x < math.inf, what) * (scale or 1)


def _half_life(text: str) -> Any:
    """Days, auto or none."""
    if text in ("auto", "none"):
        return text
    return number(text, float, lambda x: 0 < x < math.inf, "days above 0, auto or none")


def named(text: str) -> str:
    """A path; nothing at all, as of a shell variable that is not set, would be this folder."""
    if not text.strip():
        raise argparse.ArgumentTypeError("must be a name, got nothing")
    if "\0" in text:
        raise argparse.ArgumentTypeError(f"must be a name without a zero byte, got {text!r}")
    return text


def in_group(group: str, *options: Option) -> tuple[Option, ...]:
    """The options, listed under this heading."""
    return tuple(replace(option, group=group) for option in options)


_SEED = Option(
    "seed", "the same seed gives the same result (default: 0)", 0, non_negative_integer, "N"
)
_TEST = Option("test", "share held out; 0 for none (default: 0.2)", 0.2, _share, "SHARE")
_SPLIT = Option(
    "split",
    "how to hold out: at one moment, each user's last, at random (default: what suits the log)",
    "auto",
    choices=("auto", "temporal", "last", "random"),
)
_ALL_USERS = Option(
    "all-users", "evaluate on all users, not a sample where all take long", False, switch=True
)
_DRY = Option("dry-run", "show how the log would be read, and stop", False, switch=True)
_CORE = Option(
    "core", "drop users and items with fewer pairs, repeatedly", 1, positive_integer, "N"
)
JSON = Option("json", "write JSON", False, switch=True)
COMMON = (
    Option("quiet", "no progress and no notes", False, switch=True, short="q"),
    Option("threads", "processor threads to use (default: all)", None, _threads, "N"),
    Option("config", "TOML with a table per command (default: fewfold.toml)", None, named, "FILE"),
)
(OUT,) = in_group(
    "the folder",
    Option("out", "where files go (default: build/demo)", "build/demo", named, "DIR"),
)
READING = in_group(
    "the log",
    Option("user", "column of the users (guessed and shown otherwise)", metavar="COLUMN"),
    Option("item", "column of the items (guessed and shown otherwise)", metavar="COLUMN"),
    Option("rating", "column of the ratings", metavar="COLUMN"),
    Option("time", "column of the times", metavar="COLUMN"),
    Option("ignore-times", "ignore times", False, switch=True),
    Option(
        "min-rating",
        "only rows rated at least X count; items rated lower are never recommended",
        None,
        real_number,
        "X",
    ),
    Option("weight", "column of weights, such as counts: confidence", metavar="COLUMN"),
    Option(
        "weight-scale",
        "how weights become confidence (default: linear)",
        "linear",
        choices=("linear", "log"),
    ),
    Option(
        "where",
        "only such rows count: event=buy, event=cart,buy, price>=5; may repeat",
        metavar="COLUMN=VALUE",
        many=True,
    ),
    Option(
        "header",
        "the first row names the columns (found out otherwise)",
        off="the first row is data; the columns are 1, 2, 3, ...",
        switch=True,
    ),
    Option("time-format", "strptime format of the times, as %%d/%%m/%%Y %%H:%%M", metavar="FORMAT"),
    Option(
        "strip-ids",
        "strip blanks around ids",
        True,
        off="keep blanks around ids",
        switch=True,
        hidden=True,
    ),
    Option("skip-bad-rows", "skip rows that cannot be read", False, switch=True),
    Option("journal", "add the events a server wrote; may repeat", None, named, "FILE", many=True),
)
SHOW = (*READING, *in_group("the log", _CORE))
EVALUATE = (
    *READING,
    *in_group(
        "the evaluation",
        Option(
            "split",
            "ask for all interactions, or each user's last or a random fifth given the others "
            "(default: all, unless most users are new)",
            "auto",
            choices=("auto", "all", "last", "random"),
        ),
        _ALL_USERS,
    ),
)
_HALF_LIFE = Option(
    "half-life",
    "days in which interactions count half as much, auto or none (default: auto for --model auto)",
    None,
    _half_life,
    "DAYS",
)
_TRAINING = in_group(
    "the model",
    Option(
        "epochs", "passes over the users (16, more for small logs)", None, positive_integer, "N"
    ),
    Option("time-budget", "limit of the whole command: 90, 10m, 2h", None, seconds, "TIME"),
    _SEED,
)
_FIT = (
    *in_group(
        "the evaluation",
        _TEST,
        _SPLIT,
        _ALL_USERS,
        Option("refit", "then fit again, to the whole log", False, switch=True),
    ),
    *in_group(
        "the folder",
        Option("out", "to write to (default: model)", "model", named, "DIR", short="o"),
        Option("overwrite", "replace an existing model", False, switch=True),
        Option(
            "items-table", "table of item names and other attributes to show", None, named, "FILE"
        ),
        Option(
            "use-attributes",
            "also rank items by them, those not in the log too (default: if others lose nothing)",
            None,
            switch=True,
            off="only show attributes",
        ),
        Option("items-key", "its column of items (default: what fits)", metavar="COLUMN"),
        Option(
            "users-table", "table of user attributes, for users not in the log", None, named, "FILE"
        ),
        Option("users-key", "its column of users (default: what fits)", metavar="COLUMN"),
        Option("without-users", "do not save the users and their histories", False, switch=True),
    ),
    *in_group(
        "the run",
        Option(
            "device",
            "to train and rank on: cpu, cuda, cuda:1 (default: cpu)",
            "cpu",
            named,
            "NAME",
        ),
        Option("stream", "do not hold the log, a prepared folder, in memory", False, switch=True),
        Option("resume", "resume an interrupted run", False, switch=True),
        Option(
            "checkpoint-every",
            "time between checkpoints (default: 5m)",
            300.0,
            seconds,
            "TIME",
        ),
        _DRY,
    ),
)
ANSWER = in_group(
    "the answer",
    Option("k", "number of items (default: 10)", 10, positive_integer, "N", short="k"),
    Option("filter-items", "items never to recommend", metavar="A,B"),
    Option(
        "where",
        "only items with such attributes: section=a,b, section!=a, year>=1990; may repeat",
        metavar="COLUMN=VALUE",
        many=True,
    ),
)
RECOMMEND = (
    *in_group(
        "for whom",
        Option("users", "ids of users of the log; may repeat", metavar="A,B", many=True),
        Option(
            "history", "items of a user, in the log or not; may repeat", metavar="A,B", many=True
        ),
        Option(
            "attributes",
            "attributes of a new user: age=25,country=NZ; may repeat",
            metavar="NAME=VALUE",
            many=True,
        ),
        Option("histories", "file of users and items, in the log or not", None, named, "FILE"),
        Option("all-users", "all users of the model; with --out", False, switch=True),
    ),
    *ANSWER,
    *in_group(
        "the answer",
        Option("items", "the only candidates", metavar="A,B"),
        Option("explain", "name the items of the history that speak for each", False, switch=True),
        Option("include-seen", "also items of the history", False, switch=True),
        Option("recall", "search approximately, with this recall", None, recall_share, "SHARE"),
        Option(
            "diversity", "how much items must differ: from 0 to 1 (default: 0)", 0.0, _amount, "X"
        ),
        Option(
            "diversity-by",
            "compare items by this attribute (default: as the model does)",
            metavar="COLUMN",
        ),
        Option(
            "at-most",
            "at most so many items with the same attribute: section=3; may repeat",
            metavar="COLUMN=N",
            many=True,
        ),
    ),
    *in_group(
        "the file, for all users",
        Option(
            "out",
            "to write user, rank, item and score to: .parquet, .csv, .jsonl or a folder/",
            None,
            named,
            "FILE",
            short="o",
        ),
        Option("overwrite", "replace an existing file or folder", False, switch=True),
    ),
)
UPDATE = (
    *READING,
    *in_group(
        "the folder",
        Option(
            "out", "to write to; or --overwrite the model itself", None, named, "DIR", short="o"
        ),
        Option("overwrite", "replace an existing model", False, switch=True),
        Option("items-table", "table of item names and other attributes", None, named, "FILE"),
        Option("items-key", "its column of items (default: what fits)", metavar="COLUMN"),
    ),
)
EXPORT = in_group(
    "the files",
    Option("vectors", "write item vectors to this Parquet file", None, named, "FILE"),
    Option("faiss", "write an index of them to this file", None, named, "FILE"),
    Option("onnx", "write the scorer, history to scores, to this file", None, named, "FILE"),
    Option("overwrite", "replace an existing file", False, switch=True),
)
PUSH = in_group(
    "the repository",
    Option("users", "also upload the users and their histories", False, switch=True),
    Option("public", "a repository that is created can be seen by everybody", False, switch=True),
    Option("message", "of the commit", "Upload a model of fewfold", named, "TEXT"),
)
FETCH = in_group(
    "the folder",
    Option("to", "folder to put it in (default: data)", "data", named, "DIR"),
    Option("force", "fetch again what exists", False, switch=True),
)


def fit_options(plugins: Iterable[str] = (), *, skip_failing: bool = False) -> tuple[Option, ...]:
    """Return the options of `fewfold fit`, with those of built-in, registered and these models.

    The names of all models are choices of `--model`; see `model_options` for the arguments.
    """
    by_model = model_options(plugins, skip_failing=skip_failing)
    which = Option(
        "model", "which (default: auto, the best on a part of the log)", choices=tuple(models())
    )
    fitted = (*in_group("the model", _HALF_LIFE), *_TRAINING, *_FIT)
    others = (*SHOW, *in_group("the model", which), *fitted)
    taken = {option.name: "fewfold fit" for option in others}
    settings: dict[str, Option] = {}
    for model, options in by_model.items():
        for option in options:
            owner = taken.setdefault(option.name, model)
            if owner != model and settings.get(option.name) != option:
                raise ValueError(
                    f"the option --{option.name} of the model {model} is also one of {owner}; "
                    "give it another name"
                )
            settings[option.name] = option
    return (*SHOW, *in_group("the model", which), *settings.values(), *fitted)


def compare_options() -> tuple[Option, ...]:
    """Return the options of `fewfold compare`, with the names of all models."""
    names = Option("models", f"some of {','.join(models())}", metavar="A,B")
    evaluation = in_group("the evaluation", _TEST, _SPLIT, _ALL_USERS, names)
    into = Option("into", "also keep the results in this model", None, named, "DIR")
    return (
        *SHOW,
        *_TRAINING,
        *evaluation,
        *in_group("the folder", into),
        *in_group("the run", _DRY),
    )
