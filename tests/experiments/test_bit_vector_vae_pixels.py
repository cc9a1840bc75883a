"""Likelihood of grey images: kernel, torch fallback and plain formula."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fewfold as ff
from experiments import compiled
from experiments.bit_vector_vae import native, pixels
from experiments.bit_vector_vae.model import PIXELS, RANK, VALUES, BitVAE
from experiments.bit_vector_vae.pixels import pixel_nll

Inputs = tuple[list[Tensor], Tensor, Tensor]
SMALL = {"size": 5, "rank": 3, "values": 7}  # a table the kernel is not for
ROW = [2, 0, 0, 1, 0]
needs_kernel = pytest.mark.skipif(native.kernel() is None, reason="needs a C++ compiler")


@pytest.fixture(params=[pytest.param("kernel", marks=needs_kernel), "torch"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test of it by the kernel, which torch may not replace, and by torch."""
    if request.param == "torch":
        monkeypatch.setattr(pixels, "kernel", lambda: None)
    else:
        monkeypatch.setattr(pixels, "_plain", None)
    return str(request.param)


def plain(features: Tensor, weight: Tensor, bias: Tensor, images: Tensor, row: Tensor) -> Tensor:
    logits = torch.einsum("mrp,vr->mvp", features, weight) + bias.unsqueeze(1)
    return F.cross_entropy(logits, images[row].long(), reduction="none").sum(1)


def drawn(
    scale: float = 1,
    row: list[int] = ROW,
    size: int = 37,  # not a whole number of blocks, and odd
    rank: int = RANK,
    values: int = VALUES,
    dtype: torch.dtype = torch.float32,
) -> Inputs:
    generator = torch.Generator().manual_seed(1)
    shapes = ((len(row), rank, size), (values, rank), (values,))
    inputs = [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]
    inputs[0] *= scale
    images = torch.randint(values, (3, size), generator=generator).to(torch.uint8)
    return [x.requires_grad_() for x in inputs], images, torch.tensor(row, dtype=torch.long)


def assert_plain(given: Inputs, scale: float) -> None:
    """Values and gradients are those of the plain formula in float64, to float32's rounding."""
    inputs, images, row = given
    exact = [x.detach().double().requires_grad_() for x in inputs]
    ours, expected = pixel_nll(*inputs, images, row), plain(*exact, images, row)
    torch.testing.assert_close(ours.double(), expected, rtol=2e-6, atol=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(pixel_nll(*inputs, images, row), ours, rtol=1e-6, atol=0)
    outer = torch.linspace(-2, 1, len(row))
    found = torch.autograd.grad(ours, inputs, outer)
    wanted = torch.autograd.grad(expected, exact, outer.double())
    near = 2e-5 + 2e-6 * scale**2  # logits are rounded in proportion to h, and their slope is h
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=near)


# Sums of exponentials within float32, beyond it, and with steps of single logits beyond it.
@pytest.mark.parametrize("scale", [0.01, 1, 30, 1e3])
@pytest.mark.parametrize("row", [ROW, [1], []], ids=["several of a row", "one", "none"])
def test_the_likelihood_is_that_of_the_plain_formula(
    path: str, scale: float, row: list[int]
) -> None:
    assert_plain(drawn(scale, row), scale)


@pytest.mark.parametrize("shift", [-1e4, -80, 70, 1e4])
def test_a_constant_in_all_logits_changes_nothing(path: str, shift: float) -> None:
    inputs, images, row = drawn()
    with torch.no_grad():
        shifted = pixel_nll(*inputs[:2], inputs[2] + shift, images, row)
        torch.testing.assert_close(
            shifted, pixel_nll(*inputs, images, row), rtol=1e-6 * max(1, abs(shift)), atol=0
        )


@pytest.mark.parametrize("scale", [1, 300])
def test_tables_of_any_shape(scale: float) -> None:
    assert_plain(drawn(scale, **SMALL), scale)


def test_the_gradient_of_the_likelihood() -> None:
    inputs, images, row = drawn(row=[2, 0, 0, 1], **SMALL, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda *x: pixel_nll(*x, images, row), inputs)


@pytest.mark.parametrize("name", [pytest.param("_native", marks=needs_kernel), "_plain"])
def test_slopes_are_found_only_where_they_are_wanted(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parameters require gradients without a tape too."""
    work, kept = getattr(pixels, name), []

    def watched(*given: Any) -> tuple[Tensor | None, ...]:
        kept.append(work(*given))
        return kept[-1]

    monkeypatch.setattr(pixels, name, watched)
    if name == "_plain":
        monkeypatch.setattr(pixels, "kernel", lambda: None)
    inputs, images, row = drawn()
    pixel_nll(*inputs, images, row)
    with torch.no_grad():
        pixel_nll(*inputs, images, row)
    pixel_nll(*[x.detach() for x in inputs], images, row)
    assert [slopes is None for _, slopes, _ in kept] == [False, True, True]


@needs_kernel
def test_kernel_and_torch_agree_on_whole_images(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, images, row = drawn(size=PIXELS)
    found = []
    for call in (native.kernel(), None):
        monkeypatch.setattr(pixels, "kernel", lambda call=call: call)
        nll = pixel_nll(*inputs, images, row)
        found.append([nll, *torch.autograd.grad(nll.sum(), inputs)])
    torch.testing.assert_close(*found, rtol=1e-5, atol=2e-4)


def test_what_is_no_number_is_not_hidden(path: str) -> None:
    for wrong in (float("nan"), float("inf")):
        inputs, images, row = drawn()
        with torch.no_grad():
            inputs[0][3, 2, 30] = wrong
        nll = pixel_nll(*inputs, images, row)
        assert nll.isfinite().tolist() == [True, True, True, False, True]


@pytest.mark.parametrize("wrong", [-1, 3])
def test_an_image_that_is_not_there(path: str, wrong: int) -> None:
    inputs, images, row = drawn()
    row[2] = wrong
    with pytest.raises(IndexError):
        pixel_nll(*inputs, images, row)


def test_expectations_have_gradients(path: str) -> None:
    """Of three bits all eight values can be summed, by torch as well."""
    torch.manual_seed(0)
    model = BitVAE(3)
    images = torch.randint(VALUES, (2, PIXELS), dtype=torch.uint8)
    scores = torch.randn(2, 3, requires_grad=True)
    every = ff.structures.Bits().enumerate(torch.Size([3])).float()
    wanted = [scores, *model.decoder.parameters(), *model.output.parameters()]

    out = ff.expect(model.cost(images), scores, ff.Dense(), ff.structures.Bits())
    found = torch.autograd.grad(out.loss, wanted)

    features = model.decoder(every).view(-1, RANK, PIXELS).repeat(2, 1, 1)
    row = torch.arange(2).repeat_interleave(8)
    costs = plain(features, model.output.weight, model.output.bias, images, row).view(2, 8)
    probs = (scores @ every.t()).softmax(1)
    expected = torch.autograd.grad((probs * costs).sum(1).mean(), wanted)
    # The last digit of a cost of thousands of nats is worth 5e-4.
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=2e-3)
    torch.testing.assert_close(found[1:], expected[1:], rtol=1e-4, atol=1e-4)


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is compiled yet, and it will be in a folder of its own."""
    monkeypatch.setattr(compiled, "BUILD", tmp_path / "build")
    monkeypatch.setattr(native, "library", compiled.library.__wrapped__)
    monkeypatch.setattr(native, "kernel", native.kernel.__wrapped__)
    monkeypatch.setattr(pixels, "kernel", native.kernel)
    monkeypatch.delenv("FEWFOLD_NATIVE", raising=False)
    return tmp_path / "build"


@pytest.mark.parametrize("lack", ["none", "no such program", "fails", "switched off"])
def test_without_a_compiler_torch_does_it(
    fresh: Path, lack: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if lack == "none":
        monkeypatch.setattr(compiled.shutil, "which", lambda name: None)
    elif lack == "no such program":
        monkeypatch.setenv("CXX", "no-such-compiler")
    elif lack == "fails":
        monkeypatch.setattr(compiled, "FLAGS", [*compiled.FLAGS, "--no-such-option"])
    else:
        monkeypatch.setenv("FEWFOLD_NATIVE", "0")
    assert native.kernel() is None
    assert not list(fresh.glob("*"))
    assert ("was not compiled" in caplog.text) == (lack != "switched off")
    assert_plain(drawn(), 1)


@needs_kernel
def test_it_is_compiled_once_and_anew_for_new_flags(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert native.kernel() is not None
    (made,) = fresh.iterdir()
    monkeypatch.setattr(compiled.subprocess, "run", None)
    assert native.kernel() is not None
    monkeypatch.undo()
    monkeypatch.setattr(compiled, "BUILD", fresh)
    monkeypatch.setattr(native, "library", compiled.library.__wrapped__)
    monkeypatch.setattr(compiled, "FLAGS", [*compiled.FLAGS, "-Wall", "-Wextra", "-Werror"])
    assert native.kernel.__wrapped__() is not None
    assert len(list(fresh.iterdir())) == 2
    assert made.exists()


@needs_kernel
def test_processes_that_compile_at_once(fresh: Path) -> None:
    code = (
        "import sys, pathlib; from experiments import compiled;"
        "from experiments.bit_vector_vae import native;"
        "compiled.BUILD = pathlib.Path(sys.argv[1]); sys.exit(native.kernel() is None)"
    )
    both = [subprocess.Popen([sys.executable, "-c", code, str(fresh)]) for _ in range(2)]
    assert [one.wait() for one in both] == [0, 0]
    assert [found.suffix for found in fresh.iterdir()] == [".so"]
