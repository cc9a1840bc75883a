"""Sampled losses of anchored items against those of the dense table."""

import pytest
import torch

import fewfold as ff
from fewfold import _native
from fewfold.embeddings.sparsify.proximal import proximal
from fewfold.embeddings.table.embedding import AnchorEmbedding
from fewfold.losses.sampled_scores import Anchored, log_sum_picked, picked_scores

ROWS, ITEMS, DIM = 5, 60, 12
MORE = (torch.tensor([3, 7, 7, 0, 59]), torch.tensor([0, 3, 3, 3, 4, 5]))


def table(width=3, *, sparse=True, dtype=torch.float64, anchors=9):
    generator = torch.Generator().manual_seed(0)
    return AnchorEmbedding(
        ITEMS, DIM, anchors=anchors, width=width, sparse=sparse, dtype=dtype, generator=generator
    )


def problem(dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    queries = torch.randn(ROWS, DIM, dtype=dtype, generator=generator).requires_grad_()
    ids = torch.randint(ITEMS, (ROWS, 11), generator=generator)
    log_q = torch.randn(ROWS, 11, dtype=dtype, generator=generator)
    return queries, ids, log_q


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("width", [1, 3, 8, 9])
@pytest.mark.parametrize("summed", [True, False])
def test_scores_and_gradients_are_those_of_the_dense_table(dtype, sparse, width, summed, path):
    items, (queries, ids, log_q) = table(width, sparse=sparse, dtype=dtype), problem(dtype)
    leaves = (queries, items.anchors, items.transform)
    dense = items.weight
    scores, more = (queries @ dense.T).gather(1, ids), queries[[0, 0, 0, 3, 4]]
    more = (more * dense[MORE[0]]).sum(1)
    if summed:
        scores = (scores - log_q).logsumexp(1)
        ours = log_sum_picked(queries, items, ids, log_q, MORE)
    else:
        ours = picked_scores(queries, items, ids, MORE)
    tolerance = 1e-4 if dtype == torch.float32 else 1e-10
    close = {"atol": tolerance, "rtol": tolerance}
    torch.testing.assert_close(ours, (scores, more), **close)
    pull = [torch.linspace(-1, 2, x.numel(), dtype=dtype).view(x.shape) for x in ours]
    got = torch.autograd.grad(ours, leaves, pull)
    want = torch.autograd.grad((scores, more), leaves, pull)
    assert got[2].is_sparse == sparse
    for mine, other in zip(got, want, strict=True):
        torch.testing.assert_close(mine.to_dense(), other.to_dense(), **close)


@pytest.mark.parametrize("width", [4, None], ids=["fixed width", "full"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("loss", [ff.sampled_softmax_loss, ff.noise_contrastive_loss])
def test_losses_are_those_of_the_dense_table(loss, shared, width, path):
    items, (queries, _, _) = table(width), problem()
    proposal = ff.Uniform().fit(items.weight.detach())
    options = {"samples": 20, "shared": shared, "reduction": "none"}
    draw = [torch.Generator().manual_seed(3) for _ in range(2)]
    ours = loss(queries, items, MORE, proposal, generator=draw[0], **options)
    dense = loss(queries, items.weight.detach(), MORE, proposal, generator=draw[1], **options)
    torch.testing.assert_close(ours, dense, atol=1e-6, rtol=1e-6)


def test_a_positive_that_is_no_item_is_named(path):
    items, (queries, ids, _) = table(), problem()
    proposal = ff.Uniform().fit(items.weight.detach())
    bad = (torch.tensor([ITEMS]), torch.tensor([0, 1, 1, 1, 1, 1]))
    with pytest.raises(ValueError, match="between 0 and 59, got 60"):
        ff.sampled_softmax_loss(queries, items, bad, proposal)
    ids[2, 2] = -4
    with pytest.raises(IndexError, match="between 0 and 59, got -4"):
        picked_scores(queries, items, ids, MORE)


def test_rows_pay_what_they_owe_before_they_are_scored(path):
    items, (queries, ids, _) = table(), problem()
    rows = ff.optim.Adam([items.transform], lr=0.05)
    optimizer = proximal(rows, items, l1=0.5)
    for step in range(4):
        optimizer.zero_grad()
        items(torch.arange(step, ITEMS, 2)).sum().backward()
        optimizer.step()
    scores, _ = picked_scores(queries, items, ids, MORE)
    expected = (queries @ items.weight.T).gather(1, ids)
    torch.testing.assert_close(scores, expected)


def test_a_table_that_asks_for_more_is_asked_for_vectors(path):
    queries, ids, _ = problem()
    items = AnchorEmbedding(ITEMS, DIM, padding_idx=3, anchors=9, width=3, dtype=torch.float64)
    picked_scores(queries, items, ids, MORE)[1].sum().backward()
    assert items.transform.grad.to_dense()[3].count_nonzero() == 0


def test_an_anchor_table_is_known_as_one():
    assert isinstance(table(), Anchored)
    assert not isinstance(torch.nn.Embedding(3, 2), Anchored)
    assert not isinstance(torch.zeros(3, 2), Anchored)


@pytest.mark.native
def test_transforms_take_the_plain_path():
    items, (queries, ids, _) = table(), problem()
    calls = []
    items.register_forward_hook(lambda *_: calls.append(1))
    picked_scores(queries, items, ids, MORE)
    with _native.disabled():
        picked_scores(queries, items, ids, MORE)
    assert len(calls) == 1
