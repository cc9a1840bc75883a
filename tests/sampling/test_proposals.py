"""Properties of every proposal: log q is a distribution, and samples follow it."""

import pytest
import torch
from torch import Tensor

import fewfold as ff
from fewfold import _native
from tests.goodness import p_value

from .cases import Case, distribution, every_proposal, problem

pytestmark = pytest.mark.usefixtures("path")
both_ways = pytest.mark.parametrize("shared", [False, True], ids=["per query", "shared"])


def fitted(case: Case) -> ff.sampling.Proposal:
    _, items, counts = problem()
    return case.make().fit(items, counts)


def all_ids(shared: bool, rows: int = 3, items: int = 60) -> Tensor:
    every = torch.arange(items)
    return every if shared else every.expand(rows, items)


@every_proposal
@both_ways
def test_log_prob_is_the_stated_distribution(case, shared):
    queries, _, _ = problem()
    proposal = fitted(case)
    probs = proposal.log_prob(queries, all_ids(shared), shared=shared).double().exp()
    torch.testing.assert_close(probs, distribution(case, proposal, shared), atol=1e-6, rtol=1e-5)
    assert (probs.sum(-1) - 1).abs().max() < 1e-5


@every_proposal
@both_ways
def test_draws_follow_it(case, shared):
    """A chi-square test at 1e-4 with a fixed seed: one in ten thousand seeds would fail."""
    queries, _, _ = problem()
    proposal = fitted(case)
    n = 40_000
    generator = torch.Generator().manual_seed(3)
    ids, log_q = proposal.sample(queries, n, shared=shared, generator=generator)
    assert ids.shape == log_q.shape == ((n,) if shared else (3, n))
    torch.testing.assert_close(log_q, proposal.log_prob(queries, ids, shared=shared))
    probs = distribution(case, proposal, shared).reshape(-1, 60)
    for row, p in zip(ids.reshape(-1, n), probs, strict=True):
        seen = torch.bincount(row, minlength=60).double()
        assert seen[p == 0].sum() == 0
        rare = p * n < 5  # pooled, as the approximation asks for
        kept = [*seen[~rare & (p > 0)].tolist(), seen[rare].sum().item()]
        expected = [*(p[~rare & (p > 0)] * n).tolist(), (p[rare].sum() * n).item()]
        if expected[-1] < 5:
            kept[-2:], expected[-2:] = [sum(kept[-2:])], [sum(expected[-2:])]
        assert p_value(kept, expected) > 1e-4


@every_proposal
@both_ways
def test_one_seed_one_sample_on_any_number_of_threads(case, shared):
    queries, items, counts = problem(items=500, queries=64)
    proposal = case.make().fit(items, counts)
    before = torch.get_num_threads()
    drawn = []
    try:
        for threads in (1, 2, 2):
            torch.set_num_threads(threads)
            generator = torch.Generator().manual_seed(7)
            drawn.append(proposal.sample(queries, 300, shared=shared, generator=generator))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(drawn[0][0], drawn[1][0])
    assert torch.equal(drawn[1][0], drawn[2][0])
    generator = torch.Generator().manual_seed(8)
    other = proposal.sample(queries, 300, shared=shared, generator=generator)[0]
    assert not torch.equal(drawn[0][0], other)


@every_proposal
def test_flat_ids_with_their_rows(case):
    queries, _, _ = problem()
    given = fitted(case).given(queries)
    ids, row = torch.tensor([0, 7, 59, 3]), torch.tensor([2, 0, 0, 1])
    dense = given.log_prob(all_ids(False))
    torch.testing.assert_close(given.log_prob(ids, row), dense[row, ids])


@every_proposal
def test_refresh_on_the_same_items_stays_a_distribution(case):
    queries, items, counts = problem()
    proposal = case.make().fit(items, counts).refresh(items * 1.01)
    probs = proposal.log_prob(queries, all_ids(False)).double().exp()
    assert (probs.sum(-1) - 1).abs().max() < 1e-5
    ids, _ = proposal.sample(queries, 50)
    assert ids.shape == (3, 50)


@every_proposal
@both_ways
def test_a_saved_state_draws_the_same_and_follows_alike(case, shared):
    queries, items, _ = problem()
    proposal = fitted(case).refresh(items + 0.1)
    state = {name: value.clone() for name, value in proposal.state_dict().items()}
    other = case.make()
    fresh = other.state_dict()
    other.load_state_dict(state)
    for _ in range(2):
        one, two = (
            each.sample(queries, 50, shared=shared, generator=torch.Generator().manual_seed(1))
            for each in (proposal, other)
        )
        assert torch.equal(one[0], two[0])
        assert torch.equal(one[1], two[1])
        every = all_ids(shared)
        one, two = (each.log_prob(queries, every, shared=shared) for each in (proposal, other))
        assert torch.equal(one, two)
        for each in (proposal, other):  # the generator of k-means is a part of the state
            each.refresh(items.flip(0))
    for value in state.values():
        if value.is_floating_point():
            value.fill_(torch.nan)  # it was copied
    other.sample(queries, 5, shared=shared)
    other.load_state_dict(fresh)
    with pytest.raises(RuntimeError, match="has not been fitted yet"):
        other.given(queries)


@every_proposal
def test_a_single_item(case):
    proposal = case.make()
    if isinstance(proposal, ff.MultiIndex):
        proposal = ff.MultiIndex(1, within=proposal.within)
    proposal.fit(torch.ones(1, 2), torch.ones(1))
    ids, log_q = proposal.sample(torch.ones(2, 2), 4)
    assert ids.eq(0).all()
    torch.testing.assert_close(log_q, torch.zeros(2, 4), atol=1e-6, rtol=0)


@every_proposal
def test_no_queries(case):
    ids, log_q = fitted(case).sample(torch.empty(0, 5), 4)
    assert ids.shape == log_q.shape == (0, 4)


@every_proposal
def test_errors_say_what_to_do(case):
    queries, items, counts = problem()
    proposal = case.make()
    with pytest.raises(RuntimeError, match="has not been fitted"):
        proposal.sample(queries, 3)
    bad = items.clone()
    bad[7, 2] = torch.nan
    with pytest.raises(ValueError, match="row 7"):
        proposal.fit(bad, counts)
    with pytest.raises(ValueError, match="item_vectors must be"):
        proposal.fit(items[0], counts)
    with pytest.raises(ValueError, match="item_vectors must not be empty"):
        proposal.fit(items[:0], counts)
    proposal.fit(items, counts)
    with pytest.raises(ValueError, match="positive int, got 0"):
        proposal.sample(queries, 0)


@every_proposal
def test_queries_that_do_not_fit(case):
    proposal = fitted(case)
    if isinstance(proposal, (ff.Uniform, ff.Popularity)):
        pytest.skip("does not look at the queries")
    queries, _, _ = problem()
    with pytest.raises(ValueError, match=r"queries must be a tensor \(queries, 5\)"):
        proposal.sample(queries[:, :4], 3)
    for bad in (torch.nan, torch.inf):
        queries[1, 1] = bad
        with pytest.raises(ValueError, match="finite"):
            proposal.sample(queries, 3)


@every_proposal
def test_the_mixture_of_no_queries_is_refused(case):
    with pytest.raises(ValueError, match="shared samples need at least one query, got 0"):
        fitted(case).sample(torch.empty(0, 5), 4, shared=True)


@every_proposal
@both_ways
def test_ids_that_name_no_item(case, shared):
    queries, items, _ = problem()
    proposal = fitted(case)
    if isinstance(proposal, ff.Uniform):
        pytest.skip("does not look at the ids")
    for bad in (-1, len(items), 2**40) if _native.ready() else (len(items), 2**40):
        ids = torch.full((len(queries), 2), bad)
        with pytest.raises(IndexError):
            proposal.log_prob(queries, ids, shared=shared)
    none = torch.empty((len(queries), 0), dtype=torch.int64)
    assert proposal.log_prob(queries, none, shared=shared).shape == none.shape


def broken(state: dict[str, Tensor]) -> dict[str, dict[str, object]]:
    """States of a MultiIndex, each wrong in one thing."""
    codes, books = state["codes"], state["books"]
    low, high, swapped = codes.clone(), codes.clone(), codes.flip(1)
    low[7, 0], high[-1, -1] = -1, books.shape[0] * books.shape[1]
    found = {
        "a code below": {"codes": low},
        "a code above": {"codes": high},
        "codes of other books": {"codes": swapped},
        "no items": {"codes": codes[:0]},
        "one book more": {"codes": codes.repeat(1, 2)},
        "numbers with points": {"codes": codes.double()},
        "flat codes": {"codes": codes.flatten()},
        "fewer words": {"books": books[:, :-1]},
        "fewer books": {"books": books[:-1]},
        "books without numbers": {"books": books[..., :0]},
        "flat books": {"books": books.flatten()},
        "books that are nan": {"books": books * torch.nan},
        "no codes": {"codes": None},
        "no books": {"books": None},
        "a list": {"codes": codes.tolist()},
        "no generator": {"generator": None},
        "another generator": {"generator": state["generator"][:9]},
        "a generator of numbers": {"generator": torch.zeros(3)},
    }
    if "mass" in state:
        mass = state["mass"]
        found["mass of fewer"] = {"mass": mass[:-1]}
        found["negative mass"] = {"mass": -mass}
        found["no mass"] = {"mass": None}
    if "items" in state:
        found["fewer items"] = {"items": state["items"][:-1]}
        found["wider items"] = {"items": state["items"].repeat(1, 2)}
        found["items left out"] = {"items": None}
    return found


@pytest.mark.parametrize("within", ["uniform", "popularity", "exact"])
@pytest.mark.parametrize("residual", [False, True])
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(within, residual):
    queries, items, counts = problem()
    options = {"within": within, "residual": residual}
    proposal = ff.MultiIndex(3, **options).fit(items, counts)
    state = proposal.state_dict()
    ids = all_ids(False, len(queries), len(items))
    before = proposal.log_prob(queries, ids)
    for name, wrong in broken(state).items():
        new = {**state, **wrong}
        with pytest.raises(ValueError, match=r"state of MultiIndex|codes of a|mass|items"):
            proposal.load_state_dict(
                {key: value for key, value in new.items() if value is not None}
            )
        assert proposal.log_prob(queries, ids).equal(before), name
    other = ff.MultiIndex(3, **options)
    other.load_state_dict(state)
    assert other.log_prob(queries, ids).equal(before)


def test_other_states_that_do_not_fit():
    for items in (0, -3, 1.5):
        with pytest.raises(ValueError, match="positive number of items"):
            ff.Uniform().load_state_dict({"items": torch.tensor(items)})
    with pytest.raises(ValueError, match="must hold a tensor 'items', got int"):
        ff.Uniform().load_state_dict({"items": 3})
    for mass in (torch.tensor([1.0, -1.0]), torch.zeros(2), torch.ones(2, 2), torch.empty(0)):
        with pytest.raises(ValueError, match="mass must"):
            ff.Popularity().load_state_dict({"mass": mass})
    for proposal in (ff.sampling.QuadraticKernel(), ff.sampling.Dynamic()):
        for items in (torch.empty(0, 3), torch.ones(3), torch.full((2, 2), torch.nan)):
            with pytest.raises(ValueError, match="item_vectors must"):
                proposal.load_state_dict({"items": items})


def test_so_many_codebooks_that_cells_cannot_be_numbered():
    _, items, _ = problem()
    many = ff.MultiIndex(3, codebooks=50, residual=True).fit(items)  # 3 ** 50 cells
    few = many.quantised().unique(dim=0)
    assert len(many._cells.log_mass) == len(few)


def test_counts_given_to_the_constructor():
    with pytest.raises(TypeError, match=r"Popularity\(\).fit\(item_vectors, counts\)"):
        ff.Popularity(torch.ones(3))
