"""Write the table of the README from results.json.

``python -m experiments.explanation_game.table``
"""

from pathlib import Path

from experiments import readme
from experiments.explanation_game.explainers import METHODS
from experiments.explanation_game.run import RESULTS, WORDS
from experiments.mean_table import mean_table
from experiments.record import Record, Row

README = Path(__file__).with_name("README.md")


def table(rows: list[Row]) -> str:
    """Return a Markdown table with a line per explainer, averaged over seeds."""
    columns = {
        **{f"success, {k} words": ".1%" for k in WORDS},
        **{f"layperson's accuracy, {k} words": ".1%" for k in WORDS},
        "accuracy": ".1%",
        "words with weight": ".1f",
    }
    return mean_table(rows, list(METHODS), columns)


def main() -> None:
    """Rewrite the README."""
    readme.update(README, table(Record(RESULTS).rows()))


if __name__ == "__main__":
    main()
