"""Inspection of anchors."""

import json
from pathlib import Path

import pytest
import torch

from fewfold.embeddings import AnchorEmbedding
from fewfold.embeddings.anchor_inspection import inspect_anchors
from tests.pictures import has_colour

NAMES = ["bread", "cake", "nail", "tape", "pie", "screw"]
LABELS = ["food", "food", "tool", "tool", "food", "tool"]
ENTRIES = torch.tensor(
    [[1.0, 0, 0], [2.0, 1, 0], [0, 3.0, 0], [0, 0, 0], [4.0, 0, 0], [0.5, 0.5, 0]]
)


def table(width: int | None = None) -> AnchorEmbedding:
    made = AnchorEmbedding(6, 4, anchors=3, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        made.transform.copy_(ENTRIES)
    return made if width is None else made.narrow(width)


@pytest.mark.parametrize("width", [None, 2], ids=["full", "width 2"])
def test_groups_by_share_then_weight(width: int | None) -> None:
    found = inspect_anchors(table(width), names=NAMES, labels=LABELS, top=3)
    food, tools = found.groups
    assert (food.anchor, food.objects) == (0, 4)
    assert [member.name for member in food.members] == ["pie", "bread", "cake"]
    assert [member.share for member in food.members] == pytest.approx([1, 1, 2 / 3])
    assert food.members[0].weight == 4
    assert food.weight == pytest.approx(7.5 / 12)
    assert [member.name for member in tools.members] == ["nail", "screw", "cake"]
    assert food.labels == {"food": 1.0}
    assert tools.labels == pytest.approx({"tool": 2 / 3, "food": 1 / 3})
    assert (food.purity, tools.purity) == pytest.approx((1, 2 / 3))
    assert found.purity == pytest.approx(5 / 6)
    assert found.widths == (1, 3, 2)
    assert (found.nonzeros, found.size) == (7, 2 * 4 + 7)


def test_groups_drawn_at_random_are_less_pure() -> None:
    generator = torch.Generator().manual_seed(1)
    made = AnchorEmbedding(400, 8, anchors=4)
    label = torch.randint(4, (400,), generator=generator)
    with torch.no_grad():
        made.transform.copy_(torch.nn.functional.one_hot(label, 4))
    found = inspect_anchors(made, labels=label.tolist())
    assert found.purity == 1
    assert found.chance == pytest.approx(0.45, abs=0.05)  # the best of four among ten
    shuffled = label[torch.randperm(400, generator=generator)].tolist()
    assert inspect_anchors(made, labels=shuffled).purity == pytest.approx(0.45, abs=0.15)


def test_several_labels_and_none() -> None:
    several = [{"food", "baked"}, ["baked"], None, (), "food", None]
    found = inspect_anchors(table(), labels=several, top=3)
    assert found.groups[0].labels == pytest.approx({"baked": 2 / 3, "food": 2 / 3})
    assert found.groups[1].labels == pytest.approx({"baked": 1 / 3})


@pytest.mark.parametrize("block", [2, 1000])
def test_pairs_that_are_alike_are_the_nearest(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fewfold.embeddings.anchor_inspection._BLOCK", block)
    made = AnchorEmbedding(40, 8, anchors=6, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        made.transform[7] = 0  # is like nobody
    found = inspect_anchors(made, top=100).alike
    vectors = torch.nn.functional.normalize(made.weight.detach(), dim=1)
    cosine = (vectors @ vectors.T).fill_diagonal_(-2)
    cosine[:, 7] = -2
    nearest = {(min(u, v), max(u, v)) for u, v in enumerate(cosine.argmax(1).tolist()) if u != 7}
    assert {(int(one), int(other)) for one, other, _ in found} == nearest
    values = [value for *_, value in found]
    assert values == sorted(values, reverse=True)
    assert values[0] == pytest.approx(float(cosine.max()), abs=1e-5)
    assert inspect_anchors(made, sample=0).alike == ()


def test_text_and_json_for_a_person_and_a_program() -> None:
    found = inspect_anchors(table(), names=NAMES, labels=LABELS)
    text = str(found)
    assert "6 objects mix 1.17 of 2 anchors on average (at most 2)" in text
    assert "1 are zero and 1 anchors idle" in text
    assert "food 75%" in text
    assert "pie 1.00, bread 1.00, cake 0.67" in text
    assert json.loads(json.dumps(found.as_dict()))["groups"][0]["anchor"] == 0
    many = AnchorEmbedding(300, 4, anchors=60)
    long = str(inspect_anchors(many, names=["a name that is rather long"] * 300))
    assert all(len(line) <= 100 for line in long.splitlines())
    assert "and 20 more in .groups" in long


def test_an_empty_table_can_be_looked_at() -> None:
    made = AnchorEmbedding(3, 2, anchors=2)
    with torch.no_grad():
        made.transform.zero_()
    found = inspect_anchors(made, labels=["a", "b", "c"])
    assert found.groups == ()
    assert "3 are zero and 2 anchors idle" in str(found)


def test_pictures_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for labels in (None, LABELS):
        file = tmp_path / "picture.png"
        inspect_anchors(table(), labels=labels).plot(file)
        assert has_colour(file)
        file.unlink()


def test_what_does_not_fit_is_said() -> None:
    with pytest.raises(ValueError, match="names must have one entry per row, 6, got 2"):
        inspect_anchors(table(), names=["a", "b"])
    with pytest.raises(ValueError, match="top must be at least 1"):
        inspect_anchors(table(), top=0)


def test_leaves_a_table_with_a_largest_norm_as_it_is() -> None:
    made = AnchorEmbedding(
        30, 4, anchors=6, max_norm=0.1, generator=torch.Generator().manual_seed(0)
    )
    before = made.transform.detach().clone()
    inspect_anchors(made)
    assert torch.equal(made.transform, before)
