"""Initialisation of anchors by every method."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fewfold.embeddings import (
    AnchorEmbedding,
    AnchorInitialisation,
    Clusters,
    Frequent,
    FrequentThenClusters,
    Pretrained,
    RandomBasis,
    Relations,
    TfIdf,
    initialise_anchors,
)
from fewfold.embeddings.coding.spread_rows import spread_rows
from fewfold.embeddings.initial.features import cooccurrence_features

V, D, K = 60, 8, 6
COUNTS = torch.arange(V).flip(0) * 7 % 61
FEATURES = torch.randn(V, 5, generator=torch.Generator().manual_seed(1))
TABLE = torch.randn(V, D, generator=torch.Generator().manual_seed(2))
OBJECTS: list[AnchorInitialisation] = [
    Frequent(COUNTS),
    TfIdf(COUNTS.float(), (COUNTS // 2 + 1).clamp(max=20), 20),
    Clusters(FEATURES),
    FrequentThenClusters(COUNTS, FEATURES),
]
EVERY: list[AnchorInitialisation] = [*OBJECTS, RandomBasis(), Pretrained(TABLE, width=3)]
both = pytest.mark.parametrize("width", [None, 3], ids=["full", "width 3"])


def name(method: AnchorInitialisation) -> str:
    return type(method).__name__


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def dense(table: AnchorEmbedding) -> Tensor:
    if table.slots is None:
        return table.transform.detach()
    return torch.zeros(V, K).scatter_add_(1, table.slots.long(), table.transform.detach())


def made(width: int | None, **options: int) -> AnchorEmbedding:
    return AnchorEmbedding(V, D, anchors=K, width=width, generator=seeded(9), **options)


@both
@pytest.mark.parametrize("method", OBJECTS, ids=name)
def test_an_object_that_is_an_anchor_is_that_anchor_alone(
    method: AnchorInitialisation, width: int | None
) -> None:
    table = made(width)
    ids = initialise_anchors(table, method, seeded())
    assert ids.dtype == torch.int64
    assert len(ids.unique()) == K
    torch.testing.assert_close(dense(table)[ids], torch.eye(K))
    torch.testing.assert_close(table(ids), table.anchors)
    others = torch.ones(V, dtype=torch.bool).index_fill(0, ids, False)
    rest = table.transform.detach()[others]
    assert (rest >= 0).all()
    assert float(rest.square().mean()) == pytest.approx(2 / V, rel=0.3)
    if table.slots is not None:
        assert (table.slots.sort(1).values.long().diff(dim=1) > 0).all()
    Relations.from_edges([(0, 1)], objects=V, anchors=ids)  # takes them as they are


@both
@pytest.mark.parametrize("method", EVERY, ids=name)
def test_the_same_generator_the_same_start(method: AnchorInitialisation, width: int | None) -> None:
    tables = [made(width), AnchorEmbedding(V, D, anchors=K, width=width, generator=seeded(3))]
    ids = [initialise_anchors(table, method, seeded(4)) for table in tables]
    assert torch.equal(*ids)
    assert torch.equal(*(table.weight for table in tables))
    initialise_anchors(tables[1], method, seeded(5))
    assert not torch.equal(*(table.weight for table in tables))


def test_frequent_anchors_in_the_order_of_their_counts() -> None:
    ids = initialise_anchors(made(None), Frequent(COUNTS))
    assert ids.tolist() == sorted(range(V), key=lambda v: (-int(COUNTS[v]), v))[:K]


def test_tf_idf_passes_over_what_is_everywhere() -> None:
    documents = [[0, 0, 0, 1 + d, 1 + d, 20 + d] for d in range(8)]
    method = TfIdf.of(documents, V)
    assert method.counts[0] == 24
    assert method.frequency[0] == method.documents == 8
    assert method.scores()[0] == 0
    assert set(initialise_anchors(made(None), method).tolist()) <= set(range(1, 9))


def test_clusters_find_the_groups_and_share_keeps_the_frequent() -> None:
    groups = 50 * torch.randn(K, 3, generator=seeded(7))
    features = groups.repeat_interleave(10, 0) + torch.randn(V, 3, generator=seeded(8)) * 0.01
    ids = initialise_anchors(made(None), Clusters(features), seeded())
    assert sorted((ids // 10).tolist()) == list(range(K))
    mixed = initialise_anchors(
        made(None), FrequentThenClusters(torch.arange(V), features, 0.5), seeded()
    )
    assert mixed[:3].tolist() == [59, 58, 57]
    assert not (mixed[3:] // 10 == 5).any()  # far from those


def test_anchors_start_as_the_vectors_of_their_objects() -> None:
    table = made(3)
    ids = initialise_anchors(table, Frequent(COUNTS, vectors=TABLE))
    assert torch.equal(table(ids), TABLE[ids])


@both
def test_padding_is_no_anchor_and_stays_zero(width: int | None) -> None:
    for method in EVERY:
        table = made(width, padding_idx=0)
        assert 0 not in initialise_anchors(table, method, seeded()).tolist()
        assert not table(torch.tensor([0])).any()
    assert 0 in initialise_anchors(made(width), Frequent(-torch.arange(V))).tolist()
    lonely = FEATURES.clone()
    lonely[0] = 1e4  # farthest from all others
    assert 0 in initialise_anchors(made(width), Clusters(lonely), seeded()).tolist()
    assert (
        0 not in initialise_anchors(made(width, padding_idx=0), Clusters(lonely), seeded()).tolist()
    )


@both
def test_pretrained_comes_close_and_a_random_basis_does_not(width: int | None) -> None:
    low = torch.rand(V, K, generator=seeded(1))
    low = low * (low >= low.topk(3).values[:, -1:]) @ torch.randn(K, D, generator=seeded(2))
    table = made(width)
    initialise_anchors(table, Pretrained(low, width=3), seeded())
    assert float((table.weight.detach() - low).norm() / low.norm()) < 0.35
    assert table.nonzeros() <= 3 * V
    initialise_anchors(table, RandomBasis(), seeded())
    assert float((table.weight.detach() - low).norm() / low.norm()) > 1


def test_features_from_what_occurs_together() -> None:
    documents = [
        (torch.randint(10, (200,), generator=seeded(g)) + 10 * g).tolist() for g in range(3)
    ]
    features = cooccurrence_features(documents, 31, window=3, dim=3, generator=seeded())
    ids = spread_rows(features[:30], 3, seeded())
    assert sorted((ids // 10).tolist()) == [0, 1, 2]
    assert not features[30].any()


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (
            lambda: initialise_anchors(made(None), Frequent(torch.ones(3))),
            r"shape \(60,\), got \(3,\)",
        ),
        (lambda: initialise_anchors(made(None), Frequent(torch.full((V,), torch.nan))), "finite"),
        (lambda: initialise_anchors(made(None), Clusters(torch.ones(3, 2))), r"shape \(60, 2\)"),
        (lambda: initialise_anchors(made(None), Clusters(FEATURES * torch.nan)), "finite"),
        (lambda: initialise_anchors(made(None), Pretrained(FEATURES)), r"shape \(60, 8\)"),
        (
            lambda: initialise_anchors(made(None), Frequent(COUNTS, FEATURES)),
            r"vectors .* \(60, 8\)",
        ),
        (
            lambda: initialise_anchors(made(None), FrequentThenClusters(COUNTS, FEATURES, 2)),
            "share",
        ),
        (lambda: TfIdf.of([[V]], V), "from 0 to objects - 1 = 59"),
        (
            lambda: initialise_anchors(
                AnchorEmbedding(3, D, 0, anchors=3), Frequent(torch.ones(3))
            ),
            "at most 2 of them, got 3",
        ),
    ],
)
def test_what_does_not_fit_is_said(act: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        act()


TIMES = torch.arange(12.0)
WRONG: list[tuple[Any, type[Exception], str]] = [
    ("frequent", TypeError, "method must be RandomBasis"),
    (Frequent(torch.ones(3)), ValueError, "counts must be a tensor of shape"),
    (Frequent(TIMES.log()), ValueError, "counts must be finite"),
    (Frequent(TIMES, torch.ones(12, 3)), ValueError, "vectors must be a tensor of shape"),
    (TfIdf(TIMES, torch.ones(2), 3), ValueError, "frequency must be a tensor of shape"),
    (Clusters(torch.ones(3, 2)), ValueError, "features must be a tensor of shape"),
    (Clusters(torch.full((12, 2), torch.nan)), ValueError, "features must be finite"),
    (FrequentThenClusters(TIMES, torch.ones(12, 2), share=2.0), ValueError, "share"),
    (Pretrained(torch.ones(3, 4)), ValueError, "table must be a tensor of shape"),
    (Pretrained(torch.ones(12, 4), width=0), ValueError, "width must be at least 1"),
    (Pretrained(torch.full((12, 4), torch.inf)), ValueError, "table must be finite"),
]


@pytest.mark.parametrize(("method", "error", "words"), WRONG)
def test_what_is_refused_changes_nothing(method: Any, error: type[Exception], words: str) -> None:
    table = AnchorEmbedding(12, 4, anchors=3, generator=torch.Generator().manual_seed(0))
    before = [param.detach().clone() for param in table.parameters()]
    with pytest.raises(error, match=words):
        initialise_anchors(table, method)
    assert all(torch.equal(a, b) for a, b in zip(before, table.parameters(), strict=True))
