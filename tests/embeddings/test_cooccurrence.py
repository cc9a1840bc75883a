"""Relations from co-occurrence."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from fewfold.embeddings.initial.features import cooccurrence_features
from fewfold.embeddings.relations.relations import Relations

TEXTS = [[0, 1, 2, 0], [3, 1], [4], [2, 5, 5, 3, 0, 2]]
ANCHORS = [0, 5]


def near(texts: list[list[int]], window: int) -> Counter[tuple[int, int]]:
    """How often an object and another place with an anchor are close, counted one by one."""
    return Counter(
        (u, v)
        for text in texts
        for i, u in enumerate(text)
        for j, v in enumerate(text)
        if i != j and abs(i - j) <= window and v in ANCHORS
    )


def matrix(pairs: set[tuple[int, int]]) -> list[list[bool]]:
    return [[u == a or (u, a) in pairs for a in ANCHORS] for u in range(6)]


@pytest.mark.parametrize("window", [1, 2, 10])
@pytest.mark.parametrize("least", [1, 2])
def test_pairs_within_the_window(window: int, least: int) -> None:
    made = Relations.from_cooccurrence(
        TEXTS, objects=6, anchors=ANCHORS, window=window, least=least
    )
    met = {pair for pair, count in near(TEXTS, window).items() if count >= least}
    assert made.exempt(None).tolist() == matrix(met)


@pytest.mark.parametrize("stream", [torch.tensor(TEXTS[3]), TEXTS[3], [torch.tensor(TEXTS[3])]])
def test_one_stream_or_lists_of_any_kind(stream: Any) -> None:
    made = Relations.from_cooccurrence(stream, objects=6, anchors=ANCHORS, window=2)
    assert made.exempt(None).tolist() == matrix(set(near([TEXTS[3]], 2)))


def test_the_most_telling_anchors_are_kept() -> None:
    # Object 2 meets anchor 0 twice, but 0 is everywhere and 1 only here.
    texts = [[2, 0], [2, 0], [2, 1], [0, 0, 0, 0]]
    made = Relations.from_cooccurrence(texts, objects=3, anchors=[0, 1], window=1, width=1)
    assert made.exempt(None).tolist() == [[True, False], [False, True], [False, True]]


def test_width_holds_for_every_object() -> None:
    text = torch.randint(50, (2000,), generator=torch.Generator().manual_seed(0))
    made = Relations.from_cooccurrence(text, objects=50, anchors=range(20), width=3)
    others = made.exempt(None)
    others[torch.arange(20), torch.arange(20)] = False
    assert others.sum(1).tolist() == [3] * 50


def test_nothing_is_near_in_nothing() -> None:
    empty: list[Tensor] = []
    made = Relations.from_cooccurrence(empty, objects=3, anchors=[1])
    assert len(made) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"documents": [[0, 6]]}, "documents must hold ids from 0 to objects - 1 = 5"),
        ({"window": 0}, "window must be at least 1"),
        ({"least": 0}, "least must be at least 1"),
        ({"width": 0}, "width must be at least 1"),
        ({"anchors": [6]}, "anchors must be between 0 and 5"),
    ],
)
def test_refused(arguments: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"documents": TEXTS, "objects": 6, "anchors": ANCHORS}
    with pytest.raises(ValueError, match=message):
        Relations.from_cooccurrence(**given | arguments)


def test_features_are_as_many_as_asked_for() -> None:
    found = cooccurrence_features([[0, 1, 2], [0, 2]], 3, dim=5)
    assert found.shape == (3, 5)
    assert not found[:, 3:].any()
    assert found[:, :3].any()
