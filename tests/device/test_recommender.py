"""Recommenders that are trained and rank on another device, and the option of the command."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.sparse import csr_array

import fewfold as ff
from fewfold import _random
from fewfold._native import dispatch
from fewfold._torch import transferred, usable_device
from fewfold.recommender import (
    ALS,
    EASE,
    Anchors,
    Auto,
    Blend,
    Checkpoint,
    FastVAE,
    Interrupted,
    ItemKNN,
    MostPopular,
    Recommender,
    SessionKNN,
    SparseEASE,
    Training,
    Transformer,
    Warm,
    train,
)
from fewfold.recommender.models.model_options import BUILT_IN
from fewfold.recommender.training import run as training_run
from tests.cli.invoke import fewfold
from tests.nightly import first

from .apart import APART
from .fake import CUDA, fake_gpu
from .training import ITEMS, log

HISTORIES = [[1, 2, 3], [4, 5], []]


@pytest.fixture(autouse=True)
def _in_torch() -> Iterator[None]:
    """Plain torch on both devices, whose random numbers are the same; errors end no thread."""
    with dispatch.disabled(), torch.autograd.set_multithreading_enabled(False):
        yield


MODELS = {
    "VAE": ff.VAE(16, 7),
    "VAE of anchors": ff.VAE(16, 7, anchors=Anchors(count=8, width=3)),
    "Transformer": Transformer(width=8),
    "ALS": ALS(4),
    "blend": Blend(ALS(4), EASE()),
    "EASE": EASE(),
    "SparseEASE": SparseEASE(),
    "ItemKNN": ItemKNN(),
    "SessionKNN": SessionKNN(),
    "MostPopular": MostPopular(),
    "Auto": Auto(),
    "Warm": Warm(ALS(4)).with_features(csr_array(torch.eye(ITEMS).numpy())),
}


def test_every_model_is_here() -> None:
    assert {model.name for model in MODELS.values()} == set(BUILT_IN)


def answers(rec: Recommender) -> list[Any]:
    """What a recommender says, as text."""
    found = [
        rec.recommend_from_history(HISTORIES, k=5).items,
        rec.recommend_from_history(HISTORIES, k=2, items=[7, 8, 9]).items,
    ]
    if isinstance(rec.model, MostPopular):  # it does not compare items
        return found
    more = rec.recommend_from_history(HISTORIES, k=2, explain=True, diversity=0.3)
    return [*found, more.items, rec.similar_items([3], k=3).items]


@pytest.mark.parametrize("name", first(1, MODELS))
def test_a_recommender_of_another_device_says_the_same(name: str, tmp_path: Path) -> None:
    """A saved model loads on any device."""
    found = {}
    for device in ("cpu", "apart"):
        training = Training(epochs=2, batch=16)
        rec = Recommender(MODELS[name], training=training, device=device)
        rec.fit(log(), test=0.2, progress=False)
        assert rec.evaluation is not None
        found[device] = answers(rec), rec.evaluation.as_dict()
        rec.save(tmp_path / device)
    assert found["apart"] == found["cpu"]
    said = found["cpu"][0]
    assert answers(Recommender.load(tmp_path / "apart")) == said
    assert answers(Recommender.load(tmp_path / "cpu", device=APART)) == said


def test_training_is_resumed_on_another_device(tmp_path: Path) -> None:
    """From a checkpoint of one device, to the weights that a training without a stop has."""

    def network(device: Any) -> FastVAE:
        return FastVAE(ITEMS, hidden=16, latent=7).to(device)

    options = {"epochs": 3, "batch": 16, "progress": False}
    whole = network("cpu")
    train(whole, log(), **options)
    saved = tmp_path / "c"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_run.TrainingRun, "stops", lambda run: run.step == 5)
        with pytest.raises(Interrupted):
            train(network(APART), log(), checkpoint=Checkpoint(saved), **options)
    resumed = network(APART)
    train(resumed, log(), checkpoint=Checkpoint(saved, resume=True), **options)
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(resumed.state_dict()[name].cpu(), value, atol=1e-5, rtol=1e-5)


def test_a_device_with_a_generator_draws_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is seeded in each step by the generator of the training, and gives the same again."""
    own, seeds = torch.Generator(), []

    class Watched:
        @staticmethod
        def manual_seed(seed: int) -> torch.Generator:
            seeds.append(seed)
            return own.manual_seed(seed)

    monkeypatch.setattr(training_run, "generator_on", lambda device: Watched)
    losses = [
        train(FastVAE(ITEMS, hidden=16, latent=7), log(), epochs=1, batch=16, progress=False)
        for _ in range(2)
    ]
    assert losses[0][0].loss == losses[1][0].loss
    assert len(set(seeds)) == len(seeds) // 2 == 4
    assert _random.generator_on(torch.device("cpu")) is None
    assert _random.generator_on(APART) is None  # registered from Python, it has none


def test_transfers_do_not_wait() -> None:
    """From pinned memory to a GPU; there is none, so that no memory is pinned here."""
    there = transferred(torch.arange(3), APART)
    assert there.device == APART
    with fake_gpu():
        assert transferred(torch.arange(3), CUDA).device == CUDA


def test_devices_that_are_not_there_are_named() -> None:
    with pytest.raises(ValueError, match=r"'cpu', 'cuda', .* got 'gpu'"):
        Recommender(device="gpu")
    with pytest.raises(ValueError, match=r"'meta' cannot be used .*there is 'cpu' and 'apart:0'"):
        Recommender(device="meta")
    assert usable_device("apart:0") == APART


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_the_command_says_what_there_is(tmp_path: Path) -> None:
    result = fewfold("fit", "--device", "cuda", "--out", tmp_path / "m")
    assert result.code == 2
    assert "device 'cuda' cannot be used" in result.err
    assert "there is 'cpu'" in result.err
