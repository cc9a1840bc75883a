"""Construction of bags as published, and the experiment end to end."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fewfold as ff
from experiments.multiple_instance_learning import bags, run
from experiments.multiple_instance_learning.bags import Bags
from experiments.multiple_instance_learning.model import MAPS, Filters, Pooled, scores, see_regions
from experiments.multiple_instance_learning.training import Settings, area, fit
from experiments.record import Record
from tests.pictures import has_colour

pytest.importorskip("matplotlib")
from experiments.multiple_instance_learning import table
from tests.nightly import first


def easy(count: int, seed: int = 0, dim: int = 6) -> Bags:
    """Bags of two to six vectors; in a positive one at least one has a high first entry."""
    chance = np.random.RandomState(seed)
    sizes = chance.randint(2, 7, count)
    labels = [i % 2 for i in range(count)]
    vectors = chance.randn(sizes.sum(), dim).astype(np.float32)
    members = np.split(np.arange(sizes.sum()), sizes.cumsum()[:-1])
    for own, label in zip(members, labels, strict=True):
        vectors[own[0], 0] += 6 * label
    return bags.gather(torch.from_numpy(vectors), members, labels)


def seen(dim: int = 6) -> nn.Module:
    return nn.Sequential(nn.Linear(dim, 16), nn.ReLU())


@pytest.mark.parametrize("least", [1, 2, 3, 5])
def test_bags_have_nines_as_their_label_says(least: int) -> None:
    labels = np.random.RandomState(0).randint(0, 10, 3000)
    made = bags.pairs(labels, least, 200, seed=0)
    nines = np.array([(labels[bag] == bags.TARGET).sum() for bag in made])
    assert (nines[1::2] >= least).all()
    assert (nines[::2] < least).all()
    assert [len(bag) for bag in made[::2]] == [len(bag) for bag in made[1::2]]
    assert all(len(set(bag)) == len(bag) for bag in made)
    assert abs(np.mean([len(bag) for bag in made]) - 9 - least + 0.5) < 0.5
    again = bags.pairs(labels, least, 200, seed=0)
    assert all((a == b).all() for a, b in zip(made, again, strict=True))


def test_bags_selected_are_those_bags() -> None:
    every = easy(9)
    which = torch.tensor([7, 2, 2])
    some = every.select(which)
    for place, number in enumerate(which.tolist()):
        own = some.members[some.first[place] : some.first[place + 1]]
        assert own.equal(every.members[every.first[number] : every.first[number + 1]])
    vectors, taken = some.padded(some.instances[some.members])
    assert taken.sum(1).equal(some.first.diff())
    assert vectors[taken].equal(some.instances[some.members])
    assert not vectors[~taken].any()


def test_folds_are_even_and_all_different() -> None:
    labels = torch.cat([torch.zeros(100), torch.ones(100)])
    part = bags.folds(labels, 10, seed=3)
    for fold in range(10):
        assert labels[part == fold].sum() == 10
        assert (part == fold).sum() == 20
    assert not part.equal(bags.folds(labels, 10, seed=4))


def test_an_area_is_the_share_of_pairs_in_order() -> None:
    generator = torch.Generator().manual_seed(0)
    found = torch.randint(0, 5, (60,), generator=generator).float()
    labels = torch.randint(0, 2, (60,), generator=generator).float()
    high, low = found[labels == 1, None], found[labels == 0]
    wins = (high > low).double() + (high == low).double() / 2
    assert area(found, labels) == pytest.approx(float(wins.mean()), abs=1e-12)


def test_filters_are_a_convolution() -> None:
    torch.manual_seed(0)
    filters, images = Filters(4), torch.randn(3, 28, 28)
    weight = filters.weight.view(4, 1, 5, 5)
    expected = nn.functional.conv2d(images.unsqueeze(1), weight, filters.bias)
    torch.testing.assert_close(filters(images), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", first(3, MAPS))
def test_every_map_tells_easy_bags_apart(name: str) -> None:
    torch.manual_seed(0)
    network = Pooled(seen(), ff.HopfieldPooling(16, MAPS[name], 1.0, 2), relu=True)
    parts = easy(160), easy(60, 1), easy(60, 2)
    found = fit(
        network, parts, Settings(1e-2, size=16, epochs=12), torch.Generator().manual_seed(0)
    )
    assert found.test["area"] > 90


def test_a_bag_scores_the_same_alone_and_among_others() -> None:
    torch.manual_seed(0)
    network = Pooled(seen(), ff.HopfieldPooling(16, MAPS["5-subsets"], 1.0, 2), relu=True).eval()
    every = easy(8)
    together = scores(network, every)
    alone = torch.cat([scores(network, every.select(torch.tensor([i]))) for i in range(8)])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)


def test_training_stops_and_keeps_the_best_epoch() -> None:
    torch.manual_seed(0)
    network = Pooled(seen(), ff.HopfieldPooling(16, MAPS["sparsemax"]), relu=True)
    told: list[float] = []
    parts = easy(40), easy(40, 1), easy(40, 2)
    found = fit(
        network, parts, Settings(1e-2, size=8, epochs=40, patience=3),
        torch.Generator().manual_seed(0), lambda epoch, valid: told.append(valid["area"]),
    )  # fmt: skip
    assert found.epochs == len(told) < 40
    assert found.epochs - found.epoch == 3
    assert found.valid["area"] == max(told) == told[found.epoch - 1]


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    """Keep what is measured out of the folder of the experiment, and all bags small."""
    kept, tuned = Record(tmp_path / "results.json"), Record(tmp_path / "tuning.json")
    monkeypatch.setattr(run, "RECORD", kept)
    monkeypatch.setattr(run, "TUNING", tuned)
    monkeypatch.setattr(table, "RECORD", kept)
    monkeypatch.setattr(bags, "animals", lambda name: easy(40, dim=230))
    return kept


TINY = run.Budget(Settings(1e-3, epochs=2), Settings(1e-3, size=8, epochs=2), folds=3)


def test_settings_are_searched_for_then_rows_are_added_once(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="run with --tune"):
        run.run(["fox"], ["softmax"], [1], TINY)
    run.tune(["fox"], ["softmax", "2-subsets"], TINY)
    tuned = run.TUNING.rows(map="softmax")
    assert len(tuned) == len(run.GRID["animals"])
    chosen = run.best("fox", "softmax")
    areas = {(row["beta"], row["dropout"]): row["valid"]["area"] for row in tuned}
    assert areas[chosen.beta, chosen.dropout] == max(areas.values())
    for _ in range(2):
        run.run(["fox"], ["softmax", "2-subsets"], [1, 2], TINY)
    assert len(record.rows()) == 4
    first = record.rows(map="softmax", seed=1)[0]
    again = run.measure("fox", "softmax", chosen, TINY, 1)
    assert again["test"] == first["test"]


def test_the_table_has_published_next_to_ours(record: Record, tmp_path: Path) -> None:
    length = run.length(run.SHORT.digits)
    rows = [
        {
            "task": task, "map": name, "seed": seed, **length,
            "test": {"right": 90.0 + seed, "area": 80.0},
        }
        for task in ("3", "fox") for name in ("softmax", "3-subsets") for seed in (1, 3)
    ]  # fmt: skip
    shorter = {**rows[0], "most epochs": 1, "test": {"right": 10.0, "area": 10.0}}
    record.add([*rows, shorter])
    told = table.table(record.rows())
    assert "92.0 ± 1.4" in told
    assert "97.3 ± 0.4" in told
    assert "80.0 ± 0.0" in told
    alone = table.table(record.rows(seed=1))
    assert "| 91.0 |" in alone
    assert "*" not in alone
    path = tmp_path / "table.png"
    table.readme.keep(table.draw(record.rows()), path)
    assert has_colour(path)


def test_networks_of_both_kinds_have_their_sizes() -> None:
    pooling = run.Pooling(1.0, 0.75)
    digits, regions = (run.network(task, "softmax", pooling) for task in ("3", "fox"))
    assert (digits.pool.dim, regions.pool.dim) == (500, 32)
    assert regions.pool.heads == ff.hopfield.Heads(12, 32, 0.75)
    assert see_regions(8)(torch.randn(3, 230)).shape == (3, 8)


def test_long_runs_differ_from_the_published_in_rate_and_batch_only() -> None:
    own, published = run.LONG.digits, run.FULL.digits
    assert replace(own, lr=published.lr, size=published.size) == published
