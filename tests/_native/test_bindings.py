"""Every binding validates sizes, ids and strides of the tensors it is given."""

import contextlib
import importlib
import math
import os

import pytest
import torch
from torch import Tensor

import fewfold as ff
from fewfold import _native
from tests.paths import kernels_only

pytestmark = kernels_only
kernels = _native.kernels
DTYPES = (
    *(torch.float32, torch.float64, torch.int8, torch.uint8),
    *(torch.int16, torch.int32, torch.int64, torch.bool),
)


def forward(x: object, p: object, rows: int, k: int, alpha: float = 2.0, **more: object) -> None:
    alphas, places, capacity = (more.get(name) for name in ("alphas", "places", "capacity"))
    kernels.forward_f32(x, p, rows, k, alpha, alphas, False, places, capacity or 0, 1)


@pytest.fixture(params=[True, False], ids=["exchange", "by asking"])
def exchange(request):
    """Tensors are read by DLPack's exchange of pointers, or by asking them: older torch."""
    kernels.accept_tensors(torch.Tensor, DTYPES, request.param)
    yield request.param
    kernels.accept_tensors(torch.Tensor, DTYPES)


@pytest.mark.usefixtures("exchange")
@pytest.mark.parametrize(
    ("x", "rows", "k", "error", "match"),
    [
        (torch.zeros(8, 4), 9, 4, ValueError, "scores .* at least 36 elements, got 32"),
        (torch.zeros(8, 4), 8, 5, ValueError, "at least 40"),
        (torch.zeros(8, 4), -1, 4, ValueError, "must not be negative, got -1"),
        (torch.zeros(8, 4), 2**40, 2**30, ValueError, "too large"),
        (torch.zeros(8, 4), 2**62, 2**10, ValueError, "too large"),
        (torch.zeros(8, 4), 0, 2**31, ValueError, "shorter than 2.31"),
        (torch.zeros(8, 4).double(), 8, 4, TypeError, "float32 .* got float64"),
        (torch.zeros(8, 4).half(), 8, 4, TypeError, "got another type"),
        (torch.zeros(8, 4).long(), 8, 4, TypeError, "got int64"),
        (torch.zeros(4, 8).T, 8, 4, ValueError, "not contiguous"),
        (torch.zeros(8, 1).expand(8, 4), 8, 4, ValueError, "not contiguous"),
        (torch.zeros(8, 8)[:, ::2], 8, 4, ValueError, "not contiguous"),
        (torch.zeros(8, 4, device="meta"), 8, 4, TypeError, "without memory|incompatible"),
        (None, 8, 4, TypeError, "got None"),
        ([[0.0]], 1, 1, TypeError, "incompatible function arguments"),
    ],
)
def test_an_argument_that_does_not_fit_is_refused(x, rows, k, error, match):
    with pytest.raises(error, match=match):
        forward(x, torch.empty(8, 4), rows, k)


@pytest.mark.usefixtures("exchange")
def test_what_fits_is_taken_whatever_stands_in_for_it():
    x = torch.randn(6, 5)
    wide = torch.randn(6, 3, 5)
    for given in (x, torch.nn.Parameter(x), x[2:], wide[1], torch.randn(1, 5).expand(1, 5), x[:0]):
        probs = torch.empty(given.shape)
        forward(given, probs, given.numel() // 5, 5)
        torch.testing.assert_close(probs, ff.sparsemax(given.detach()))


def test_members_of_the_family_that_are_none_are_refused():
    x, p = torch.randn(3, 5), torch.empty(3, 5)
    for alpha in (1.0, 0.5, 2.5, math.nan, math.inf):
        with pytest.raises(ValueError, match="alpha must be above 1 and at most 2"):
            forward(x, p, 3, 5, alpha)
    with pytest.raises(ValueError, match="alpha must be"):
        forward(x, p, 3, 5, alphas=torch.tensor([1.5, 2.0, 3.0]).double())
    with pytest.raises(ValueError, match=r"alphas .* at least 3"):
        forward(x, p, 3, 5, alphas=torch.tensor([1.5, 2.0]).double())
    with pytest.raises(ValueError, match=r"places .* at least 192"):
        forward(x, p, 3, 5, places=torch.empty(3, 63, dtype=torch.int32), capacity=64)


def test_supports_left_for_the_backward_pass_are_looked_at():
    p, g, out = torch.rand(2, 5), torch.rand(2, 5), torch.empty(2, 5)
    places = torch.tensor([[1, 4, 0], [2, 0, 1]], dtype=torch.int32)

    def backward():
        kernels.backward_f32(p, g, out, 2, 5, 2.0, None, False, places, 3, 1)

    backward()
    places[0, 1] = 5
    with pytest.raises(IndexError, match="places must be between 0 and 4, got 5 at position 0"):
        backward()
    places[0, :2] = torch.tensor([3, 0])
    with pytest.raises(ValueError, match="fewer than capacity=3"):
        backward()


def scatter(index: list[int], first: list[int], rows: int, k: int) -> Tensor:
    out = torch.empty(rows, k)
    values = torch.ones(len(index))
    ends = torch.tensor(first), out, rows, k, 1
    kernels.scatter_f32(torch.tensor(index), values, *ends)
    return out


def test_offsets_are_looked_at_before_they_are_followed():
    assert scatter([1, 0], [0, 1, 2], 2, 2).tolist() == [[0, 1], [1, 0]]
    for first in ([0, 1, 3], [0, 3, 2], [-1, 1, 2], [0, 2, 1]):
        with pytest.raises(ValueError, match="first must rise from 0 to at most 2"):
            scatter([1, 0], first, 2, 2)
    for index, match in (([1, 2], "got 2 at position 1"), ([-1, 0], "got -1 at position 0")):
        with pytest.raises(IndexError, match=f"index must be between 0 and 1, .* {match}"):
            scatter(index, [0, 1, 2], 2, 2)


def dots(size=7, d=3, rows=2, each=2, ids=None, more=None, offsets=None, width=3):
    ids = torch.zeros(rows, each, dtype=torch.int64) if ids is None else torch.tensor(ids)
    more = torch.tensor([0, 1, 2] if more is None else more)
    offsets = torch.tensor([0, 1, 3] if offsets is None else offsets)
    queries, table = torch.ones(rows, width), torch.arange(7.0)[:, None].expand(7, 3).contiguous()
    scores, further = torch.empty(rows, each), torch.empty(len(more))
    last = ids, each, more, offsets, scores, further, 1
    kernels.picked_dots_f32(queries, table, size, d, rows, *last)
    return scores, further


def test_picked_ids_and_offsets_are_within_their_table():
    scores, further = dots(ids=[[1, 2], [6, 0]])
    assert scores.tolist() == [[3, 6], [18, 0]]
    assert further.tolist() == [0, 3, 6]
    for bad in ([[1, 7], [0, 0]], [[1, 2**62], [0, 0]], [[-1, 0], [0, 0]], [[0, 0], [0, -(2**63)]]):
        with pytest.raises(IndexError, match="item ids must be between 0 and 6, the rows of the"):
            dots(ids=bad)
    with pytest.raises(IndexError, match="got 7 at position 2"):
        dots(more=[0, 1, 7])
    for offsets in ([0, 1, 4], [0, 4, 3], [-1, 1, 3], [1, 0, 3]):
        with pytest.raises(ValueError, match="offsets must rise from 0 to at most 3"):
            dots(offsets=offsets)
    for wrong in ({"width": 2}, {"width": 4}, {"d": 2}, {"size": 8}, {"size": 6}, {"rows": 3}):
        with pytest.raises(ValueError, match="must be"):
            dots(**wrong)


def drawn(start: Tensor) -> object:
    """A draw from two cells; the numbers of each cell are at start[c] to start[c + 1]."""
    codes, item = torch.tensor([[0, 1]], dtype=torch.int32), torch.arange(3, dtype=torch.int32)
    ids, log_q = torch.empty(1, 4, dtype=torch.int64), torch.empty(1, 4)
    return kernels.draw(
        2, 1, codes, torch.zeros(2), start, item, None, None, None, torch.zeros(1, 2), 2, 1, 4, 0,
        0, ids, log_q, torch.empty(1).double(), 1,
    )  # fmt: skip


def made_tables(start: Tensor) -> object:
    accept, other = torch.empty(3), torch.empty(3, dtype=torch.int32)
    return kernels.alias_tables(torch.ones(3).double(), start, 2, accept, other)


def summed(offsets: Tensor) -> object:
    ids, by, out = torch.zeros(3, dtype=torch.int64), torch.ones(2), torch.empty(2, 1)
    return kernels.bags_f32(torch.ones(1, 1), 1, 1, ids, offsets, 2, by, out, 1)


def spread(offsets: Tensor) -> object:
    return kernels.unbags_f32(torch.ones(2, 1), 1, offsets, 2, torch.ones(2), torch.empty(3, 1), 1)


def thinned(offsets: Tensor) -> object:
    ids, out = torch.zeros(3, dtype=torch.int64), torch.empty(4, dtype=torch.int64)
    return kernels.thin(ids, offsets, 2, 0.5, 0, out, torch.empty(3, dtype=torch.int64))


@pytest.mark.parametrize("use", [drawn, made_tables, summed, spread, thinned])
def test_offsets_of_cells_and_bags_are_within_their_numbers(use):
    use(torch.tensor([0, 1, 3]))
    for wrong in ([0, 1, 4], [0, 4, 3], [-1, 1, 3], [2, 1, 3]):
        with pytest.raises(ValueError, match="must rise from 0 to at most 3"):
            use(torch.tensor(wrong))
    with pytest.raises(ValueError, match=r"must be .* at least 3 elements, got 2"):
        use(torch.tensor([0, 1]))


def test_codes_of_cells_are_within_the_scores():
    def mixed(code: list[int]) -> None:
        cells, codes = len(code), torch.tensor([code], dtype=torch.int32)
        scores, out = torch.zeros(1, 2), torch.empty(cells)
        kernels.mixture(cells, 1, codes, torch.zeros(cells), scores, 2, 1, out, 1)

    mixed([0, 1])
    for code, match in (([0, 2], "got 2 at position 1"), ([-1, 0], "got -1 at position 0")):
        with pytest.raises(IndexError, match=f"code must be between 0 and 1, {match}"):
            mixed(code)


def test_the_range_of_ids_is_looked_at_in_every_lane_of_a_vector():
    table, size = torch.ones(50, 2), 50
    for n in (1, 7, 8, 9, 31, 64, 65):
        ids = torch.randint(size, (n,))
        offsets, by, out = torch.tensor([0, n]), torch.ones(1), torch.empty(1, 2)
        kernels.bags_f32(table, size, 2, ids, offsets, 1, by, out, 1)
        assert out.tolist() == [[n, n]]
        for at in range(n):
            for bad in (-1, size):
                wrong = ids.clone()
                wrong[at] = bad
                with pytest.raises(IndexError, match=f"got {bad} at position {at}$"):
                    kernels.bags_f32(table, size, 2, wrong, offsets, 1, by, out, 1)


def test_an_id_is_found_in_the_part_of_any_thread():
    n, table = 100_000, torch.ones(10, 1)
    offsets, by, out = torch.tensor([0, n]), torch.ones(1), torch.empty(1, 1)
    for at in (0, n // 2 - 1, n // 2, n - 1):
        ids = torch.zeros(n, dtype=torch.int64)
        ids[at] = 10
        with pytest.raises(IndexError, match=f"got 10 at position {at}$"):
            kernels.bags_f32(table, 10, 1, ids, offsets, 1, by, out, 4)


# ---- the division of rows -----------------------------------------------------------------------


GRAIN = 32768  # least count of numbers per thread


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 100, 101])
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_rows_are_divided_once_each_in_even_parts(rows, threads):
    parts = kernels.shares(rows, 100 * GRAIN, threads)
    assert len(parts) == min(rows, threads) or not kernels.threaded()
    team = len(parts)
    assert parts == [(rows * me // team, rows * (me + 1) // team) for me in range(team)]


def test_a_thread_is_woken_for_so_much_work_and_no_less():
    if not kernels.threaded():
        pytest.skip("built without threads")
    for rows, k, parts in (
        *((8, GRAIN // 8, 1), (8, GRAIN // 4 - 1, 1), (8, GRAIN // 4, 2), (8, 3 * GRAIN // 8, 3)),
        *((8, 0, 1), (0, GRAIN, 0), (8, 2**62, 4), (2**40, 2**40, 4)),  # products that overflow
    ):
        assert len(kernels.shares(rows, k, 4)) == parts, (rows, k)
    assert kernels.shares(5, 2**40, 0) == kernels.shares(5, 2**40, -3) == [(0, 5)]
    with pytest.raises(ValueError, match="negative"):
        kernels.shares(-1, 1, 1)


def test_an_error_inside_a_thread_is_raised_by_the_call():
    rows = 4000
    codes = torch.tensor([[0, 1]], dtype=torch.int32)
    accept, other = torch.zeros(2), torch.tensor([0, 99], dtype=torch.int32)  # names no place
    scores = torch.zeros(rows, 2)
    ids, log_q = torch.empty(rows, 64, dtype=torch.int64), torch.empty(rows, 64)
    log_z, start = torch.empty(rows, dtype=torch.float64), torch.tensor([0, 1, 2])
    item = torch.tensor([0, 1], dtype=torch.int32)
    with pytest.raises(IndexError, match="alias table"):
        kernels.draw(
            2, 1, codes, torch.zeros(2), start, item, accept, other, None, scores, 2, rows, 64, 0,
            0, ids, log_q, log_z, 4,
        )  # fmt: skip


@pytest.mark.skipif(
    "libasan" in os.environ.get("LD_PRELOAD", ""), reason="the sanitizer aborts such a request"
)
def test_memory_that_is_not_there_is_an_error_and_no_abort():
    with contextlib.suppress(ImportError):
        importlib.import_module("duckdb")  # made with nanobind too: it translates exceptions
    for rows in (2**44, 2**58, 2**62):
        with pytest.raises((MemoryError, ValueError)):
            kernels.Streams_f32(rows, 2.0, 10)
    with pytest.raises((MemoryError, ValueError)):
        kernels.mixture(
            1, 1, torch.zeros(1, 1, dtype=torch.int32), torch.zeros(1), torch.zeros(0), 1, 2**45,
            torch.zeros(1), 1,
        )  # fmt: skip
    with pytest.raises((MemoryError, ValueError)):  # inside the threads
        kernels.project_assignments(
            kernels.AssignmentShape(2, 0, 2**20, False, 2), torch.zeros(0).double(),
            torch.zeros(0).double(), torch.zeros(2).double(), torch.zeros(2, dtype=torch.int64),
            torch.zeros(2, dtype=torch.int32),
        )  # fmt: skip


# ---- what is kept between calls ------------------------------------------------------------------


def request(rows=2, parts=6, slots=3, codes=None, offsets=None, scores=None):
    scores = torch.zeros(rows, parts, dtype=torch.float64) if scores is None else scores
    return kernels.Request(
        scores, rows, parts, slots, 100, 1e-9, codes, offsets, scores.clone(),
        torch.zeros(rows, dtype=torch.float64), torch.zeros(rows, dtype=torch.int64),
        torch.zeros(rows, dtype=torch.int32), 1, False,
    )  # fmt: skip


def test_structures_to_start_from_are_structures():
    offsets = torch.tensor([0, 1, 1])

    def start(code, offsets=offsets):
        asked = request(codes=torch.tensor([code], dtype=torch.int32), offsets=offsets)
        return kernels.sparsemap_sequences(asked, kernels.Chains(3, 2, *chain))

    chain = None, 0, 0, None, 0, None, 0
    assert start([0, 2, 5])[0].shape[1] == 3
    for code in ([0, 2, 6], [0, 2, -2]):
        with pytest.raises(IndexError, match="warm codes must be between -1 and 5"):
            start(code)
    with pytest.raises(ValueError, match="codes at position 1 must be between 2 and 3, got 0"):
        start([0, 0, 5])
    for wrong in (torch.tensor([0, 4, 4]), torch.tensor([0, 2, 1]), torch.tensor([-1, 0, 1])):
        with pytest.raises(ValueError, match=r"warm"):
            start([0, 2, 5], wrong)
    with pytest.raises(ValueError, match="6 parts and 3 slots, the request 8 and 4"):
        asked = request(parts=8, slots=4)
        kernels.sparsemap_sequences(asked, kernels.Chains(3, 2, *chain))


@pytest.mark.parametrize("n", [3, 20_000, 30_001, 50_000])
def test_no_structure_to_start_from_stays_that_is_a_mix_of_others(n):
    """What is left of a structure without the others is rounding, which grows with its length."""
    codes = (2 * torch.arange(n)).repeat(8, 1)
    codes[:, :3] += torch.cartesian_prod(*[torch.arange(2)] * 3)  # all states of three positions
    scores = torch.tensor([5.0, 0.0], dtype=torch.float64).repeat(1, n)
    scores[0, :6] = 0
    given = {"codes": codes.int(), "offsets": torch.tensor([0, 8]), "scores": scores}
    chains = kernels.Chains(n, 2, None, 0, 0, None, 0, None, 0)
    found, weights, *_ = kernels.sparsemap_sequences(request(1, 2 * n, n, **given), chains)
    assert len(weights) <= 4
    states = torch.from_numpy(found) - 2 * torch.arange(n)
    half = torch.full((3,), 0.5, dtype=torch.float64)
    on = torch.from_numpy(weights) @ states.double()
    torch.testing.assert_close(on[:3], half, atol=1e-9, rtol=0)
    assert not on[3:].any()


def test_additional_scores_reach_as_far_as_the_instances():
    double = torch.zeros(2, 2, dtype=torch.float64)
    chains = kernels.Chains(3, 2, double, 0, 0, torch.zeros(1, 2).double(), 2, None, 0)
    with pytest.raises(ValueError, match="start must be given for 2 instances"):
        kernels.sparsemap_sequences(request(), chains)
    with pytest.raises(ValueError, match=r"transitions .* at least 8"):
        kernels.Chains(3, 2, double, 0, 4, None, 0, None, 0)
    with pytest.raises(ValueError, match="negative"):
        kernels.Chains(3, 2, double, 0, -4, None, 0, None, 0)


def test_a_graph_that_has_changed_does_not_go_on_from_what_it_was():
    def solve(graph, warm, rows=1):
        double = [torch.zeros(rows, 2).double() for _ in range(2)]
        one = [torch.ones(rows).double() for _ in range(3)]
        whole = torch.zeros(rows, dtype=torch.int64), *torch.zeros(2, rows, dtype=torch.int32)
        pairs, (steps, apart, moved) = torch.zeros(rows, 0).double(), one
        took, outcome, failed = whole
        graph.solve(
            double[0], rows, pairs, 10, 1e-6, steps, warm, double[1], took, apart, moved, outcome,
            failed, 1,
        )  # fmt: skip

    graph = kernels.Graph(2)
    bits, sign = torch.tensor([[0, 1]]), torch.ones(1, 2).double()
    uses = kernels.Uses(1, 2, bits, sign)
    graph.add_linear(uses, torch.ones(1, 2).double(), torch.ones(1).double(), False)
    with pytest.raises(ValueError, match="warm start"):
        solve(graph, True)
    solve(graph, False)
    solve(graph, True)
    graph.add_any_out(uses)
    with pytest.raises(ValueError, match="warm start"):
        solve(graph, True)
    with pytest.raises(ValueError, match="factor 0 has no structures"):
        graph.active(0, 1, None)
    with pytest.raises(ValueError, match="2 factors"):
        graph.active(1, 2, None)
    bits[0, 1] = 2
    with pytest.raises(IndexError, match="bits must be between 0 and 1"):
        graph.add_any_out(uses)


@pytest.mark.parametrize("rule", ["linear", "any_out"])
def test_a_row_with_a_nan_has_no_nearest_point_and_its_neighbours_have(rule):
    def nearest(rows: Tensor) -> Tensor:
        to, last = torch.empty_like(rows), ()
        if rule == "linear":
            last = torch.ones(3).double(), 1.0, True
        getattr(kernels, f"nearest_{rule}")(rows, len(rows), 3, *last, to, 1)
        return to

    rows = torch.tensor([[0.3, 0.1, 0.2], [0.9, 0.4, -0.5]], dtype=torch.float64)
    expected = nearest(rows)
    assert expected.isfinite().all()
    for place in range(3):
        odd = rows[:1].clone()
        odd[0, place] = torch.nan
        found = nearest(torch.cat([rows[:1], odd, rows[1:]]))
        assert found[1].isnan().all()
        assert torch.equal(found[[0, 2]], expected)


@pytest.mark.parametrize("rule", ["momentum", "adagrad", "adam", "yogi", "adam_by_row"])
def test_the_state_of_an_optimiser_is_as_large_as_its_table(rule):
    rows, width = 5, 3
    slots = 2 if rule in ("adam", "yogi") else 1
    table, grad = torch.zeros(rows, width), torch.ones(2, width)
    index, age = torch.tensor([0, 4]), torch.zeros(rows, dtype=torch.int32)
    memory, square = torch.zeros(rows, slots, width), torch.zeros(rows)
    update = kernels.Update(lr=0.1, beta1=0.9, beta2=0.9)

    def touch(index=index, table=table, memory=memory, age=age, square=square):
        run = getattr(kernels, f"touch_{rule}_f32")
        return run(index, grad, len(grad), rows, width, table, memory, age, square, update, 1)

    assert touch() == -1
    assert touch(index=torch.tensor([0, 5])) == 1
    assert touch(index=torch.tensor([-1, 0])) == 0
    with pytest.raises(ValueError, match="index must be"):
        touch(index=index[:1])
    with pytest.raises(ValueError, match="weight must be"):
        touch(table=table[:4])
    with pytest.raises(ValueError, match="state must be"):
        touch(memory=memory[:4])
    if rule not in ("momentum", "adagrad"):
        with pytest.raises(ValueError, match="age must be"):
            touch(age=age[:4])
    if rule == "adam_by_row":
        with pytest.raises(ValueError, match="square must be"):
            touch(square=square[:4])
    with pytest.raises(ValueError, match="every row, 5, got 2"):
        touch(index=None)
