"""`linear_entmax_loss` with candidates found by a Triton kernel, in the interpreter."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from fewfold._native import dispatch
from fewfold._triton import candidate_streams as kernels
from fewfold.losses import entmax_loss, linear_entmax_loss
from fewfold.losses.linear import candidates

pytestmark = pytest.mark.triton


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks in a chunk, and rows that are crowded by 40 candidates."""
    monkeypatch.setattr(kernels, "BLOCK", 32)
    monkeypatch.setattr(candidates, "_MAX_COUNT", 40)
    monkeypatch.setattr(candidates, "_MAX_FRACTION", 1000)


def layer(rows: int, features: int, classes: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows + classes)
    hidden = torch.randn(rows, features, generator=generator)
    weight = torch.randn(classes, features, generator=generator)
    bias = torch.randn(classes, generator=generator)
    return hidden, weight, bias, torch.randint(classes, (rows,), generator=generator)


def gradients(loss: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    return [loss.detach().double(), *(g.double() for g in torch.autograd.grad(loss, leaves))]


def compare(given: tuple[Tensor, ...], alpha: Any, **options: Any) -> None:
    """Compare loss and gradients with those of the loss of stored scores in double precision."""
    *floats, target = given
    ours = [one.clone().requires_grad_() for one in floats]
    with dispatch.triton_on_cpu():
        assert dispatch.triton_kernel("candidate_streams", *ours) is not None
        loss = linear_entmax_loss(ours[0], ours[1], target, alpha, linear_bias=ours[2], **options)
        found = gradients(loss, ours)
    theirs = [one.double().requires_grad_() for one in floats]
    options.pop("chunk_size", None)
    with dispatch.disabled():
        scores = theirs[0] @ theirs[1].T + theirs[2]
        wanted = gradients(entmax_loss(scores, target, alpha, **options), theirs)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("alpha", [2.0, 1.5, 1.3, 3.0])
def test_loss_and_gradients(alpha: float) -> None:
    compare(layer(5, 6, 300), alpha, chunk_size=100)


@pytest.mark.parametrize("classes", [1, 31, 33, 65])
def test_sizes_around_a_block(classes: int) -> None:
    compare(layer(2, 3, classes), 1.5, chunk_size=64)


def test_crowded_rows_ignored_rows_and_smoothing() -> None:
    hidden, weight, bias, target = layer(4, 3, 200)
    hidden[1] = 0.0
    bias[:] = 0.0
    target[2] = -100
    compare((hidden, weight, bias, target), 1.5, chunk_size=70)
    compare((hidden, weight, bias, target), 1.5, chunk_size=70, label_smoothing=0.1)


def test_masked_classes() -> None:
    hidden, weight, bias, target = layer(3, 4, 80)
    bias[40:] = -math.inf
    compare((hidden, weight, bias, target % 40), 1.5)


def test_candidates_contain_the_support_and_nan() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = 3 * torch.randn(4, 150, generator=generator)
    scores[1, 70] = math.nan
    scores[2, 3] = math.inf
    streams = kernels.candidate_streams(scores, 1.5, 40)
    for start in range(0, 150, 60):
        streams.push(scores[:, start : start + 60], start)
    column, score, count = streams.take()
    sizes = count.tolist()
    own = list(zip(column.split(sizes), score.split(sizes), strict=True))
    assert own[1][1].isnan().any()
    assert own[1][0][own[1][1].isnan()].tolist() == [70]
    assert math.inf in own[2][1].tolist()
    for row in (0, 3):
        columns, values = own[row]
        assert torch.equal(scores[row, columns], values)
        with dispatch.disabled():
            support = candidates.entmax(scores[row], 1.5).nonzero().flatten()
        assert set(support.tolist()) <= set(columns.tolist())
        assert len(columns) < 20
