"""Copying, pickling and saving a table together with its proximal optimiser."""

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fewfold as ff
from tests.embeddings.test_proximal import ROWS, make, owing

PAIRS = ["dense", "sparse", "regrow", "winners"]


def trained(
    table: ff.AnchorEmbedding, optimizer: torch.optim.Optimizer, steps: int, seed: int
) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        ids = torch.randint(0, ROWS, (3,), generator=draw)
        optimizer.zero_grad()
        (table(ids) - 1).square().sum().backward()
        optimizer.step()
    return table.weight.detach().clone()


def pair(kind: str) -> tuple[ff.AnchorEmbedding, ff.embeddings.Proximal]:
    table = make(3, sparse=kind != "dense")
    return table, ff.proximal(
        ff.optim.Adam(table.parameters(), lr=0.05), table, l1=ff.embeddings.Warmup(0.3, over=4),
        regrow=ff.embeddings.Regrow(every=2) if kind == "regrow" else None,
        keep=ff.embeddings.Narrowing(3, 2, over=4, every=1) if kind == "winners" else None,
    )  # fmt: skip


@pytest.mark.parametrize("order", ["table first", "optimiser first"])
@pytest.mark.parametrize("how", ["copy", "pickle"])
@pytest.mark.parametrize("kind", PAIRS)
def test_a_table_and_its_optimiser_are_copied_together(kind: str, how: str, order: str) -> None:
    def again(both: Any) -> Any:
        return copy.deepcopy(both) if how == "copy" else pickle.loads(pickle.dumps(both))

    table, optimizer = pair(kind)
    trained(table, optimizer, 7, seed=1)
    if order == "table first":
        twin, its = again((table, optimizer))
    else:
        its, twin = again((optimizer, table))
    before = twin.weight.detach().clone()
    assert its.steps == optimizer.steps == 7
    assert its.param_groups[0]["params"][0] is twin.anchors
    one = trained(table, optimizer, 7, seed=2)
    torch.testing.assert_close(twin.weight.detach(), before, rtol=0, atol=0)  # independent
    other = trained(twin, its, 7, seed=2)
    assert not torch.equal(other, before)
    torch.testing.assert_close(other, one, rtol=0, atol=0)
    torch.testing.assert_close(table.weight.detach(), one, rtol=0, atol=0)


@pytest.mark.parametrize("kind", PAIRS)
def test_a_state_dict_goes_through_a_file(kind: str, tmp_path: Path) -> None:
    table, optimizer = pair(kind)
    trained(table, optimizer, 7, seed=1)
    torch.save({"table": table.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "s")
    found = torch.load(tmp_path / "s", weights_only=True)
    twin, its = pair(kind)
    twin.load_state_dict(found["table"])
    its.load_state_dict(found["optimizer"])
    expected = trained(table, optimizer, 7, seed=2)
    torch.testing.assert_close(
        trained(twin, its, 7, seed=2), expected
    )  # sums begin anew: they round


def test_a_pickled_table_owes_nothing() -> None:
    table, _ = owing()
    late = table.transform.detach().clone()
    alone = pickle.loads(pickle.dumps(table))
    assert not torch.equal(late, alone.transform)
    table.nonzeros()  # reads, and so settles
    torch.testing.assert_close(alone.transform, table.transform, rtol=0, atol=0)


def test_settle_brings_the_bare_parameter_up_to_date() -> None:
    table, optimizer = owing()
    late = table.transform.detach().clone()
    optimizer.apply_deferred()
    assert not torch.equal(late, table.transform)
    settled = table.transform.detach().clone()
    table.nonzeros()
    assert torch.equal(settled, table.transform)
