"""Sampled losses with invalid or empty input: errors, or a loss of zero."""

import itertools

import pytest
import torch
from torch import Tensor, nn

import fewfold as ff

pytestmark = pytest.mark.usefixtures("path")
ITEMS, DIM, ROWS = 30, 6, 4
LOSSES = [ff.sampled_softmax_loss, ff.noise_contrastive_loss]
every_loss = pytest.mark.parametrize("loss", LOSSES)
both_ways = pytest.mark.parametrize("shared", [False, True], ids=["per query", "shared"])
POSITIVES = torch.tensor([0, 3, 3, 29])


def table(width: int = DIM, items: int = ITEMS) -> Tensor:
    return torch.randn(items, width, generator=torch.Generator().manual_seed(0))


@every_loss
@both_ways
@pytest.mark.parametrize(
    "given",
    [table(), nn.Embedding(ITEMS, DIM), ff.AnchorEmbedding(ITEMS, DIM, anchors=5, width=2)],
    ids=["tensor", "embedding", "anchors"],
)
def test_queries_of_another_width_than_the_items(loss, shared, given):
    items = table()
    proposal = ff.Uniform().fit(items)
    for width in (DIM - 1, DIM + 1, 200_000):
        with pytest.raises(ValueError, match=r"queries must be \(B, 6\), as wide as the items"):
            loss(torch.randn(ROWS, width), given, POSITIVES, proposal, samples=5, shared=shared)


@every_loss
def test_items_that_are_no_items(loss):
    queries, proposal = torch.randn(ROWS, DIM), ff.Uniform().fit(table())
    with pytest.raises(TypeError, match=r"nn.Linear maps vectors. Write items=linear.weight"):
        loss(queries, nn.Linear(DIM, ITEMS), POSITIVES, proposal)
    with pytest.raises(ValueError, match=r"items must be a table \(M, d\), got shape \(6,\)"):
        loss(queries, table()[0], POSITIVES, proposal)
    with pytest.raises(TypeError, match=r"items must be a table .* got list"):
        loss(queries, [[1.0]], POSITIVES, proposal)
    for answer in (lambda ids: table()[ids][0], lambda ids: table()[:2], lambda ids: None):
        with pytest.raises(ValueError, match=r"a function from ids \(\d+,\) to vectors"):
            loss(queries, answer, POSITIVES, proposal)
    # A function has its own width; torch says where it does not fit.
    assert loss(queries, nn.Linear(DIM, ITEMS).weight, POSITIVES, proposal).isfinite()


class Odd(ff.Uniform):
    """A proposal of one's own that changes what it has drawn."""

    def __init__(self, ids=lambda ids: ids, log_q=lambda q: q, positive=lambda q: q):
        self.change = ids, log_q, positive

    def given(self, queries, *, shared=False):
        made, (ids, log_q, positive) = super().given(queries, shared=shared), self.change

        class Given(type(made)):
            def sample(self, n, *, generator=None):
                drawn = super().sample(n, generator=generator)
                return ids(drawn[0]), log_q(drawn[1])

            def log_prob(self, ids, row=None):
                return positive(super().log_prob(ids, row))

        made.__class__ = Given
        return made


UNFIT = {
    "too large": (Odd(ids=lambda ids: ids + ITEMS), IndexError, "Odd must return ids between 0"),
    "huge": (Odd(ids=lambda ids: ids + 2**60), IndexError, r"29, got 1152921504606\d+ at"),
    "negative": (Odd(ids=lambda ids: ids - ITEMS), IndexError, r"0 and 29, got -\d+ at position"),
    "one too many": (Odd(ids=lambda ids: torch.cat([ids, ids], -1)), ValueError, "must return ids"),
    "one more dimension": (Odd(ids=lambda ids: ids[None]), ValueError, "must return ids"),
    "none": (Odd(ids=lambda ids: ids[..., :0]), ValueError, "must return ids"),
    "no integers": (Odd(ids=lambda ids: ids.float()), TypeError, "integer ids"),
    "truths": (Odd(ids=lambda ids: ids.bool()), TypeError, "integer ids"),
    "no tensor": (Odd(ids=lambda ids: ids.tolist()), TypeError, "ids as a tensor, got list"),
    "long log q": (Odd(log_q=lambda q: q.repeat_interleave(2, -1)), ValueError, "shaped like its"),
    "log q of rows": (Odd(log_q=lambda q: q[..., :0]), ValueError, "shaped like its ids"),
    "log q of nan": (
        Odd(log_q=lambda q: q.index_fill(-1, torch.tensor([2]), torch.nan)),
        ValueError, r"log q of Odd must be numbers below inf, got nan at position 2",
    ),
    "log q of inf": (Odd(log_q=lambda q: q + torch.inf), ValueError, "got inf at position 0"),
    "positives of nan": (
        Odd(positive=lambda q: q.index_fill(0, torch.tensor([3]), torch.nan)),
        ValueError, r"log q of positives of Odd must be .*, got nan at position 3",
    ),
    "positives": (Odd(positive=lambda q: q[:-1]), ValueError, r"log q of shape \(4,\)"),
}  # fmt: skip


@both_ways
@pytest.mark.parametrize("name", UNFIT)
def test_a_proposal_that_answers_what_does_not_fit(shared, name):
    proposal, error, match = UNFIT[name]
    anchored = ff.AnchorEmbedding(ITEMS, DIM, anchors=5, width=2)
    proposal.fit(table())
    for loss, items, hits in itertools.product(LOSSES, (table(), anchored), (False, True)):
        with pytest.raises(error, match=match):
            loss(
            torch.randn(ROWS, DIM), items, POSITIVES, proposal, samples=7, shared=shared,
            remove_hits=hits,
        )  # fmt: skip


def test_ids_of_another_width_are_taken():
    queries, items = torch.randn(ROWS, DIM), table()
    same = {"samples": 3, "generator": None}
    for loss in LOSSES:
        torch.manual_seed(0)
        expected = loss(queries, items, POSITIVES, ff.Uniform().fit(items), **same)
        torch.manual_seed(0)
        narrow = Odd(ids=lambda ids: ids.int()).fit(items)
        torch.testing.assert_close(loss(queries, items, POSITIVES, narrow, **same), expected)


@every_loss
@both_ways
@pytest.mark.parametrize("hits", [False, True], ids=["", "without hits"])
@pytest.mark.parametrize(
    "proposal",
    [ff.Uniform(), ff.Popularity(), ff.MultiIndex(3), ff.MultiIndex(3, within="exact"),
     ff.sampling.QuadraticKernel(), ff.sampling.Dynamic(3)],
    ids=lambda proposal: type(proposal).__name__,
)  # fmt: skip
def test_a_batch_of_nothing_has_no_loss(loss, shared, hits, proposal):
    items = table().requires_grad_()
    proposal.fit(items, torch.ones(ITEMS))
    options = {"samples": 3, "shared": shared, "remove_hits": hits}
    queries = torch.empty(0, DIM, requires_grad=True)
    for positives in (torch.empty(0, dtype=torch.int64), torch.empty(0, 2, dtype=torch.int64)):
        total = loss(queries, items, positives, proposal, **options)
        assert total == 0
        total.backward()
        each = loss(queries, items, positives, proposal, reduction="none", **options)
        assert each.shape == positives.shape
    none = torch.empty(0, dtype=torch.int64), torch.zeros(ROWS + 1, dtype=torch.int64)
    assert loss(torch.randn(ROWS, DIM), items, none, proposal, **options) == 0


@pytest.mark.parametrize("loss", [ff.sampled_softmax_loss, ff.noise_contrastive_loss])
def test_positives_a_proposal_does_not_have_and_unknown_reductions(loss):
    queries, items = torch.randn(2, 4), torch.randn(9, 4)
    fitted = ff.Uniform().fit(items[:5])
    with pytest.raises(IndexError, match="ids must be between 0 and 4, got 7 at position 1"):
        loss(queries, items, torch.tensor([1, 7]), fitted, samples=3)
    with pytest.raises(ValueError, match="reduction must be 'none', 'mean' or 'sum', got 'men'"):
        loss(queries, items, torch.tensor([1, 2]), fitted, samples=3, reduction="men")
