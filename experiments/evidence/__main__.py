"""Write docs/evidence.md, and the part of each README that it has from the rows."""

from pathlib import Path

from experiments import readme
from experiments.evidence.page import page, paragraph
from experiments.evidence.published import EXPERIMENTS
from experiments.evidence.tables import TABLES
from fewfold._files import new_file

PAGE = EXPERIMENTS.parent / "docs" / "evidence.md"
MARKER = "evidence"


def main() -> None:
    """Write the page, and the READMEs that have the markers."""
    with new_file(PAGE) as partial:
        partial.write_text(page())
    for name in dict.fromkeys(table.experiment for table in TABLES):
        path = Path(EXPERIMENTS / name / "README.md")
        if f"<!-- {MARKER}: begin -->" in path.read_text():
            readme.update(path, paragraph(name), MARKER)


if __name__ == "__main__":
    main()
