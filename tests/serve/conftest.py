"""A served model that all tests of endpoints share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import fewfold as ff
from tests.recommender.conftest import grouped
from tests.serve.running import Running, serving

TABLE = {
    "item": [f"{taste}{number}" for taste in "abcd" for number in range(10)],
    "name": [f"The {taste.upper()} number {number}" for taste in "abcd" for number in range(10)],
    "taste": [taste for taste in "abcd" for _ in range(10)],
    "year": [1990 + number for _ in "abcd" for number in range(10)],
}


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with attributes and users; not to be changed."""
    rec = ff.Recommender(ff.recommender.EASE(l2=1.0))
    rec.fit(grouped(), test=0.2, progress=False, items_table=ff.recommender.ItemsTable(TABLE))
    return rec.save(tmp_path_factory.mktemp("shop") / "model")


@pytest.fixture(scope="session")
def local(shop: Path) -> ff.Recommender:
    """The same model in this process."""
    return ff.Recommender.load(shop)


@pytest.fixture(scope="session")
def server(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of it; its feedback is shared by all tests."""
    folder = tmp_path_factory.mktemp("served")
    arguments = ("--max-k", 20, "--max-history", 50, "--max-ids", 100, "--max-queries", 40)
    with serving(
        shop, "--journal", folder / "journal.jsonl", "--max-body", 10_000, *arguments, folder=folder
    ) as running:
        yield running
