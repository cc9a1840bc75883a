"""Mutants known to be equivalent, with the reason.

`equivalents.toml` lists them by file and by the text of the changed line, not by its number. A line
that stands in a file more than once, such as a decorator, may be listed with the line below it.
"""

import tomllib
from pathlib import Path

from tests.mutate.mutant import Mutant

LISTED = Path(__file__).with_name("equivalents.toml")


def load(place: Path = LISTED) -> dict[tuple[str, str, str], str]:
    """`(file, line before, line after)` to the reason; "*" as the line after means every mutant."""
    rows = tomllib.loads(place.read_text())["equivalent"]
    return {(row["file"], row["before"], row["after"]): row["reason"] for row in rows}


def reason(mutant: Mutant, text: str, known: dict[tuple[str, str, str], str]) -> str | None:
    """Why a mutant computes the same as the original, or None if nobody has said so."""
    before, after = mutant.hunk(text)
    below = "".join(text[mutant.end :].splitlines()[1:2]).strip()
    for line in (before, f"{before}\n{below}"):
        found = known.get((mutant.file, line, after)) or known.get((mutant.file, line, "*"))
        if found:
            return found
    return None
