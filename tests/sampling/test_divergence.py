"""Divergence of a proposal from the softmax, and its bound."""

import math

import pytest
import torch

import fewfold as ff
from fewfold.sampling import kl_bound, kl_divergence


def drawn(seed: int, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    items = torch.randn(40, 4, generator=generator)
    queries = scale * torch.randn(6, 4, generator=generator)
    return items, queries, torch.randint(1, 30, (40,), generator=generator)


@pytest.mark.parametrize("within", ["uniform", "popularity", "exact"])
@pytest.mark.parametrize("codewords", [1, 5, 40])
def test_the_bound_holds_and_the_divergence_is_exact(within: str, codewords: int) -> None:
    for scale in (0.1, 1.0, 5.0):
        items, queries, counts = drawn(codewords, scale)
        proposal = ff.MultiIndex(codewords, within=within).fit(items, counts)
        found = kl_divergence(proposal, queries, items)
        p = (queries @ items.T).double().softmax(1)
        q = (queries @ proposal.quantised().T).double().exp()
        q = p if within == "exact" else q * (counts if within == "popularity" else 1)
        q = q / q.sum(1, keepdim=True)
        torch.testing.assert_close(found, (q * (q / p).log()).sum(1), rtol=1e-4, atol=1e-5)
        assert (found <= kl_bound(proposal, queries, items) + 1e-6).all()


def test_the_bound_cannot_be_lowered() -> None:
    """Two items at the ends of a cell; the rarer one has nearly all of the softmax."""
    items = torch.tensor([[1.0], [-1.0]])
    counts = torch.tensor([1, 1000])
    proposal = ff.MultiIndex(1, codebooks=1, within="popularity").fit(items, counts)
    query = torch.tensor([[20.0]])
    bound, exact = (f(proposal, query, items).item() for f in (kl_bound, kl_divergence))
    assert bound == pytest.approx(2 * 20 + math.log(1000))
    assert 39 < exact < 40  # the popularity adds to the odds, not to the divergence


def test_items_of_mass_zero_and_arguments_that_do_not_fit() -> None:
    items, queries, counts = drawn(0)
    counts[3] = 0
    proposal = ff.MultiIndex(4, within="popularity").fit(items, counts)
    assert kl_divergence(proposal, queries, items).isfinite().all()
    assert kl_bound(proposal, queries, items).isinf().all()
    with pytest.raises(TypeError, match="of a MultiIndex, got Uniform"):
        kl_bound(ff.Uniform().fit(items), queries, items)
    with pytest.raises(ValueError, match=r"those of the proposal, \(40, 4\), got \(9, 4\)"):
        kl_bound(proposal, queries, items[:9])
