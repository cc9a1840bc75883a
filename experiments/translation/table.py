"""Write the tables of the README from results.json.

``python -m experiments.translation.table``
"""

import statistics
from pathlib import Path

from experiments import readme
from experiments.record import Record, Row
from experiments.translation.run import RESULTS

README = Path(__file__).with_name("README.md")
NAMES = {1.0: "softmax", 1.5: "1.5-entmax", 2.0: "sparsemax"}
QUALITY = {
    "BLEU, greedy": ".2f",
    "BLEU, beam": ".2f",
    "BLEU, mode": ".2f",
    "words": ",.1f",
    "one word": ".1%",
    "reference has probability": ".1%",
    "positions attended": ".2f",
}
SEARCH = {
    "mode found": ".1%",
    "prefixes, median": ",.0f",
    "beam is the mode": ".1%",
    "mode is empty": ".1%",
    "empty has probability": ".1%",
    "length of found modes": ".1f",
    "length of their references": ".1f",
    "length, beam": ".1f",
}


def part(rows: list[Row], columns: dict[str, str]) -> str:
    """Return a Markdown table with a line per method, averaged over seeds."""
    lines = [["output", "attention", *columns, "seeds"]]
    lines.append(["---", "---", *["--:"] * (len(columns) + 1)])
    for pair in dict.fromkeys((row["output"], row["attention"]) for row in rows):
        own = [row for row in rows if (row["output"], row["attention"]) == pair]
        cells = [
            _mean([row[name] for row in own if row[name] is not None], how)
            for name, how in columns.items()
        ]
        lines.append([*(NAMES[alpha] for alpha in pair), *cells, str(len(own))])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _mean(values: list[float], how: str) -> str:
    return format(statistics.fmean(values), how) if values else "-"


def table(rows: list[Row]) -> str:
    """Return both tables, of quality and sparsity and of the search."""
    return f"{part(rows, QUALITY)}\n\n{part(rows, SEARCH)}"


def main() -> None:
    """Rewrite the README."""
    readme.update(README, table(Record(RESULTS).rows()))


if __name__ == "__main__":
    main()
