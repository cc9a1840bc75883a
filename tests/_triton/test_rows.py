"""Selected rows, Adam for rows, and draws by Triton's kernels, in the interpreter."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fewfold as ff
from fewfold._native import dispatch
from fewfold._triton import cell_draws, picked_rows, row_adam
from fewfold.losses.sampled_scores import log_sum_picked, picked_scores

pytestmark = pytest.mark.triton


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def jagged(counts: list[int], items: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(9)
    values = torch.randint(items, (sum(counts),), generator=generator)
    return values, torch.tensor([0, *counts]).cumsum(0)


@pytest.mark.parametrize(("n", "d"), [(1, 1), (31, 17), (33, 64), (65, 3), (0, 4)])
def test_picked_scores_and_gradients(n: int, d: int) -> None:
    ids = torch.randint(50, (3, n), generator=torch.Generator().manual_seed(n))
    more = jagged([0, 40, 2], 50)
    found = []
    for context, dtype in (
        (dispatch.triton_on_cpu, torch.float32),
        (dispatch.disabled, torch.float64),
    ):
        queries = normal(3, d).to(dtype).requires_grad_()
        table = normal(50, d, seed=1).to(dtype).requires_grad_()
        with context():
            block, rest = picked_scores(queries, table, ids, more)
            total, _ = log_sum_picked(queries, table, ids, torch.zeros(3, n), more)
            (block.square().sum() + rest.square().sum() + total.sum() * min(n, 1)).backward()
        assert queries.grad is not None
        assert table.grad is not None
        found.append((block, rest, queries.grad, table.grad.to_dense()))
    for one, other in zip(*found, strict=True):
        scale = max(1.0, float(other.detach().abs().max()) if other.numel() else 1.0)
        torch.testing.assert_close(one.double() / scale, other / scale, atol=1e-5, rtol=0)


def test_picked_scores_with_transforms_and_other_inputs() -> None:
    queries, table = normal(2, 5).double(), normal(20, 5, seed=1).double().requires_grad_()
    ids = torch.randint(20, (2, 3), generator=torch.Generator().manual_seed(0))
    more = jagged([1, 2], 20)
    with dispatch.triton_on_cpu():
        assert torch.autograd.gradcheck(
            lambda one: torch.cat([*map(torch.flatten, picked_scores(one, table, ids, more))]),
            queries.clone().requires_grad_(),
        )
        for other in (table.T.contiguous().T, table * 2, nn.Embedding.from_pretrained(table)):
            ours = picked_scores(queries, other, ids, more)
            with dispatch.disabled():
                theirs = picked_scores(queries, other, ids, more)
            for one, two in zip(ours, theirs, strict=True):
                torch.testing.assert_close(one, two)
        with pytest.raises(RuntimeError, match="between 0 and 19"):
            picked_scores(queries, table, ids + 20, more)


def test_offsets_of_rows_have_64_bits() -> None:
    """Rows behind 2^32 numbers; only the pages of these rows are touched."""
    table = torch.empty(2**23 + 3, 512, dtype=torch.float16)
    last = len(table) - 1
    table[last] = normal(512).half()
    queries = normal(1, 512, seed=1).half()
    scores = picked_rows.picked_dots(queries, table, torch.tensor([[last]]), None)
    want = (queries.double() * table[last].double()).sum()
    torch.testing.assert_close(scores.double()[0, 0], want, atol=0.1, rtol=0.01)
    memory = torch.empty(len(table), 2, 512, dtype=torch.float16)
    memory[last] = 0
    step = torch.zeros(len(table), dtype=torch.int32)
    before = table[last].clone()
    row_adam.row_adam(
        table, memory, step, torch.tensor([last]), torch.ones(1, 512), lr=0.5, betas=(0.9, 0.999),
        eps=1e-8, weight_decay=0.0, decoupled=False, maximize=False,
    )  # fmt: skip
    torch.testing.assert_close(table[last], before - 0.5, atol=2e-2, rtol=0)
    assert step[last] == 1


OPTIONS: list[dict[str, Any]] = [
    {},
    {"weight_decay": 0.1, "maximize": True},
    {"weight_decay": 0.1, "decoupled_weight_decay": True, "betas": (0.0, 0.9)},
    {"by_row": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=[" ".join(one) or "none" for one in OPTIONS])
@pytest.mark.parametrize("shape", [(9, 5), (9,), (9, 3, 700)])
def test_row_adam(options: dict[str, Any], shape: tuple[int, ...]) -> None:
    tables = []
    for context, dtype in (
        (dispatch.triton_on_cpu, torch.float32),
        (dispatch.disabled, torch.float64),
    ):
        table = nn.Parameter(normal(*shape).to(dtype))
        optimizer = ff.optim.Adam([table], lr=0.05, **options)
        with context():
            for turn in range(3):
                rows = torch.tensor([3, 3, 8, turn])
                values = normal(4, *shape[1:], seed=turn).to(dtype)
                table.grad = torch.sparse_coo_tensor(
                    rows[None], values, shape, check_invariants=True
                )
                if turn == 2:
                    table.grad = table.grad.to_dense()
                optimizer.step()
        state = optimizer.state[table]
        tables.append((table.detach(), state["step"], state["memory"]))
    for one, other in zip(*tables, strict=True):
        torch.testing.assert_close(one.double(), other.double(), atol=1e-5, rtol=1e-5)


def test_row_adam_is_seen_by_autograd() -> None:
    table = nn.Parameter(normal(4, 2))
    loss = table.square().sum()
    table.grad = torch.sparse_coo_tensor(
        torch.tensor([[1]]), torch.ones(1, 2), (4, 2), check_invariants=True
    )
    with dispatch.triton_on_cpu():
        assert dispatch.triton_kernel("row_adam", table) is row_adam.row_adam
        ff.optim.Adam([table]).step()
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        loss.backward()


@pytest.mark.parametrize("within", ["uniform", "popularity"])
@pytest.mark.parametrize(("codewords", "codebooks", "n"), [(3, 2, 1), (20, 2, 300), (2, 3, 257)])
def test_draws_of_a_multi_index(within: Any, codewords: int, codebooks: int, n: int) -> None:
    items = normal(400, 6)
    counts = torch.arange(400) % 7
    proposal = ff.MultiIndex(codewords, codebooks=codebooks, within=within).fit(items, counts)
    queries = normal(3, 6, seed=2)
    found = []
    for context in (dispatch.triton_on_cpu, dispatch.disabled):
        with context():
            generator = torch.Generator().manual_seed(1)
            ids, log_q = proposal.sample(queries, n, generator=generator)
            found.append((ids, log_q, proposal.log_prob(queries, ids)))
    assert torch.equal(found[0][0], found[1][0])
    torch.testing.assert_close(found[0][1], found[1][1], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found[0][1], found[0][2], atol=1e-5, rtol=1e-5)


def test_draws_refuse_scores_that_are_not_finite() -> None:
    proposal = ff.MultiIndex(2).fit(normal(20, 4))
    for bad in (math.nan, math.inf):
        queries = normal(3, 4)
        queries[1, 0] = bad
        with dispatch.triton_on_cpu(), pytest.raises(ValueError, match="row 1"):
            proposal.sample(queries, 5)
    with dispatch.triton_on_cpu():
        ids, _ = proposal.sample(normal(0, 4), 5)
        assert ids.shape == (0, 5)
        assert dispatch.triton_kernel("draw_cells", normal(2, 2)) is cell_draws.draw_cells
