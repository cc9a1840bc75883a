"""Compiled models call the kernels as operators, with the results of eager mode."""

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import fewfold as ff
from fewfold import _native
from tests.graphs import compiled, gradients, same

from .cases import random_scores

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*:Warning"),  # of the compiler, about itself
    pytest.mark.skipif(not _native.enabled(), reason="there are no kernels"),
]

FIXED = {
    "sparsemax": (ff.sparsemax, "entmax"),
    "entmax(1.1)": (lambda s, **more: ff.entmax(s, 1.1, **more), "entmax"),
    "entmax(1.5)": (lambda s, **more: ff.entmax(s, 1.5, **more), "entmax"),
    "normmax(2)": (lambda s, **more: ff.normmax(s, 2.0, **more), "normmax"),
    "ksubset(2)": (lambda s, **more: ff.ksubset(s, 2, **more), "ksubset"),
}
LEARNT = {
    "entmax": (ff.entmax, 1.6),
    "normmax": (ff.normmax, 1.6),
    "ksubset": (ff.ksubset, 2.0),
}
# The kernels change their way at 64 and at 2048 entries, and at a vector's number of rows.
SHAPES = ((3, 2), (5, 64), (17, 65), (16, 40), (3, 2048), (3, 2049), (2, 9000))

# One of each operator: what alpha is matters to its kernel alone, which has tests of its own.
OPERATORS = ["entmax(1.5)", "normmax(2)", "ksubset(2)"]
# Sorted scores that are grouped by the same code as in fusedmax.
AT_NIGHT = pytest.param("oscarmax", marks=pytest.mark.nightly)
learnt = pytest.mark.parametrize("name", LEARNT)


def scores_of(*shape: int, seed: int = 0) -> Tensor:
    return random_scores(*shape, seed=seed, dtype=torch.float32).requires_grad_()


@pytest.mark.parametrize("name", ["sparsemax", "entmax(1.1)", "normmax(2)", "ksubset(2)"])
def test_any_shape_is_as_in_eager_mode(name):
    function, operator = FIXED[name]
    fast, graphs = compiled(function, dynamic=True)
    for shape in SHAPES:
        scores = scores_of(*shape, seed=shape[1])
        same(gradients(fast, scores), gradients(function, scores))
        with torch.no_grad():
            same([fast(scores)], [function(scores)])
    inference = operator if operator == "ksubset" else f"{operator}_infer"
    assert graphs.operators == {operator, f"{operator}_backward", inference}
    assert graphs.nodes < 20


@learnt
def test_parameters_learn_as_in_eager_mode(name):
    function, number = LEARNT[name]
    fast, graphs = compiled(function, dynamic=True)
    for rows, size in SHAPES:
        scores = scores_of(rows, size, seed=size)
        each = torch.linspace(number - 0.2, number, rows).view(rows, 1).requires_grad_()
        same(gradients(fast, scores, each), gradients(function, scores, each))
    assert graphs.operators == {name, f"{name}_backward"}
    assert graphs.nodes < 20
    for scores, value in (
        (scores_of(4, 9), torch.tensor(number)),
        (scores_of(4, 9).detach(), torch.tensor(number, requires_grad=True)),
        (scores_of(2, 3, 4, 9), torch.full((3, 1, 1), number, requires_grad=True)),
    ):
        same(gradients(fast, scores, value), gradients(function, scores, value))


@pytest.mark.parametrize("name", [*OPERATORS, "topk_sparsemax", "fusedmax", AT_NIGHT])
def test_every_way_to_give_scores(name):
    """Masks, dims, layouts, dtypes, and rows that have no ordinary answer."""
    others = {
        "topk_sparsemax": lambda s, **more: ff.topk_sparsemax(s, 3, **more),
        "fusedmax": lambda s, **more: ff.fusedmax(s, 0.1, **more),
        "oscarmax": lambda s, **more: ff.oscarmax(s, 0.1, **more),
    }
    function = others[name] if name in others else FIXED[name][0]
    odd = scores_of(5, 7).detach()
    odd[0, 1], odd[1], odd[2, 3], odd[3, ::2] = -torch.inf, -torch.inf, torch.nan, torch.inf
    mask = random_scores(5, 7, seed=3) > -0.5
    exact = name in FIXED

    def many(scores: Tensor) -> Tensor:
        parts = [
            function(scores, mask=mask).mT,
            function(scores, dim=0).mT,
            function(scores.mT.contiguous(), dim=-1),
            function(scores.mT, dim=0).unsqueeze(0).squeeze(0),
            function(scores[:, 1:6])[:, :5].mT,
            function(scores.bfloat16()).float().mT,
        ]
        return torch.cat(parts)

    fast, graphs = compiled(many)
    for scores in (scores_of(5, 7), odd.requires_grad_()):
        same(gradients(fast, scores), gradients(many, scores), 0.0 if exact else 1e-6)
    assert (FIXED[name][1] if exact else "entmax") in graphs.operators
    empty = torch.zeros(0, 7, requires_grad=True)
    one, _ = compiled(function)
    same(gradients(one, empty), gradients(function, empty))


@pytest.mark.parametrize("function", [ff.entmax, ff.normmax])
def test_what_a_kernel_does_not_cover_is_decided_at_run_time(function):
    fast, graphs = compiled(function)
    scores = scores_of(4, 30)
    for value in (1.05, 1.2, 1.25, 1.7, 2.0, 2.0001, 4.0, *((0.7, 1.0) * (function is ff.entmax))):
        alpha = torch.tensor(value, requires_grad=True)
        same(gradients(fast, scores, alpha), gradients(function, scores, alpha))
    mixed = torch.tensor([[1.5], [1.1], [2.5], [2.0]], requires_grad=True)
    same(gradients(fast, scores, mixed), gradients(function, scores, mixed))
    assert len(graphs.seen) == 4  # forward and backward for each shape of alpha, none for values
    with pytest.raises(ValueError, match="alpha must be finite and greater than"):
        fast(scores, torch.tensor(-1.0, requires_grad=True))


def test_a_forward_pass_in_plain_torch_leaves_no_support_to_the_kernels():
    scores = scores_of(3, 5000)
    grad = random_scores(3, 5000, seed=1, dtype=torch.float32)
    with _native.disabled():  # the operator itself: a compiled function would be traced again
        probs, extra = torch.ops.fewfold.entmax(scores, None, 2.0, False)
    assert bool((extra[:3] == -1).all())
    (found,) = torch.autograd.grad(probs, scores, grad)
    (expected,) = torch.autograd.grad(ff.sparsemax(scores), scores, grad)
    torch.testing.assert_close(found, expected)


def test_a_subset_with_more_infinite_scores_than_k():
    def function(scores: Tensor, k: Tensor) -> Tensor:
        return ff.ksubset(scores, k) + ff.ksubset(scores, 1.5)

    scores = scores_of(3, 6).detach()
    scores[1, :3], scores[2, 0] = torch.inf, torch.inf
    k = torch.tensor(2.0, requires_grad=True)
    fast, _ = compiled(function)
    same(gradients(fast, scores.requires_grad_(), k), gradients(function, scores, k))


def test_a_number_outside_the_range_takes_plain_torch():
    for alpha in (1.0, 3.0):
        fast, graphs = compiled(lambda s, a=alpha: ff.entmax(s, a))
        scores = scores_of(4, 9)
        same(gradients(fast, scores), gradients(lambda s, a=alpha: ff.entmax(s, a), scores), 1e-6)
        assert "entmax" not in graphs.operators


def test_alpha_may_change_between_calls():
    fast, graphs = compiled(ff.entmax, dynamic=None)
    scores = scores_of(4, 9)
    for alpha in (1.5, 1.3, 1.9, 2.0):
        got = gradients(lambda s, a=alpha: fast(s, a), scores)
        same(got, gradients(lambda s, a=alpha: ff.entmax(s, a), scores))
    assert graphs.operators == {"entmax", "entmax_backward"}


def test_a_dynamic_batch_is_compiled_once():
    fast, graphs = compiled(ff.AdaptiveEntmax(heads=3), dynamic=None)
    plain = ff.AdaptiveEntmax(heads=3)
    for batch in (2, 5, 9):
        scores = scores_of(batch, 3, 4, 6)
        leaf = scores.detach().clone().requires_grad_()
        torch._dynamo.mark_dynamic(leaf, 0)
        same([fast(leaf).detach()], [plain(scores).detach()])
    assert len(graphs.seen) <= 2


@pytest.mark.parametrize("name", ["sparsemax", "ksubset(2)", "learnt"])
def test_without_kernels_a_graph_is_plain_torch(name):
    alpha = torch.tensor(1.5)
    function = FIXED[name][0] if name in FIXED else lambda s: ff.entmax(s, alpha)
    fast, graphs = compiled(function)
    scores = scores_of(4, 9)
    with _native.disabled():
        got = gradients(fast, scores)
    same(got, gradients(function, scores), 1e-6)
    assert not graphs.operators & {"entmax", "ksubset"}
    same(gradients(fast, scores), gradients(function, scores))  # and now they are back
    assert graphs.operators & {"entmax", "ksubset"}


@pytest.mark.parametrize(
    "transform",
    [
        torch.vmap,
        *(
            pytest.param(one, marks=pytest.mark.nightly)
            for one in (torch.func.jacrev, torch.func.jacfwd)
        ),
        "grad",
        "hessian",  # forward over reverse mode
        "dual",
    ],
)
def test_transforms_inside_a_compiled_function_take_plain_torch(transform):
    scores = random_scores(3, 5)

    def function(given: Tensor) -> Tensor:
        return ff.sparsemax(given) * ff.entmax(given, 1.5) + ff.ksubset(given, 2)

    def total(given: Tensor) -> Tensor:
        return function(given).square().sum()

    def moved(given: Tensor) -> Tensor:
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(function(forward_ad.make_dual(given, scores))).tangent

    named = {
        "grad": torch.func.grad(total),
        "hessian": torch.func.hessian(total),
        "dual": moved,
    }
    whole = named[transform] if transform in named else transform(function)
    fast, graphs = compiled(whole)
    same([fast(scores)], [whole(scores)], 1e-9)
    assert not graphs.operators & {"entmax", "ksubset"}


def test_forward_mode_around_a_compiled_function():
    """Compiled for plain tensors before, so that the tangent would be lost without a guard."""
    fast, _ = compiled(ff.sparsemax)
    scores, tangent = random_scores(3, 5), random_scores(3, 5, seed=1)
    fast(scores)
    with forward_ad.dual_level():
        moved = forward_ad.unpack_dual(fast(forward_ad.make_dual(scores, tangent))).tangent
    same([moved], [torch.func.jvp(ff.sparsemax, (scores,), (tangent,))[1]], 1e-12)


@pytest.mark.parametrize("name", OPERATORS)
def test_a_second_derivative_is_refused(name):
    torch._dynamo.reset()
    fast = torch.compile(FIXED[name][0], fullgraph=True, backend="eager")
    scores = scores_of(3, 5)
    (first,) = torch.autograd.grad(fast(scores).square().sum(), scores, create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        torch.autograd.grad(first.square().sum(), scores)


def test_exported_programs_hold_plain_torch():
    program = torch.export.export(ff.AdaptiveEntmax(), (random_scores(3, 5).float(),))
    assert not any("fewfold" in str(node.target) for node in program.graph.nodes)


@pytest.mark.parametrize("name", ["sparsemax", "ksubset(2)"])
def test_under_autocast(name):
    function = FIXED[name][0]

    def layer(scores: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return function(scores @ torch.eye(9)) + function(scores)

    fast, graphs = compiled(layer)
    scores = scores_of(4, 9)
    same(gradients(fast, scores), gradients(layer, scores), 1e-6)
    assert FIXED[name][1] in graphs.operators
