"""Edge cases of proposals: invalid arguments, defaults, agreement of implementations."""

import inspect
import math

import pytest
import torch

import fewfold as ff
from fewfold import _native
from fewfold._native import dispatch
from fewfold.sampling import codebooks as quantise
from fewfold.sampling import inverted_index as cells
from fewfold.sampling import quadratic_kernel as quadratic
from fewfold.sampling.categorical_draws import draw_places
from fewfold.sampling.inverted_index import Cells, GivenCells

from .cases import problem

both_paths = pytest.mark.usefixtures("path")


@pytest.mark.parametrize(
    ("make", "defaults"),
    [
        (ff.MultiIndex, (16, 2, "uniform", False, 0)),
        (ff.Popularity, (1.0,)),
        (ff.sampling.QuadraticKernel, (100.0,)),
        (ff.sampling.Dynamic, (4, False)),
        (ff.sampling.Proposal.sample, (False, None)),
        (ff.sampling.Proposal.log_prob, (False,)),
        (ff.MultiIndex.given, (False,)),
        (ff.Uniform.given, (False,)),
        (ff.Popularity.given, (False,)),
        (ff.sampling.QuadraticKernel.given, (False,)),
        (ff.sampling.Dynamic.given, (False,)),
        (ff.sampling.Proposal.given, (False,)),
    ],
)
def test_defaults(make, defaults):
    values = [p.default for p in inspect.signature(make).parameters.values()]
    assert tuple(v for v in values if v is not inspect.Parameter.empty) == defaults


@pytest.mark.parametrize(
    ("make", "bad", "words"),
    [
        (ff.Popularity, (-0.5, math.inf, math.nan, "1"), "power must be a number of at least 0"),
        (
            ff.sampling.QuadraticKernel,
            (0, -1.0, math.inf, "1"),
            "strength must be a positive number",
        ),
        (ff.sampling.Dynamic, (0, True, 2.0), "candidates must be a positive int"),
        (ff.MultiIndex, (0, True, 2.0), "codewords must be a positive int"),
        (lambda n: ff.MultiIndex(codebooks=n), (0, True, 2.0), "codebooks must be a positive int"),
    ],
)
def test_settings_out_of_range(make, bad, words):
    for value in bad:
        with pytest.raises(ValueError, match=words):
            make(value)


def test_the_smallest_settings_are_allowed():
    queries, items, counts = problem()
    every = torch.arange(60).expand(3, 60)
    flat = torch.full((3, 60), -math.log(60))
    assert torch.equal(ff.sampling.Dynamic(1).fit(items).log_prob(queries, every), flat)
    drawn = ff.Popularity(0).fit(items, counts.clamp(min=1)).log_prob(queries, every)
    torch.testing.assert_close(drawn, flat)
    ff.sampling.QuadraticKernel(1).fit(items)
    # As many codewords as items, and as many codebooks as dimensions.
    ff.MultiIndex(60, codebooks=5).fit(items)
    ff.MultiIndex(3, codebooks=6, residual=True).fit(items)


@pytest.mark.parametrize("n", [0, -1, 2.0, "3"])
def test_the_number_of_draws_is_a_positive_int(n):
    with pytest.raises(ValueError, match="n, the number of samples, must be a positive int"):
        ff.Uniform().fit(torch.zeros(2, 1)).sample(torch.zeros(1, 1), n)
    assert ff.Uniform().fit(torch.zeros(2, 1)).sample(torch.zeros(1, 1), 1)[0].shape == (1, 1)


def test_item_vectors_are_checked():
    fit = ff.Uniform().fit
    for bad in (None, torch.zeros(3), torch.zeros(3, 2, 1), torch.zeros(3, 2, dtype=torch.int64)):
        with pytest.raises(ValueError, match="item_vectors must be a floating-point tensor"):
            fit(bad)
    for bad in (torch.zeros(0, 2), torch.zeros(2, 0)):
        with pytest.raises(ValueError, match="item_vectors must not be empty"):
            fit(bad)
    vectors = torch.zeros(4, 2)
    vectors[2:, 1] = torch.inf
    with pytest.raises(ValueError, match="row 2 is not"):
        fit(vectors)
    vectors[2:] = 3e38  # their sum overflows, they do not
    fit(vectors)


def test_counts_are_checked():
    items = torch.zeros(3, 2)
    for bad in ([1.0, 1.0, 1.0], torch.ones(2), torch.ones(3, 1)):
        with pytest.raises(ValueError, match=r"one number per item, \(3,\)"):
            ff.Popularity().fit(items, bad)
    for bad in (-1.0, torch.inf, torch.nan):
        with pytest.raises(ValueError, match=r"counts\[1\] is"):
            ff.Popularity().fit(items, torch.tensor([0.0, bad, bad]))
    with pytest.raises(ValueError, match="not all be zero"):
        ff.Popularity().fit(items, torch.zeros(3))
    assert ff.Popularity().fit(items, torch.tensor([0, 0, 1])).sample(items, 2)[0].eq(2).all()


@pytest.mark.parametrize(
    "make", [lambda: ff.MultiIndex(2), ff.sampling.Dynamic, ff.sampling.QuadraticKernel]
)
def test_queries_are_checked(make):
    proposal = make().fit(torch.eye(3))
    for bad in ([[0.0, 0.0, 0.0]], torch.zeros(3), torch.zeros(1, 3, 1), torch.zeros(2, 2)):
        with pytest.raises(ValueError, match=r"queries must be a tensor \(queries, 3\)"):
            proposal.given(bad)


@both_paths
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("row", [0, 1])
def test_the_first_bad_query_is_named(row, shared):
    queries = torch.zeros(3, 3)
    queries[row:, 1] = torch.nan
    index = ff.MultiIndex(2).fit(torch.eye(3))
    with pytest.raises(ValueError, match=f"row {row} is not"):
        index.sample(queries, 2, shared=shared)
    with pytest.raises(ValueError, match=f"row {row} is not"):
        ff.sampling.Dynamic().fit(torch.eye(3)).given(queries, shared=shared)


@both_paths
@pytest.mark.parametrize("proposal", [ff.Uniform, ff.Popularity, lambda: ff.MultiIndex(2)])
def test_ids_need_a_row_per_query_unless_shared(proposal):
    queries, made = torch.eye(3)[:2], proposal().fit(torch.eye(3), torch.ones(3))
    for shape in ((), (2,), (3, 2), (1, 2), (2, 2, 2)):
        ids = torch.zeros(shape, dtype=torch.int64)
        with pytest.raises(ValueError, match=r"ids must be \(2, m\), a row for each query, got"):
            made.log_prob(queries, ids)
        assert made.log_prob(queries, ids, shared=True).shape == shape
    for shared in (False, True):
        for wrong in (torch.zeros(2, 2), torch.zeros(2, 2, dtype=torch.bool), [[0], [1]]):
            with pytest.raises(TypeError, match="ids must be a tensor of whole numbers, got"):
                made.log_prob(queries, wrong, shared=shared)
        found = [
            made.log_prob(queries, torch.tensor([[0, 2], [1, 1]], dtype=kind), shared=shared)
            for kind in (torch.int64, torch.int32, torch.uint8)
        ]
        assert torch.equal(found[0], found[1])
        assert torch.equal(found[0], found[2])


class Own(ff.sampling.Proposal):
    """The least that one's own proposal may give."""

    def fit(self, item_vectors, counts=None):
        return self

    def given(self, queries, *, shared=False):
        raise NotImplementedError


def test_a_proposal_without_state_says_what_it_lacks():
    for call in (lambda: Own().state_dict(), lambda: Own().load_state_dict({})):
        with pytest.raises(TypeError, match="Own cannot be saved; give it state_dict"):
            call()
    own = Own()
    assert own.refresh(torch.zeros(1, 1)) is own


def test_dynamic_draws_are_uncorrected_unless_asked():
    items = torch.tensor([[1.0], [3.0], [3.0], [0.0]])
    plain = ff.sampling.Dynamic(2).fit(items)
    ids, log_q = plain.sample(torch.ones(2, 1), 50, generator=torch.Generator().manual_seed(0))
    assert torch.equal(log_q, torch.full((2, 50), -math.log(4)))
    exact = ff.sampling.Dynamic(2, corrected=True).fit(items)
    same, log_q = exact.sample(torch.ones(2, 1), 50, generator=torch.Generator().manual_seed(0))
    assert torch.equal(ids, same)
    # Of equal scores the smaller id has the better rank: (4^2 - 3^2, 3^2 - 2^2, ...) / 4^2.
    chance = torch.tensor([3.0, 7.0, 5.0, 1.0]) / 16
    torch.testing.assert_close(log_q.exp(), chance[same])


def test_a_full_table_has_rows_and_shared_columns():
    queries, items, _ = problem()
    for proposal in (
        ff.sampling.Dynamic(3),
        ff.sampling.QuadraticKernel(),
        ff.MultiIndex(3, within="exact"),
    ):
        proposal.fit(items)
        ids = torch.tensor([[3, 4], [5, 6], [7, 3]])
        given = proposal.given(queries)
        each = torch.stack([given.log_prob(ids[r], torch.full((2,), r)) for r in range(3)])
        torch.testing.assert_close(given.log_prob(ids), each)
        shared = proposal.given(queries, shared=True)
        every = given.log_prob(torch.arange(60).expand(3, 60)).double()
        expected = (every.logsumexp(0) - math.log(3))[ids].float()
        torch.testing.assert_close(shared.log_prob(ids), expected)
        torch.testing.assert_close(shared.log_prob(ids[0]), expected[0])


def test_places_are_those_with_probability():
    probs = torch.tensor([[0.0, 1.0, 0.0, 3.0, 0.0]]).expand(2, 5)
    place = draw_places(probs, 4000, torch.Generator().manual_seed(0))
    assert place.shape == (2, 4000)
    share = torch.stack([torch.bincount(row, minlength=5) for row in place]) / 4000
    torch.testing.assert_close(share, probs / 4, atol=0.03, rtol=0)
    # Without any mass there is nothing to obey, but the place must exist.
    assert draw_places(torch.zeros(1, 3), 5, None).max() <= 2


def test_proposals_work_where_there_are_no_kernels(monkeypatch):
    queries, items, counts = problem()
    monkeypatch.setattr(dispatch, "_MODULES", {})
    with _native.disabled():
        for proposal in (ff.Popularity(), ff.MultiIndex(3), ff.MultiIndex(3, within="popularity")):
            proposal.fit(items, counts)
            for shared in (False, True):
                ids, log_q = proposal.sample(queries, 4, shared=shared)
                torch.testing.assert_close(log_q, proposal.log_prob(queries, ids, shared=shared))


def test_an_index_has_fewer_items_than_its_numbers_reach(monkeypatch):
    with pytest.raises(ValueError, match="fewer than 2\\^31 items, got 2147483648"):
        Cells.build(torch.zeros(1, 1, dtype=torch.int64).expand(2**31, 1), None)
    assert torch.iinfo(torch.int32).max == cells._MAX_ITEMS - 1
    monkeypatch.setattr(cells, "_MAX_ITEMS", 3)
    Cells.build(torch.zeros(2, 1, dtype=torch.int64), None)
    with pytest.raises(ValueError, match="got 3"):
        Cells.build(torch.zeros(3, 1, dtype=torch.int64), None)


def test_cells_are_numbered_alike_by_counting_and_by_sorting(monkeypatch):
    code = torch.tensor([[0, 4], [2, 1], [0, 4], [2, 0], [1, 3], [0, 0]])
    counted, many = cells._cells_of(code)
    monkeypatch.setattr(cells, "_MANY", 0)
    by_sorting, also = cells._cells_of(code)
    assert counted.tolist() == by_sorting.tolist() == [1, 4, 1, 3, 2, 0]
    assert many == also == 5


def test_cells_are_sorted_where_there_could_be_too_many_to_count():
    code = torch.tensor([[2**20, 2**20], [0, 0], [2**20, 0], [0, 0]])
    cell, many = cells._cells_of(code)  # 2^40 could exist
    assert cell.tolist() == [2, 0, 1, 0]
    assert many == 3


@pytest.mark.parametrize("count", [2**16, 2**16 + 1])
def test_sorting_by_cell_when_numbers_no_longer_fit_in_16_bits(count):
    cell = torch.arange(count).flip(0)
    assert torch.equal(cells._sorted_places(cell, count), cell)


@both_paths
def test_cells_left_out_have_no_probability():
    code = torch.tensor([[0, 2], [0, 2], [1, 3], [1, 2]])
    mass = torch.tensor([1.0, 3.0, 0.0, 4.0]).double()
    built = Cells.build(code, mass)
    assert built.cell_of.tolist() == [0, 0, -1, 1]
    assert built.item.tolist() == [0, 1, 3]
    assert built.start.tolist() == [0, 2, 3]
    scores = torch.tensor([[0.5, -1.0, 0.25, 9.0], [0.0, 1.0, 2.0, 9.0]])
    total = torch.stack([scores[:, a] + scores[:, b] for a, b in code.tolist()], 1).double()
    expected = (total + mass.log()).log_softmax(1).float()
    given = GivenCells(built, scores, shared=False)
    every = torch.arange(4).expand(2, 4)
    torch.testing.assert_close(given.log_prob(every), expected)
    given.sample(3)
    torch.testing.assert_close(given.log_prob(every), expected)
    shared = GivenCells(built, scores, shared=True)
    expected = expected.double().logsumexp(0).float() - math.log(2)
    torch.testing.assert_close(shared.log_prob(torch.arange(4)), expected)


@pytest.mark.native
@pytest.mark.parametrize(
    ("ids", "row"), [([-1], [0]), ([3], [0]), ([0, 3], [0, 0]), ([0], [-1]), ([0], [2])]
)
def test_kernels_refuse_ids_and_rows_that_do_not_exist(ids, row):
    given = ff.MultiIndex(2).fit(torch.eye(3)).given(torch.zeros(2, 3))
    given.log_prob(torch.tensor([0, 2]), torch.tensor([1, 0]))
    with pytest.raises(IndexError, match=r"ids must be .* 0 and 2|row must be .* 0 and 1"):
        given.log_prob(torch.tensor(ids), torch.tensor(row))


def test_a_mixture_of_no_queries_is_asked_of_torch():
    given = ff.MultiIndex(2).fit(torch.eye(3)).given(torch.zeros(0, 3), shared=True)
    assert given._scores.shape[0] == 1


@both_paths
@pytest.mark.parametrize("count", [1, 15, 16, 17, 33])
def test_the_nearest_centre_for_any_number_of_them(count):
    generator = torch.Generator().manual_seed(count)
    vectors = torch.randn(50, 3, generator=generator)
    centres = torch.randn(count, 3, generator=generator) + 2  # zeros that fill up would be nearer
    expected = torch.cdist(vectors.double(), centres.double()).argmin(1)
    assert torch.equal(quantise.assign(vectors, centres), expected)
    assert torch.equal(quantise.assign(vectors.T.contiguous().T, centres), expected)
    wide = torch.randn(50, 7, generator=generator)
    wide[:, 2:5] = vectors
    assert torch.equal(quantise.assign(wide[:, 2:5], centres), expected)


def test_assignment_in_blocks(monkeypatch):
    monkeypatch.setattr(quantise, "_BLOCK", 4)
    vectors = torch.arange(10.0)[:, None]
    with ff._native.disabled():
        code = quantise.assign(vectors, torch.tensor([[1.0], [7.0]]))
    assert code.tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]


def test_k_means_learns_from_a_part_of_very_many_vectors(monkeypatch):
    seen = []
    real = quantise._torch_centres

    def spy(vectors, start, generator, steps):
        seen.append((len(vectors), len(start), steps))
        return real(vectors, start, generator, steps)

    monkeypatch.setattr(quantise, "_torch_centres", spy)
    monkeypatch.setattr(quantise.importlib.util, "find_spec", lambda name: None)
    generator = torch.Generator().manual_seed(0)
    quantise.centres(torch.randn(512, 2), 2, generator)
    quantise.centres(torch.randn(513, 2), 2, generator)
    quantise.centres(torch.randn(600, 2), 2, generator, torch.zeros(2, 2))
    assert seen == [(512, 2, 20), (512, 2, 20), (512, 2, 4)]


def test_k_means_of_as_many_vectors_as_centres_is_those_vectors():
    vectors = torch.tensor([[3.0], [1.0], [2.0]])
    found = quantise.centres(vectors, 3, torch.Generator().manual_seed(0))
    assert sorted(found.flatten().tolist()) == [1.0, 2.0, 3.0]


def test_codewords_that_are_the_items_stay_when_these_come_in_another_order():
    _, items, _ = problem()
    index = ff.MultiIndex(60, codebooks=1).fit(items)
    before = index.state_dict()
    after = index.refresh(items.flip(0)).state_dict()
    assert torch.equal(after["books"], before["books"])
    assert torch.equal(after["codes"], before["codes"].flip(0))


def test_an_index_may_be_refreshed_with_fewer_items_than_codewords():
    _, items, _ = problem()
    index = ff.MultiIndex(10).fit(items).refresh(items[:4])
    assert index.sample(items[:2], 3)[0].max() < 4


def test_every_k_means_has_its_own_seed(monkeypatch):
    seeds = []
    monkeypatch.setattr(quantise.importlib.util, "find_spec", lambda name: "found")
    monkeypatch.setattr(quantise, "_faiss_centres", lambda x, k, seed, before: seeds.append(seed))
    generator = torch.Generator().manual_seed(0)
    for _ in range(100):
        quantise.centres(torch.zeros(3, 1), 2, generator)
    assert len(set(seeds)) == 100


def test_k_means_of_few_vectors_is_silent(capfd):
    quantise.centres(torch.randn(5, 2), 4, torch.Generator().manual_seed(0))
    assert capfd.readouterr() == ("", "")


def test_k_means_fills_an_empty_centre_and_stops_when_nothing_moves():
    vectors = torch.tensor([[0.0], [0.5], [9.0], [9.5]])
    start = torch.tensor([[0.0], [9.0], [100.0]])  # nothing is nearest to the last
    one = quantise._torch_centres(vectors, start, torch.Generator().manual_seed(0), 1)
    assert torch.equal(one[:2], torch.tensor([[0.25], [9.25]]))
    assert one[2] in vectors
    assert torch.equal(start[2], torch.tensor([100.0]))
    more = quantise._torch_centres(vectors, start, torch.Generator().manual_seed(0), 20)
    code = quantise.assign(vectors, more)
    means = torch.stack([vectors[code == c].mean(0) for c in range(3)])
    torch.testing.assert_close(more, means)


def test_quantised_items_never_drawn_are_zero():
    _, items, counts = problem()
    index = ff.MultiIndex(4, within="popularity").fit(items, counts)
    assert torch.equal(index.quantised().abs().sum(1) == 0, counts == 0)
    with pytest.raises(RuntimeError, match="has not been fitted"):
        ff.MultiIndex(4).quantised()


def test_refresh_keeps_the_counts_and_the_length_of_vectors():
    _, items, counts = problem()
    index = ff.MultiIndex(4, within="popularity").fit(items, counts)
    with pytest.raises(ValueError, match="expects the 60 items of the last fit, got 59"):
        index.refresh(items[:59])
    with pytest.raises(ValueError, match="expects vectors of length 5, got 4"):
        index.refresh(items[:, :4])
    ff.MultiIndex(4).fit(items).refresh(items[:59])  # no counts to go with them


@pytest.mark.parametrize("items", [1, 5, 7, 60])
def test_leaves_hold_every_item_once(items):
    vectors = torch.arange(1.0, items + 1)[:, None].expand(items, 3)
    kernel = ff.sampling.QuadraticKernel(strength=0.5).fit(vectors)
    assert kernel._filled.sum() == items
    assert torch.equal(kernel.state_dict()["items"], vectors)
    # d = 3 items to a leaf, as many as fit for few items
    assert kernel._leaves.shape == (-(-items // min(items, 3)), min(items, 3), 3)


def test_leaves_grow_with_the_square_root_of_the_items():
    assert ff.sampling.QuadraticKernel().fit(torch.zeros(1024, 2))._leaves.shape == (256, 4, 2)


def test_draws_are_made_in_pieces(monkeypatch):
    queries, items, _ = problem()
    kernel = ff.sampling.QuadraticKernel().fit(items)
    monkeypatch.setattr(quadratic, "_CHUNK", 7)
    ids, log_q = kernel.sample(queries, 20, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(log_q, kernel.log_prob(queries, ids))
    mass = 100 * (queries.double() @ items.double().T) ** 2 + 1
    expected = (mass / mass.sum(1, keepdim=True)).log().gather(1, ids).float()
    torch.testing.assert_close(log_q, expected)


def test_queries_whose_squares_overflow_are_refused():
    kernel = ff.sampling.QuadraticKernel().fit(torch.ones(3, 1))
    with pytest.raises(ValueError, match="so must the squares of their scores"):
        kernel.sample(torch.tensor([[1.0], [1e30]]), 2)
    with pytest.raises(ValueError, match="so must their scores"):
        ff.MultiIndex(2, within="exact").fit(torch.eye(2) * 1e30).sample(
            torch.full((1, 2), 1e30), 1
        )
