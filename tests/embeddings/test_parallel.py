"""Two processes with half a batch each train as one with the whole batch."""

import contextlib
import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import fewfold as ff
from fewfold.embeddings import DataParallel

# anchors, width, regrow: slots of one and of two bytes, and a full table
CASES = {
    "full": (6, None, None),
    "narrow": (6, 2, ff.embeddings.Regrow(every=3)),
    "many": (300, 2, None),
}


def model(case: str) -> nn.Sequential:
    anchors, width, _ = CASES[case]
    generator = torch.Generator().manual_seed(3)
    table = ff.AnchorEmbedding(
        20, 4, anchors=anchors, width=width, sparse=True, generator=generator
    )
    torch.manual_seed(4)
    return nn.Sequential(table, nn.Linear(4, 3))


def batches() -> list[Tensor]:
    """Rows that both halves use, one of them, and nobody for a while, which then owe."""
    return list(torch.randint(0, 20, (8, 8), generator=torch.Generator().manual_seed(0)))


def trained(whole: nn.Sequential, run: nn.Module, case: str, part: slice) -> dict[str, Tensor]:
    """What training comes to on a part of each batch, with the first gradients."""
    table, layer = whole
    rows = ff.optim.Adam([table.transform], lr=0.05)
    tables = ff.proximal(rows, table, l1=0.02, regrow=CASES[case][2])
    others = torch.optim.SGD([table.anchors, *layer.parameters()], lr=0.05)
    found: dict[str, Tensor] = {}
    for ids in batches():
        run(ids[part]).square().mean().backward()
        for name, param in whole.named_parameters():
            found.setdefault(f"gradient of {name}", param.grad.to_dense().clone())
        tables.step()
        others.step()
        tables.zero_grad()
        others.zero_grad()
    tables.apply_deferred()
    return found | {name: value.clone() for name, value in whole.state_dict().items()}


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    found: dict[str, Any] = {}
    for case in CASES:
        mine = model(case)
        if rank:  # what counts is the model of the first process
            mine[0].reset_parameters(torch.Generator().manual_seed(9))
        found[case] = trained(mine, DataParallel(mine), case, slice(4 * rank, 4 * rank + 4))
    plain = DistributedDataParallel(model("narrow"))
    try:
        plain(torch.tensor([1]))
    except TypeError as error:
        found["error"] = str(error)
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_are_one(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(work, (str(tmp_path),), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    for case in CASES:
        alone = model(case)
        started = alone[0].transform.detach().clone()
        expected = trained(alone, alone, case, slice(None))
        assert first[case].keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(first[case][name], value, rtol=1e-4, atol=1e-6)
            torch.testing.assert_close(second[case][name], value, rtol=1e-4, atol=1e-6)
        assert int((expected["0.transform"] == 0).sum()) > int((started == 0).sum())
    assert not torch.equal(first["narrow"]["0.slots"], model("narrow")[0].slots)  # regrown
    assert "write fewfold.embeddings.DataParallel(model), or sparse=False" in first["error"]


@pytest.fixture
def one_process() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def exchanges(table: ff.AnchorEmbedding) -> int:
    """How often processes talk to each other about the gradients that `Regrow` looks at."""
    count = 0

    def gathered(*arguments: Any, **options: Any) -> None:
        nonlocal count
        count += 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_gather", gathered)
        table.attached.start_recording()
        with contextlib.suppress(RuntimeError):  # what was gathered is not filled in
            table.attached.take_recorded(table.anchors)
    return count


@pytest.mark.usefixtures("one_process")
def test_a_wrapper_that_is_gone_leaves_the_tables_alone() -> None:
    mine = model("narrow")
    before = set(vars(mine))
    wrapper = DataParallel(mine)
    assert exchanges(mine[0]) > 0
    assert set(vars(mine)) == before  # nothing stays on the model
    wrapper = weakref.ref(wrapper)
    gc.collect()
    assert wrapper() is None
    assert exchanges(mine[0]) == 0


@pytest.mark.usefixtures("one_process")
def test_a_wrapper_can_be_detached() -> None:
    mine = model("narrow")
    first = DataParallel(mine)
    second = DataParallel(mine)  # which the table follows now
    assert first.detach() is mine
    assert exchanges(mine[0]) > 0
    second.detach()
    second.detach()
    assert exchanges(mine[0]) == 0
    with pytest.raises(RuntimeError, match="has been detached"):
        second(torch.tensor([1]))
    mine(torch.tensor([1])).sum().backward()
    assert mine[0].transform.grad.is_sparse
    again = DataParallel(mine)
    again(torch.tensor([1])).sum().backward()
    assert exchanges(mine[0]) > 0


def test_a_norm_that_every_process_keeps_for_itself_is_refused() -> None:
    table = ff.AnchorEmbedding(20, 4, max_norm=1.0, anchors=6)
    with pytest.raises(ValueError, match=r"max_norm=None, got 1\.0"):
        DataParallel(nn.Sequential(table))
