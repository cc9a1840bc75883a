"""Relations between objects and anchors, and the penalty on shared anchors."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fewfold.embeddings.relations.relations import Relations, dissimilarity_penalty
from fewfold.embeddings.table.embedding import AnchorEmbedding

OBJECTS, ANCHORS = 30, 7


def drawn(seed: int = 0, unrelated: Any = ()) -> tuple[Relations, Tensor]:
    """Relations of a random graph, and the same as a dense matrix, worked out entry by entry."""
    generator = torch.Generator().manual_seed(seed)
    edges = torch.randint(OBJECTS, (60, 2), generator=generator)
    anchors = torch.randperm(OBJECTS, generator=generator)[:ANCHORS]
    made = Relations.from_edges(edges, objects=OBJECTS, anchors=anchors, unrelated=unrelated)
    both = {tuple(edge) for edge in edges.tolist()} | {
        tuple(edge) for edge in edges.flip(1).tolist()
    }
    dense = [[u == a or (u, a) in both for a in anchors.tolist()] for u in range(OBJECTS)]
    return made, torch.tensor(dense)


def table(width: int | None, **options: Any) -> AnchorEmbedding:
    generator = torch.Generator().manual_seed(3)
    return AnchorEmbedding(
        OBJECTS,
        4,
        anchors=ANCHORS,
        width=width,
        generator=generator,
        dtype=torch.float64,
        **options,
    )


def dense(embedding: AnchorEmbedding) -> Tensor:
    """The transform with all its columns."""
    if embedding.slots is None:
        return embedding.transform
    full = torch.zeros(OBJECTS, ANCHORS, dtype=torch.float64)
    return full.scatter_add(1, embedding.slots.long(), embedding.transform)


@pytest.mark.parametrize("seed", range(3))
def test_full_storage(seed: int) -> None:
    relations, expected = drawn(seed)
    rows = torch.tensor([5, 0, 29, 5])
    assert torch.equal(relations.exempt(None), expected)
    assert torch.equal(relations.exempt(None, rows), expected[rows])
    assert len(relations) == int(expected.sum())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_fixed_width(dtype: torch.dtype) -> None:
    relations, expected = drawn()
    slots = torch.randint(ANCHORS, (OBJECTS, 3), generator=torch.Generator().manual_seed(1))
    rows = torch.tensor([5, 0, 29, 5])
    assert torch.equal(relations.exempt(slots.to(dtype)), expected.gather(1, slots))
    some = relations.exempt(slots[rows].to(dtype), rows)
    assert torch.equal(some, expected.gather(1, slots)[rows])


def test_no_rows() -> None:
    relations, _ = drawn()
    none = torch.empty(0, dtype=torch.int64)
    assert relations.exempt(None, none).shape == (0, ANCHORS)
    assert relations.exempt(torch.empty(0, 2, dtype=torch.uint8), none).shape == (0, 2)


def test_what_is_stored_is_sparse() -> None:
    relations = Relations.from_edges([(0, 999_999)], objects=1_000_000, anchors=range(1000))
    assert len(relations) == 1001  # each anchor itself, and one edge
    slots = torch.tensor([[0, 1]], dtype=torch.int16)
    asked = relations.exempt(slots, torch.tensor([999_999]))
    assert asked.tolist() == [[True, False]]


def test_an_edge_may_have_a_direction() -> None:
    one = Relations.from_edges([(0, 1)], objects=2, anchors=[0, 1], directed=True)
    assert one.exempt(None).tolist() == [[True, True], [False, True]]
    both = Relations.from_edges([(0, 1)], objects=2, anchors=[0, 1])
    assert both.exempt(None).all()


def test_repeated_edges_and_none_at_all() -> None:
    twice = Relations.from_edges([(0, 1), (0, 1), (1, 0)], objects=3, anchors=[1])
    assert twice.offsets.tolist() == [0, 1, 2, 2]
    alone = Relations.from_edges([], objects=3, anchors=[2, 0])
    assert alone.exempt(None).tolist() == [[False, True], [False, False], [True, False]]
    assert alone.unrelated.shape == (0, 2)


def test_moved_to_a_device() -> None:
    relations, expected = drawn(unrelated=[(1, 2)])
    moved = relations.to("cpu")
    assert torch.equal(moved.exempt(None), expected)
    assert moved.unrelated.tolist() == [[1, 2]]
    assert "related=" in repr(moved)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"edges": [(0, 4)]}, "edges must be between 0 and 3, got 4"),
        ({"edges": [(0, -1)]}, "edges must be between 0 and 3, got -1"),
        ({"edges": [(0, 1, 2)]}, r"edges must have shape \(m, 2\)"),
        ({"anchors": [0, 0]}, "anchors must be different"),
        ({"anchors": [4]}, "anchors must be between 0 and 3, got 4"),
        ({"anchors": []}, "anchors must name at least one"),
        ({"objects": 0}, "objects must be at least 1"),
        ({"unrelated": [(1, 1)]}, r"unrelated must pair different objects, got \(1, 1\)"),
        ({"unrelated": [(1, 4)]}, "unrelated must be between 0 and 3"),
    ],
)
def test_refused(arguments: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"edges": [(0, 1)], "objects": 4, "anchors": [1, 2]}
    with pytest.raises(ValueError, match=message):
        Relations.from_edges(**given | arguments)


def test_wrong_kinds_of_arguments() -> None:
    with pytest.raises(TypeError, match="edges must be integers"):
        Relations.from_edges([(0.0, 1.0)], objects=2, anchors=[0])
    with pytest.raises(ValueError, match=r"slots must have shape \(30, s\), got \(2, 3\)"):
        drawn()[0].exempt(torch.zeros(2, 3, dtype=torch.uint8))
    unsorted = torch.tensor([1, 0])
    with pytest.raises(ValueError, match="slots must rise"):
        Relations(torch.tensor([0, 2, 2]), unsorted, torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="offsets"):
        Relations(torch.tensor([0, 1, 3]), unsorted, torch.tensor([0, 1]))


@pytest.mark.parametrize("width", [None, 3])
@pytest.mark.parametrize("signed", [False, True])
def test_apart_is_its_definition(width: int | None, signed: bool) -> None:
    embedding = table(width, signed=signed)
    pairs = torch.tensor([[0, 1], [4, 2], [0, 29], [7, 8]])
    rows = dense(embedding).detach().abs()
    expected = 0.3 * sum(float(rows[u] @ rows[v]) for u, v in pairs.tolist())
    assert dissimilarity_penalty(embedding, pairs, 0.3).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("width", [None, 3])
@pytest.mark.parametrize("sparse", [False, True])
def test_apart_has_a_gradient_where_the_pairs_are(width: int | None, sparse: bool) -> None:
    embedding = table(width, sparse=sparse)
    pairs = torch.tensor([[u, v] for u in (3, 5) for v in (1, 8, 9)])
    dissimilarity_penalty(embedding, pairs, 1.0).backward()
    gradient = embedding.transform.grad
    assert gradient is not None
    assert gradient.is_sparse == sparse
    reference = dense(embedding)
    expected = (reference[pairs[:, 0]].abs() * reference[pairs[:, 1]].abs()).sum()
    (exact,) = torch.autograd.grad(expected, embedding.transform)
    torch.testing.assert_close(gradient.to_dense(), exact)
    touched = gradient.to_dense().abs().sum(1).nonzero().squeeze(1)
    assert set(touched.tolist()) <= {1, 3, 5, 8, 9}


def test_apart_leaves_anchors_that_are_not_in_use() -> None:
    embedding = table(None)
    embedding.active = 2
    rows = dense(embedding).detach()[:, :2]
    value = dissimilarity_penalty(embedding, torch.tensor([[0, 1]]), 1.0)
    assert value.item() == pytest.approx(float(rows[0] @ rows[1]))


@pytest.mark.parametrize("width", [None, 3])
def test_a_sample_of_the_pairs_is_unbiased(width: int | None) -> None:
    embedding = table(width)
    pairs = torch.combinations(torch.arange(OBJECTS), 2)
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack(
        [
            dissimilarity_penalty(embedding, pairs, 1.0, samples=20, generator=generator)
            for _ in range(400)
        ]
    ).detach()
    exact = dissimilarity_penalty(embedding, pairs, 1.0).detach()
    error = draws.std() / len(draws) ** 0.5
    assert abs(draws.mean() - exact) < 4 * error  # fails once in 16,000 seeds
    assert torch.equal(
        dissimilarity_penalty(embedding, pairs[:5], 1.0, samples=5),
        dissimilarity_penalty(embedding, pairs[:5], 1.0),
    )


def test_apart_of_no_pairs_is_nothing() -> None:
    assert dissimilarity_penalty(table(3), torch.empty(0, 2, dtype=torch.int64), 1.0).item() == 0


def test_apart_refuses() -> None:
    with pytest.raises(ValueError, match="weight must be finite and at least 0"):
        dissimilarity_penalty(table(None), torch.tensor([[0, 1]]), -1.0)
    with pytest.raises(ValueError, match="samples must be at least 1"):
        dissimilarity_penalty(table(None), torch.tensor([[0, 1]]), 1.0, samples=0)


def test_refuses_a_number_of_objects_that_is_none() -> None:
    with pytest.raises(TypeError, match="objects must be an int, got float"):
        Relations.from_cooccurrence([[0, 1]], objects=2.5, anchors=[0])  # type: ignore[arg-type]
