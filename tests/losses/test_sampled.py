"""Sampled losses: convergence to the full losses, and sparse gradients."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fewfold as ff
from fewfold import _native

pytestmark = pytest.mark.usefixtures("path")
both_ways = pytest.mark.parametrize("shared", [False, True], ids=["per query", "shared"])
ITEMS, DIM, ROWS = 80, 6, 4
JAGGED = (torch.tensor([3, 7, 7, 0, 79, 5]), torch.tensor([0, 3, 3, 5, 6]))
ROW = torch.tensor([0, 0, 0, 2, 2, 3])


def problem(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(ROWS, DIM, generator=generator, dtype=dtype)
    items = torch.randn(ITEMS, DIM, generator=generator, dtype=dtype)
    return queries.requires_grad_(), items.requires_grad_()


def full(queries, items):
    return -(queries @ items.T).log_softmax(1)[ROW, JAGGED[0]]


@both_ways
@pytest.mark.parametrize(
    "proposal",
    [
        ff.Uniform(),
        ff.MultiIndex(4),
        ff.MultiIndex(4, within="exact"),
        ff.sampling.QuadraticKernel(),
    ],
    ids=["uniform", "index", "exact", "quadratic"],
)
def test_with_many_draws_it_is_the_full_loss_and_gradient(proposal, shared):
    queries, items = problem()
    proposal.fit(items)
    generator = torch.Generator().manual_seed(1)
    loss = ff.sampled_softmax_loss(
        queries, items, JAGGED, proposal, samples=30_000, shared=shared, generator=generator,
        reduction="none",
    )  # fmt: skip
    expected = full(queries, items)
    torch.testing.assert_close(loss, expected, atol=0.06, rtol=0)
    ours = torch.autograd.grad(loss.mean(), (queries, items))
    theirs = torch.autograd.grad(expected.mean(), (queries, items))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.to_dense(), other, atol=0.03, rtol=0)


def test_drawn_from_the_softmax_itself_one_draw_gives_the_value_up_to_log_two():
    queries, items = problem()
    proposal = ff.MultiIndex(4, within="exact").fit(items)
    loss = ff.sampled_softmax_loss(queries, items, JAGGED, proposal, samples=1, reduction="none")
    torch.testing.assert_close(loss, full(queries, items) + math.log(2), atol=1e-4, rtol=0)


@both_ways
@pytest.mark.parametrize("loss", [ff.sampled_softmax_loss, ff.noise_contrastive_loss])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kernels_and_torch_agree_on_the_same_draws(loss, shared, dtype, path):
    if path == "torch":
        pytest.skip("compares both paths")
    queries, items = problem(dtype)
    proposal = ff.Uniform().fit(items)  # its draws are the same on both paths
    answers = []
    for native in (True, False):
        generator = torch.Generator().manual_seed(2)
        options = {"samples": 33, "shared": shared, "remove_hits": True, "generator": generator}
        if native:
            value = loss(queries, items, JAGGED, proposal, **options)
            slopes = torch.autograd.grad(value, (queries, items))
        else:
            with _native.disabled():
                value = loss(queries, items, JAGGED, proposal, **options)
                slopes = torch.autograd.grad(value, (queries, items))
        answers.append([value.detach(), *(slope.to_dense() for slope in slopes)])
    for mine, other in zip(*answers, strict=True):
        torch.testing.assert_close(mine, other, atol=2e-5, rtol=1e-5)


@both_ways
def test_only_positives_and_draws_get_a_gradient(shared):
    queries, items = problem()
    proposal = ff.Uniform().fit(items)
    draws = {"samples": 5, "shared": shared}
    ids, _ = proposal.sample(queries, 5, shared=shared, generator=torch.Generator().manual_seed(4))
    generator = torch.Generator().manual_seed(4)
    ff.sampled_softmax_loss(
        queries, items, JAGGED, proposal, generator=generator, **draws
    ).backward()
    assert items.grad.is_sparse
    touched = set(items.grad.coalesce().indices()[0].tolist())
    assert touched == set(ids.flatten().tolist()) | set(JAGGED[0].tolist())


def test_every_way_to_give_positives_and_items():
    queries, items = problem()
    proposal = ff.Uniform().fit(items)

    def loss(items, positives, **options):
        generator = torch.Generator().manual_seed(5)
        return ff.sampled_softmax_loss(
            queries, items, positives, proposal, samples=9, generator=generator, **options
        )

    ids = torch.tensor([4, 5, 6, 7])
    offsets = torch.arange(5)
    expected = loss(items, ids)
    torch.testing.assert_close(loss(items, ids[:, None]), expected)
    torch.testing.assert_close(loss(items, (ids, offsets)), expected)
    torch.testing.assert_close(loss(nn.Embedding.from_pretrained(items), ids), expected)
    torch.testing.assert_close(loss(lambda which: F.embedding(which, items), ids), expected)
    torch.testing.assert_close(loss(items * 1.0, ids), expected)  # not a leaf
    assert loss(items, ids, reduction="none").shape == (4,)
    assert loss(items, ids.view(4, 1), reduction="none").shape == (4, 1)
    torch.testing.assert_close(loss(items, ids, reduction="sum"), 4 * expected)
    folded = ff.sampled_softmax_loss(
        queries.view(2, 2, DIM), items, ids.view(2, 2), proposal, samples=9, reduction="none",
        generator=torch.Generator().manual_seed(5),
    )  # fmt: skip
    torch.testing.assert_close(folded.mean(), expected)
    assert folded.shape == (2, 2)
    empty = (torch.empty(0, dtype=torch.int64), torch.zeros(5, dtype=torch.int64))
    assert loss(items, empty) == 0


@both_ways
def test_hits_are_left_out_on_demand(shared):
    queries, items = problem()
    proposal = ff.Popularity().fit(items, F.one_hot(torch.tensor(7), ITEMS) + 0.0)
    positives = torch.full((ROWS,), 7)
    options = {"samples": 6, "shared": shared, "reduction": "none"}
    kept = ff.sampled_softmax_loss(queries, items, positives, proposal, **options)
    torch.testing.assert_close(kept, torch.full((ROWS,), math.log(7 / 6)))
    removed = ff.sampled_softmax_loss(
        queries, items, positives, proposal, remove_hits=True, **options
    )
    torch.testing.assert_close(removed, torch.full((ROWS,), -math.log(6)))
    slopes = torch.autograd.grad(removed.sum(), queries)[0]
    assert slopes.abs().max() == 0


def test_noise_contrastive_estimation_finds_normalised_scores():
    """A table of log-probabilities learnt from samples alone comes out normalised."""
    generator = torch.Generator().manual_seed(6)
    probs = torch.tensor([0.5, 0.3, 0.15, 0.05])
    table = nn.Parameter(torch.zeros(4, 1))
    noise = ff.Uniform().fit(table)
    optimizer = torch.optim.SGD([table], lr=0.5)
    for _ in range(400):
        positives = torch.multinomial(probs, 256, replacement=True, generator=generator)
        optimizer.zero_grad()
        ff.noise_contrastive_loss(
            torch.ones(256, 1), table, positives, noise, samples=4, generator=generator
        ).backward()
        table.grad = table.grad.to_dense()
        optimizer.step()
    torch.testing.assert_close(table.detach().exp().squeeze(1), probs, atol=0.04, rtol=0)


def test_bad_input_is_named():
    queries, items = problem()
    proposal = ff.Uniform().fit(items)
    ids = torch.tensor([0, 1, 2, 3])

    def loss(positives=ids, queries=queries, proposal=proposal, **options):
        return ff.sampled_softmax_loss(queries, items, positives, proposal, **options)

    with pytest.raises(ValueError, match=r"between 0 and 79, got 80 at 2"):
        loss(torch.tensor([0, 1, 80, 3]))
    with pytest.raises(ValueError, match=r"got -1 at 0"):
        loss(torch.tensor([-1, 1, 8, 3]))
    with pytest.raises(ValueError, match=r"positives must be \(4,\)"):
        loss(ids[:3])
    with pytest.raises(ValueError, match=r"offsets must be \(5,\)"):
        loss((ids, torch.tensor([0, 4])))
    with pytest.raises(ValueError, match="must not decrease"):
        loss((ids, torch.tensor([0, 3, 2, 3, 4])))
    with pytest.raises(TypeError, match="int64"):
        loss(ids.int())
    with pytest.raises(ValueError, match="samples must be a positive int, got 0"):
        loss(samples=0)
    with pytest.raises(ValueError, match=r"queries must be a floating-point tensor \(B, d\)"):
        loss(queries=queries[0])
    rare = ff.Popularity().fit(items, (torch.arange(ITEMS) > 2).double())
    with pytest.raises(ValueError, match=r"item 0 is a positive .* counts \+ 1"):
        loss(proposal=rare)


def test_a_proposal_that_draws_what_does_not_exist_is_refused():
    queries, items = problem()
    larger = ff.Uniform().fit(torch.zeros(10_000, DIM))
    with pytest.raises(IndexError):
        ff.sampled_softmax_loss(queries, items, torch.arange(4), larger)


@both_ways
@pytest.mark.parametrize("loss", [ff.sampled_softmax_loss, ff.noise_contrastive_loss])
def test_padding_counts_for_nothing(loss, shared):
    queries, items = problem()
    proposal = ff.Uniform().fit(items)
    padded = torch.tensor([[3, 7, 7], [-100, -100, -100], [0, -100, 79], [-100, 5, -100]])

    def of(positives, **options):
        generator = torch.Generator().manual_seed(2)
        options = {"samples": 9, "shared": shared, "generator": generator, **options}
        return loss(queries, items, positives, proposal, **options)

    assert torch.equal(of(padded), of(JAGGED))
    each = of(padded, reduction="none")
    assert torch.equal(each[padded >= 0], of(JAGGED, reduction="none"))
    assert (each[padded < 0] == 0).all()
    assert torch.equal(of(padded.clamp(min=-1), ignore_index=-1), of(JAGGED))
    assert of(torch.full((ROWS,), -100)) == 0
    with_gap = (torch.tensor([3, 7, 7, 0, -100, 79, 5]), torch.tensor([0, 3, 3, 6, 7]))
    assert torch.equal(of(with_gap), of(JAGGED))
    with pytest.raises(ValueError, match="got 99 at 4"):
        of(torch.tensor([[-100, -100, 1], [-100, 99, 3], [0, 0, 0], [0, 0, 0]]))


@both_ways
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_items_that_are_no_numbers_show(value, shared):
    queries, items = problem()
    proposal = ff.Uniform().fit(items)
    items = items.detach().clone()
    items[:, 0] = value
    loss = ff.sampled_softmax_loss(queries, items, JAGGED, proposal, samples=9, shared=shared)
    assert not loss.isfinite()


@both_ways
def test_an_item_of_minus_infinity_weighs_nothing(shared):
    queries, items = problem()
    proposal = ff.Uniform().fit(items)
    queries = torch.cat([queries.detach(), torch.ones(ROWS, 1)], 1).requires_grad_()
    table = torch.cat([items.detach(), torch.zeros(ITEMS, 1)], 1)
    table[::2, -1] = -torch.inf
    odd = (torch.tensor([3, 7, 7, 1, 79, 5]), JAGGED[1])
    loss = ff.sampled_softmax_loss(
        queries, table, odd, proposal, samples=20_000, shared=shared,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    expected = -(queries @ table.T).log_softmax(1)[ROW, odd[0]].mean()
    torch.testing.assert_close(loss, expected, atol=0.05, rtol=0)


def test_log_q_of_a_proposal_of_ones_own_may_be_broadcast():
    queries, items = problem()

    class Flat(ff.Uniform):
        def given(self, queries, *, shared=False):
            given, sample = super().given(queries, shared=shared), None
            sample = given.sample
            given.sample = lambda n, **options: (
                sample(n, **options)[0],
                torch.full((len(queries), 1), -math.log(ITEMS)),
            )
            return given

    losses = [
        ff.sampled_softmax_loss(
            queries, items, JAGGED, kind().fit(items), samples=9,
            generator=torch.Generator().manual_seed(0),
        )
        for kind in (Flat, ff.Uniform)
    ]  # fmt: skip
    torch.testing.assert_close(*losses)
