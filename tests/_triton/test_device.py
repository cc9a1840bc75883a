"""The code around the kernels, on a device of the tests that mixes with no other.

The kernels themselves run in the interpreter, on the memory that the tensors hold.
"""

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fewfold as ff
from fewfold._native import dispatch
from fewfold.losses.linear import linear_entmax
from fewfold.losses.sampled_scores import picked_scores
from tests.device.apart import APART, Apart

pytestmark = pytest.mark.triton


@pytest.fixture(autouse=True)
def chosen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of the operations whose kernels were chosen for tensors of that device."""
    executor = importlib.import_module("triton.runtime.interpreter").GridExecutor
    call, choose, names = executor.__call__, dispatch.triton_kernel, []

    def held(value: Any) -> Any:
        return value.held if isinstance(value, Apart) else value

    def launch(self: Any, *given: Any, **options: Any) -> Any:
        places = {type(one) is Apart for one in given if isinstance(one, Tensor)}
        assert len(places) == 1, "tensors of both devices"
        return call(self, *map(held, given), **{name: held(x) for name, x in options.items()})

    def noted(operation: str, *tensors: Tensor) -> Any:
        found = choose(operation, *tensors)
        if found is not None:
            names.append(operation)
        return found

    monkeypatch.setattr(executor, "__call__", launch)
    monkeypatch.setattr(dispatch, "triton_kernel", noted)
    monkeypatch.setattr(dispatch, "_PLAIN", (*dispatch._PLAIN, Apart))
    monkeypatch.setattr(linear_entmax, "_has_gpu_kernel", lambda layer, hidden: True)
    with dispatch.triton_on_cpu(), torch.autograd.set_multithreading_enabled(False):
        yield names


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def compare(call: Callable[..., Tensor], *given: Tensor) -> None:
    """Result and gradients next to those of plain torch on the CPU."""
    found = []
    for device in (APART, torch.device("cpu")):
        leaves = [one.to(device, copy=True).requires_grad_() for one in given]
        if device == APART:
            out = call(*leaves)
        else:
            with dispatch.disabled():
                out = call(*leaves)
        assert out.device == device
        out.sin().sum().backward()
        grads = [one.grad for one in leaves if one.grad is not None]
        assert all(grad.device == device for grad in grads)
        found.append([one.detach().cpu() for one in (out, *grads)])
    for one, other in zip(*found, strict=True):
        dense = [each.to_dense() if each.is_sparse else each for each in (one, other)]
        torch.testing.assert_close(*dense, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("size", [20, 9000])
def test_rows(size: int, chosen: list[str]) -> None:
    compare(ff.sparsemax, normal(3, size, seed=0))
    compare(ff.entmax, normal(3, size, seed=0), torch.tensor([[1.3], [1.5], [1.9]]))
    assert {"entmax_rows", "entmax_rows_backward"} <= set(chosen)


def test_attention(chosen: list[str]) -> None:
    def call(query: Tensor, key: Tensor, value: Tensor, alpha: Tensor) -> Tensor:
        keep = torch.ones(70, 70, dtype=torch.bool, device=query.device).tril(3)
        return ff.sparse_attention(query, key, value, ff.Tsallis(alpha), mask=keep, enable_gqa=True)

    given = [normal(1, heads, 70, 16, seed=heads) for heads in (2, 1, 1)]
    compare(call, *given, torch.tensor([1.4, 1.8]).view(2, 1, 1))
    assert {"sparse_attention", "sparse_attention_backward"} <= set(chosen)


@pytest.mark.parametrize("alpha", [1.5, 1.0])
@pytest.mark.parametrize("sparse_grad", [False, True])
def test_linear_loss(alpha: float, sparse_grad: bool, chosen: list[str]) -> None:
    target = torch.tensor([1, 5, -100])

    def call(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return ff.linear_entmax_loss(
            hidden, weight, target.to(hidden.device), alpha, linear_bias=bias,
            sparse_grad=sparse_grad and alpha > 1,
        )  # fmt: skip

    compare(call, normal(3, 4, seed=1), normal(1100, 4, seed=2), normal(1100, seed=3))
    assert ("candidate_streams" in chosen) is (alpha > 1)


def test_picked_scores(chosen: list[str]) -> None:
    def call(queries: Tensor, table: Tensor) -> Tensor:
        ids = torch.tensor([[1, 2, 2], [0, 5, 7]], device=queries.device)
        more = ids[0, :2], torch.tensor([0, 0, 2], device=queries.device)
        return torch.cat([one.flatten() for one in picked_scores(queries, table, ids, more)])

    compare(call, normal(2, 5, seed=1), normal(9, 5, seed=2))
    assert {"picked_dots", "picked_pulls"} <= set(chosen)


def test_row_adam(chosen: list[str]) -> None:
    found = []
    for device in (APART, torch.device("cpu")):
        table = nn.Parameter(normal(6, 5, seed=1).to(device))
        optimizer = ff.optim.Adam([table], lr=0.1)
        for turn in range(2):
            rows = torch.tensor([[1, 4, turn, 1]], device=device)
            values = normal(4, 5, seed=turn).to(device)
            table.grad = torch.sparse_coo_tensor(rows, values, (6, 5), check_invariants=True)
            optimizer.step()
        found.append(table.detach().cpu())
    torch.testing.assert_close(*found)
    assert "row_adam" in chosen


@pytest.mark.parametrize("within", ["uniform", "popularity"])
def test_draws(within: Any, chosen: list[str]) -> None:
    drawn = []
    for device in (APART, torch.device("cpu")):
        items, queries = normal(60, 4, seed=1).to(device), normal(3, 4, seed=2).to(device)
        counts = torch.arange(60, device=device) % 7
        proposal = ff.MultiIndex(3, within=within).fit(items, counts)
        drawn.append(proposal.sample(queries, 9, generator=torch.Generator().manual_seed(1)))
        assert all(one.device == device for one in drawn[-1])
    assert torch.equal(drawn[0][0].cpu(), drawn[1][0])
    assert "draw_cells" in chosen
