"""The compression experiment end to end, on small generated data."""

from pathlib import Path

import pytest
import torch

import fewfold as ff
from experiments import readme
from experiments.recommender_compression import run
from experiments.record import Record
from fewfold.recommender import Anchors, AnchorVAE
from tests.pictures import has_colour

pytest.importorskip("matplotlib")
from experiments.recommender_compression import table

GROUPS, SIZE = 4, 25  # as many items as two lists of fifty


def split(seed: int = 0) -> ff.recommender.Split:
    """Users who like items of one group each."""
    generator = torch.Generator().manual_seed(seed)
    who = torch.arange(80).repeat_interleave(10)
    what = (who % GROUPS) * SIZE + torch.randint(SIZE, who.shape, generator=generator)
    log = ff.recommender.Interactions.from_pairs(who, what, shape=(80, GROUPS * SIZE))
    return ff.recommender.random_split(log, seed=seed)


def test_results_grow_and_are_not_measured_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "RECORD", Record(tmp_path / "results.json"))
    data = run.Data(split, 12, 20, {30: Anchors(8, 4)}, {30: Anchors(8, 6, bits=5)})
    monkeypatch.setitem(run.DATA, "tiny", data)
    run.run("tiny", run.methods(data), [0])
    first = run.RECORD.path.read_text()
    run.run("tiny", run.methods(data), [0])
    assert run.RECORD.path.read_text() == first
    rows = {row["method"]: row for row in run.RECORD.rows(data="tiny", seed=0)}
    names = ["dense", "dense, cut 30x", "dense, int8", "anchors, 30x", "low rank, 30x"]
    assert list(rows) == names
    cut = rows["dense, cut 30x"]
    assert cut["ratio"] > 20
    assert cut["NDCG@50"] > 0.6 * rows["dense"]["NDCG@50"]
    lines = [row for row in run.RECORD.rows() if row["method"] != "dense, cut 30x"]
    run.RECORD.path.unlink()
    run.RECORD.add(lines)
    run.run("tiny", ["dense"], [0])  # what is lacking, and nothing twice
    assert sorted(row["method"] for row in run.RECORD.rows()) == sorted(names)
    few, whole = rows["anchors, 30x"], rows["dense"]
    assert few["ratio"] > 20
    assert few["parameters"] < whole["parameters"] / 8
    assert rows["low rank, 30x"]["ratio"] >= 30
    assert few["NDCG@50"] > 0.6 * whole["NDCG@50"]


def test_sizes_are_those_of_the_tensors_shipped() -> None:
    model = AnchorVAE(50, Anchors(40, 2), hidden=8, latent=3)
    with torch.no_grad():
        transform = model.table.transform
        transform.mul_(transform.abs() >= transform.abs().topk(2, 1).values[:, 1:])
        transform[:20] = 0
    model.finalize()
    kept = model.tables.packed["values"].count_nonzero().item()
    size = run.small_size(model)
    anchors = model.tables.packed["anchors"].numel()
    assert size >= anchors + 2 * kept  # a byte for each number, and one for where it is
    assert size <= anchors + 2 * kept + 50 + 8 * 45 + 64  # lengths, scales, beginnings of blocks
    assert (torch.bincount(run._item(model.tables.packed), minlength=50) == 0).sum() == 20


def test_rounded_tables_stay_close() -> None:
    model = ff.recommender.FastVAE(30, hidden=8, latent=3, seed=1)
    before = [table.detach().clone() for table in model.tables.row_parameters]
    assert run._round(model) == 30 * (8 + 4) + 2 * 30 * 4
    for old, new in zip(before, model.tables.row_parameters, strict=True):
        assert torch.allclose(old, new, atol=float(old.abs().max()) / 200)
        assert not torch.equal(old, new)
        assert all(len(row.unique()) <= 255 for row in new)


@pytest.mark.parametrize("ratio", [10, 30, 100])
def test_the_rank_fills_the_size_asked_for(ratio: int) -> None:
    items = 5942
    rank = run._rank(items, ratio)
    whole = 4 * items * run.WIDTH
    assert whole / ((rank + 1) * (items + run.WIDTH + 8)) >= ratio
    assert whole / ((rank + 2) * (items + run.WIDTH + 8)) < ratio


def _rows() -> list[table.Row]:
    def row(method: str, seed: int, ndcg: float, size: int) -> table.Row:
        return {
            "data": "ml10m", "method": method, "seed": seed, "NDCG@50": ndcg, "Recall@50": 0.5,
            "bytes": size, "parameters": size // 4, "ratio": 1000 / size, "train seconds": 2.0,
        }  # fmt: skip

    return [
        row("dense", 0, 0.30, 1000), row("dense", 1, 0.31, 1000), row("dense, int8", 0, 0.30, 250),
        row("anchors, 10x", 0, 0.299, 100), row("anchors, 30x", 1, 0.3, 30),
        row("low rank, 30x", 0, 0.2, 30),
    ]  # fmt: skip


def test_losses_are_over_the_same_seeds_and_bars_say_what_was_missed() -> None:
    rows = _rows()
    assert table.loss(rows, "ml10m", "anchors, 10x") == pytest.approx(100 / 300)
    assert table.loss(rows, "ml10m", "anchors, 30x") == pytest.approx(100 / 31)
    assert table.loss(rows, "ml10m", "dense") is None
    first, second = table.bars(rows).splitlines()
    assert "10 times: met; +0.33 %" in first
    assert "30 times: **missed**; +3.23 %" in second


def test_the_table_and_the_picture(tmp_path: Path) -> None:
    lines = table.table(_rows()).splitlines()
    assert len(lines) == 2 + 5
    assert lines[2].startswith("| ML10M | dense | 1,000 | 1.0 | 250 | 0.3050 ± 0.0071 (2 seeds)")
    assert [line.split(" | ")[1] for line in lines[5:]] == ["anchors, 30x", "low rank, 30x"]
    table.draw(_rows(), tmp_path / "size.png")
    assert has_colour(tmp_path / "size.png")


def test_the_readme_has_the_markers_and_the_picture() -> None:
    text = table.README.read_text()
    assert readme.insert(text, "new") != text
    assert "size.png" in text
