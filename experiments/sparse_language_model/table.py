"""Write the table of the README from results.json.

``python -m experiments.sparse_language_model.table``
"""

from pathlib import Path

from experiments import readme
from experiments.record import Record, Row
from experiments.sparse_language_model.run import RESULTS

README = Path(__file__).with_name("README.md")
COLUMNS = {
    "epsilon-perplexity": ".1f",
    "next word without probability": ".1%",
    "sparsemax score": ".3f",
    "Jensen-Shannon": ".3f",
    "words": ",.1f",
    "REP": ".3f",
    "WREP": ".3f",
    "repeated 4-grams": ".1%",
    "distinct-1": ".1%",
    "distinct-2": ".1%",
}


def table(rows: list[Row]) -> str:
    """Return a Markdown table with a line per model and decoder."""
    lines = [["trained with", "epochs", "drawn from", *COLUMNS]]
    lines.append(["---", "--:", "---", *["--:"] * len(COLUMNS)])
    for row in rows:
        name = "softmax" if row["alpha"] == 1 else f"{row['alpha']:g}-entmax"
        epochs, context = str(row["settings"]["epochs"]), row["settings"]["context"]
        if context["window"]:
            name += f", last {context['window']} words"
        if context["functions"]:
            name += f" and memory of {context['functions']}"
        for kind, found in row["decoders"].items():
            cells = [format(found[c], how) if c in found else "" for c, how in COLUMNS.items()]
            if kind == "text itself":
                if row is rows[0]:
                    lines.append(["the test text", "", "", *cells])
                continue
            lines.append([name, epochs, found["decoder"] if kind != "own" else kind, *cells])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main() -> None:
    """Rewrite the README."""
    readme.update(README, table(Record(RESULTS).rows()))


if __name__ == "__main__":
    main()
