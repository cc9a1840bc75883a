"""Code paths of the kernels that the property tests do not reach, compared with plain torch."""

import pytest
import torch
from torch import Tensor

import fewfold as ff
from fewfold import _native
from fewfold.maps import native_threshold as fast
from fewfold.sampling.inverted_index import Cells, GivenCells
from tests.paths import kernels_only

pytestmark = kernels_only
kernels = _native.kernels
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
SUFFIX = {torch.float32: "f32", torch.float64: "f64"}
I32, I64, F64 = torch.int32, torch.int64, torch.float64


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = F64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# ---- maps ---------------------------------------------------------------------------------------


@DTYPES
@pytest.mark.parametrize("function", [ff.fusedmax, ff.oscarmax], ids=lambda f: f.__name__)
def test_penalties_of_nothing_and_entries_that_are_dropped(function, dtype):
    scores = normal(6, 9, dtype=dtype)
    scores[:, 2] = scores[:, 3]  # a tie, which no penalty leaves separate
    scores[1, 4:6] = scores[2, 0] = scores[3, -1] = -torch.inf
    strength = torch.tensor([[0.0], [0.3], [0.3], [0.0], [2.0], [0.1]], dtype=dtype)
    with _native.disabled():
        expected = function(scores, strength)
    torch.testing.assert_close(function(scores, strength), expected)


@DTYPES
@pytest.mark.parametrize("name", ["tv_groups", "oscar_groups"])
def test_groups_of_rows_without_scores(name, dtype):
    run = getattr(kernels, f"{name}_{SUFFIX[dtype]}")
    none, strength = torch.zeros(2, 0, dtype=dtype), torch.ones(2, dtype=dtype)
    run(none, torch.zeros(2, 0, dtype=I64), none, 2, 0, strength, 1)


@pytest.mark.parametrize("size", [2048, 2049, 4096, 4097])
def test_rows_with_an_alpha_each_on_both_sides_of_every_team(size):
    scores, probs = normal(5, size, dtype=torch.float32), torch.empty(5, size)
    for alphas in ([2.0] * 5, [2.0, 2.0, 1.5, 1.5, 2.0]):
        each = torch.tensor(alphas, dtype=F64)
        kernels.forward_f32(scores, probs, 5, size, 2.0, each, False, None, 0, 1)
        with _native.disabled():
            expected = torch.stack(
                [ff.entmax(row, alpha) for row, alpha in zip(scores.double(), alphas, strict=True)]
            )
        torch.testing.assert_close(probs.double(), expected, atol=1e-6, rtol=0)


@DTYPES
@pytest.mark.parametrize("size", [5, 3000])
def test_supports_of_rows_with_infinite_scores(size, dtype):
    scores = normal(4, size, dtype=dtype)
    scores[0, 3] = scores[2, 1] = torch.inf
    scores[2, 4] = -torch.inf
    column, weight, count = fast.support(scores, 1.5, False)
    row = torch.repeat_interleave(count)
    dense = torch.zeros(4, size, dtype=dtype).index_put((row, column), weight)
    with _native.disabled():
        expected = ff.entmax(scores, 1.5)
    torch.testing.assert_close(dense, expected, equal_nan=True, atol=1e-6, rtol=0)


def test_no_columns_have_no_support_and_no_candidates():
    column, weight, count = kernels.support_f32(torch.zeros(2, 0), 2, 0, 1.5, None, False, 1)
    assert (len(column), len(weight), count.tolist()) == (0, 0, [0, 0])
    column, score, count = kernels.Streams_f32(2, 1.5, 50).take()  # nothing was pushed
    assert (len(column), len(score), count.tolist()) == (0, 0, [0, 0])
    log_sum = torch.zeros(2)
    none = torch.zeros(2, 0)
    kernels.soften_f32(none, 2, 0, none, 0, log_sum, 1)
    assert log_sum.tolist() == [-torch.inf, -torch.inf]


@DTYPES
@pytest.mark.parametrize("size", [7, 500, 5000])
@pytest.mark.parametrize("bad", [0.5, torch.nan, torch.inf, 1e7, -1e7])
def test_budgets_of_extreme_scores_are_right_or_left_to_the_caller(size, bad, dtype):
    scores = normal(3, size, dtype=dtype)
    scores[1, size // 2] = bad
    if bad < 0:
        scores[1] = bad  # all of them
    probs = torch.empty_like(scores)
    run = getattr(kernels, f"budget_{SUFFIX[dtype]}")
    done = run(scores, probs, 3, size, 2.0, None, 1)
    assert done or bad != 0.5
    if bad in (torch.nan, torch.inf) or (size == 5000 and abs(bad) == 1e7):
        assert not done
    with _native.disabled():
        expected = ff.ksubset(scores, 2.0)
    if done:
        torch.testing.assert_close(probs, expected, atol=1e-5, rtol=0)


@DTYPES
@pytest.mark.parametrize("size", [7, 500, 5000])
def test_budgets_of_equal_scores_far_from_zero(size, dtype):
    """The squares of such scores are rounded, so that they seem to have a spread."""
    scores = torch.tensor([[1234567.0], [-3000001.0], [3999999.0]], dtype=dtype).expand(3, size)
    run, probs = getattr(kernels, f"budget_{SUFFIX[dtype]}"), torch.empty(3, size, dtype=dtype)
    for k in (1.0, 2.5, size - 1.0):
        assert run(scores.contiguous(), probs, 3, size, k, None, 1)
        torch.testing.assert_close(probs, torch.full_like(probs, k / size), atol=1e-6, rtol=1e-6)


@DTYPES
@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_densities_whose_scales_multiply_out_of_range(scale, dtype):
    y = torch.full((2, 60), 1 / 60, dtype=dtype)
    at = ff.distributions.GaussianSparsemax(torch.zeros_like(y), torch.full_like(y, scale))
    found = at.log_prob(y)
    with _native.disabled():
        expected = at.log_prob(y)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cells", [1, 7, 16, 33])
@pytest.mark.parametrize("shared", [False, True], ids=["per query", "shared"])
def test_cells_with_one_score_that_is_no_number_are_refused(cells, shared):
    index = Cells.build(torch.arange(cells)[:, None], None)
    for place in {0, cells // 2, cells - 1}:
        for bad in (torch.nan, torch.inf):
            scores = normal(3, cells, dtype=torch.float32)
            scores[1, place] = bad
            refused = pytest.raises(ValueError, match="queries must be finite; row")
            with refused:
                GivenCells(index, scores, shared=shared).sample(4)
            with _native.disabled(), refused:
                GivenCells(index, scores, shared=shared).sample(4)


# ---- tables -------------------------------------------------------------------------------------


@DTYPES
@pytest.mark.parametrize("rule", ["sgd", "adagrad", "adam", "scale_by_row"])
def test_a_list_of_all_rows_pays_what_all_rows_pay(rule, dtype):
    rows, width = 3000, 2  # more than are asked for ahead
    update = kernels.Update(lr=0.1, beta1=0.5, beta2=0.5, l1=0.1)
    run = getattr(kernels, f"pay_{rule}_{SUFFIX[dtype]}")
    memory, square = normal(rows, 2, width, dtype=dtype).abs(), normal(rows, dtype=dtype).abs()
    age, by = torch.arange(rows, dtype=I32) % 3, normal(rows, seed=1, dtype=dtype)
    found = []
    for index in (None, torch.arange(rows), torch.arange(rows).flip(0)):
        table = normal(rows, width, seed=2, dtype=dtype)
        each = by if index is None else by[index]
        assert run(index, each, rows, rows, width, table, memory, age, square, update, 1) == -1
        found.append(table)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    still = by <= 0
    assert torch.equal(found[0][still], normal(rows, width, seed=2, dtype=dtype)[still])
    assert not torch.equal(found[0], normal(rows, width, seed=2, dtype=dtype))


def slabs(projected: Tensor, width: int) -> Tensor:
    """(queries, anchors) as (slabs, anchors, width), filled up with zeros."""
    queries, k = projected.shape
    full = torch.zeros(-(-queries // width) * width, k, dtype=projected.dtype)
    full[:queries] = projected
    return full.view(-1, width, k).transpose(1, 2).contiguous()


@DTYPES
@pytest.mark.parametrize(("queries", "size", "threads"), [(33, 2100, 4), (520, 1100, 2)])
def test_scores_of_mixed_rows_and_their_gradients(queries, size, threads, dtype):
    """Slabs that are not full, tiles without a gradient, more than a large page of scores."""
    k, width, s, name = 5, 32, 2, SUFFIX[dtype]
    projected, weight = normal(queries, k, dtype=dtype), normal(size, s, seed=1, dtype=dtype)
    slot = torch.randint(k, (size, s), generator=torch.Generator().manual_seed(2), dtype=I32)
    turned, shape = slabs(projected, width), [queries, width, k]
    mixed = torch.zeros(size, k, dtype=dtype).scatter_add_(1, slot.long(), weight)
    scores = torch.empty(queries, size, dtype=dtype)
    run = getattr(kernels, f"tied_{name}")
    assert run(turned, *shape, weight, slot, size, s, scores, threads)
    close = {"atol": 1e-3 if dtype == torch.float32 else 1e-9, "rtol": 1e-4}
    torch.testing.assert_close(scores, projected @ mixed.T, **close)

    grad = normal(queries, size, seed=3, dtype=dtype)
    grad[:, 64:192] = 0  # two tiles
    grad[:, 200] = 0
    touched = grad.ne(0).any(0).nonzero()[:, 0]
    wanted = (grad.T @ projected).gather(1, slot.long())
    for with_rows in (True, False):
        for with_values in (True, False):
            marks = torch.zeros(size, dtype=torch.uint8)
            rows = torch.zeros(size, dtype=I64) if with_rows else None
            values = torch.zeros(size, s, dtype=dtype) if with_values else None
            tail = [grad, 0.0, marks, rows, values, threads]
            n = getattr(kernels, f"untied_{name}")(turned, *shape, slot, size, s, *tail)
            assert n == len(touched)
            assert torch.equal(marks.nonzero()[:, 0], touched)
            if rows is not None:
                assert torch.equal(rows[:n], touched)
            if values is not None:
                ours = values[:n] if with_rows else values[touched]
                torch.testing.assert_close(ours, wanted[touched], **close)
    pull = torch.zeros_like(turned)
    last = [weight, slot, size, s, grad, 0.0, marks, pull, threads]
    getattr(kernels, f"untied_pull_{name}")(*shape, *last)
    torch.testing.assert_close(pull, slabs(grad @ mixed, width), **close)


@DTYPES
def test_gradients_of_picked_rows_one_without_the_other(dtype):
    k, queries, s, each, name = 4, 3, 2, 2, SUFFIX[dtype]
    at = torch.tensor([0, 1, 1, 3])
    n = queries * each + 3
    projected, terms = normal(queries, k, dtype=dtype), normal(n, s, seed=1, dtype=dtype)
    slot = torch.randint(k, (n, s), generator=torch.Generator().manual_seed(2), dtype=I32)
    by, more = normal(queries, each, seed=3, dtype=dtype), normal(3, seed=4, dtype=dtype)
    pull, values = torch.zeros_like(projected), torch.zeros_like(terms)
    head = [projected, k, queries, s, each, at, terms, slot, by, None, more]
    run = getattr(kernels, f"mixed_pulls_{name}")
    run(*head, pull, values, 1)
    row = torch.cat([torch.arange(queries).repeat_interleave(each), torch.tensor([0, 2, 2])])
    weights = torch.cat([by.view(-1), more])[:, None]
    expected = torch.zeros_like(projected).index_put_(
        (row[:, None].expand(n, s), slot.long()), weights * terms, accumulate=True
    )
    torch.testing.assert_close(pull, expected)
    torch.testing.assert_close(values, weights * projected[row[:, None], slot.long()])
    alone = torch.zeros_like(pull), torch.zeros_like(values)
    run(*head, alone[0], None, 1)
    run(*head, None, alone[1], 1)
    assert torch.equal(alone[0], pull)
    assert torch.equal(alone[1], values)


# ---- the k best ---------------------------------------------------------------------------------


@DTYPES
def test_the_best_of_rows_that_exclude_nothing(dtype):
    scores, name = normal(2, 30, dtype=dtype), SUFFIX[dtype]
    heaps = [torch.zeros(2, 4, dtype=dtype), torch.zeros(2, 4, dtype=I64), torch.zeros(2).long()]
    run = getattr(kernels, f"best_of_{name}")
    assert run(scores, 2, 30, 0, 4, *heaps, None, None, None, 1)
    getattr(kernels, f"best_sorted_{name}")(2, 4, *heaps, 1)
    best, ids = scores.topk(4)
    assert torch.equal(heaps[0], best)
    assert torch.equal(heaps[1], ids)
    scores[1, 3] = torch.nan
    assert not run(scores, 2, 30, 0, 4, *heaps, None, None, None, 1)


def test_a_catalogue_passes_over_ids_that_it_does_not_hold_and_extreme_queries():
    items = normal(20, 3, dtype=torch.float32)
    step = items.abs().amax(1) / 127
    code = torch.zeros(20, 32, dtype=torch.int8)
    code[:, :3] = (items / step[:, None]).round().to(torch.int8)
    parts = code, 32, step, torch.ones(20), torch.ones(3)
    made = kernels.Catalogue(items, 20, 3, *parts, items.norm(dim=1) * 1.1)
    scores, ids = torch.empty(5), torch.empty(5, dtype=I64)
    for excluded in ([], [-1, 20], [-1, 4, 20]):
        out = torch.tensor(excluded, dtype=I64)
        ends = torch.tensor([0, len(out)])
        assert made.best(torch.ones(3), 1, 5, out, ends, None, scores, ids, 1)
        expected = items.sum(1).index_fill(0, out[(out >= 0) & (out < 20)], -torch.inf).topk(5)
        assert torch.equal(ids, expected.indices)
        torch.testing.assert_close(scores, expected.values)
    for size in (0.0, 1e-25, 1e35, torch.nan):  # no bound would hold
        assert not made.best(torch.full((3,), size), 1, 5, out, ends, None, scores, ids, 1)
    for reach, size in ((1e-15, 1e-10), (1e15, 1e20), (1e15, 1e-25), (1e-10, 1e35)):
        made = kernels.Catalogue(items, 20, 3, *parts, torch.full((20,), reach))
        assert not made.best(torch.full((3,), size), 1, 5, out, ends, None, scores, ids, 1)


def test_asking_for_large_pages_changes_no_number():
    for size in (1, 2**19, 2**21):  # less than a page, perhaps a whole one, several
        table = torch.arange(size, dtype=torch.float32)
        kernels.large_pages(table)
        assert torch.equal(table, torch.arange(size, dtype=torch.float32))
