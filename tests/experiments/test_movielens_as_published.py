"""Training as in the authors' code, against Yogi with dense gradients in torch."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from experiments.compiled import library
from experiments.movielens_ratings import (
    cut_trained,
    genres,
    growth_sweep,
    published_run,
    published_table,
)
from experiments.movielens_ratings.dense_yogi import SOURCE, Trainer, Yogi, step_sizes
from experiments.movielens_ratings.models import WIDTH
from experiments.movielens_ratings.ratings import Ratings
from experiments.movielens_ratings.row_tables import RowTable, anchored_rows, dense_rows, mixed_rows
from fewfold.embeddings.table.embedding import AnchorEmbedding
from tests.pictures import has_colour

pytestmark = pytest.mark.skipif(library(SOURCE) is None, reason="needs a C++ compiler")
SETTINGS = Yogi(batch=4, halve_after=200)
COUNTS = torch.arange(30) + 1
L1 = 3e-3


@pytest.fixture(scope="module")
def ratings() -> Ratings:
    """Random ratings: some rows are in a batch often, some seldom, some twice."""
    generator = torch.Generator().manual_seed(0)
    users = (30 * torch.rand(1200, generator=generator).square()).long()
    items = torch.randint(30, (1200,), generator=generator)
    return Ratings(users, items, torch.randint(1, 6, (1200,), generator=generator).float())


def tables(make) -> tuple[RowTable, RowTable]:
    generator = torch.Generator().manual_seed(0)
    return make(COUNTS, generator), make(COUNTS, generator)


def vectors(table: RowTable, values: Tensor, anchors: Tensor, rows: Tensor) -> Tensor:
    """These rows times the anchors of their blocks, differentiably."""
    found = []
    for row in rows.tolist():
        block = table.block[row]
        wide, begin = int(table.widths[block]), int(table.start[row])
        mine, first = values[begin : begin + wide], int(table.anchor_start[block])
        own = anchors[first : first + wide * table.width].view(-1, table.width)
        found.append(mine if table.identity[block] else mine @ own)
    return torch.stack(found)


def densely(pair: tuple[RowTable, RowTable], ratings: Ratings, *, plain: bool) -> list[Tensor]:
    """Return rows and anchors of both tables, and the bias, after an epoch in float64."""
    params = [what.double() for table in pair for what in (table.values, table.anchors)]
    params.append(torch.zeros((), dtype=torch.float64))
    params = [param.requires_grad_() for param in params]
    means = [torch.zeros_like(param) for param in params]
    squares = [torch.full_like(param, 1e-6) for param in params]
    for t, part in enumerate(torch.arange(len(ratings)).split(SETTINGS.batch), 1):
        users = vectors(pair[0], *params[:2], ratings.users[part])
        items = vectors(pair[1], *params[2:4], ratings.items[part])
        stars = (users * items).sum(1) + params[4]
        loss = (stars - ratings.stars[part]).square().mean()
        slopes = torch.autograd.grad(loss, params, materialize_grads=True)
        size = 0.01 * 0.5 ** ((t - 1) // 200) * math.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        with torch.no_grad():
            for i, (param, slope) in enumerate(zip(params, slopes, strict=True)):
                means[i].mul_(0.9).add_(slope, alpha=0.1)
                squares[i] -= 0.001 * torch.sign(squares[i] - slope**2) * slope**2
                rate = size / (squares[i].sqrt() + 1e-3)
                param -= rate * means[i]
                if i in (0, 2) and pair[0].penalised:
                    param.sub_(L1 * (size if plain else rate)).clamp_(min=0)
    return params


@pytest.mark.parametrize(
    ("make", "plain"),
    [
        (anchored_rows(5), False),
        (anchored_rows(5), True),
        (dense_rows(penalised=True), False),
        (mixed_rows(4, 0.6), False),
        (mixed_rows(4, 0.6, 32), False),
    ],
    ids=["anchors", "plain threshold", "penalised", "mixed", "mixed, width 32"],
)
def test_the_closed_form_is_that_of_dense_steps(ratings: Ratings, make, plain: bool) -> None:
    pair = tables(make)
    expected = densely(pair, ratings, plain=plain)
    model = Trainer(
        *pair, bias=True, steps=400, settings=replace(SETTINGS, plain_threshold=plain)
    )  # fmt: skip
    model.epoch(ratings, torch.arange(400), l1=L1)
    model.epoch(ratings, torch.arange(400, 1200), l1=L1)
    ours = [what for table in pair for what in (table.values, table.anchors)]
    for mine, its in zip([*ours, model.bias[0]], expected, strict=True):
        torch.testing.assert_close(mine.double(), its.detach(), rtol=1e-4, atol=1e-5)
    if pair[0].penalised and not plain:
        zeros = expected[0] == 0
        assert 0 < zeros.sum() < zeros.numel()
        assert torch.equal(pair[0].values == 0, zeros)
    with pytest.raises(ValueError, match="more steps than planned"):
        model.epoch(ratings, torch.arange(1200), l1=L1)


def test_sums_of_step_sizes() -> None:
    size, total, tail = step_sizes(Yogi(halve_after=3), 7)
    assert size[4] / size[3] < 0.6
    assert total[5] - total[2] == pytest.approx(size[3:6].sum())
    assert tail[2] == pytest.approx(sum(0.9**k * size[2 + k] for k in range(1, 6)))


def test_pruned_anchors_return_with_new_first_values(ratings: Ratings) -> None:
    pair = tables(anchored_rows(6, active=4))
    model = Trainer(*pair, bias=True, steps=400, settings=SETTINGS)
    model.epoch(ratings, torch.arange(1200), l1=1e-4)
    for table in pair:
        table.values.view(30, 6)[:, 1] = 0
    before = model.mse(ratings)
    assert model.prune() == 3
    assert model.mse(ratings) == pytest.approx(before, rel=1e-5)
    for table in pair:
        assert table.transform().count_nonzero(0).tolist()[3] == 0
    model.renew(3, 4, torch.Generator().manual_seed(1))
    fresh = pair[0].fresh(torch.Generator().manual_seed(1))
    for wide, values in ((pair[0].values, fresh.values),):
        assert torch.equal(wide.view(30, 6)[:, 3], values.view(30, 6)[:, 3])
    assert not model._moments[0][0].view(30, 6)[:, 3].any()


def test_rows_and_what_they_tell(ratings: Ratings, tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    some = {
        name: replace(published_run.METHODS[name], epochs=3)
        for name in ("MF", "ANT, 5 and 10 anchors, l1 0.0001")
    }
    published_run.run(ratings, some, ["third"], 1, results)
    regimes = {
        "all": growth_sweep.Regime(
            start=2, delay=1, wait=1, pause=True, fresh=True, prune=True, epochs=6
        ),
        "published": growth_sweep.Regime(epochs=6),
        "fixed": growth_sweep.Regime(start=4, adapt=False, epochs=6),
    }  # fmt: skip
    growth_sweep.run(ratings, regimes, ["third"], 1, results)
    rows = {row["method"]: row for row in json.loads(results.read_text())}
    dense = rows["as published: MF"]
    assert dense["parameters"] == 2 * WIDTH * 30
    assert len(dense["curve"]) == 3
    assert dense["validation mse"] == min(dense["curve"])
    names = {name.removeprefix(growth_sweep.PREFIX): row for name, row in rows.items()}
    assert [entry[0] for entry in names["published"]["history"][:3]] == [10, 11, 12]
    assert {entry[0] for entry in names["fixed"]["history"]} == {4}
    assert names["all"]["epoch"] > 1


def test_a_trained_table_is_cut_to_its_budget(ratings: Ratings, tmp_path: Path) -> None:
    cuts = (cut_trained.Cut(600, 2),)
    cut_trained.run(ratings, cuts, ["third"], 1, tmp_path / "results.json")
    first, second = json.loads((tmp_path / "results.json").read_text())
    assert first["parameters"] <= 600
    assert second["parameters"] == first["parameters"]
    assert second["validation mse"] != first["validation mse"]


def test_tables_and_figure_of_rows(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    row = {"mse": 0.5, "validation mse": 0.6, "epoch": 1, "parameters": 7000, "split": "third"}
    rows = [{**row, "method": f"{published_run.PREFIX}MF", "curve": [0.7, 0.6]}]
    change = {"anchors": [3, 3], "anchors in use": [2, 3], "nonzeros": 90}
    for name, objective in (("published", 1.1), ("published, fixed at 2", 1.0)):
        method = growth_sweep.PREFIX + name
        rows.append({**row, **change, "method": method, "objective": objective})
    assert "| 0.5000 | 7.0K | 1 |" in published_table.as_published(rows)
    assert "| 2 and 3 | 0.6000 | 0.5000 | 90 | 1.1000 | +10.0% |" in published_table.growth(rows)
    published_table.convergence(rows, tmp_path / "convergence.png")
    assert has_colour(tmp_path / "convergence.png")


def test_purity_of_anchors_with_one_genre() -> None:
    table = AnchorEmbedding(40, WIDTH, anchors=2)
    with torch.no_grad():
        table.transform.copy_(torch.eye(2).repeat(20, 1))
    kinds = [["Comedy"], ["Drama"]] * 20
    row = genres.describe(table, kinds)
    assert row["purity"] == row["purity of all films"] == 1
    assert 0.4 < row["by chance"] < 0.8
    assert {group[0] for group in row["groups"]} == {"Comedy", "Drama"}
    text = published_table.purity(
        [{**row, "method": f"{genres.PREFIX}{next(iter(genres.MODELS))}"}]
    )
    assert "100.0%" in text
