"""Every loss under every torch transform."""

import warnings

import onnxruntime
import pytest
import torch
from torch.autograd import forward_ad

from fewfold.losses import (
    FenchelYoungLoss,
    entmax_loss,
    epsilon_perplexity,
    fenchel_young_loss,
    jensen_shannon,
    linear_entmax_loss,
    sparsemax_score,
)
from fewfold.maps import Norm, Tsallis
from fewfold.structured import SparseMAP
from fewfold.structured.structures import Bits

from .cases import CASES, Case, close, every_loss, random_scores, slope, smooth_scores

WARNINGS = pytest.mark.filterwarnings("ignore:.*:Warning")  # of the compilers, about themselves

COMPILED = [
    case
    for case in CASES
    if case.name
    in ("softmax", "sparsemax", "entmax 1.5", "entmax 1.4 learnt", "normmax 2", "ksubset 2")
]
# One loss with class indices and one without: the map of each loss has tests of its own.
DYNAMIC = ("entmax 1.5", "ksubset 2")


def compiled_losses(*nightly: str) -> pytest.MarkDecorator:
    """All of them; these only at night."""
    rows = [
        pytest.param(case, marks=pytest.mark.nightly if case.name in nightly else (), id=case.name)
        for case in COMPILED
    ]
    return pytest.mark.parametrize("case", rows)


OTHERS = tuple(case.name for case in COMPILED if case.name not in DYNAMIC)


def targets(case: Case, scores: torch.Tensor) -> list[torch.Tensor]:
    """Every kind of target the loss takes."""
    corners = case.target(scores)
    return [corners, case.soft(scores), *([corners.argmax(-1)] if case.indexed else [])]


def jacobian(case: Case, row: torch.Tensor, step: float = 1e-5) -> torch.Tensor:
    """Of the map, by central differences of the twin."""
    nudges = step * torch.eye(len(row), dtype=row.dtype)
    return ((case.probs(row + nudges) - case.probs(row - nudges)) / (2 * step)).mT


@every_loss
def test_gradcheck(case, path):
    scores = smooth_scores(case, rows=2).requires_grad_()
    for target in targets(case, scores.detach()):
        assert torch.autograd.gradcheck(lambda s, y=target: case(s, y), scores)
        assert torch.autograd.gradgradcheck(lambda s, y=target: case(s, y), scores, fast_mode=True)


@every_loss
def test_hessian_is_the_jacobian_of_the_map(case, path):
    scores = smooth_scores(case, rows=1)
    for target in targets(case, scores):
        for i, row in enumerate(scores):

            def loss(s, y=target[i]):
                return case(s, y)

            want = jacobian(case, row)
            close(torch.autograd.functional.hessian(loss, row), want, 1e-7)
            if path == "native":  # transforms of functions take plain torch in any case
                continue
            close(torch.func.hessian(loss)(row), want, 1e-7)
            close(torch.func.jacrev(torch.func.jacrev(loss))(row), want, 1e-7)
            close(torch.func.jacfwd(torch.func.jacfwd(loss))(row), want, 1e-7)


@every_loss
def test_third_derivative(case, path):
    """Eagerly all orders are exact: the third is the second derivative of the map."""
    scores = smooth_scores(case, rows=2).requires_grad_()
    target = case.target(scores.detach())
    directions = [random_scores(2, 6, seed=seed) for seed in (5, 6)]
    answer = case(scores, target, reduction="sum")
    mapped = case.regulariser(scores).argmax(scores)
    (answer,) = torch.autograd.grad(answer, scores, create_graph=True)
    close(answer.detach(), mapped.detach() - target)
    for direction in directions:
        both = []
        for value in (answer, mapped):
            product = (value * direction).sum()
            if product.requires_grad:
                both += torch.autograd.grad(product, scores, create_graph=True)
            else:
                both.append(torch.zeros_like(scores))
        answer, mapped = both
        close(answer.detach(), mapped.detach(), 1e-8)


@every_loss
def test_third_derivative_of_functions(case):
    (row,) = smooth_scores(case, rows=1)
    target = case.target(row)

    def mapped(s):
        return case.regulariser(s).argmax(s)

    jacrev, jacfwd = torch.func.jacrev, torch.func.jacfwd
    want = jacfwd(jacfwd(mapped))(row)
    close(jacrev(jacrev(jacrev(case)))(row, target), want, 1e-8)
    close(jacfwd(jacfwd(jacfwd(case)))(row, target), want, 1e-8)


@every_loss
def test_functional(case):
    scores = smooth_scores(case)
    for target in targets(case, scores):
        want = slope(lambda s, y=target: case(s, y), scores)
        close(torch.func.grad(case)(scores, target), want)
        rows = torch.vmap(torch.func.grad(case))(scores, target)
        close(rows, want * len(scores))
        close(torch.func.jacrev(case)(scores, target), want)
        close(torch.func.jacfwd(case)(scores, target), want)
        close(torch.vmap(case)(scores, target), case(scores, target, reduction="none"))
        tangent = random_scores(*scores.shape, seed=4)
        with forward_ad.dual_level():
            dual = case(forward_ad.make_dual(scores, tangent), target)
            moved = forward_ad.unpack_dual(dual).tangent
        close(moved, (want * tangent).sum())
        close(torch.func.jvp(lambda s, y=target: case(s, y), (scores,), (tangent,))[1], moved)


@pytest.mark.parametrize("kind", [Tsallis, Norm], ids=["entmax", "normmax"])
def test_second_order_in_alpha(kind, path):
    case = next(case for case in CASES if case.learnt and case.omega is kind)
    scores = smooth_scores(case)
    alpha = torch.tensor(case.options["alpha"], dtype=torch.float64)
    for target in targets(case, scores):

        def loss(s, a, y=target):
            return fenchel_young_loss(s, y, kind(a))

        inputs = (scores.clone().requires_grad_(), alpha.clone().requires_grad_())
        assert torch.autograd.gradcheck(loss, inputs)
        assert torch.autograd.gradgradcheck(loss, inputs, fast_mode=True)
        functional = torch.func.hessian(loss, argnums=(0, 1))(scores, alpha)
        eager = torch.autograd.functional.hessian(loss, (scores, alpha))
        for left, right in zip(functional, eager, strict=True):
            for one, other in zip(left, right, strict=True):
                close(one, other, 1e-8)


@WARNINGS
@compiled_losses()
def test_compile(case):
    compare_compiled(case, dynamic=False)


@WARNINGS
@compiled_losses(*OTHERS)
def test_compile_for_any_shape(case):
    compare_compiled(case, dynamic=True)


def compare_compiled(case: Case, dynamic: bool) -> None:
    torch._dynamo.reset()
    alpha = torch.tensor(1.4)
    fast = torch.compile(
        (lambda s, y: entmax_loss(s, y, alpha)) if case.learnt else case.by_name,
        fullgraph=True,
        dynamic=dynamic,
        # One loss goes all the way to machine code; for the others what is traced is enough.
        backend="inductor" if case.name == "entmax 1.5" and not dynamic else "aot_eager",
    )
    for rows, n in ((4, 6), (7, 9)) if dynamic else ((4, 6),):
        scores = random_scores(rows, n, dtype=torch.float32)
        scores[1] = 0.25
        corners = case.target(scores)
        scores[0, corners[0].argmin()] = -torch.inf
        for target in (corners, *([corners.argmax(-1)] if case.indexed else [])):
            close(fast(scores, target), case.by_name(scores, target), 1e-5)
            want = slope(lambda s, y=target: case.by_name(s, y), scores)
            close(slope(lambda s, y=target: fast(s, y), scores), want, 1e-5)


class Criterion(torch.nn.Module):
    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case

    def forward(self, scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.case.by_name(scores, target)


@WARNINGS
@compiled_losses(*OTHERS)
def test_export_and_onnx(case, tmp_path):
    if case.learnt:
        pytest.skip("a constant tensor made while tracing")
    scores = random_scores(4, 6, dtype=torch.float32)
    kinds = targets(case, scores)
    rows = torch.export.Dim("rows")
    for number, target in enumerate(kinds):
        shapes = ({0: rows}, {0: rows})
        program = torch.export.export(Criterion(case), (scores, target), dynamic_shapes=shapes)
        more = random_scores(7, 6, seed=1, dtype=torch.float32)
        other = targets(case, more)[number]
        close(program.module()(more, other), case.by_name(more, other), 1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file = tmp_path / "loss.onnx"
        torch.onnx.export(Criterion(case), (scores, kinds[-1]), file, dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(file)
    names = [given.name for given in session.get_inputs()]
    (got,) = session.run(None, {names[0]: scores.numpy(), names[1]: kinds[-1].numpy()})
    close(torch.tensor(got), case.by_name(scores, kinds[-1]), 1e-6)


@every_loss
def test_autocast(case):
    scores = random_scores(4, 6, dtype=torch.float32)
    target = case.target(scores)
    narrow, omega = scores.bfloat16(), case.regulariser(scores)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = case(scores, target)
        projected = fenchel_young_loss(narrow, target, omega, reduction="none")
        double = case(scores.double(), target)
    assert loss.dtype == projected.dtype == torch.float32  # as F.cross_entropy
    assert double.dtype == torch.float64
    assert torch.equal(loss, case(scores, target))
    want = fenchel_young_loss(narrow.float(), target, omega, reduction="none")
    assert torch.equal(projected, want)
    assert case(narrow, target).dtype == torch.bfloat16  # without autocast, of the scores


@every_loss
def test_gradient_under_autocast_has_the_dtype_of_the_scores(case):
    narrow = random_scores(4, 6, dtype=torch.float32).bfloat16().requires_grad_()
    wide = narrow.detach().float().requires_grad_()
    target, omega = case.target(wide.detach()), case.regulariser(wide)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        fenchel_young_loss(narrow, target, omega).backward()
    fenchel_young_loss(wide, target, omega).backward()
    assert torch.equal(narrow.grad, wide.grad.bfloat16())


def test_loss_of_structures_under_autocast():
    scores = random_scores(4, 6, dtype=torch.float32).bfloat16()
    target = (scores > 0.1).bfloat16()
    omega = SparseMAP(Bits())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = fenchel_young_loss(scores, target, omega, cost=1.0)
        module = FenchelYoungLoss(omega, cost=1.0)(scores, target)
    assert loss.dtype == module.dtype == torch.float32
    assert torch.equal(loss, fenchel_young_loss(scores.float(), target, omega, cost=1.0))


@pytest.mark.parametrize("metric", [epsilon_perplexity, jensen_shannon, sparsemax_score])
def test_metrics_under_autocast(metric):
    probs = random_scores(4, 6, dtype=torch.float32).softmax(1).bfloat16()
    target = torch.tensor([0, 1, 5, -100])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = metric(probs, target)
    assert found.dtype == torch.float32
    assert torch.equal(found, metric(probs.float(), target))
    assert metric(probs, target).dtype == torch.bfloat16


@WARNINGS
def test_compiled_under_autocast():
    scores = random_scores(4, 6, dtype=torch.float32).bfloat16()
    target = torch.tensor([1, 2, -100, 5])
    torch._dynamo.reset()
    compiled = torch.compile(entmax_loss, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = compiled(scores, target)
    assert found.dtype == torch.float32
    close(found, entmax_loss(scores.float(), target), 1e-6)


@WARNINGS
def test_linear_loss_under_transforms():
    hidden, table = random_scores(4, 3), random_scores(10, 3, seed=1)
    target = torch.tensor([1, 2, -100, 9])
    want = linear_entmax_loss(hidden, table, target)
    gradients = torch.func.grad(linear_entmax_loss, argnums=(0, 1))(hidden, table, target)
    leaves = [hidden.clone().requires_grad_(), table.clone().requires_grad_()]
    linear_entmax_loss(*leaves, target).backward()
    for got, leaf in zip(gradients, leaves, strict=True):
        close(got, leaf.grad)
    torch._dynamo.reset()
    compiled = torch.compile(linear_entmax_loss, fullgraph=True, backend="aot_eager")
    close(compiled(hidden, table, target), want)
    shared = torch.vmap(linear_entmax_loss, in_dims=(0, None, 0))(hidden, table, target)
    close(shared, linear_entmax_loss(hidden, table, target, reduction="none"))
    hessian = torch.func.hessian(linear_entmax_loss)(hidden, table, target)
    assert hessian.shape == (4, 3, 4, 3)
