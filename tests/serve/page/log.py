"""A small log with names, sections and years, in which some ids and names are markup."""

import random
from pathlib import Path

import fewfold as ff

__all__ = ["EPOCHS", "MARKUP", "items_table", "log", "write_model"]

EPOCHS = 20
MARKUP = "<img src=x onerror=\"document.title='broken'\">"
SECTIONS = ("poetry", "cooking", "travel", "science")
WORDS = ("Amber", "Birch", "Cedar", "Dune", "Ember", "Fjord", "Grove", "Haven", "Isle", "Jade")


def log(users: int = 160, seed: int = 0) -> dict[str, list[str]]:
    """Users of four tastes, each of which is a section of ten books; one of them is markup."""
    draw = random.Random(seed)
    rows: dict[str, list[str]] = {"user": [], "book": []}
    for user in range(users):
        taste = user % len(SECTIONS)
        for book in draw.sample(range(len(WORDS)), 6):
            rows["user"].append(MARKUP if user == 7 else f"reader-{user}")
            rows["book"].append(_id(taste, book))
    return rows


def items_table() -> dict[str, list[str]]:
    """Title, section and year of each book."""
    every = [(taste, book) for taste in range(len(SECTIONS)) for book in range(len(WORDS))]
    return {
        "book": [_id(taste, book) for taste, book in every],
        "title": [f"{WORDS[book]} of {SECTIONS[taste]}" for taste, book in every],
        "section": [
            "<script>document.title='broken'</script>" if (taste, book) == (1, 2)
            else SECTIONS[taste] for taste, book in every
        ],
        "year": [str(1950 + 13 * taste + book) for taste, book in every],
    }  # fmt: skip


def _id(taste: int, book: int) -> str:
    return MARKUP if (taste, book) == (0, 3) else f"{SECTIONS[taste]}/{book}"


def write_model(folder: Path, model: ff.recommender.Model, *, compared: bool = False) -> Path:
    """Fit a model to the log and write it, with its attributes and perhaps a comparison."""
    rows = log()
    training = ff.recommender.Training(epochs=EPOCHS, batch=16)
    table = ff.recommender.ItemsTable(items_table(), "book", use=False)
    rec = ff.Recommender(model, training=training)
    rec.fit(rows, test=0.2, item="book", items_table=table, progress=False)
    if compared:
        rec.comparison = ff.compare(
            rows, models=("popularity", "ease"), item="book", progress=False
        )
    return rec.save(folder, overwrite=True)
