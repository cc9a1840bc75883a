"""Support: conversion from and to dense rows, and maps that return it."""

import pytest
import torch

import fewfold as ff
from tests.maps.cases import random_scores


def test_from_dense_and_back():
    probs = ff.sparsemax(random_scores(4, 7))
    support = ff.Support.from_dense(probs)
    assert support.rows == 4
    assert torch.equal(support.to_dense(7), probs)
    assert torch.equal(support.counts, (probs != 0).sum(-1))
    assert support.weights.shape == support.atoms.shape == support.row.shape
    assert (support.weights != 0).all()


def test_rows_flatten_the_batch_in_order():
    probs = ff.sparsemax(random_scores(2, 3, 5))
    support = ff.Support.from_dense(probs)
    assert support.rows == 6
    assert torch.equal(support.to_dense(5), probs.reshape(6, 5))
    moved = ff.Support.from_dense(probs.movedim(-1, 1), dim=1)
    assert torch.equal(moved.to_dense(5), probs.reshape(6, 5))
    single = ff.Support.from_dense(probs[0, 0])
    assert single.rows == 1


def test_rows_without_atoms_count():
    probs = torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.5, 0.5], [0.0, 0.0]])
    support = ff.Support.from_dense(probs)
    assert support.rows == 4
    assert support.counts.tolist() == [1, 0, 2, 0]
    assert torch.equal(support.to_dense(2), probs)
    assert torch.equal(support.reduce(torch.ones(3)), probs.sum(-1))


def test_nothing_at_all():
    for shape in ((0, 5), (3, 0)):
        support = ff.Support.from_dense(torch.zeros(shape))
        assert support.weights.shape == (0,)
        assert support.to_dense(shape[1]).shape == shape


def test_reduce_is_the_expectation():
    probs = ff.sparsemax(random_scores(4, 7))
    table = random_scores(7, 3, seed=1)
    support = ff.Support.from_dense(probs)
    torch.testing.assert_close(support.reduce(table[support.atoms]), probs @ table)
    torch.testing.assert_close(support.reduce(table[support.atoms, 0]), probs @ table[:, 0])


def test_weights_carry_the_gradient():
    scores = random_scores(4, 7).requires_grad_()
    table = random_scores(7, 3, seed=1).requires_grad_()

    def sparse(scores, table):
        support = ff.Support.from_dense(ff.sparsemax(scores))
        return support.reduce(table[support.atoms])

    got = torch.autograd.grad(sparse(scores, table).square().sum(), (scores, table))
    want = torch.autograd.grad((ff.sparsemax(scores) @ table).square().sum(), (scores, table))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)
    assert torch.autograd.gradcheck(sparse, (scores, table))


def test_atoms_may_be_any_event():
    support = ff.Support(
        weights=torch.tensor([0.25, 0.75, 1.0]),
        atoms=torch.tensor([[1, 0], [0, 1], [1, 1]]),
        row=torch.tensor([0, 0, 1]),
        rows=2,
    )
    means = support.reduce(support.atoms.float())
    torch.testing.assert_close(means, torch.tensor([[0.25, 0.75], [1.0, 1.0]]))
    with pytest.raises(TypeError, match="index"):
        support.to_dense(2)


def test_support_is_frozen():
    support = ff.Support.from_dense(torch.eye(2))
    with pytest.raises(AttributeError):
        support.rows = 3


def test_shapes_that_do_not_agree():
    good = {"weights": torch.ones(3), "atoms": torch.arange(3), "row": torch.zeros(3).long()}
    for bad in (
        {"weights": torch.ones(2)},
        {"weights": torch.ones(3, 1)},
        {"atoms": torch.arange(2)},
        {"row": torch.zeros(4).long()},
    ):
        with pytest.raises(ValueError, match=r"\("):
            ff.Support(**(good | bad), rows=1)
    support = ff.Support(**good, rows=1)
    with pytest.raises(ValueError, match="values"):
        support.reduce(torch.ones(2))


OMEGAS = [
    ff.Gini(),
    ff.Tsallis(1.25),
    ff.Tsallis(1.5),
    ff.Tsallis(2.0),
    ff.Tsallis(3.0),
    ff.Norm(2.0),
    ff.Norm(3.0),
    ff.Shannon(),
    ff.Subset(3),
]


@pytest.mark.parametrize("omega", OMEGAS, ids=str)
@pytest.mark.parametrize("n", [1, 6, 40, 5000])
def test_map_support_is_the_support_of_the_map(omega, n, path):
    n = max(n, 3)
    for dtype in (torch.float64, torch.float32):
        scores = random_scores(2, 3, n, dtype=dtype)
        support = ff.map_support(scores, omega)
        assert support.rows == 6
        assert support.weights.dtype == dtype
        dense = omega.argmax(scores).reshape(6, n)
        torch.testing.assert_close(support.to_dense(n), dense, atol=1e-6, rtol=0)
        assert (support.weights > 0).all()


def test_map_support_defaults_to_sparsemax(path):
    scores = random_scores(4, 9)
    torch.testing.assert_close(ff.map_support(scores).to_dense(9), ff.sparsemax(scores))


def test_map_support_with_dim_mask_and_empty_rows(path):
    scores = random_scores(9, 4)
    mask = random_scores(9, 4, seed=1) > -0.5
    mask[:, 2] = False
    support = ff.map_support(scores, ff.Tsallis(1.5), dim=0, mask=mask)
    want = ff.entmax(scores, 1.5, dim=0, mask=mask).t()
    torch.testing.assert_close(support.to_dense(9), want)
    assert support.counts[2] == 0
    bad = scores.t().clone()
    bad[1, 3] = torch.nan
    rest = ff.map_support(bad).to_dense(9)
    torch.testing.assert_close(rest[[0, 2, 3]], ff.sparsemax(bad[[0, 2, 3]]))
    assert rest[1].isnan().any()


@pytest.mark.parametrize("omega", OMEGAS, ids=str)
@pytest.mark.parametrize("n", [12, 4000])
def test_map_support_gives_the_gradient_of_the_map(omega, n, path):
    scores = random_scores(3, n).requires_grad_()
    table = random_scores(n, 2, seed=1)

    support = ff.map_support(scores, omega)
    (got,) = torch.autograd.grad(support.reduce(table[support.atoms]).square().sum(), scores)
    (want,) = torch.autograd.grad((omega.argmax(scores) @ table).square().sum(), scores)
    torch.testing.assert_close(got, want, atol=1e-8, rtol=1e-8)


def test_map_support_learns_alpha(path):
    scores = random_scores(3, 30)
    table = random_scores(30, 2, seed=1)
    alpha = torch.tensor(1.4, dtype=torch.float64, requires_grad=True)
    support = ff.map_support(scores, ff.Tsallis(alpha))
    (got,) = torch.autograd.grad(support.reduce(table[support.atoms]).sum(), alpha)
    (want,) = torch.autograd.grad((ff.entmax(scores, alpha) @ table).sum(), alpha)
    torch.testing.assert_close(got, want)


def test_map_support_of_a_very_wide_row(path):
    scores = random_scores(2, 1_000_000, dtype=torch.float32)
    support = ff.map_support(scores, ff.Tsallis(1.5))
    assert support.weights.numel() < 1000
    torch.testing.assert_close(support.to_dense(1_000_000), ff.entmax(scores, 1.5))
