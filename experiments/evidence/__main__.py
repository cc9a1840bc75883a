"""Write docs/evidence.md, and the part of each README that it has from the rows."""

from experiments import readme
from experiments.evidence.page import page, paragraph
from experiments.evidence.published import EXPERIMENTS
from experiments.evidence.tables import TABLES
from fewfold._files import new_file

PAGE = EXPERIMENTS.parent / "docs" / "evidence.md"
MARKER = "evidence"


def main() -> None:
    """Write the page, and the lines between the markers of each README."""
    with new_file(PAGE) as partial:
        partial.write_text(page())
    for name in dict.fromkeys(table.experiment for table in TABLES):
        readme.update(EXPERIMENTS / name / "README.md", paragraph(name), MARKER)


if __name__ == "__main__":
    main()
