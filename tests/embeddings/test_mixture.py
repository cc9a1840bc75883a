"""Mixtures of anchor sets and the orthogonality penalty."""

from typing import Any

import pytest
import torch

from fewfold.embeddings import Frequent, initialise_anchors
from fewfold.embeddings.sparsify.orthogonality import orthogonality
from fewfold.embeddings.sparsify.proximal import proximal
from fewfold.embeddings.table.mixture import AnchorMixture

V, D = 50, 8
IDS = torch.tensor([[3, 0, 49], [7, 7, 12]])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("width", [None, 3])
@pytest.mark.parametrize("sizes", [(6, 6), (2, 6), (1, 3, 5)], ids=str)
def test_a_mixture_is_a_softmax_over_all_anchors_of_each_set(
    sizes: tuple[int, ...], width: int | None, signed: bool
) -> None:
    same = len(set(sizes)) == 1
    words = AnchorMixture(
        V, D, mixtures=len(sizes) if same else None, anchors=sizes[0] if same else sizes,
        width=width, signed=signed, generator=seeded(),
    )  # fmt: skip
    expected = torch.zeros(V, D)
    for table in words.tables:
        with torch.no_grad():
            table.transform.mul_(torch.rand(table.transform.shape, generator=seeded(1)) > 0.4)
            table.transform[0] *= 200  # nothing overflows
        logits = table.transform
        if table.slots is not None:  # what is absent is a logit of zero
            logits = torch.zeros(V, len(table.anchors))
            logits = logits.scatter(1, table.slots.long(), table.transform)
        expected = expected + logits.softmax(1) @ table.anchors
    torch.testing.assert_close(words.weight, expected)
    torch.testing.assert_close(words(IDS), expected[IDS])
    hidden = torch.randn(4, D, generator=seeded(2))
    torch.testing.assert_close(words.logits(hidden), hidden @ expected.T)
    for mine, theirs in zip(
        torch.autograd.grad(words(IDS).square().sum(), list(words.parameters())),
        torch.autograd.grad(expected[IDS].square().sum(), list(words.parameters())),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-4)
    assert [len(table.anchors) for table in words.tables] == list(sizes)
    assert [table.transform.shape[1] for table in words.tables] == [
        size if width is None else min(width, size) for size in sizes
    ]
    assert words.size() == sum(sizes) * D + words.nonzeros()


def test_sets_of_different_sizes_are_initialised_trained_and_saved() -> None:
    words = AnchorMixture(V, D, mixtures=2, anchors=[3, 5], generator=seeded())
    counts = torch.arange(V).flip(0) + 1
    assert initialise_anchors(words.tables[0], Frequent(counts)).tolist() == [0, 1, 2]
    start = words.tables[1].anchors.detach().clone()
    optimizer = proximal(torch.optim.Adam(words.parameters(), lr=0.02), words.tables, l1=1e-3)
    words(IDS).square().sum().backward()
    optimizer.step()
    assert not torch.equal(words.tables[1].anchors, start)
    other = AnchorMixture(V, D, anchors=[3, 5])
    other.load_state_dict(words.state_dict())
    assert torch.equal(other.weight, words.weight)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"anchors": 6}, "mixtures must be given if anchors is one number"),
        ({"anchors": [3, 5], "mixtures": 3}, r"one number for each of the mixtures=3 .* \[3, 5\]"),
        ({"anchors": []}, r"one number for each .* got \[\]"),
        ({"anchors": [3, 0]}, r"anchors\[1\] must be at least 1, got 0"),
        ({"anchors": [3, 5], "width": 6}, "width must be at most anchors=5, got 6"),
    ],
)
def test_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AnchorMixture(V, D, **options)


def test_a_mixture_becomes_sparse_under_the_penalty_and_keeps_its_padding() -> None:
    words = AnchorMixture(V, D, 3, mixtures=2, anchors=6, generator=seeded())
    target = torch.randn(V, D, generator=seeded(1))
    optimizer = proximal(torch.optim.Adam(words.parameters(), lr=0.02), words.tables, l1=1e-3)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = (words(torch.arange(V)) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    assert words.nonzeros() < 2 * V * 6 / 2
    assert not words(torch.tensor(3)).any()


def test_orthogonality_is_the_sum_of_overlaps() -> None:
    anchors = torch.randn(5, 3, generator=seeded(), dtype=torch.float64, requires_grad=True)
    expected = sum(
        abs(float(a.detach() @ b.detach()))
        for i, a in enumerate(anchors)
        for j, b in enumerate(anchors)
        if i != j
    )
    assert orthogonality(anchors).item() == pytest.approx(expected)
    assert orthogonality(torch.eye(4)).item() == 0
    assert torch.autograd.gradcheck(orthogonality, (anchors,))


def test_orthogonality_needs_a_matrix() -> None:
    with pytest.raises(ValueError, match=r"\(K, d\)"):
        orthogonality(torch.ones(3))
