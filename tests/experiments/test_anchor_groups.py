"""What anchors group, on a table of a few words."""

import pytest
import torch

import fewfold as ff
from experiments import datasets
from experiments.ptb_language_model.anchor_groups import groups, lexicographer_files


def test_groups_of_one_kind_are_pure() -> None:
    """Two kinds of words, each with an anchor of its own, and words beyond the frequent ones."""
    words = tuple(f"{kind}{n}" for n in range(20) for kind in "ab")
    labels = [{word[0]} for word in words]
    table = ff.AnchorEmbedding(40, 4, anchors=2)
    with torch.no_grad():
        table.transform.zero_()
        table.transform[0::2, 0] = torch.arange(20, 0, -1.0)
        table.transform[1::2, 1] = 0.5
        table.transform[30:] = 7.0  # share anchors, but are rare
    found = groups(table, labels, words, frequent=30)
    assert found["purity"] == 1.0
    assert 0.5 < found["chance"] < 0.9
    assert {word[0] for word in found["groups"][0]["words"]} == {"a"}
    assert found["largest pairs"][:2] == [["a1", 0], ["a2", 0]]
    assert groups(table, labels, words, frequent=40)["words"] == 40


@pytest.mark.nightly
@pytest.mark.skipif(not datasets.has("wordnet"), reason="needs WordNet")
def test_files_of_inflected_words() -> None:
    person, motion = "18", "38"
    dancers, danced, unknown = lexicographer_files(("dancers", "danced", "xqzt"))
    assert dancers == {person}
    assert motion in danced
    assert unknown == set()
