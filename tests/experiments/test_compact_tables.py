"""Compact embeddings that experiments compare anchor tables with."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.compact_tables import (
    CompactEmbedding,
    FrequentEmbedding,
    HashedEmbedding,
    LowRankEmbedding,
    MixedDimEmbedding,
    slim,
    sparse_table,
)
from experiments.special_anchor_tables import compositional_codes, low_rank, vocabulary_selection
from fewfold.embeddings import AnchorEmbedding
from fewfold.embeddings.sparsify.proximal import proximal

V, D = 50, 8
COUNTS = 1000 // torch.arange(1, V + 1)
IDS = torch.tensor([[3, 0, 49], [7, 7, 12]])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# Special cases


@pytest.mark.parametrize("unknown", [False, True])
def test_vocabulary_selection_is_a_table_of_the_selected(unknown: bool) -> None:
    kept = torch.tensor([7, 3, 20])
    table = vocabulary_selection(kept, V, D, unknown=unknown)
    small = nn.Embedding(4, D, padding_idx=None if unknown else 3)
    with torch.no_grad():
        small.weight[: len(table.anchors)] = table.anchors
    place = torch.full((V,), 3).index_copy(0, kept, torch.arange(3))
    torch.testing.assert_close(table(IDS), small(place[IDS]))
    table(IDS).square().sum().backward()
    small(place[IDS]).square().sum().backward()
    assert small.weight.grad is not None
    torch.testing.assert_close(table.anchors.grad, small.weight.grad[: len(table.anchors)])
    assert table.transform.grad is None
    assert table.nonzeros() == (V if unknown else 3)


def test_low_rank_is_a_product_of_two_thin_matrices() -> None:
    table = low_rank(V, D, 3, generator=seeded())
    left, right = (part.detach().clone() for part in (table.transform, table.anchors))
    torch.testing.assert_close(table(IDS), left[IDS] @ right)
    assert table.size() == V * 3 + 3 * D == LowRankEmbedding(V, D, 3).size()
    assert (table.transform < 0).any()


def test_compositional_codes_are_sums_of_codewords() -> None:
    codes = torch.randint(5, (V, 3), generator=seeded())
    table = compositional_codes(V, D, codebooks=3, codewords=5, codes=codes)
    books = [nn.Embedding.from_pretrained(book) for book in table.anchors.detach().split(5)]
    expected = sum(book(codes[:, b][IDS]) for b, book in enumerate(books))
    torch.testing.assert_close(table(IDS), expected)
    assert not table.transform.requires_grad
    weighted = compositional_codes(V, D, codebooks=3, codewords=5, weighted=True)
    assert weighted.transform.requires_grad
    assert weighted.signed


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: vocabulary_selection([1, 1], V, D), "twice"),
        (lambda: vocabulary_selection([V], V, D), "between 0 and 49"),
        (
            lambda: compositional_codes(
                V, D, codebooks=2, codewords=3, codes=torch.full((V, 2), 3)
            ),
            "between 0 and 2",
        ),
        (
            lambda: compositional_codes(V, D, codebooks=2, codewords=3, codes=torch.ones(V)),
            r"integers \(50, 2\)",
        ),
        (lambda: LowRankEmbedding(V, D, D), "less than embedding_dim=8"),
        (lambda: HashedEmbedding(COUNTS[None], D, keep=1), "counts must be"),
    ],
)
def test_what_does_not_fit_is_said(act: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        act()


# Tables to compare with

TABLES: list[Callable[[], CompactEmbedding]] = [
    lambda: HashedEmbedding(COUNTS, D, keep=10, buckets=4, generator=seeded()),
    lambda: FrequentEmbedding(COUNTS, D, keep=10, generator=seeded()),
    lambda: MixedDimEmbedding(COUNTS, D, blocks=4, temperature=0.5, generator=seeded()),
    lambda: LowRankEmbedding(V, D, 2, generator=seeded()),
]


@pytest.mark.parametrize("make", TABLES)
def test_every_table_is_used_as_an_embedding(make: Callable[[], CompactEmbedding]) -> None:
    table = make()
    assert table(IDS).shape == (*IDS.shape, D)
    torch.testing.assert_close(table.weight[IDS], table(IDS))
    torch.testing.assert_close(table.weight, make().weight)
    assert table.size() == sum(param.numel() for param in table.parameters()) < V * D
    target = torch.randn(V, D, generator=seeded(5))
    optimizer = torch.optim.Adam(table.parameters(), lr=0.1)
    before = after = 0.0
    for step in range(30):
        optimizer.zero_grad()
        loss = (table(torch.arange(V)) - target).square().mean()
        loss.backward()
        optimizer.step()
        before, after = (loss.item() if step == 0 else before), loss.item()
    assert after < before
    hidden = torch.randn(3, D, generator=seeded(6))
    torch.testing.assert_close(table.logits(hidden), F.linear(hidden, table.weight))


def test_hashed_objects_share_and_frequent_ones_do_not() -> None:
    weight = HashedEmbedding(COUNTS, D, keep=10, buckets=4, generator=seeded()).weight
    assert len(weight[:10].unique(dim=0)) == 10
    assert len(weight[10:].unique(dim=0)) == 4
    everything = HashedEmbedding(COUNTS, D, keep=V + 5, buckets=1)
    assert len(everything.weight.unique(dim=0)) == V


def test_frequent_cuts_by_count() -> None:
    counts = torch.tensor([1, 5, 3, 9])
    table = FrequentEmbedding(counts, D, keep=2)
    assert table.weight.any(1).tolist() == [False, True, False, True]
    assert table.size() == 2 * D
    selected = vocabulary_selection([3, 1], 4, D)
    with torch.no_grad():
        selected.anchors.copy_(table.vectors)
    torch.testing.assert_close(selected.weight, table.weight)


def test_mixed_dimensions_fall_with_frequency() -> None:
    counts = 1000 / torch.arange(1.0, 401)
    shuffle = torch.randperm(400, generator=seeded())
    table = MixedDimEmbedding(counts[shuffle], 16, blocks=8, temperature=0.4)
    dims = [block.shape[1] for block in table.blocks]
    assert dims[0] == 16
    assert dims == sorted(dims, reverse=True)
    assert all(d & (d - 1) == 0 for d in dims)
    assert sum(len(block) for block in table.blocks) == 400
    assert int(table.block[shuffle.argmin()]) == 0  # the most frequent
    masses = [float(counts[shuffle][table.block == b].sum()) for b in range(2, len(dims))]
    assert max(masses) < 1.5 * min(masses)
    same = MixedDimEmbedding(counts, 16, blocks=8, temperature=0.0)
    assert same.size() == 400 * 16
    single = MixedDimEmbedding(torch.tensor([1000, 1, 1]), 4, blocks=8)
    assert single(torch.arange(3)).shape == (3, 4)


def fit(table: AnchorEmbedding, l1: float) -> Tensor:
    target = torch.randn(V, D, generator=seeded(1))
    optimizer = proximal(torch.optim.SGD([table.transform], lr=0.5), table, l1=l1)
    for _ in range(100):
        optimizer.zero_grad()
        ((table(torch.arange(V)) - target).square().sum() / 2).backward()
        optimizer.step()
    return target


def test_a_sparse_table_solves_the_lasso() -> None:
    table = sparse_table(V, D, generator=seeded())
    assert table.weight.std().item() == pytest.approx(1, abs=0.1)
    target = fit(table, 0.5)
    torch.testing.assert_close(
        table.weight, target.sign() * (target.abs() - 0.5).clamp(min=0), atol=1e-5, rtol=1e-5
    )
    assert table.nonzeros() == int((target.abs() > 0.5).sum())


def test_slimming_cuts_in_place() -> None:
    table = nn.Embedding(V, D)
    left = int((table.weight.abs() > 0.7).sum())
    assert slim(table.weight, 0.7) == left == int(table.weight.count_nonzero())
    assert slim(AnchorEmbedding(V, D, anchors=4).transform, 1e9) == 0


@pytest.mark.parametrize("bad", [-1, 6])
def test_an_id_that_names_no_row_is_refused(bad: int) -> None:
    counts = torch.tensor([5, 1, 9, 2, 3, 4])
    for table in (
        HashedEmbedding(counts, 4, keep=2, buckets=2),
        FrequentEmbedding(counts, 4, keep=2),
        MixedDimEmbedding(counts, 4, blocks=2),
        LowRankEmbedding(6, 4, 2),
    ):
        with pytest.raises(IndexError, match=f"ids must be between 0 and 5, got {bad}"):
            table(torch.tensor([[0, bad]]))
