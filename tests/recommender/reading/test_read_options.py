"""Everything that reads a log takes the same options, and refuses others by name."""

import re

import pytest

import fewfold as ff
from fewfold.cli.options import SHOW
from fewfold.recommender.reading.read_options import READ_DEFAULTS, ReadOptions

LOG = {"user": [1, 2, 2], "item": [1, 2, 1]}


@pytest.mark.parametrize("read", [ff.read_log, ff.recommender.plan_log])
def test_an_unknown_option_is_refused_with_those_that_exist(read) -> None:  # type: ignore[no-untyped-def]
    listed = "user, item, rating, time, min_rating, core, skip_bad_rows, where, header"
    message = f"{read.__name__} has no option 'users'; its options are {listed}, time_format"
    with pytest.raises(TypeError, match=f"^{re.escape(message)}"):
        read(LOG, users="user")
    with pytest.raises(TypeError, match="its options are min_rating, "):
        read(LOG, minrating=3)


def test_functions_that_read_a_log_list_their_own_options_too() -> None:
    rec = ff.Recommender(ff.recommender.EASE(1.0)).fit(LOG, progress=False)
    for function, wrong, right in (
        (rec.fit, "tests", "test"),
        (rec.fit, "progres", "progress"),
        (ff.compare, "model", "models"),
        (rec.evaluate, "splits", "split"),
        (rec.evaluate, "strip_id", "strip_ids"),
        (rec.add_items, "items", "item"),
    ):
        name = function.__name__
        message = f"^{name} has no option '{wrong}'; its options are {right}, .*time_format"
        with pytest.raises(TypeError, match=message):
            function("missing.csv", **{wrong: "last"})  # type: ignore[operator]


def test_every_option_has_a_default_and_a_flag() -> None:
    assert list(READ_DEFAULTS) == list(ReadOptions.__annotations__)
    flags = {option.dest: option.default for option in SHOW}
    assert flags.pop("ignore_times") is False
    assert flags == {**READ_DEFAULTS, "where": None}
