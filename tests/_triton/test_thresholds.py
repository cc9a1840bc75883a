"""Kernels at sizes around those of their blocks, as they are; also on a GPU, where there is one.

`TRITON_INTERPRET=0 python -m pytest tests/_triton` runs these tests on a GPU and no others.
"""

import math
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fewfold as ff
from fewfold._native import dispatch
from fewfold.losses.sampled_scores import picked_scores
from tests.nightly import first

DEVICE = "cuda" if os.environ.get("TRITON_INTERPRET") == "0" else "cpu"
pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif(DEVICE == "cuda" and not torch.cuda.is_available(), reason="no GPU"),
]


def on_triton() -> AbstractContextManager[object]:
    return nullcontext() if DEVICE == "cuda" else dispatch.triton_on_cpu()


def normal(*shape: int, seed: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def with_gradients(call: Callable[..., Tensor], given: list[Tensor]) -> list[Tensor]:
    """The result, and the gradients of what is given, on the CPU."""
    leaves = [one.clone().requires_grad_() for one in given]
    out = call(*leaves)
    place = torch.arange(out.numel(), device=out.device).view(out.shape)
    (out * torch.cos(place).to(out.dtype)).sum().backward()
    found = [out, *(one.grad for one in leaves if one.grad is not None)]
    return [one.detach().to_dense().double().cpu() for one in found]


def compare(
    operation: str, call: Callable[..., Tensor], given: list[Tensor], tolerance: float = 1e-5
) -> None:
    """The kernel on the device next to plain torch in double precision on the CPU."""
    moved = [one.to(DEVICE) for one in given]
    with on_triton():
        assert dispatch.triton_kernel(operation, *moved[:1]) is not None
        ours = with_gradients(call, moved)
    with dispatch.disabled():
        theirs = with_gradients(call, [one.double() for one in given])
    assert len(ours) == len(theirs) == len(given) + 1
    for one, other in zip(ours, theirs, strict=True):
        scale = other[other.isfinite()].abs().max().clamp(min=1) if other.numel() else 1.0
        torch.testing.assert_close(one / scale, other / scale, atol=tolerance, rtol=0,
                                   equal_nan=True)  # fmt: skip


SIZES = [8192, 8193, 1, 1023, 1024, 1025, 8191, 9216, 9217, 70_000]


@pytest.mark.parametrize("size", first(2, SIZES))
@pytest.mark.parametrize("alpha", first(2, [1.5, 2.0, 1.25, 1.05, 3.0]))
def test_rows(size: int, alpha: float) -> None:
    scores = normal(5, size, seed=size, scale=2.0)
    scores[1] = torch.linspace(-1, 0, size)
    scores[2, size // 2 :] = -math.inf
    scores[3, size // 2] = math.nan
    scores[4, -1] = math.inf
    compare("entmax_rows", lambda x: ff.entmax(x, alpha), [scores])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [40, 8193])
def test_rows_of_other_dtypes(dtype: torch.dtype, size: int) -> None:
    scores = normal(3, size, seed=size).to(dtype)
    tolerance = {torch.float64: 1e-12, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    compare("entmax_rows", ff.sparsemax, [scores], tolerance)


LENGTHS = [(65, 129), (64, 64), (63, 65), (1, 128), (200, 300)]


@pytest.mark.parametrize("lengths", first(2, LENGTHS), ids=str)
@pytest.mark.parametrize("omega", first(1, [ff.Tsallis(1.5), ff.Gini(), ff.Tsallis(1.2)]))
@pytest.mark.parametrize("causal", first(1, [True, False]))
def test_attention(lengths: tuple[int, int], omega: ff.Omega, causal: bool) -> None:
    queries, keys = lengths
    given = [normal(1, 4, queries, 32, seed=1, scale=2.0)]
    given += [normal(1, 2, keys, 32, seed=seed, scale=2.0) for seed in (2, 3)]

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ff.sparse_attention(q, k, v, omega, is_causal=causal, enable_gqa=True)

    compare("sparse_attention", call, given)


@pytest.mark.parametrize("d", [64, 65, pytest.param(128, marks=pytest.mark.nightly)])
def test_attention_of_vectors_around_the_size_at_which_blocks_shrink(d: int) -> None:
    given = [normal(1, 1, 70, d, seed=seed) for seed in (1, 2, 3)]
    compare("sparse_attention", lambda *x: ff.sparse_attention(*x, ff.Gini()), given)


@pytest.mark.parametrize("classes", first(2, [1025, 8193, 1, 1024, 20_000]))
def test_linear_loss(classes: int) -> None:
    target = torch.arange(3) % classes

    def call(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return ff.linear_entmax_loss(
            hidden, weight, target.to(hidden.device), linear_bias=bias, chunk_size=4096,
            reduction="none",
        )  # fmt: skip

    given = [normal(3, 4, seed=1), normal(classes, 4, seed=2), normal(classes, seed=3)]
    compare("candidate_streams", call, given)


@pytest.mark.parametrize("n", [31, 32, 33])
@pytest.mark.parametrize("d", first(1, [256, 257, 4096]))
def test_picked_scores(n: int, d: int) -> None:
    ids = torch.randint(40, (2, n), generator=torch.Generator().manual_seed(0))

    def call(queries: Tensor, table: Tensor) -> Tensor:
        where = ids.to(queries.device)
        more = where[0, :5], torch.tensor([0, 2, 5], device=queries.device)
        return torch.cat([one.flatten() for one in picked_scores(queries, table, where, more)])

    compare("picked_dots", call, [normal(2, d, seed=1) / 16, normal(40, d, seed=2)])


@pytest.mark.parametrize("d", [128, 129, 1024, 1025])
def test_row_adam(d: int) -> None:
    found = []
    for context, device, dtype in (
        (on_triton, DEVICE, torch.float32),
        (dispatch.disabled, "cpu", torch.float64),
    ):
        table = nn.Parameter(normal(6, d, seed=1).to(device, dtype))
        optimizer = ff.optim.Adam([table], lr=0.1)
        with context():
            for turn in range(3):
                rows = torch.tensor([[1, 4, turn, 1]]).to(device)
                values = normal(4, d, seed=turn).to(device, dtype)
                table.grad = torch.sparse_coo_tensor(rows, values, (6, d), check_invariants=True)
                optimizer.step()
        found.append(table.detach().double().cpu())
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("within", ["uniform", "popularity"])
@pytest.mark.parametrize(("codewords", "n"), [(15, 255), (16, 256), (17, 257)])
def test_draws(within: Any, codewords: int, n: int) -> None:
    """Of 225, 256 and 289 cells, by random numbers of the CPU."""
    items, queries = normal(5000, 6, seed=1), normal(3, 6, seed=2)
    proposal = ff.MultiIndex(codewords, within=within).fit(items, torch.arange(5000) % 7)
    moved = ff.MultiIndex(codewords, within=within)
    moved.load_state_dict({
        name: one.to(DEVICE) if isinstance(one, Tensor) else one
        for name, one in proposal.state_dict().items()
    })  # fmt: skip
    with on_triton():
        ids, log_q = moved.sample(queries.to(DEVICE), n, generator=torch.Generator().manual_seed(3))
    with dispatch.disabled():
        wanted, wanted_log_q = proposal.sample(
            queries, n, generator=torch.Generator().manual_seed(3)
        )
    assert (ids.cpu() == wanted).float().mean() > 0.999  # a GPU rounds the sums otherwise
    same = ids.cpu() == wanted
    torch.testing.assert_close(log_q.cpu()[same], wanted_log_q[same], atol=1e-4, rtol=1e-4)
