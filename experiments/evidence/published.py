"""Published tables and figures as values, and the rows of ours that belong to them."""

import json
import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from experiments.record import Row

EXPERIMENTS = Path(__file__).parents[1]
Select = Callable[[list[Row]], list[Row]]
_NAMES = ("method", "sampler", "model", "map")  # fields of a row that may name its method


def nothing(rows: list[Row]) -> list[Row]:
    """Select no row: the method is not implemented."""
    return []


def named(pattern: str, **key: object) -> Select:
    """Return a function that selects the rows with these fields and a name that matches.

    The regular expression has to match the whole name, in the first field of `method`, `sampler`,
    `model` and `map` that a row has. The alternatives of a pattern, separated by `||`, are tried
    in turn until there are rows.

    Example:
        >>> rows = [{"method": "SFE", "bits": 32}, {"method": "SFE+", "bits": 32}]
        >>> named("SFE", bits=32)(rows)
        [{'method': 'SFE', 'bits': 32}]
        >>> named(r"NVIL||SFE\\+")(rows)
        [{'method': 'SFE+', 'bits': 32}]
    """

    def select(rows: list[Row]) -> list[Row]:
        alike = [row for row in rows if key.items() <= row.items() and method_of(row)]
        for part in pattern.split("||"):
            found = [row for row in alike if re.fullmatch(part, method_of(row))]
            if found:
                return found
        return []

    return select


def exactly(text: str, **key: object) -> Select:
    """Return a function that selects the rows with these fields and this name."""
    return named(re.escape(text), **key)


def method_of(row: Row) -> str:
    """Return the name of the method of a row, empty if it has none."""
    return next((str(row[field]) for field in _NAMES if field in row), "")


def number(text: str) -> tuple[float, float]:
    """Return figure and error of a published cell such as `93.37 ± 0.42`."""
    figure, _, error = text.partition("±")
    return float(figure), float(error or 0)


@dataclass(frozen=True)
class Paper:
    """A paper: how it is cited, and its title."""

    cited: str
    title: str


@dataclass(frozen=True)
class Length:
    """How long the published runs are, and a function that returns the length of a row.

    Example:
        >>> Length("epochs", 100, lambda row: row["epochs"]).enough(50)
        True
    """

    unit: str
    published: float
    ours: Callable[[Row], float]
    stopped: Callable[[Row], bool] = lambda row: False
    """whether a run ended because validation had stopped improving"""

    def enough(self, length: float) -> bool:
        """Whether a length is at least half of the published one."""
        return 2 * length >= self.published


@dataclass(frozen=True)
class Measure:
    """A measured quantity: its name, its value in a row, and how to print it."""

    name: str
    of: Callable[[Row], float]
    digits: int = 2
    lower: bool = False
    """whether less is better"""

    def text(self, value: float) -> str:
        """Return the value as it is printed."""
        return f"{value:,.{self.digits}f}"


@dataclass(frozen=True)
class Method:
    """A line of a published table: its figures, and which rows are ours.

    Attributes:
        name: as published.
        published: one figure for each measure of the column; empty if it is only drawn.
        ours: selects the rows of this method; the longest of them count.
        error: published deviation of the first measure.
        timed: False if training does not have epochs, so that any row is long enough.
    """

    name: str
    published: tuple[float, ...] = ()
    ours: Select = nothing
    error: float = 0.0
    timed: bool = True

    def chosen(self, rows: list[Row], length: Length | None) -> list[Row]:
        """Return the longest rows, of one name; of each seed the last."""
        found = self.ours(rows)
        if found and length and self.timed:
            most = max(length.ours(row) for row in found)
            found = [row for row in found if length.ours(row) == most]
        alike = [row for row in found if method_of(row) == method_of(found[0])]
        return list({row.get("seed", 0): row for row in alike}.values())


@dataclass(frozen=True)
class Column:
    """Methods that are compared with each other by the first of the measures."""

    title: str
    methods: tuple[Method, ...]
    measures: tuple[Measure, ...]


@dataclass(frozen=True)
class Statement:
    """What a paper says of a figure, and a function that returns whether it is so in our rows.

    The function returns None where rows are missing.
    """

    text: str
    holds: Callable[[list[Row]], bool | None]


@dataclass(frozen=True)
class Cell:
    """A method of a column, with the rows of ours that were chosen."""

    column: Column
    method: Method
    rows: list[Row]
    length: Length | None

    @property
    def values(self) -> tuple[float, ...]:
        """Means over the seeds, one for each measure; empty without rows."""
        if not self.rows:
            return ()
        measures = self.column.measures
        return tuple(statistics.mean(m.of(row) for row in self.rows) for m in measures)

    @property
    def long(self) -> float | None:
        """Length of our rows; None without rows, or where there are no epochs."""
        if not self.rows or self.length is None or not self.method.timed:
            return None
        return self.length.ours(self.rows[0])

    @property
    def enough(self) -> bool:
        """Whether there are rows with at least half of the published epochs."""
        if self.length is None or not self.method.timed:
            return bool(self.rows)
        return self.long is not None and self.length.enough(self.long)

    @property
    def stopped(self) -> bool:
        """Whether our runs are too short, and ended because validation had stopped improving."""
        if self.enough or self.length is None:
            return False
        return bool(self.rows) and all(map(self.length.stopped, self.rows))


@dataclass(frozen=True)
class Table:
    """A published table or figure.

    Attributes:
        paper: where it is published.
        number: such as `Table 1`; unique within a paper.
        about: what it shows.
        experiment: the folder with our rows.
        columns: methods and measures.
        length: published epochs; None if nothing is trained.
        seeds: number of published runs; 0 if the paper does not say.
        statements: what the paper says of a figure.
        other: in a few words, what is not as published besides the length.
        differs: the same in sentences.
        detail: what else to print about one of our rows.
        missing: why some methods, or all, have no rows.
        files: where the rows are, in the folder of the experiment; some may be missing.
    """

    paper: Paper
    number: str
    about: str
    experiment: str
    columns: tuple[Column, ...]
    length: Length | None = None
    seeds: int = 0
    statements: tuple[Statement, ...] = ()
    other: str = ""
    differs: str = ""
    missing: str = "The methods without rows are not run."
    detail: Callable[[Row], str] = lambda row: ""
    files: tuple[str, ...] = ("results.json",)

    @cached_property
    def rows(self) -> list[Row]:
        """All rows of the files, with the field `file`."""
        paths = [EXPERIMENTS / self.experiment / file for file in self.files]
        return [
            {**row, "file": path.name}
            for path in paths
            if path.exists()
            for row in json.loads(path.read_text())
        ]

    @cached_property
    def cells(self) -> list[Cell]:
        """Every method of every column, with our rows."""
        return [
            Cell(column, method, method.chosen(self.rows, self.length), self.length)
            for column in self.columns
            for method in column.methods
        ]


@dataclass(frozen=True)
class Unavailable:
    """A published table or figure whose data are not available."""

    paper: Paper
    number: str
    reason: str
