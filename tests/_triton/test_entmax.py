"""Sparsemax and entmax by Triton's kernels against plain torch, in the interpreter."""

import importlib
import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import fewfold as ff
from fewfold._native import dispatch
from fewfold._triton import entmax_rows as kernels
from fewfold.maps import triton_threshold

pytestmark = pytest.mark.triton

ALPHAS = [2.0, 1.5, 1.25, 1.05, 3.0]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Treat rows of more than 64 entries as long, read in blocks of 64."""
    monkeypatch.setattr(kernels, "SHORT", 64)
    monkeypatch.setattr(kernels, "BLOCK", 64)
    return


def expected(scores: Tensor, alpha: float | Tensor, **options: object) -> Tensor:
    with dispatch.disabled():
        wide = alpha.double() if isinstance(alpha, Tensor) else alpha
        return ff.entmax(scores.double(), wide, **options)  # type: ignore[arg-type]


def found(scores: Tensor, alpha: float | Tensor, **options: object) -> Tensor:
    with dispatch.triton_on_cpu():
        assert dispatch.triton_kernel("entmax_rows", scores) is not None
        return ff.entmax(scores, alpha, **options)  # type: ignore[arg-type]


def mixed(*shape: int, seed: int = 0) -> Tensor:
    """Random rows; one constant, one ascending, one with -inf, as far as there are so many."""
    scores = 2 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    rows = scores.view(-1, shape[-1])
    if len(rows) > 3:
        rows[1] = 1e4
        rows[2] = torch.linspace(-3, 3, shape[-1])
        rows[3, : shape[-1] // 2] = -math.inf
    return scores


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("shape", [(5, 1), (2, 3, 31), (4, 130)])
def test_short_rows(alpha: float, shape: tuple[int, ...]) -> None:
    scores = mixed(*shape)
    torch.testing.assert_close(
        found(scores, alpha).double(), expected(scores, alpha), atol=1e-6, rtol=1e-5
    )


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("size", [65, 128, 450])
def test_long_rows(alpha: float, size: int) -> None:
    scores = mixed(4 if alpha < 3 or size == 65 else 1, size)
    torch.testing.assert_close(
        found(scores, alpha).double(), expected(scores, alpha), atol=1e-6, rtol=1e-5
    )


@pytest.mark.usefixtures("short")
def test_long_rows_have_candidates_unless_they_are_crowded() -> None:
    scores = mixed(4, 600)
    _, _, columns, count = kernels.entmax_rows(scores, 2.0)
    assert columns is not None
    assert count is not None
    assert count[1] == -1  # all entries are equal
    for row in (0, 2):
        support = expected(scores, 2.0)[row].nonzero().flatten()
        assert set(support.tolist()) <= set(columns[row, : count[row]].tolist())
    assert count[0] < 60


@pytest.mark.parametrize("size", [50, 70])
@pytest.mark.usefixtures("short")
def test_the_smallest_probability_where_no_threshold_can_resolve_it(size: int) -> None:
    scores = torch.full((1, size), -9.0, dtype=torch.float64)
    scores[0, 3], scores[0, 7] = 0.0, (1e-4 - 1) / 4  # its score is 4e-19 above the threshold
    probs, want = found(scores, 5.0), expected(scores, 5.0)
    assert 2e-5 < want[0, 7] < 3e-5
    torch.testing.assert_close(probs, want, atol=1e-9, rtol=0)


@pytest.mark.parametrize("size", [50, 100])
@pytest.mark.usefixtures("short")
def test_rows_without_a_finite_maximum(size: int) -> None:
    scores = mixed(6, size, seed=1)
    scores[0] = -math.inf
    scores[1, 3] = scores[1, 40] = math.inf
    scores[4, 5] = math.nan
    scores[5, 5], scores[5, 6] = math.nan, math.inf
    want = expected(scores, 1.5)
    assert want[4].isnan().all()
    assert want[0].eq(0).all()
    torch.testing.assert_close(found(scores, 1.5).double(), want, atol=1e-6, rtol=0, equal_nan=True)


def test_dims_masks_strides_and_empty_batches() -> None:
    scores = mixed(4, 9, 6).transpose(0, 2)
    mask = torch.rand(6, 9, 1, generator=torch.Generator().manual_seed(3)) < 0.7
    mask[2] = False
    for dim in (0, 1, -1):
        torch.testing.assert_close(
            found(scores, 1.5, dim=dim, mask=mask).double(),
            expected(scores, 1.5, dim=dim, mask=mask),
            atol=1e-6,
            rtol=0,
        )
    for shape in ((0, 5), (3, 0)):
        with dispatch.triton_on_cpu():
            assert ff.sparsemax(torch.ones(shape)).shape == shape


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_solved_in_float32(dtype: torch.dtype) -> None:
    scores = mixed(4, 40).to(dtype).requires_grad_()
    probs = found(scores, 1.5)
    assert probs.dtype == dtype
    want = expected(scores.detach(), 1.5)
    torch.testing.assert_close(probs.double(), want.to(dtype).double(), atol=4e-3, rtol=4e-3)
    with dispatch.triton_on_cpu():
        probs.square().sum().backward()
    assert scores.grad is not None
    assert scores.grad.dtype == dtype
    assert scores.grad.isfinite().all()


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("size", [33, 200])
def test_gradient(alpha: float, size: int) -> None:
    scores = mixed(4 if alpha < 3 else 1, size, seed=2)
    grad = torch.randn(scores.shape, generator=torch.Generator().manual_seed(4))
    compare_gradients(scores, alpha, grad)


def compare_gradients(scores: Tensor, alpha: float | Tensor, grad: Tensor) -> None:
    """Compare the gradients of scores and alpha with those of plain torch in double precision."""
    ours, theirs = scores.clone().requires_grad_(), scores.double().requires_grad_()
    ways: list[tuple[Callable[..., Tensor], Tensor]] = [(found, ours), (expected, theirs)]
    for run, leaf in ways:
        with dispatch.triton_on_cpu() if run is found else dispatch.disabled():
            (run(leaf, alpha) * grad.to(leaf)).sum().backward()
    assert ours.grad is not None
    assert theirs.grad is not None
    # The slope of a small probability is unbounded for alpha > 2.
    scale = theirs.grad.abs().amax().clamp(min=1)
    torch.testing.assert_close(ours.grad.double() / scale, theirs.grad / scale, atol=1e-5, rtol=0)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("size", [20, 100])
def test_infinite_and_missing_scores_have_no_gradient(size: int) -> None:
    scores = mixed(4, size) / 8
    scores[0, 2] = scores[0, 5] = math.inf
    scores[1, 2] = math.nan
    scores[2] = -math.inf
    scores.requires_grad_()
    probs = found(scores, 1.5)
    with dispatch.triton_on_cpu():
        (probs * torch.arange(size)).sum().backward()
    assert scores.grad is not None
    assert scores.grad[:3].eq(0).all()
    assert scores.grad[3].ne(0).any()


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("size", [30, 150])
@pytest.mark.parametrize("shape", [(), (2, 1, 1), (2, 3, 1)])
def test_alpha_that_learns(size: int, shape: tuple[int, ...]) -> None:
    scores = mixed(2, 3, size, seed=5)
    values = torch.rand(shape, generator=torch.Generator().manual_seed(6)) * 0.7 + 1.28
    grads = []
    for run, dtype in ((found, torch.float32), (expected, torch.float64)):
        alpha = values.to(dtype, copy=True).requires_grad_()
        with dispatch.triton_on_cpu() if run is found else dispatch.disabled():
            probs = run(scores.to(dtype), alpha)
            (probs * torch.arange(size)).sum().backward()
        assert alpha.grad is not None
        grads.append(alpha.grad.double() / size)
    torch.testing.assert_close(*grads, atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("size", [6, 65])
def test_derivatives_in_double_precision(size: int) -> None:
    scores = mixed(1, size, seed=7).double().requires_grad_()
    alpha = torch.tensor([[1.6]], dtype=torch.float64, requires_grad=True)
    with dispatch.triton_on_cpu():
        assert torch.autograd.gradcheck(ff.sparsemax, (scores,), fast_mode=True)
        assert torch.autograd.gradcheck(ff.entmax, (scores, alpha), fast_mode=True)
        assert torch.autograd.gradgradcheck(ff.entmax, (scores, alpha), fast_mode=True)


def test_values_of_alpha_outside_of_the_range_are_left_to_torch() -> None:
    scores = mixed(4, 10)
    scores[3] = -1e-30 * torch.rand(10, generator=torch.Generator().manual_seed(1))
    for alpha in (0.7, 1.0, 16.0, 1000.0, torch.tensor(1.0), torch.tensor(3.0)):
        torch.testing.assert_close(found(scores, alpha).double(), expected(scores, alpha))


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("alpha", [1.001, 2.1, 10.0])
@pytest.mark.parametrize("size", [40, 90])
def test_scales_of_scores_at_the_ends_of_the_range_of_alpha(alpha: float, size: int) -> None:
    """Nearly equal scores, one far above many, and numbers at the end of float32."""
    scores = mixed(6, size, seed=2)
    scores[0] *= 1e-3
    scores[1] *= 50
    scores[2] = -0.99
    scores[2, 9] = 0.0
    scores[3] = 1e30
    scores[3, 0] = 3e38
    scores[4] *= 1e-30
    torch.testing.assert_close(
        found(scores, alpha).double(), expected(scores, alpha), atol=1e-6, rtol=1e-5
    )


def test_the_longest_rows_are_left_to_torch() -> None:
    """Columns are counted in 32 bits, and a block may end behind the row."""
    with dispatch.triton_on_cpu():
        for size, served in ((2**31 - 2**12, True), (2**31 - 2**12 + 1, False)):
            rows = torch.empty(1, dtype=torch.float16).expand(1, size)
            assert triton_threshold.covers(rows, 1.5) is served


def test_offsets_have_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Solve one row that lies behind 2^32 entries, of which only its own page is touched."""
    interpreter = importlib.import_module("triton.runtime.interpreter").interpreter_builder
    first = 2**23
    program = interpreter.create_get_program_id
    monkeypatch.setattr(kernels, "_TILE", 1)
    scores = torch.empty(first + 1, 512, dtype=torch.float16)
    scores[-1] = mixed(1, 512)[0].half()

    def shifted(axis: int) -> object:
        handle = program(axis)
        handle.data = handle.data + first
        return handle

    monkeypatch.setattr(interpreter, "create_get_program_id", shifted)
    monkeypatch.setattr(kernels.triton, "cdiv", lambda rows, tile: 1)
    probs, *_ = kernels.entmax_rows(scores, 1.5)
    want = expected(scores[-1:], 1.5)
    torch.testing.assert_close(probs[-1:].double(), want, atol=1e-3, rtol=0)


def test_alpha_is_not_kept_from_the_capture_of_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that a graph writes holds nothing until the graph is replayed."""
    captures = [True, False, False]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: captures.pop(0))
    rows: Any = SimpleNamespace(is_cuda=True, device=torch.device("cpu"))
    captured, kept, again = (kernels.per_row_alpha(1.625, rows)[0] for _ in range(3))
    assert captured is not kept
    assert kept is again


def test_few_kernels_are_chosen_for_rows_on_the_cpu() -> None:
    assert dispatch.triton_kernel("entmax_rows", torch.ones(3, 4)) is None
