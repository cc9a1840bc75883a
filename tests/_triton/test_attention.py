"""Sparse attention by Triton's kernels against plain torch, in the interpreter."""

import importlib
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fewfold as ff
from fewfold._native import dispatch
from fewfold._triton import attention as kernels

pytestmark = pytest.mark.triton


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 16, so that short sequences have several."""
    monkeypatch.setattr(kernels, "BM", 16)
    monkeypatch.setattr(kernels, "BN", 16)


def vectors(*shape: int, seed: int, scale: float = 2.0) -> Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def attend(
    given: list[Tensor], omega: Callable[[Tensor], ff.Omega] | ff.Omega, **options: Any
) -> list[Tensor]:
    """Output, and the gradients of all given tensors; a fourth is the alpha that learns."""
    leaves = [one.detach().requires_grad_() for one in given]
    chosen = omega if isinstance(omega, ff.Omega) else omega(leaves[3])
    out = ff.sparse_attention(*leaves[:3], chosen, **options)
    weights = torch.linspace(-1, 1, out.shape[-1], dtype=out.dtype)
    (out * weights).sum().backward()
    return [out.detach(), *(one.grad for one in leaves if one.grad is not None)]


def compare(given: list[Tensor], omega: Any, **options: Any) -> None:
    with dispatch.triton_on_cpu():
        assert dispatch.triton_kernel("sparse_attention", *given) is not None
        ours = attend(given, omega, **options)
    with dispatch.disabled():
        theirs = attend([one.double() for one in given], omega, **options)
    assert len(ours) == len(theirs) == len(given) + 1
    for one, other in zip(ours, theirs, strict=True):
        scale = other.abs().amax().clamp(min=1)
        torch.testing.assert_close(one.double() / scale, other / scale, atol=1e-5, rtol=0)


SHAPES = [(1, 1, 1, 1), (15, 16, 8, 17), (17, 33, 16, 5), (40, 31, 20, 16)]


@pytest.mark.parametrize(("queries", "keys", "d", "dv"), SHAPES)
def test_sizes_around_the_blocks(queries: int, keys: int, d: int, dv: int) -> None:
    given = [vectors(2, queries, d, seed=1), vectors(2, keys, d, seed=2)]
    compare([*given, vectors(2, keys, dv, seed=3)], ff.Tsallis(1.5))


@pytest.mark.parametrize("omega", [ff.Gini(), ff.Tsallis(1.5), ff.Tsallis(1.2)])
@pytest.mark.parametrize("causal", [False, True])
def test_maps_and_masks(omega: ff.Omega, causal: bool) -> None:
    given = [vectors(2, 2, size, 8, seed=size) for size in (34, 37, 37)]
    visible = torch.rand(2, 1, 1, 37, generator=torch.Generator().manual_seed(0)) < 0.7
    visible[1] = False
    visible[1, :, :, 20] = True
    compare(given, omega, mask=visible, is_causal=causal)


@pytest.mark.parametrize(("rows", "columns"), [(16, 32), (32, 16)])
def test_blocks_that_are_not_square(
    rows: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "BM", rows)
    monkeypatch.setattr(kernels, "BN", columns)
    given = [vectors(1, 70, 4, seed=seed) for seed in (1, 2, 3)]
    compare(given, ff.Tsallis(1.5), is_causal=True)


def test_numbers_to_add_and_strides() -> None:
    given = [vectors(20, 2, 8, seed=seed).transpose(0, 1) for seed in (4, 5, 6)]
    added = vectors(20, 20, seed=7).masked_fill(torch.ones(20, 20).tril() == 0, -math.inf).T
    compare(given, ff.Tsallis(1.5), mask=added, scale=0.5)  # the last queries see few keys


def test_grouped_heads_and_alpha_per_head() -> None:
    given = [vectors(2, heads, 18, 8, seed=heads) for heads in (4, 2, 2)]
    alpha = torch.tensor([1.3, 1.5, 1.8, 2.0]).view(4, 1, 1)
    compare([*given, alpha], ff.Tsallis, enable_gqa=True, is_causal=True)


def test_alpha_per_query() -> None:
    given = [vectors(2, 20, 4, seed=seed) for seed in (1, 2, 3)]
    compare([*given, torch.linspace(1.3, 1.9, 20).view(20, 1)], ff.Tsallis)


def test_a_batch_of_several_dimensions_shares_a_mask() -> None:
    given = [vectors(2, 1, 2, 5, 4, seed=seed) for seed in (1, 2, 3)]
    compare(given, ff.Gini(), mask=torch.ones(2, 5, 5, dtype=torch.bool).tril())


def test_queries_without_keys_or_with_infinite_scores() -> None:
    query, key, value = (vectors(1, 20, 4, seed=seed) for seed in (1, 2, 3))
    added = torch.zeros(20, 20)
    added[3] = -math.inf
    added[4, 2] = added[4, 18] = math.inf
    compare([query, key, value], ff.Tsallis(1.5), mask=added)
    query[0, 5, 0] = math.nan
    with dispatch.triton_on_cpu():
        out, *_ = attend([query, key, value], ff.Tsallis(1.5), mask=added)
    assert out[0, 5].isnan().all()
    assert out[0, 3].eq(0).all()
    assert out.isnan().any(-1).sum() == 1


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_gradients_beside_numbers_that_are_not_finite(bad: float) -> None:
    """A value without weight has no effect on gradients; those of a query of NaN are NaN."""
    query, key, value = (vectors(1, 40, 4, seed=seed) for seed in (1, 2, 3))
    visible = torch.arange(40) != 5
    value[0, 5] = bad
    query[0, 3, 0] = math.nan
    given = [query, key, value, torch.tensor([[1.5]])]
    with dispatch.triton_on_cpu():
        ours = attend(given, ff.Tsallis, mask=visible)
    with dispatch.disabled():
        theirs = attend([one.double() for one in given], ff.Tsallis, mask=visible)
    assert theirs[1][0, 4:].isfinite().all()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.double(), other, atol=1e-4, rtol=1e-5, equal_nan=True)


def test_passes_end_where_a_step_is_too_small_for_the_threshold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One key far above many: in float32 their sum misses 1 by more than the bound."""
    builder = importlib.import_module("triton.runtime.interpreter").interpreter_builder
    product, calls = builder.create_dot, []
    monkeypatch.setattr(builder, "create_dot", lambda *given: calls.append(0) or product(*given))
    key = vectors(1, 512, 1, seed=0, scale=1e-6) - 0.99
    key[0, 7] = 0.0
    given = kernels.AttentionInputs(torch.ones(1, 1, 1), key, key, None, False, 1.0, 2.0)
    _, stats = kernels.sparse_attention(given)
    assert stats.active.all()
    assert len(calls) <= 32 * (1 + 8 + 2)  # blocks; the maximum, eight steps, two for the output


def test_gradients_where_the_first_blocks_have_no_weights() -> None:
    key = vectors(1, 64, 2, seed=1, scale=0.1)
    key[0, 40:44, 0] += 8.0
    query = vectors(1, 40, 2, seed=2, scale=0.1)
    query[0, :, 0] += 1.0
    compare([query, key, vectors(1, 64, 2, seed=3)], ff.Tsallis(1.5))


def test_blocks_without_weights_are_skipped() -> None:
    key = torch.zeros(1, 64, 2)
    key[0, 40:44, 0] = 100.0
    given = kernels.AttentionInputs(
        torch.ones(1, 16, 2), key, vectors(1, 64, 2, seed=0), None, False, 1.0, 1.5
    )
    _, stats = kernels.sparse_attention(given)
    assert stats.active.flatten().tolist() == [0, 0, 1, 0]


@pytest.mark.usefixtures("products_of_bfloat16")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    given = [vectors(1, 20, 8, seed=seed, scale=1.0).to(dtype) for seed in (1, 2, 3)]
    with dispatch.triton_on_cpu():
        ours = attend(given, ff.Tsallis(1.5))
    with dispatch.disabled():
        theirs = attend([one.double() for one in given], ff.Tsallis(1.5))
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == dtype
        torch.testing.assert_close(one.double(), other, atol=0.05, rtol=0.05)


def test_second_derivatives() -> None:
    query, key, value = (vectors(1, 6, 3, seed=seed, scale=1.0) for seed in (1, 2, 3))
    found = []
    for context, dtype in (
        (dispatch.triton_on_cpu, torch.float32),
        (dispatch.disabled, torch.double),
    ):
        leaf = query.to(dtype).requires_grad_()
        with context():
            out = ff.sparse_attention(leaf, key.to(dtype), value.to(dtype))
            (grad,) = torch.autograd.grad(out.square().sum(), leaf, create_graph=True)
            (second,) = torch.autograd.grad(grad.square().sum(), leaf)
        found.append(second.double())
    torch.testing.assert_close(*found, atol=1e-4, rtol=1e-4)


def test_what_the_kernels_do_not_support_is_left_to_torch() -> None:
    query, key, value = (vectors(1, 6, 3, seed=seed) for seed in (1, 2, 3))
    empty = torch.empty(1, 0, 3)
    with dispatch.triton_on_cpu():
        for omega in (ff.Tsallis(1.0), ff.Tsallis(3.0), ff.Norm(2.0)):
            ours = ff.sparse_attention(query, key, value, omega)
            with dispatch.disabled():
                torch.testing.assert_close(ours, ff.sparse_attention(query, key, value, omega))
        assert ff.sparse_attention(empty, key, value).shape == (1, 0, 3)
        assert ff.sparse_attention(query, empty, empty).eq(0).all()
