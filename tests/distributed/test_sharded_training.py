"""Training with sharded tables, compared with one process and with dense tables."""

import pytest
import torch

import fewfold as ff
from fewfold.recommender.models.fastvae.tables import DenseTables
from tests.distributed.conftest import Worlds
from tests.distributed.jobs import HIDDEN, ITEMS, LATENT, log
from tests.distributed.test_group import same


def test_sharded_tables_start_as_dense_ones(worlds: Worlds) -> None:
    found = worlds[1][0]["initial_weights"]
    for items, hidden, latent in ((7, 3, 1), (8193, 1, 3), (12303, 5, 1)):
        model = ff.recommender.FastVAE(DenseTables(items, hidden, latent), seed=4)
        same(found[f"inputs {items}"], model.inputs.detach())
        same(found[f"items {items}"], model.outputs())
        same(found[f"posterior {items}"], model.posterior.weight.detach())


@pytest.mark.parametrize("world", [2, 3])
def test_loss_and_gradients_of_a_step_are_those_of_one_process(worlds: Worlds, world: int) -> None:
    expected = worlds[1][0]["steps"]
    for rank in worlds[world]:
        for name, step in expected.items():
            torch.testing.assert_close(
                rank["steps"][name], step, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
            )


@pytest.mark.parametrize("name", ["trained", "trained_shared"])
def test_training_is_that_of_one_process(worlds: Worlds, name: str) -> None:
    expected = worlds[1][0][name]
    for world in (2, 3):
        for rank in worlds[world]:
            torch.testing.assert_close(rank[name]["losses"], expected["losses"], rtol=1e-4, atol=0)
            for table in ("inputs", "items", "posterior"):
                torch.testing.assert_close(rank[name][table], expected[table], rtol=1e-2, atol=2e-3)


def test_one_process_trains_as_with_dense_tables(worlds: Worlds) -> None:
    model = ff.recommender.FastVAE(DenseTables(ITEMS, HIDDEN, LATENT), seed=1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    epochs = ff.recommender.train(model, log(), epochs=3, batch=20, lr=2e-2, progress=False)
    torch.set_num_threads(threads)
    found = worlds[1][0]["trained"]
    assert found["losses"] == [epoch.loss for epoch in epochs]
    same(found["inputs"], model.inputs.detach())
    same(found["items"], model.outputs())


def test_shared_shortcuts_score_as_that_of_one_process(worlds: Worlds) -> None:
    for ranks in worlds.values():
        for rank in ranks:
            for name, (parts, alone, local) in rank["directions"].items():
                assert alone.abs().max() > 0.1, name
                torch.testing.assert_close(parts, alone, rtol=1e-3, atol=1e-4)
                torch.testing.assert_close(local, alone, rtol=1e-3, atol=1e-4)
            same(rank["directions"], ranks[0]["directions"])


def test_the_same_seed_and_world_give_the_same_bytes(worlds: Worlds) -> None:
    for ranks in worlds.values():
        for rank in ranks:
            same(rank["trained_again"], rank["trained"])
            same(rank["trained"], ranks[0]["trained"])


def test_what_several_processes_cannot_do_is_said(worlds: Worlds) -> None:
    for world in (2, 3):
        found = worlds[world][0]["refused"]
        assert "use SampledSoftmax" in found["full softmax"]
        assert "give a generator" in found["no generator"]
        assert "in one process" in found["exact"]
        assert "in one process" in found["dynamic"]
        assert "save the model" in found["new items"]
        assert "start fewer" in found["too few items"]


def test_a_signal_to_one_process_stops_all_after_the_same_step(worlds: Worlds) -> None:
    for ranks in worlds.values():
        for rank in ranks:
            assert rank["interrupted"].startswith("stopped by SIGTERM at step 4 of 9")


@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_step_sends_as_many_bytes_as_the_formula_says(worlds: Worlds, world: int) -> None:
    users, items, samples, hidden, width = 32, 12, 40, 32, 16
    for rank in worlds[world]:
        sent, layers = rank["step_bytes"]
        row = 8 * hidden + 8 * width + 4 + 12 * (samples + items) / world
        each = (world - 1) / world * (users * row + 8 * layers)
        assert sent / 6 == pytest.approx(world * each, rel=0.05)
