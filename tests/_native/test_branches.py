"""Branches of the kernels that small examples do not reach: long rows, blocks, threads."""

import pytest
import torch

import fewfold as ff
from fewfold import _native
from fewfold.losses.sampled_scores import log_sum_picked, picked_scores
from fewfold.sampling.inverted_index import Cells, GivenCells
from tests.goodness import p_value
from tests.paths import kernels_only

pytestmark = kernels_only

AROUND = (1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 67)  # lanes of every instruction set, and twice those


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def moved(index: torch.Tensor, rows: int, width: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """A table of zeros after a step of Adagrad, which is another if a row is visited twice."""
    values = normal(len(index), width)
    table = torch.zeros(rows, width, dtype=torch.float64).requires_grad_()
    table.grad = torch.sparse_coo_tensor(
        index[None], values, table.shape, check_invariants=False, is_coalesced=False
    )
    ff.optim.Adagrad([table], lr=1.0, eps=1e-2).step()
    total = torch.zeros(rows, width, dtype=torch.float64).index_add(0, index, values)
    return table.detach(), -total / (total.abs() + 1e-2)


@pytest.mark.parametrize("rows", [1, 2, 3, 2047, 2048, 2049, 2**16, 2**22 + 1])
def test_entries_are_grouped_by_row_whatever_the_number_of_rows(rows: int) -> None:
    """Sorted in one, two and three passes of eleven bits."""
    index = torch.randint(rows, (300,), generator=torch.Generator().manual_seed(rows))
    index[:4] = torch.tensor([rows - 1, 0, rows // 2, rows - 1])
    for order in (index, index.sort().values, index.flip(0)):
        ours, expected = moved(order, rows)
        torch.testing.assert_close(ours, expected, atol=1e-12, rtol=0)


def test_a_row_that_does_not_exist_is_refused_and_nothing_moves() -> None:
    for bad in (-1, 5, 2**40):
        table = torch.zeros(5, 2).requires_grad_()
        index = torch.tensor([[0, bad, 4]])
        table.grad = torch.sparse_coo_tensor(
            index, torch.ones(3, 2), table.shape, check_invariants=False
        )
        with pytest.raises((IndexError, ValueError, RuntimeError)):
            ff.optim.SGD([table], lr=1.0).step()
        assert not table.detach().any()


@pytest.mark.parametrize("rows", [1, 2, 3, 50_000])
def test_threads_share_rows_whole(rows: int, two_threads: None) -> None:
    """One row has all entries, a border falls inside a row, or between two."""
    index = torch.arange(100_000) % rows
    for order in (index, index.sort().values):
        ours, expected = moved(order, rows)
        torch.testing.assert_close(ours, expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("cells", AROUND)
@pytest.mark.parametrize("shared", [False, True], ids=["per query", "shared"])
def test_draws_from_any_number_of_cells(cells: int, shared: bool) -> None:
    """Chi-square at 1e-5 with a fixed seed; one item to a cell, so q is a softmax."""
    scores = 2 * normal(2, cells, seed=cells).float()
    given = GivenCells(Cells.build(torch.arange(cells)[:, None], None), scores, shared=shared)
    probs = scores.double().softmax(1)
    probs = probs.mean(0, keepdim=True) if shared else probs
    every = torch.arange(cells) if shared else torch.arange(cells).expand(2, cells)
    torch.testing.assert_close(
        given.log_prob(every).double().view(probs.shape), probs.log(), atol=1e-5, rtol=1e-5
    )
    n = 20_000
    ids, log_q = given.sample(n, generator=torch.Generator().manual_seed(1))
    for row, p, q in zip(ids.view(-1, n), probs, log_q.view(-1, n), strict=True):
        torch.testing.assert_close(q.double(), p.log()[row], atol=1e-5, rtol=1e-5)
        seen, expected = torch.bincount(row, minlength=cells).double(), p * n
        rare = expected < 5
        if cells > 1:
            pooled = [[*x[~rare].tolist(), x[rare].sum().item()] for x in (seen, expected)]
            if pooled[1][-1] < 5:
                pooled = [[*x[:-2], x[-2] + x[-1]] for x in pooled]
            assert p_value(*pooled) > 1e-5


@pytest.mark.parametrize("masses", ["alike", "geometric", "one of many", "random"])
def test_draws_inside_a_cell_by_their_masses(masses: str) -> None:
    """Alias tables: chi-square at 1e-5 with a fixed seed, in the second of two cells."""
    size, n = 40, 40_000
    mass = {
        "alike": torch.ones(size),
        "geometric": 0.8 ** torch.arange(size),
        "one of many": torch.where(torch.arange(size) == 7, 100.0, 1.0),
        "random": normal(size).float().exp(),
    }[masses].double()
    code = torch.tensor([[0]] * 3 + [[1]] * size)
    cells = Cells.build(code, torch.cat([torch.ones(3).double(), mass]))
    given = GivenCells(cells, torch.tensor([[-50.0, 0.0]]), shared=False)
    ids, log_q = given.sample(n, generator=torch.Generator().manual_seed(2))
    assert ids.min() >= 3
    expected = mass / mass.sum()
    torch.testing.assert_close(log_q[0].double(), expected.log()[ids[0] - 3], atol=1e-5, rtol=1e-5)
    seen = torch.bincount(ids[0] - 3, minlength=size).double()
    common = expected * n >= 5
    assert seen[~common].sum() <= 5 * max(1.0, float(expected[~common].sum() * n))
    part = seen[common].tolist(), (expected[common] / expected[common].sum() * seen[common].sum())
    assert p_value(part[0], part[1].tolist()) > 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", AROUND)
def test_picked_scores_of_any_length(size: int, dtype: torch.dtype) -> None:
    """Vectors of `size` numbers, `size` items to a query, with gradients of both."""
    table = normal(50, size, dtype=dtype).requires_grad_()
    queries = normal(3, size, seed=1, dtype=dtype).requires_grad_()
    ids = torch.randint(50, (3, size), generator=torch.Generator().manual_seed(2))
    more = torch.tensor([1, 1, 49, 0]), torch.tensor([0, 0, 3, 4])
    log_q = normal(3, size, seed=3, dtype=dtype)
    row = torch.tensor([1, 1, 1, 2])
    dense = queries @ table.T
    expected = (dense.gather(1, ids), dense[row, more[0]])
    tolerance = {"atol": 1e-4 if dtype == torch.float32 else 1e-10, "rtol": 1e-5}
    for ours, theirs in (
        (picked_scores(queries, table, ids, more), expected),
        (
            log_sum_picked(queries, table, ids, log_q, more),
            ((expected[0] - log_q).logsumexp(1), expected[1]),
        ),
    ):
        torch.testing.assert_close(ours, theirs, **tolerance)
        pull = [torch.linspace(-1, 2, x.numel(), dtype=dtype).view(x.shape) for x in ours]
        got = torch.autograd.grad(ours, (queries, table), pull, retain_graph=True)
        want = torch.autograd.grad(theirs, (queries, table), pull, retain_graph=True)
        for mine, other in zip(got, want, strict=True):
            torch.testing.assert_close(mine.to_dense(), other, **tolerance)


@pytest.mark.parametrize("size", AROUND)
def test_sums_with_nothing_and_with_no_number_in_them(size: int) -> None:
    table, queries = torch.ones(4, 1), torch.ones(1, 1)
    more = torch.empty(0, dtype=torch.int64), torch.tensor([0, 0])
    ids = torch.arange(size)[None] % 4
    for place in {0, size // 2, size - 1}:
        log_q = torch.zeros(1, size)
        log_q[0, place] = torch.inf  # such an item weighs nothing
        got = log_sum_picked(queries, table, ids, log_q, more)[0]
        if size > 1:
            torch.testing.assert_close(got, (1 - log_q).logsumexp(1))
        for bad in (torch.nan, -torch.inf):
            log_q[0, place] = bad
            assert not log_sum_picked(queries, table, ids, log_q, more)[0].isfinite().any()


@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_supports_are_put_together_in_the_order_of_rows(alpha: float, two_threads: None) -> None:
    scores = normal(40, 3000).float()
    found = ff.maps.native_threshold.support(scores, alpha, False)
    torch.set_num_threads(1)
    for one, two in zip(ff.maps.native_threshold.support(scores, alpha, False), found, strict=True):
        assert torch.equal(one, two)
    column, weight, count = found
    dense = torch.zeros(40, 3000).index_put((torch.repeat_interleave(count), column), weight)
    with _native.disabled():
        torch.testing.assert_close(dense, ff.entmax(scores, alpha), atol=1e-6, rtol=0)
