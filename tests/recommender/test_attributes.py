"""Tables about items: found by id, and errors that say where."""

from datetime import date
from pathlib import Path

import polars as pl
import pytest

from fewfold.recommender.attributes import read_attributes, read_catalogue
from fewfold.recommender.errors import DataError
from fewfold.recommender.ids import Ids

ITEMS = Ids.of(["tea", "milk", "nuts"])


def far(kind: pl.DataType, value: int) -> pl.Series:
    physical = pl.Int32 if kind == pl.Date else pl.Int64
    return pl.Series([0, value, 1], dtype=physical).cast(kind)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pl.Date(), 2**31 - 1),
        (pl.Date(), -(2**31)),
        (pl.Datetime("us"), 2**63 - 1),
        (pl.Datetime("ms", "UTC"), -(2**62)),
    ],
)
@pytest.mark.parametrize("ending", ["parquet", "feather"])
def test_dates_outside_of_the_calendar(
    kind: pl.DataType, value: int, ending: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"items.{ending}"
    frame = pl.DataFrame({"item": ["tea", "milk", "nuts"], "since": far(kind, value)})
    frame.write_parquet(path) if ending == "parquet" else frame.write_ipc(path)
    with pytest.raises(DataError) as raised:
        read_attributes(path, ITEMS)
    assert str(raised.value) == (
        f"{path}, row 1 (from 0): the column 'since' has a date before the year 1 or after 9999; "
        "fix it, or leave this column out of the table"
    )
    assert capfd.readouterr().err == ""  # a panic of polars would write there


def test_dates_are_shown() -> None:
    table = {"item": ["tea", "milk"], "since": [date(2020, 1, 2), None]}
    attributes = read_attributes(table, ITEMS)
    assert (attributes[0], attributes[1]) == ({"since": "2020-01-02"}, {})


def test_blanks_around_ids(tmp_path: Path) -> None:
    table = {"item": [" tea", "milk ", "x"], "shelf": ["dry", "cold", ""]}
    assert [read_attributes(table, ITEMS)[n] for n in range(2)] == [
        {"shelf": "dry"}, {"shelf": "cold"}
    ]  # fmt: skip
    # Ids that have blanks are found as they are.
    padded = Ids.of(["tea ", "tea"])
    attributes = read_attributes({"item": ["tea ", "tea"], "shelf": ["a", "b"]}, padded)
    assert (attributes[0], attributes[1]) == ({"shelf": "a"}, {"shelf": "b"})


@pytest.mark.parametrize("ending", ["parquet", "feather"])
def test_text_that_is_not_unicode(
    ending: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"items.{ending}"
    frame = pl.DataFrame({"item": ["tea", "milk"], "shelf": ["dry_and_dark", "cold_and_dark"]})
    if ending == "parquet":
        frame.write_parquet(path, compression="uncompressed", use_pyarrow=True)
    else:
        frame.write_ipc(path, compression="uncompressed")
    path.write_bytes(path.read_bytes().replace(b"and", b"\xca\xff\xfe"))
    with pytest.raises(DataError, match=r"may be damaged .*UTF"):
        read_attributes(path, ITEMS)
    assert capfd.readouterr().err == ""


def test_a_bad_row_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "items.csv"
    path.write_text("item,shelf\ntea,dry\nmilk\n")
    with pytest.raises(DataError, match=r"items.csv, line 3: wrong number .*; fix this row of the"):
        read_attributes(path, ITEMS)


def test_a_table_without_rows_or_columns(tmp_path: Path) -> None:
    pl.DataFrame({"item": []}).write_parquet(tmp_path / "items.parquet")
    with pytest.raises(DataError, match=r"no row of the table .*items.parquet is about an item"):
        read_attributes(tmp_path / "items.parquet", ITEMS)
    pl.DataFrame().write_parquet(tmp_path / "none.parquet")
    with pytest.raises(DataError, match=r"the table .*none.parquet has no columns"):
        read_attributes(tmp_path / "none.parquet", ITEMS)


def test_json_lines_and_no_header(tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl"
    path.write_text('{"item": "tea", "shelf": "dry"}\n{"item": "milk", "shelf": "cold"}\n')
    assert read_attributes(path, ITEMS)[1] == {"shelf": "cold"}
    path = tmp_path / "movies.dat"
    path.write_text("1::Toy Story\n2::Heat\n")
    assert read_attributes(path, Ids.of([1, 2]))[0] == {"2": "Toy Story"}


def test_a_catalogue_adds_the_items_that_the_log_does_not_have() -> None:
    table = {"item": ["cola", "tea", " ", None, "cola", " oil"], "shelf": [*"abcdef"]}
    items, attributes = read_catalogue(table, ITEMS)
    assert items.tolist() == ["tea", "milk", "nuts", "cola", "oil"]
    assert [attributes[n].get("shelf") for n in range(5)] == ["b", None, None, "a", "f"]
    same, _ = read_catalogue({"item": ["tea"], "shelf": ["a"]}, ITEMS)
    assert same.tolist() == ITEMS.tolist()


def test_a_catalogue_of_numbers_ignores_what_is_none() -> None:
    numbers = Ids.of([7, 3])
    items, attributes = read_catalogue({"sku": ["3", "x", "12"], "shelf": ["a", "b", "c"]}, numbers)
    assert items.tolist() == [7, 3, 12]
    assert [attributes[n].get("shelf") for n in range(3)] == [None, "a", "c"]
    with pytest.raises(DataError, match="no row of the table"):
        read_catalogue({"sku": ["12"], "shelf": ["c"]}, numbers)
