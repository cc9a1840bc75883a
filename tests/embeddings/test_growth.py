"""Selection of the number of anchors by a validation loss."""

import copy
import json
import math
from pathlib import Path

import pytest
import torch

from fewfold.embeddings.sparsify.growth import AnchorGrowth, GrowthStep, trend
from fewfold.embeddings.sparsify.proximal import proximal
from fewfold.embeddings.table.embedding import AnchorEmbedding

# Perplexity, non-zeros, anchors, lambda 1, lambda 2, and the objective of the published table.
PUBLISHED = [
    (77.7, 245_000, 2000, 2e-5, 1e-6, 4.635855257373602),
    (79.4, 214_000, 1000, 2e-5, 1e-6, 4.607498368253091),
    (84.5, 171_000, 500, 2e-5, 1e-6, 4.617251534363128),
    (106.6, 25_000, 100, 2e-5, 1e-5, 4.920083511731744),
    (77.7, 245_000, 2000, 1e-4, 1e-6, 4.795855257373602),
    (79.4, 214_000, 1000, 1e-4, 1e-6, 4.687498368253091),
    (84.5, 171_000, 500, 1e-4, 1e-6, 4.657251534363128),
    (106.6, 25_000, 100, 1e-4, 1e-5, 4.928083511731744),
    (77.7, 245_000, 2000, 0.1, 1e-6, 204.59585525737361),
    (79.4, 214_000, 1000, 0.1, 1e-6, 104.5874983682531),
    (84.5, 171_000, 500, 0.1, 1e-6, 54.60725153436313),
    (106.6, 25_000, 100, 0.1, 1e-5, 14.918083511731744),
]


def table(rows: int = 20, anchors: int = 10, seed: int = 0) -> AnchorEmbedding:
    generator = torch.Generator().manual_seed(seed)
    return AnchorEmbedding(rows, 4, anchors=anchors, generator=generator)


def free(tables: AnchorEmbedding | list[AnchorEmbedding], **options: int) -> AnchorGrowth:
    """A controller for which anchors cost next to nothing: the objective is the loss."""
    return AnchorGrowth(tables, l1=1e-13, per_anchor=1e-12, **options)


@pytest.mark.parametrize(("ppl", "nonzeros", "anchors", "lambda1", "lambda2", "value"), PUBLISHED)
def test_the_objective_is_that_of_the_published_table(
    ppl: float, nonzeros: int, anchors: int, lambda1: float, lambda2: float, value: float
) -> None:
    one = AnchorEmbedding(10_000, 1, anchors=anchors)
    with torch.no_grad():
        one.transform.zero_().view(-1)[:nonzeros] = 1
    growth = AnchorGrowth(one, l1=lambda2, per_anchor=lambda1)
    assert growth.epoch(math.log(ppl)).objective == pytest.approx(value, rel=1e-12)


def test_tables_are_counted_together() -> None:
    tables = [table(20, 10), table(30, 6, seed=1)]
    growth = AnchorGrowth(tables, l1=0.01, per_anchor=0.5, start=4)
    nonzeros = sum(int((one.transform[:, :4] != 0).sum()) for one in tables)
    made = growth.epoch(2.0)
    assert made.nonzeros == nonzeros > 0
    assert made.objective == pytest.approx(2.0 + 0.01 * nonzeros + 0.49 * 8)


@pytest.mark.parametrize(
    ("losses", "decision"),
    [
        ([5], "grow"),
        ([5, 4], "grow"),
        ([4, 5], "grow"),
        ([5, 4, 3], "grow"),
        ([3, 4, 5], "shrink"),
        ([3, 5, 4], "keep"),
        ([5, 3, 4], "keep"),
        ([4, 4, 4], "grow"),
        ([9, 3, 4, 5], "shrink"),
    ],
)
def test_the_last_three_decide(losses: list[float], decision: str) -> None:
    assert trend(losses) == decision


def test_all_tables_move_together_between_one_and_all() -> None:
    tables = [table(anchors=10), table(anchors=7)]
    growth = free(tables, start=5, step=2)
    assert [growth.epoch(loss).active for loss in (5.0, 4.0, 3.0, 4.0)] == [
        (7, 7), (9, 7), (10, 7), (10, 7),
    ]  # fmt: skip
    assert growth.history[-1].decision == "keep"
    for loss in range(5, 12):
        made = growth.epoch(float(loss))
        assert made.decision == "shrink"
    assert made.active == (1, 1) == tuple(one.active for one in tables)


def test_best_is_the_epoch_and_its_anchors_not_those_that_follow() -> None:
    one = table()
    growth = free(one, start=3)
    made = [growth.epoch(loss) for loss in (3.0, 2.0, 1.0, 4.0, 1.5)]
    assert [step.best for step in made] == [True, True, True, False, False]
    assert growth.best == made[2]
    assert (made[2].evaluated, made[2].active) == ((5,), (6,))
    assert free(table()).best is None


def test_waiting_leaves_the_epochs_after_a_change_alone() -> None:
    growth = free(table(), start=2, wait=2)
    decisions = [growth.epoch(5.0 - epoch).decision for epoch in range(7)]
    assert decisions == ["grow", "keep", "keep", "grow", "keep", "keep", "grow"]


def test_a_clamped_decision_is_not_a_change_to_wait_for() -> None:
    growth = free(table(anchors=4), start=3, wait=1)
    assert [growth.epoch(5.0 - epoch).decision for epoch in range(4)] == [
        "grow", "keep", "grow", "grow",
    ]  # fmt: skip


def test_start_sets_the_anchors_in_use_and_no_values() -> None:
    one = table()
    before = one.transform.detach().clone()
    free(one, start=3)
    assert one.active == 3
    assert torch.equal(one.transform, before)


def test_without_a_start_tables_are_left_as_they_are() -> None:
    one = table()
    before = one.transform.detach().clone()
    growth = free(one)
    assert one.active == 10
    assert torch.equal(one.transform, before)
    assert growth.epoch(1.0).active == (10,)


def test_anchors_come_back_as_they_were() -> None:
    one = table()
    growth = free(one)
    optimizer = proximal(torch.optim.SGD(one.parameters(), lr=0.1), one, l1=1e-2)
    for loss in (1.0, 2.0, 3.0, 4.0):
        growth.epoch(loss)
    assert one.active == 8
    gone = one.transform[:, 8:].detach().clone(), one.anchors[8:].detach().clone()
    for _ in range(5):
        optimizer.zero_grad()
        one(torch.arange(20)).square().mean().backward()
        optimizer.step()
    for loss in (3.0, 2.0, 1.0):
        growth.epoch(loss)
    assert one.active == 10
    assert torch.equal(one.transform[:, 8:], gone[0])
    assert torch.equal(one.anchors[8:], gone[1])
    assert gone[0].count_nonzero() > 0


def test_it_goes_on_where_it_was(tmp_path: Path) -> None:
    losses = [5.0, 4.0, 4.5, 4.6, 4.7, 4.0, 3.9, 3.8]
    whole, one = table(), table()
    straight, first = free(whole, start=3, wait=1), free(one, start=3, wait=1)
    expected = [straight.epoch(loss) for loss in losses]
    for loss in losses[:4]:
        first.epoch(loss)
    saved = tmp_path / "growth.json"
    saved.write_text(json.dumps(first.state_dict()))  # tuples come back as lists
    other = table(seed=1)
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    second = free(other, wait=1)
    second.load_state_dict(json.loads(saved.read_text()))
    assert second.history == first.history
    assert [second.epoch(loss) for loss in losses[4:]] == expected[4:]
    assert all(isinstance(step, GrowthStep) for step in second.history)


def test_it_finds_the_rank_of_a_matrix() -> None:
    """Rows from five anchors: fewer leave an error, more only cost."""
    generator = torch.Generator().manual_seed(0)
    target = torch.rand(60, 5, generator=generator) @ torch.randn(5, 8, generator=generator)
    one = AnchorEmbedding(60, 8, anchors=16, signed=True, generator=generator)
    growth = AnchorGrowth(one, l1=1e-6, per_anchor=0.02, start=2, wait=2)
    optimizer = torch.optim.Adam(one.parameters(), lr=0.03)
    for _ in range(60):
        for _ in range(40):
            optimizer.zero_grad()
            loss = (one.weight - target).square().mean()
            loss.backward()
            optimizer.step()
        growth.epoch(loss.item())
    assert growth.best is not None
    assert growth.best.evaluated[0] in (4, 5, 6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"l1": 0.1, "per_anchor": 0.1}, "per_anchor must be greater than l1=0.1, got 0.1"),
        ({"l1": 0.1, "per_anchor": 0.01}, "per_anchor must be greater"),
        ({"l1": 0.0, "per_anchor": 0.1}, "l1 must be finite and greater than 0"),
        ({"l1": 0.1, "per_anchor": 1.0, "step": 0}, "step must be at least 1"),
        ({"l1": 0.1, "per_anchor": 1.0, "wait": -1}, "wait must be at least 0"),
        ({"l1": 0.1, "per_anchor": 1.0, "start": 11}, "active must be at most anchors=10"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AnchorGrowth(table(), **options)  # type: ignore[arg-type]


def test_tables_that_cannot_grow_are_refused() -> None:
    with pytest.raises(ValueError, match="write width=None"):
        free(AnchorEmbedding(20, 4, anchors=10, width=2))
    with pytest.raises(TypeError, match="must be AnchorEmbedding, got Embedding"):
        free([torch.nn.Embedding(3, 4)])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="at least one"):
        free([])


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_refused(loss: float) -> None:
    growth = free(table())
    with pytest.raises(ValueError, match="validation_loss must be finite"):
        growth.epoch(loss)
    assert growth.history == []
