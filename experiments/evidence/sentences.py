"""What is said of a published table in a line: how many methods, epochs and seeds, which order."""

from dataclasses import dataclass

from experiments.evidence.order import Order, order
from experiments.evidence.published import Cell, Table

NOT_RUN = "not run"
STOPPED = "stopped on validation"


@dataclass(frozen=True)
class Agreement:
    """Pairs of methods in the published order, and statements that hold of those decided."""

    pairs: Order
    held: int
    decided: int

    def text(self) -> str:
        """Return both, as far as there are any; a dash if there are none."""
        found = []
        if self.pairs.pairs:
            found.append(f"{self.pairs.same} of {self.pairs.pairs} pairs, τ {self.pairs.tau:.2f}")
        if self.decided:
            found.append(f"{self.held} of {self.decided} statements")
        return "; ".join(found) or "–"


def agreement(table: Table, *, long: bool = False) -> Agreement:
    """Compare the order of all runs, or of those that are long enough.

    Statements are about all methods, so that they count only if all are long enough.
    """
    cells = [cell for cell in table.cells if cell.enough or not long]
    statements = () if len(cells) < len(table.cells) else table.statements
    held = [statement.holds(table.rows) for statement in statements]
    known = [one for one in held if one is not None]
    return Agreement(order(cells), sum(known), len(known))


def status(cells: list[Cell]) -> str:
    """Return `yes`, `partly`, `no` or `not run`: whether every method is long enough."""
    if not any(cell.rows for cell in cells):
        return NOT_RUN
    enough = [cell.enough for cell in cells]
    return "yes" if all(enough) else "partly" if any(enough) else "no"


def ratio(table: Table) -> str:
    """Return how many methods are long enough."""
    return f"{sum(cell.enough for cell in table.cells)} of {len(table.cells)}"


def stopped(table: Table) -> str:
    """Return how many other methods stopped on validation; empty if none did."""
    found = sum(cell.stopped for cell in table.cells)
    return f"{found} more {STOPPED}" if found else ""


def seeds(table: Table) -> str:
    """Return the number of seeds of our rows; empty without rows."""
    found = [float(len(cell.rows)) for cell in table.cells if cell.rows]
    return span(found) if found else ""


def sentence(table: Table) -> str:
    """Return epochs, seeds and order in a sentence."""
    if status(table.cells) == NOT_RUN:
        return f"**{NOT_RUN}**. {table.missing}"
    parts = [f"{ratio(table)} methods {_enough(table)}"]
    parts += filter(None, [stopped(table)])
    published = f" (published {table.seeds})" if table.seeds else ""
    parts.append(f"seeds: {seeds(table)}{published}")
    found = agreement(table).text()
    if found != "–":
        parts.append(f"order as published: {found}")
    long = agreement(table, long=True).text()
    if long not in ("–", found):
        parts.append(f"among long runs: {long}")
    return "; ".join(parts) + "."


def span(values: list[float]) -> str:
    """Return the range of some values."""
    low, high = (f"{end(values):,g}" for end in (min, max))
    return low if low == high else f"{low} to {high}"


def _enough(table: Table) -> str:
    if table.length is None:
        return "have rows"
    most = f"{table.length.published:,g} {table.length.unit}"
    lengths = [cell.long for cell in table.cells if cell.long is not None]
    ours = f" (ours {span(lengths)})" if lengths else ""
    return f"have at least half of the published {most}{ours}"
