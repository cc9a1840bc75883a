"""An anchor table under the transforms of torch."""

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

import fewfold as ff

IDS = torch.tensor([[3, 1, 4], [1, 5, 9]])


@pytest.fixture(params=[None, 3], ids=["full", "width 3"])
def table(request: pytest.FixtureRequest) -> ff.AnchorEmbedding:
    generator = torch.Generator().manual_seed(0)
    return ff.AnchorEmbedding(
        10, 6, padding_idx=1, anchors=8, width=request.param, generator=generator
    )


def test_compiles_whole(table: ff.AnchorEmbedding) -> None:
    lookup: Any = torch.compile(table, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(lookup(IDS), table(IDS))
    scores: Any = torch.compile(table.logits, fullgraph=True, backend="aot_eager")
    hidden = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(scores(hidden), table.logits(hidden))
    scores(hidden).square().sum().backward()
    compiled = table.transform.grad
    table.zero_grad()
    table.logits(hidden).square().sum().backward()
    torch.testing.assert_close(compiled, table.transform.grad)


def test_vmap_grad_and_forward_mode(table: ff.AnchorEmbedding) -> None:
    torch.testing.assert_close(torch.vmap(table)(IDS), table(IDS))
    held = dict(table.named_parameters())

    def lookup(values: dict[str, Tensor]) -> Any:
        return torch.func.functional_call(table, values, (IDS,))

    def loss(values: dict[str, Tensor]) -> Tensor:
        found: Tensor = lookup(values).square().sum()
        return found

    found = torch.func.grad(loss)(held)
    table(IDS).square().sum().backward()
    torch.testing.assert_close(found["anchors"], table.anchors.grad)
    torch.testing.assert_close(found["transform"], table.transform.grad)
    forward, backward = (f(lookup)(held) for f in (torch.func.jacfwd, torch.func.jacrev))
    for name in held:
        torch.testing.assert_close(forward[name], backward[name])


def test_exports_and_pickles(table: ff.AnchorEmbedding) -> None:
    program = torch.export.export(table, (IDS,))
    torch.testing.assert_close(program.module()(IDS), table(IDS))
    torch.testing.assert_close(pickle.loads(pickle.dumps(table))(IDS), table(IDS))


def test_half_precision_and_other_devices(table: ff.AnchorEmbedding) -> None:
    found = table.to(torch.float16)(IDS)
    assert found.dtype == torch.float16
    assert found.isfinite().all()
    made = ff.AnchorEmbedding(10, 6, anchors=8, width=table.width, device="meta")
    assert made(IDS.to("meta")).shape == (2, 3, 6)
