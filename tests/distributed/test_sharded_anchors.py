"""Tables of anchors trained by several processes, compared with one process."""

import pytest
import torch

import fewfold as ff
from fewfold.recommender.models.fastvae.anchored_tables import AnchoredTables
from tests.distributed.anchor_jobs import MODES, OPTIONS, both_modes
from tests.distributed.conftest import Worlds
from tests.distributed.jobs import HIDDEN, ITEMS, LATENT, log
from tests.distributed.test_group import same


def test_rows_start_as_in_one_process(worlds: Worlds) -> None:
    expected = worlds[1][0]["anchored_initial_weights"]
    for world in (2, 3):
        for rank in worlds[world]:
            same(rank["anchored_initial_weights"], expected)


@pytest.mark.parametrize("world", [2, 3])
def test_loss_and_gradients_of_a_step_are_those_of_one_process(worlds: Worlds, world: int) -> None:
    expected = worlds[1][0]["anchored_steps"]
    for rank in worlds[world]:
        for mode, steps in expected.items():
            for name, step in steps.items():
                torch.testing.assert_close(
                    rank["anchored_steps"][mode][name], step, rtol=1e-4, atol=1e-5,
                    msg=lambda m, n=f"{mode}, {name}": f"{n}: {m}",
                )  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_training_is_that_of_one_process(worlds: Worlds, mode: str) -> None:
    expected = worlds[1][0]["anchored_trained"][mode]
    for world in (2, 3):
        for rank in worlds[world]:
            found = rank["anchored_trained"][mode]
            for name in ("losses", "ndcg"):
                torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=0)
            for name in ("anchors", "outputs", "inputs"):
                torch.testing.assert_close(found[name], expected[name], rtol=1e-2, atol=1e-2)
            same(found["own rows"], found["outputs"])
            same(found["some outputs"], found["outputs"][::5])
            same(found["ranked"], expected["ranked"])


def test_one_process_trains_as_with_anchored_tables(worlds: Worlds) -> None:
    def trained() -> list[float]:
        model = ff.recommender.FastVAE(AnchoredTables(ITEMS, OPTIONS, HIDDEN, LATENT), seed=1)
        epochs = ff.recommender.train(model, log(), epochs=5, batch=7, lr=2e-2, progress=False)
        return [epoch.loss for epoch in epochs]

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = both_modes(trained)
    torch.set_num_threads(threads)
    for mode in MODES:
        assert worlds[1][0]["anchored_trained"][mode]["losses"] == found[mode]


def test_the_same_seed_and_world_give_the_same_bytes(worlds: Worlds) -> None:
    for ranks in worlds.values():
        for rank in ranks:
            same(rank["anchored_trained_again"], rank["anchored_trained"])
            same(rank["anchored_trained"], ranks[0]["anchored_trained"])


@pytest.mark.parametrize("mode", MODES)
def test_a_fit_of_several_processes_is_that_of_one(worlds: Worlds, mode: str) -> None:
    expected = worlds[1][0]["anchored_fit"][mode]
    for world in (2, 3):
        first = worlds[world][0]["anchored_fit"][mode]
        for name, tensor in expected["tensors"].items():
            found = first["tensors"][name]
            assert (found.shape, found.dtype) == (tensor.shape, tensor.dtype), name
        assert first["loaded"] == first["recommended"]
        for rank in worlds[world]:
            found = rank["anchored_fit"][mode]
            torch.testing.assert_close(found["losses"], expected["losses"], rtol=1e-4, atol=0)
            assert found["scores"] == first["scores"]
            for metric, score in expected["scores"].items():
                assert found["scores"][metric]["mean"] == pytest.approx(score["mean"], abs=2e-3)
            assert found["recommended"] == first["recommended"] == expected["recommended"]


def test_what_several_processes_cannot_do_is_said(worlds: Worlds) -> None:
    for world in (2, 3):
        for rank in worlds[world]:
            found = rank["anchored_refused"]
            assert "say how many" in found["auto"]
            assert "--anchors 255" in found["auto fit"]
            assert "--alone" in found["cut"]
            assert "by one process" in found["train again"]
            assert "save the model" in found["new items"]
            assert "start fewer" in found["too few items"]
