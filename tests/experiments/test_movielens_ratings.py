"""The rating experiment, with a few hundred generated users and films."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from experiments import datasets
from experiments.movielens_ratings import table
from experiments.movielens_ratings.models import WIDTH, Factors, MixedDimension, anchored
from experiments.movielens_ratings.ratings import Ratings, honest, ml1m, published
from experiments.movielens_ratings.run import METHODS, Method, fit, run
from experiments.movielens_ratings.training import Recipe, mse
from tests.nightly import first
from tests.pictures import has_colour

COUNTS = (torch.full((200,), 60), torch.full((100,), 120))


@pytest.fixture(scope="module")
def ratings() -> Ratings:
    """Two kinds of people, two kinds of films, and how generous and how good they are."""
    generator = torch.Generator().manual_seed(0)
    users = torch.randint(200, (12_000,), generator=generator)
    items = torch.randint(100, (12_000,), generator=generator)
    noise = 0.3 * torch.randn(12_000, generator=generator)
    liking = torch.where(users % 2 == items % 2, 0.7, -0.7)
    stars = 3.5 + liking + 0.5 * torch.sin(users * 1.0) + 0.5 * torch.cos(items * 1.0) + noise
    return Ratings(users, items, stars)


def small(method: Method) -> Method:
    """The same in a hundred steps."""
    after = min(method.recipe.after, 3)
    recipe = replace(method.recipe, epochs=12, after=after, batch=1024, lr=0.03, row_decay=0.0)
    return replace(method, recipe=replace(recipe, warmup=min(recipe.warmup, 2), keep=2500))


def test_parts_do_not_overlap_and_the_last_tenth_is_the_same(ratings: Ratings) -> None:
    first, second = published(ratings), honest(ratings)
    assert (len(first.train), len(first.test)) == (10_800, 1_200)
    assert (len(second.train), len(second.valid), len(second.test)) == (9_600, 1_200, 1_200)
    assert first.valid is first.test
    assert torch.equal(first.test.stars, second.test.stars)
    both = torch.cat([second.train.stars, second.valid.stars])
    assert torch.equal(first.train.stars, both)


def test_the_count_is_anchors_and_nonzeros_and_offsets() -> None:
    model = Factors(anchored(4), COUNTS, 3.5, offset=True, seed=0)
    with torch.no_grad():
        model.tables[0].transform[:150] = 0
        model.tables[1].transform[:, 1:] = 0
    assert model.size() == 2 * 4 * WIDTH + 50 * 4 + 100 + 2 * WIDTH
    assert Factors(METHODS["MF"].table, COUNTS, 3.5, offset=False, seed=0).size() == 300 * WIDTH


def test_narrow_blocks_are_for_rows_of_few_uses() -> None:
    counts = torch.tensor([1] * 80 + [100] * 8)
    table = MixedDimension(counts, 4, 0.6, torch.Generator().manual_seed(0))
    widths = [block.weight.shape[1] for block in table.blocks]
    assert widths[0] == WIDTH > widths[-1]
    assert sum(len(block.weight) for block in table.blocks) == 88
    assert table.place[80:].sort().values.tolist() == list(range(8))
    assert table(torch.tensor([0, 87])).shape == (2, WIDTH)


@pytest.mark.parametrize("name", first(4, METHODS))
def test_every_method_learns(ratings: Ratings, name: str) -> None:
    split = honest(ratings)
    fitted = fit(small(METHODS[name]), split, 0)
    model, last = fitted.model, fitted.epochs
    variance = float(split.test.stars.var())
    assert last[-1].test == pytest.approx(mse(model, split.test))
    assert last[-1].test < 0.75 * variance, (last[-1], variance)
    if METHODS[name].recipe.after:
        assert last[-1].size < sum(t.transform.numel() for t in model.tables)


def test_epochs_after_the_penalty_bring_no_new_nonzeros(ratings: Ratings) -> None:
    recipe = Recipe(epochs=8, after=0, batch=1024, warmup=1, l1=3e-4)
    first = fit(Method(anchored(8), recipe), honest(ratings), 0).model
    second = fit(Method(anchored(8), replace(recipe, after=3)), honest(ratings), 0).model
    for one, other in zip(first.tables, second.tables, strict=True):
        assert 0 < one.nonzeros() < one.transform.numel()
        assert not ((one.transform == 0) & (other.transform != 0)).any()


def test_nothing_is_done_twice_and_all_of_it_is_shown(ratings: Ratings, tmp_path: Path) -> None:
    results, drawn = tmp_path / "results.json", tmp_path / "ratings.png"
    some = {name: small(METHODS[name]) for name in ("NBANT", "MF")}
    run(ratings, some, ["third"], 1, results)
    begun = json.loads(results.read_text())
    run(ratings, some, ["third", "published"], 1, results)
    rows = json.loads(results.read_text())
    assert rows[:2] == begun
    assert len(rows) == 4
    text = table.table(rows)
    assert all(f"{row['mse']:.4f}" in text for row in rows)
    assert f"{table.objective(begun[0]):.4f}" in table.grid(rows)
    assert table.nonzeros(begun[0]) > 0
    pytest.importorskip("matplotlib")
    table.picture(rows, drawn)
    assert has_colour(drawn)


@pytest.mark.skipif(not datasets.has("ml-1m"), reason="needs MovieLens-1M")
def test_the_log_is_the_published_one() -> None:
    split = published(ml1m())
    assert (split.users, split.items) == (6040, 3706)
    assert (len(split.train), len(split.test)) == (900_188, 100_021)
