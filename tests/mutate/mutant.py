"""One small change to one source file."""

import difflib
import hashlib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "fewfold"
BUILD = ROOT / "build" / "mutate"


@dataclass(frozen=True)
class Mutant:
    """Replace `text[start:end]` of `file` by `new`; `kind` names the operator that proposed it."""

    file: str
    start: int
    end: int
    new: str
    kind: str
    line: int
    lines: tuple[int, ...] = ()  # a test that executes one of these may notice it

    def apply(self, text: str) -> str:
        """The whole mutated source."""
        return text[: self.start] + self.new + text[self.end :]

    def hunk(self, text: str) -> tuple[str, str]:
        """The changed lines before and after, stripped: what identifies a mutant across edits."""
        first = text.rfind("\n", 0, self.start) + 1
        last = text.find("\n", self.end)
        last = len(text) if last < 0 else last
        after = text[first : self.start] + self.new + text[self.end : last]
        return _squeezed(text[first:last]), _squeezed(after)

    def diff(self, text: str) -> str:
        """A unified diff without context."""
        lines = difflib.unified_diff(
            text.splitlines(), self.apply(text).splitlines(), lineterm="", n=0
        )
        return "\n".join(list(lines)[2:])

    def identity(self, text: str) -> str:
        """A short name that stays the same while the changed line does, wherever it stands."""
        before, after = self.hunk(text)
        above = _squeezed(text[: self.start]).split("\n")
        parts = (self.file, before, after, str(above.count(before)))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _squeezed(text: str) -> str:
    return "\n".join(line.strip() for line in text.splitlines())
