"""Results of mutants: progress, a final table, and JSON."""

import json
from collections import Counter
from pathlib import Path

from tests.mutate.mutant import BUILD
from tests.mutate.trial import Outcome

_DETECTED = ("killed", "timeout")
MISSED = ("survived", "untested")


def score(outcomes: list[Outcome]) -> tuple[int, int]:
    """How many mutants were noticed, of how many that could be."""
    count = Counter(outcome.status for outcome in outcomes)
    noticed = sum(count[status] for status in _DETECTED)
    return noticed, noticed + sum(count[status] for status in MISSED)


def line(outcome: Outcome, done: int, total: int) -> str:
    """One line of progress."""
    changed = [row for row in outcome.diff.splitlines() if row[:1] in "+-"]
    where = f"{outcome.file}:{outcome.line}"
    end = f" by {outcome.by}" if outcome.by else ""
    head = (
        f"[{done}/{total}] {outcome.status:<10} {outcome.seconds:5.1f} s  {where}  {outcome.kind}"
    )
    if outcome.status in MISSED:
        return "\n".join([head + end, *("    " + row for row in changed)])
    return head + end


def table(outcomes: list[Outcome]) -> str:
    """The score of each file and of all."""
    rows = []
    for name in sorted({outcome.file for outcome in outcomes}):
        rows.append((name, [o for o in outcomes if o.file == name]))
    rows.append(("all", outcomes))
    width = max(len(name) for name, _ in rows)
    out = [f"{'file':<{width}}  noticed    of  score  equivalent"]
    for name, part in rows:
        noticed, of = score(part)
        share = f"{100 * noticed / of:4.0f}%" if of else "    -"
        same = sum(outcome.status == "equivalent" for outcome in part)
        out.append(f"{name:<{width}}  {noticed:7}  {of:4}  {share}  {same:10}")
    return "\n".join(out)


def survivors(outcomes: list[Outcome]) -> str:
    """The mutants nothing noticed, with their diffs."""
    parts = []
    for outcome in outcomes:
        if outcome.status in MISSED:
            parts.append(f"{outcome.file}:{outcome.line}  {outcome.kind}, {outcome.status}")
            parts += ["    " + row for row in outcome.diff.splitlines() if row[:1] in "+-"]
    return "\n".join(parts)


def load(place: Path) -> list[Outcome]:
    """The outcomes of an earlier run."""
    return [Outcome(**row) for row in json.loads(place.read_text())["mutants"]]


def save(name: str, outcomes: list[Outcome], settings: dict[str, object]) -> Path:
    """Write everything to build/mutate/results."""
    noticed, of = score(outcomes)
    place = BUILD / "results" / f"{name}.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    whole = {
        "settings": settings,
        "noticed": noticed,
        "of": of,
        "mutants": [outcome.record() for outcome in outcomes],
    }
    place.write_text(json.dumps(whole, indent=1) + "\n")
    return place
