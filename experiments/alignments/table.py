"""Write the table of the README from results.json.

``python -m experiments.alignments.table``
"""

from pathlib import Path

from experiments import readme
from experiments.alignments.model import METHODS
from experiments.alignments.run import RESULTS
from experiments.mean_table import mean_table
from experiments.record import Record, Row

README = Path(__file__).with_name("README.md")
COLUMNS = {
    "valid": ".1%",
    "test": ".1%",
    "revised": ".1%",
    "zero": ".1%",
    "partners": ".2f",
    "one partner": ".1%",
    "no partner": ".1%",
    "milliseconds of 64 alignments": ".1f",
    "processor seconds of an epoch": ".1f",
    "epochs": ".1f",
}


def table(rows: list[Row]) -> str:
    """Return a Markdown table with a line per method, averaged over seeds."""
    return mean_table(rows, list(METHODS), COLUMNS)


def main() -> None:
    """Rewrite the README."""
    readme.update(README, table(Record(RESULTS).rows()))


if __name__ == "__main__":
    main()
