"""Write the table of the README from results.json.

``python -m experiments.rationales.table``
"""

from pathlib import Path

from experiments import readme
from experiments.mean_table import mean_table
from experiments.rationales.model import METHODS
from experiments.rationales.run import RESULTS
from experiments.record import Record, Row

README = Path(__file__).with_name("README.md")
COLUMNS = {
    "valid": ".1%",
    "accuracy": ".1%",
    "F1": ".3f",
    "token F1": ".3f",
    "sentences selected": ".1%",
    "words selected": ".1%",
    "runs": ".1f",
    "processor seconds of an epoch": ".1f",
    "epochs": ".1f",
}


def table(rows: list[Row]) -> str:
    """Return a Markdown table with a line per method, averaged over seeds."""
    return mean_table(rows, METHODS, COLUMNS)


def main() -> None:
    """Rewrite the README."""
    readme.update(README, table(Record(RESULTS).rows()))


if __name__ == "__main__":
    main()
