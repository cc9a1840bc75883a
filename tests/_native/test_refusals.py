"""Invalid arguments of bindings, each with its error message."""

import pytest
import torch
from torch import Tensor

from fewfold import _native
from tests.paths import kernels_only

pytestmark = kernels_only
kernels = _native.kernels
F32, F64, I32, I64 = torch.float32, torch.float64, torch.int32, torch.int64


def zeros(*shape: int, dtype: torch.dtype = F64) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


def request(rows: int, parts: int, slots: int) -> object:
    return kernels.Request(
        zeros(rows, parts), rows, parts, slots, 10, 1e-9, None, None, zeros(rows, parts),
        zeros(rows), zeros(rows, dtype=I64), zeros(rows, dtype=I32), 1, False,
    )  # fmt: skip


def trees(rows: int, parts: int, slots: int) -> object:
    codes, values = zeros(rows, slots, dtype=I32), zeros(rows)
    return kernels.BestTrees(zeros(rows, parts), rows, parts, slots, 1, codes, values, 1)


def uses(factors: int, parts: int) -> object:
    return kernels.Uses(factors, parts, zeros(factors, parts, dtype=I64), zeros(factors, parts))


def refused(match: str, call: object, *arguments: object, error: type = ValueError) -> None:
    with pytest.raises(error, match=match):
        call(*arguments)


def test_sizes_whose_product_is_no_number_of_elements():
    x = zeros(1, dtype=F32)
    refused("sizes .* are too large", kernels.forward_f32, x, x, 2**30, 2**30, 2.0, None, False,
            None, 0, 1)  # fmt: skip
    push = kernels.Streams_f32(1, 1.5, 50).push
    for size, base in ((1, -1), (2**31, 0), (2, 2**31 - 2)):
        refused("columns must be below 2.31, got", push, x, size, size, base, 1)


def test_tensors_whose_rows_may_lie_apart(by_asking):
    out = zeros(2, dtype=I64)

    def nearest(points: object, n: int = 2, d: int = 3, k: int = 16) -> None:
        centres, half = zeros(d, k, dtype=F32), zeros(k, dtype=F32)
        kernels.nearest(points, 4, n, d, centres, half, k, out, 1)

    nearest(zeros(2, 4, dtype=F32)[:, :3])
    nearest(zeros(0, dtype=F32), d=0)  # rows without numbers reach nowhere
    refused("points must be .* got None", nearest, None, error=TypeError)
    refused("float32 .* got float64", nearest, zeros(2, 4), error=TypeError)
    refused("on another device", nearest, torch.empty(2, 4, device="meta"), error=TypeError)
    refused("at least 7 elements, got 6", nearest, zeros(6, dtype=F32))
    refused("a multiple of 16 centres, got 8", nearest, zeros(2, 4, dtype=F32), 2, 3, 8)


def test_cells_and_their_items():
    scores, out = zeros(1, 2, dtype=F32), [zeros(1, 2, dtype=I64), zeros(1, 2, dtype=F32), zeros(1)]
    code, mass, item = torch.tensor([[0, 1]]).int(), zeros(2, dtype=F32), torch.arange(2).int()

    def draw(start: list[int], accept: object = None, other: object = None) -> None:
        index = [code, mass, torch.tensor(start), item, accept, other, None]
        kernels.draw(2, 1, *index, scores, 2, 1, 2, 7, 0, *out, 1)

    draw([0, 1, 2])
    refused("cell 0 does not", draw, [0, 0, 2])
    refused("cell 1 does not", draw, [0, 2, 2])
    refused("given together", draw, [0, 1, 2], zeros(2, dtype=F32))

    def log_prob(code: list[int], cell_of: list[int]) -> None:
        index = [2, 1, torch.tensor([code]).int(), torch.tensor(cell_of).int(), 2, None]
        asked = [zeros(1), torch.tensor([0, 1]), zeros(2, dtype=I64), 2, zeros(2, dtype=F32)]
        kernels.log_prob(*index, scores, 2, 1, *asked, 1)

    log_prob([0, 1], [0, -1])
    refused("cells of items .* got 2 at position 1", log_prob, [0, 1], [0, 2], error=IndexError)
    for word in (-1, 2):
        refused(f"code .* got {word} at", log_prob, [0, word], [0, 1], error=IndexError)
    for bad in (-1.0, torch.inf, torch.nan):
        weight, start = torch.tensor([1.0, bad]).double(), torch.tensor([0, 2])
        refused("weights must be finite and not negative, got .* at 1", kernels.alias_tables,
                weight, start, 1, zeros(2, dtype=F32), zeros(2, dtype=I32))  # fmt: skip


def test_anchors_and_slots():
    anchors, weight = zeros(2, 3, dtype=F32), zeros(4, 1, dtype=F32)
    out = [zeros(3, 1, dtype=F32), zeros(3, 1, dtype=I32), zeros(3, 3, dtype=F32)]

    def mix(slots: list[int], n: int = 3) -> int:
        table = [anchors, 2, 3, weight, torch.tensor(slots).int()[:, None], 4, 1]
        return kernels.mix_f32(*table, zeros(n, dtype=I64), n, None, None, 3, *out, 1)

    assert mix([0, 1, 0, 1]) == -1
    for slot in (-1, 2):
        assert mix([slot, 1, 0, 1]) == -2
    refused("there are 2 ids for 3 rows", mix, [0, 1, 0, 1], 2)
    none = zeros(0, dtype=F32)
    head = [none, 2**31, 0, 1, 0, zeros(1, dtype=I64), none, zeros(0, dtype=I32), none]
    tail = [None, none, None, None, 1]
    refused("fewer than 2.31 anchors", kernels.mixed_pulls_f32, *head, *tail)
    turned, dense = zeros(1, 2, 16, dtype=F32), torch.ones(16, 4)
    slots, marks = torch.tensor([[0], [1], [2], [1]]).int(), torch.ones(4, dtype=torch.uint8)
    assert not kernels.tied_f32(turned, 16, 16, 2, weight, slots, 4, 1, dense.clone(), 1)
    refused("slots must be anchors", kernels.untied_f32, turned, 16, 16, 2, slots, 4, 1, dense, 0.0,
            zeros(4, dtype=torch.uint8), None, zeros(4, 1, dtype=F32), 1)  # fmt: skip
    refused("slots must be anchors", kernels.untied_pull_f32, 16, 16, 2, weight, slots, 4, 1, dense,
            0.0, marks, turned, 1)  # fmt: skip
    for width in (8, 17):
        refused("multiple of 16", kernels.tied_f32, turned, 16, width, 2, weight, slots, 4, 1,
                dense, 1)  # fmt: skip


def test_shapes_of_structures():
    refused("fewer than 2.31 pairs", kernels.AssignmentShape, 0, 2**16, 2**16, False, 1)
    refused("must be rows for 4097 columns", kernels.AssignmentShape, 1, 0, 4097, False, 1)
    kernels.AssignmentShape(1, 0, 4096, False, 1)
    shape = kernels.AssignmentShape(3, 2, 2, False, 1)
    refused("the request has 2 instances, the shape 3", kernels.sparsemap_assignments,
            request(2, 4, 2), shape)  # fmt: skip
    refused("4 parts and 2 slots, the request 4 and 3", kernels.sparsemap_assignments,
            request(3, 4, 3), shape)  # fmt: skip
    refused("parts must be fewer than 2.31", request, 0, 2**31, 1)
    refused("at least 2 and at most 1", kernels.sparsemap_choices, request(1, 3, 3), 2, 1)
    for rule in (-1, 4):
        refused(f"four rules, got {rule}", kernels.sparsemap_logic, request(1, 3, 3), rule,
                zeros(3, dtype=torch.uint8))  # fmt: skip
    ends = torch.tensor([[0, 1], [1, 2]]).int()
    spanning = kernels.best_spanning
    refused("2 edges cannot connect 4 nodes", spanning, trees(1, 2, 2), ends, 4)
    refused("fewer than 2.31 nodes", spanning, trees(1, 2, 2), ends, 2**31)
    refused("must have 2 scores, got 3", spanning, trees(1, 3, 2), ends, 3)
    refused("at most 32768 words, got 32769", kernels.best_dependencies, trees(0, 0, 32769), True,
            True)  # fmt: skip


def test_chains_and_their_codes():
    none = None, 0, 0, None, 0, None, 0
    refused("a chain must have fewer than 2.31 parts", kernels.Chains, 2**16, 2**15, *none)
    refused("of 3 bits 4 cannot be on", kernels.Subsets, 3, 4, True, zeros(2), 0, 1)
    codes = torch.tensor([[0, 2], [1, 4]], dtype=I32)
    ends = None, 0, None, 0
    refused("codes at position 1 must be between 2 and 3, got 4", kernels.pull_sequences, codes,
            zeros(2, dtype=I64), zeros(2), 2, 2, 2, 1, zeros(1, 2, 2), 4, 0, *ends)  # fmt: skip
    states, k = 2**11, 2**20  # refused before there is memory for the ways to every state
    chains = kernels.Chains(1, states, *none)
    refused("k must be smaller, got 1048576", kernels.k_best_sequences, zeros(1, states), 1, chains,
            k, zeros(k, dtype=I32), zeros(k), 1)  # fmt: skip


def test_factors_of_graphs():
    refused("fewer than 2.31 bits", kernels.Graph, 2**31)
    graph = kernels.Graph(4)
    refused("must have 2 parts, got 3", graph.add_pairs, uses(1, 3))
    refused("at most 32768 words", graph.add_dependencies, uses(1, 4), 32769, True, True)
    refused("must have 4 parts, got 3", graph.add_dependencies, uses(1, 3), 2, True, True)
    graph.add_any_out(uses(0, 3))  # no factor
    for first, factors in ((-1, 0), (0, -1), (0, 1), (1, 0)):
        refused(f"there are 0 factors, got {factors} from {first}", graph.active, first, factors,
                None)  # fmt: skip


def test_rows_of_optimisers():
    update = kernels.Update(lr=0.1)
    rows, n = 2**59 - 1, 32  # numbers of 59 and 6 bits; a table without columns has no memory
    none, index = zeros(0, dtype=F32), zeros(n, dtype=I64)
    refused("cannot be sorted as one number", kernels.touch_sgd_f32, index, none, n, rows, 0, none,
            none, None, None, update, 1)  # fmt: skip
    table, by = zeros(3, 2, dtype=F32), torch.ones(4)

    def pay(rows: object, n: int) -> int:
        return kernels.pay_sgd_f32(rows, by, n, 3, 2, table, None, None, None, update, 1)

    assert pay(None, 3) == pay(torch.tensor([2, 0]), 2) == -1
    assert pay(torch.tensor([2, 3]), 2) == pay(torch.tensor([0, -1]), 2) == 1
    refused("there are 3 rows to pay, got 4", pay, None, 4)


def test_catalogues_of_bytes():
    def made(d: int, width: int, items: int = 1) -> object:
        code, each = zeros(items, width, dtype=torch.int8), zeros(items, dtype=F32)
        vectors, balance = (
            torch.ones(items, d),
            torch.empty(d).fill_(1) if items else torch.empty(d),
        )
        return kernels.Catalogue(vectors, items, d, code, width, each, each, balance, each)

    made(32, 32)
    for d, width in ((33, 32), (3, 33)):
        refused("a multiple of 32 and at least d=", made, d, width)
    refused("shorter than 16777216", made, 2**24 + 1, 2**24 + 32, 0)


# ---- tensors that answer wrongly ---------------------------------------------------------------


class Odd(Tensor):
    """A tensor of which one answer is wrong."""

    @property
    def shape(self):
        return answered(self, "shape", Tensor.shape.__get__(self))

    @property
    def dtype(self):
        return answered(self, "dtype", Tensor.dtype.__get__(self))

    @property
    def is_cpu(self):
        return answered(self, "is_cpu", Tensor.is_cpu.__get__(self))

    def stride(self):
        return answered(self, "stride", super().stride())

    def element_size(self):
        return answered(self, "element_size", super().element_size())

    def data_ptr(self):
        return answered(self, "data_ptr", super().data_ptr())


def answered(tensor: Tensor, name: str, right: object) -> object:
    wrong = tensor.__dict__.get("wrong", {})
    if isinstance(wrong.get(name), Exception):
        raise wrong[name]
    return wrong.get(name, right)


@pytest.fixture
def by_asking():
    dtypes = (
        *(torch.float32, torch.float64, torch.int8, torch.uint8),
        *(torch.int16, torch.int32, torch.int64, torch.bool),
    )
    kernels.accept_tensors(torch.Tensor, dtypes, False)
    yield dtypes
    kernels.accept_tensors(torch.Tensor, dtypes)


@pytest.mark.parametrize(
    "wrong",
    [
        {"shape": RuntimeError("no shape")},
        {"dtype": RuntimeError("no dtype")},
        {"is_cpu": RuntimeError("no device")},
        {"shape": 3},
        {"shape": (2, "x")},
        {"shape": (1,) * 65},
        {"stride": RuntimeError("no strides")},
        {"stride": (1,)},
        {"stride": (2, None)},
        {"element_size": "four"},
        {"element_size": RuntimeError("no size")},
        {"data_ptr": RuntimeError("no memory")},
        {"data_ptr": "here"},
    ],
    ids=str,
)
def test_a_tensor_that_does_not_say_what_it_is_is_no_argument(by_asking, wrong):
    x, out = torch.ones(2, 2).as_subclass(Odd), torch.empty(2, 2)
    kernels.forward_f32(x, out, 2, 2, 2.0, None, False, None, 0, 1)
    assert out.tolist() == [[0.5, 0.5], [0.5, 0.5]]
    x.wrong = wrong
    refused("incompatible function arguments", kernels.forward_f32, x, out, 2, 2, 2.0, None, False,
            None, 0, 1, error=TypeError)  # fmt: skip


def test_what_tensors_are_is_said_by_a_type_and_eight_dtypes(by_asking):
    refused("eight dtypes", kernels.accept_tensors, torch.Tensor, by_asking[:7])
    refused("eight dtypes", kernels.accept_tensors, 3, by_asking)
    kernels.accept_tensors(int, by_asking)  # a type without DLPack's exchange of pointers
    refused("incompatible", kernels.large_pages, torch.zeros(1), error=TypeError)
