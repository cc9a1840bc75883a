"""Mutants known to compute the same, with the reason, so that nobody looks at them twice.

`equivalents.toml` lists them by file and by the text of the changed line, not by its number.
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
    exact = known.get((mutant.file, before, after))
    return exact or known.get((mutant.file, before, "*"))
