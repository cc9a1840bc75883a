"""Top k of rows and of int8 vectors: bounds, range ends, object lifetimes."""

import pytest
import torch
from torch import Tensor

from fewfold import _native
from tests.paths import kernels_only

pytestmark = kernels_only
kernels = _native.kernels


def catalogue(slack: float, items: Tensor) -> object:
    n, d = items.shape
    code = torch.zeros(n, 32, dtype=torch.int8)
    step = items.abs().amax(1) / 127
    code[:, :d] = torch.where(step[:, None] > 0, items / step[:, None], 0).round().to(torch.int8)
    parts = code, 32, step, torch.full((n,), slack), torch.ones(d)
    return kernels.Catalogue(items, n, d, *parts, items.norm(dim=1) * 1.1)


def best(
    of: object, query: Tensor, k: int, excluded: tuple[int, ...] = ()
) -> tuple[list[int], list[float]]:
    scores, ids = torch.empty(k), torch.empty(k, dtype=torch.int64)
    left_out, offsets = torch.tensor(excluded, dtype=torch.int64), torch.tensor([0, len(excluded)])
    assert of.best(query, 1, k, left_out, offsets, None, scores, ids, 1)
    return ids.tolist(), scores.tolist()


@pytest.mark.parametrize("threads", [1, 2])
def test_no_queries_have_no_best_items(threads):
    """Prefetching is shared by the queries, of which there may be none."""
    of, none = catalogue(0.1, torch.randn(40, 3)), torch.empty(0, dtype=torch.int64)
    offsets, scores = torch.zeros(1, dtype=torch.int64), torch.empty(0, 2)
    assert of.best(torch.empty(0, 3), 0, 2, none, offsets, None, scores, none.view(0, 2), threads)


def test_an_item_whose_bound_is_the_bar_itself_is_a_candidate():
    # Whole numbers: every bound is exact, so that the k-th best has the very score of the bar.
    # Without the next number below it none of the best would pass.
    items = torch.tensor([[127.0], [127.0], [64.0], [127.0]])
    assert best(catalogue(0.0, items), torch.ones(1), 2) == ([0, 1], [127, 127])
    assert best(catalogue(0.0, items), torch.ones(1), 4) == ([0, 1, 3, 2], [127, 127, 127, 64])


@pytest.mark.parametrize("n", [1, 2, 7, 8, 15, 16, 17, 33])
def test_the_last_item_counts(n):
    items = torch.zeros(n, 2)
    items[-1] = 3.0
    for k in {1, n}:
        ids, scores = best(catalogue(0.1, items), torch.ones(2), k)
        assert (ids[0], scores[0]) == (n - 1, 6.0)
        assert sorted(ids) == list(range(n)) if k == n else True


def test_excluded_ids_outside_the_catalogue_are_ignored():
    """510 bounds fill their block of memory: the allocator notices a write past the last one."""
    items = torch.zeros(510, 2)
    items[-1], items[0] = 3.0, 2.0
    for excluded in ((510,), (-1,), (2**40, 511, -(2**40))):
        assert best(catalogue(0.1, items), torch.ones(2), 2, excluded) == ([509, 0], [6, 4])
    assert best(catalogue(0.1, items), torch.ones(2), 1, (509,)) == ([0], [4])


def test_neither_padding_nor_what_follows_the_query_counts():
    items = torch.tensor([[1.0, 1.0], [3.0, 3.0], [2.0, 2.0]])
    code = torch.full((3, 32), 127, dtype=torch.int8)  # rows of equal numbers, and the padding
    step, slack = items[:, 0] / 127, torch.full((3,), 0.1)
    for behind in (-1.0, 1.0):
        query = torch.tensor([1.0, 1.0, behind])[:2]
        balance = torch.ones(3)[:2]
        made = kernels.Catalogue(items, 3, 2, code, 32, step, slack, balance, torch.full((3,), 4.3))
        assert best(made, query, 2) == ([1, 2], [6, 4])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_excluded_ids_are_those_of_the_block_and_of_the_row(dtype):
    name = "f32" if dtype == torch.float32 else "f64"
    rows, n, k = 3, 5, 2
    # The first and last of a block are in it, their neighbours are not, nor those of other rows.
    excluded, offsets = torch.tensor([9, 10, 14, 15, 12]), torch.tensor([0, 4, 4, 5])
    scores = torch.arange(5.0, dtype=dtype).repeat(rows, 1)
    found, ids = torch.empty(rows, k, dtype=dtype), torch.empty(rows, k, dtype=torch.int64)
    count = torch.zeros(rows, dtype=torch.int64)
    state = found, ids, count
    run = getattr(kernels, f"best_of_{name}")
    assert run(scores, rows, n, 10, k, *state, excluded, offsets, None, 1)
    getattr(kernels, f"best_sorted_{name}")(rows, k, *state, 1)
    assert ids.tolist() == [[13, 12], [14, 13], [14, 13]]
    assert scores.isneginf().nonzero().tolist() == [[0, 0], [0, 4], [2, 2]]
    with pytest.raises(ValueError, match="offsets must rise"):
        run(scores, rows, n, 10, k, *state, excluded, offsets + 1, None, 1)
    with pytest.raises(ValueError, match=r"allowed .* at least 15"):
        run(scores, rows, n, 10, k, *state, excluded, offsets, torch.ones(14).bool(), 1)
    count[1] = k + 1
    with pytest.raises(IndexError, match="count must be between 0 and 2, got 3"):
        run(scores, rows, n, 10, k, *state, excluded, offsets, None, 1)


def test_what_an_object_points_to_lives_as_long_as_it():
    items = torch.randn(50, 3)
    made = catalogue(1.0, items.clone())
    spare = [torch.full((50, 3), torch.nan) for _ in range(20)]  # would take the place of the copy
    ids, _ = best(made, torch.ones(3), 5)
    assert ids == items.sum(1).topk(5).indices.tolist()
    assert spare
