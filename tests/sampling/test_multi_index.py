"""Properties of the multi-index alone."""

import pytest
import torch

import fewfold as ff

from .cases import problem

pytestmark = pytest.mark.usefixtures("path")
every = torch.arange(60).expand(3, 60)


def test_one_item_per_cell_is_the_softmax():
    queries, items, _ = problem()
    proposal = ff.MultiIndex(60, codebooks=1).fit(items)
    expected = (queries @ items.T).log_softmax(1)
    torch.testing.assert_close(proposal.log_prob(queries, every), expected, atol=1e-5, rtol=1e-5)


def test_one_codeword_ignores_the_query():
    queries, items, counts = problem()
    for within, mass in (("uniform", torch.ones(60).double()), ("popularity", counts)):
        proposal = ff.MultiIndex(1, within=within).fit(items, counts)
        expected = (mass / mass.sum()).expand(3, 60)
        probs = proposal.log_prob(queries, every).double().exp()
        torch.testing.assert_close(probs, expected, atol=1e-6, rtol=1e-5)


def test_divergence_from_the_softmax_is_bounded():
    """KL(q || softmax) <= 2 C |z|, C the largest residual; less with better codebooks."""
    queries, items, _ = problem()
    target = (queries @ items.T).double().log_softmax(1)
    kl = []
    for words in (1, 4, 16):
        proposal = ff.MultiIndex(words).fit(items)
        log_q = proposal.log_prob(queries, every).double()
        divergence = (log_q.exp() * (log_q - target)).sum(1)
        residual = (items - proposal.quantised()).norm(dim=1).max()
        assert (divergence <= 2 * residual * queries.norm(dim=1) + 1e-6).all()
        kl.append(divergence.mean().item())
    assert kl[0] > kl[1] > kl[2] >= -1e-6


def test_items_without_counts_are_never_drawn():
    queries, items, counts = problem()
    proposal = ff.MultiIndex(4, within="popularity").fit(items, counts)
    assert (counts == 0).any()
    ids, _ = proposal.sample(queries, 5000)
    assert counts[ids].min() > 0
    log_q = proposal.log_prob(queries, every)
    assert torch.equal(log_q == -torch.inf, (counts == 0).expand(3, 60))


@pytest.mark.parametrize("scale", [1e4, 1e-6])
def test_scores_of_any_size(scale):
    queries, items, counts = problem()
    for within in ("uniform", "popularity"):
        proposal = ff.MultiIndex(4, within=within).fit(items, counts)
        log_q = proposal.sample(queries * scale, 100)[1]
        assert log_q.isfinite().all()
        assert (log_q <= 1e-4).all()
        total = proposal.log_prob(queries * scale, every).double().logsumexp(1)
        assert total.abs().max() < 1e-5 * max(1, scale / 10)


def test_fitting_again_with_one_seed_gives_the_same_index():
    queries, items, _ = problem()
    one, two = (ff.MultiIndex(5, seed=3).fit(items).log_prob(queries, every) for _ in range(2))
    assert torch.equal(one, two)


def test_odd_dimensions_split_unevenly():
    _, items, _ = problem(dim=5)
    assert ff.MultiIndex(4, codebooks=3).fit(items).quantised().shape == items.shape


def test_without_faiss_k_means_is_ours(monkeypatch):
    import importlib.util

    _, items, _ = problem(items=400)
    errors = []
    for present in (True, False):
        if not present:
            monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        proposal = ff.MultiIndex(8).fit(items)
        errors.append((items - proposal.quantised()).square().mean().item())
        before = proposal.quantised()
        assert (proposal.refresh(items).quantised() - before).square().mean() < 0.3 * errors[-1]
    assert errors[1] < 1.15 * errors[0]


def test_arguments_out_of_range():
    _, items, counts = problem()
    for arguments, words in (
        ({"codewords": 0}, "codewords must be a positive int"),
        ({"codebooks": -1}, "codebooks must be a positive int"),
        ({"within": "cell"}, "within must be 'exact', 'uniform' or 'popularity', got 'cell'"),
    ):
        with pytest.raises(ValueError, match=words):
            ff.MultiIndex(**arguments)
    with pytest.raises(ValueError, match="at most the number of items=60, got 61"):
        ff.MultiIndex(61).fit(items)
    with pytest.raises(ValueError, match="residual=True"):
        ff.MultiIndex(4, codebooks=6).fit(items)
    with pytest.raises(ValueError, match="needs counts"):
        ff.MultiIndex(4, within="popularity").fit(items)
    for bad in (-1.0, torch.nan):
        counts[5] = bad
        with pytest.raises(ValueError, match=r"counts\[5\]"):
            ff.MultiIndex(4, within="popularity").fit(items, counts)
    with pytest.raises(ValueError, match="not all be zero"):
        ff.Popularity().fit(items, torch.zeros(60))
    with pytest.raises(ValueError, match="one number per item"):
        ff.Popularity().fit(items, torch.ones(59))
    proposal = ff.MultiIndex(4, within="popularity").fit(items, torch.ones(60))
    with pytest.raises(ValueError, match="call fit"):
        proposal.refresh(items[:50])
    with pytest.raises(ValueError, match="call fit"):
        proposal.refresh(items[:, :4])
