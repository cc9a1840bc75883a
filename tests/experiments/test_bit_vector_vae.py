"""The bit-vector experiment end to end, on small generated images."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fewfold as ff
from experiments.bit_vector_vae import run
from experiments.bit_vector_vae.model import LARGE, METHODS, PIXELS, SMALL, BitVAE
from experiments.bit_vector_vae.training import Data, Run
from experiments.datasets import has
from experiments.record import Record
from tests.pictures import has_colour

pytest.importorskip("safetensors")
pytest.importorskip("matplotlib")
pytest.importorskip("scipy")
from experiments.bit_vector_vae import table

TINY = {"samples": 4, "likely": 6}


def shapes(count: int = 48) -> Data:
    """Bright halves, left or right, on noise."""
    generator = torch.Generator().manual_seed(0)
    made = torch.randint(0, 40, (count, 28, 28), generator=generator)
    made[::2, :, :14] += 200
    made[1::2, :, 14:] += 150
    flat = made.to(torch.uint8).flatten(1)
    return Data(flat[:-16], flat[-16:-8], flat[-8:])


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    """Keep what is measured out of the folder of the experiment."""
    kept = Record(tmp_path / "results.json")
    for module in (run, table):
        monkeypatch.setattr(module, "RECORD", kept)
    monkeypatch.setattr(run, "STATES", tmp_path / "states")
    monkeypatch.setattr(run, "TEST", TINY)
    monkeypatch.setattr(run, "VALID", TINY)
    return kept


def test_a_budget_has_parts_for_bits_that_are_off() -> None:
    """One that allows everything is no budget at all."""
    found = torch.randn(5, SMALL, generator=torch.Generator().manual_seed(0))
    method = METHODS["SparseMAP, budget"]
    assert method.over(SMALL) == ff.structures.Budget(SMALL // 2)
    scores = method.scores(found, SMALL)
    free = ff.sparsemap(scores, ff.structures.Budget(SMALL))
    torch.testing.assert_close(free, ff.sparsemap(found, ff.structures.Bits(on_off=True)))
    assert METHODS["SparseMAP"].scores(found, SMALL) is found


def test_temperatures_fall() -> None:
    method = METHODS["Gumbel"]
    later = method.at(method.estimator(LARGE), 5000, LARGE)
    assert isinstance(later, ff.Gumbel)
    assert later.temperature == pytest.approx(0.60653, abs=1e-4)


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("top-k sparsemax", 2, 10),
        ("SparseMAP", 2, SMALL + 1),
        ("SparseMAP, budget", 2, SMALL + 1),
        ("SFE", 1, 1),
        ("SFE+", 2, 2),
        ("NVIL", 1, 1),
        ("Gumbel", 1, 1),
        ("ST Gumbel", 1, 1),
        ("straight-through", 1, 1),
        ("unordered set", 2, 2),
        ("MuProp", 2, 2),
        ("RELAX", 3, 3),
    ],
)
def test_every_method_learns(name: str, least: int, most: int) -> None:
    data = shapes()
    trained = Run(replace(METHODS[name], lr={SMALL: 2e-2}), SMALL, seed=0)
    before = trained.step(data.train)
    assert before.calls.float().mean() >= least
    assert before.calls.max() <= most
    for _ in range(3):
        after = trained.step(data.train)
    assert after.value.mean() < 0.98 * before.value.mean()


def test_the_likelihood_is_above_the_bound_and_near_the_sum() -> None:
    """Of four bits all sixteen values can be summed."""
    torch.manual_seed(0)
    trained = Run(METHODS["SFE"], SMALL, seed=0)
    trained.bits, trained.model = 4, BitVAE(4)
    torch.nn.init.normal_(trained.model.decoder[2].weight, std=0.05)
    images = shapes().test
    every = ff.structures.Bits().enumerate(torch.Size([4])).float()
    with torch.no_grad():
        costs = trained.model.cost(images)(
            every.repeat(len(images), 1), torch.arange(len(images)).repeat_interleave(16)
        )
    exact = -(-costs.view(-1, 16)).logsumexp(1) + torch.tensor(16.0).log()
    found = trained.measure(images, samples=500, likely=len(images))
    assert found["nll"] == pytest.approx(exact.mean().item(), abs=0.3)
    assert found["nll"] < found["distortion"] + found["rate"] - 1
    scores = trained.scores(images)[0].detach()
    rate = 4 * math.log(2) - torch.distributions.Bernoulli(logits=scores).entropy().sum(1)
    assert found["rate"] == pytest.approx(rate.mean().item(), abs=1e-3)


@pytest.mark.parametrize("name", ["SFE", "top-k sparsemax", "Gumbel"])
def test_a_latent_without_a_cost_becomes_even(name: str) -> None:
    """What is minimised has the entropy in it."""
    images = shapes().train
    trained = Run(replace(METHODS[name], lr={SMALL: 1e-4}), SMALL, seed=0)
    trained.model.cost = lambda images: lambda atoms, row: 0 * atoms.sum(1)  # type: ignore[method-assign]
    with torch.no_grad():
        trained.model.encoder[2].weight.mul_(10)
    entropies = [trained.step(images).entropy.mean().item() for _ in range(10)]
    assert entropies[-1] > entropies[0] + 0.05


def test_a_baseline_learns_with_the_rest() -> None:
    trained = Run(METHODS["NVIL"], SMALL, seed=0)
    assert isinstance(trained.estimator, ff.ScoreFunction)
    assert trained.estimator.baseline is not None
    before = [p.detach().clone() for p in trained.estimator.baseline.parameters()]
    trained.step(shapes().train)
    after = trained.estimator.baseline.parameters()
    assert all(not torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_what_is_reported_is_of_the_test_images(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, seen, measure = shapes(), [], Run.measure

    def measuring(self: Run, images: torch.Tensor, **of: int) -> Any:
        seen.append(images)
        return measure(self, images, **of)

    monkeypatch.setattr(Run, "measure", measuring)
    run.train("Gumbel", SMALL, 0, 2, data)
    wanted = (data.valid, data.valid, data.test)
    assert [images is part for images, part in zip(seen, wanted, strict=True)] == [True] * 3


def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    data = shapes()
    whole, stopped, resumed = (Run(METHODS["NVIL"], SMALL, seed=3) for _ in range(3))
    for _ in range(2):
        whole.epoch(data, **TINY)
    stopped.epoch(data, **TINY)
    stopped.save(tmp_path / "state.safetensors")
    resumed.load(tmp_path / "state.safetensors")
    resumed.epoch(data, **TINY)
    timeless = [
        [{k: v for k, v in line.items() if "seconds" not in k} for line in made.curve]
        for made in (whole, resumed)
    ]
    assert timeless[0] == timeless[1]
    torch.testing.assert_close(resumed.parts.state_dict(), whole.parts.state_dict(), rtol=0, atol=0)


def test_results_grow_and_are_shown(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["top-k sparsemax", "SFE"]
    run.run(names, SMALL, 0, 1, shapes())
    first = record.path.read_text()
    run.run(names, SMALL, 0, 1, shapes())
    assert record.path.read_text() == first
    run.run(["SFE"], SMALL, 0, 2, shapes())
    assert [len(row["curve"]) for row in record.rows(method="SFE")] == [1, 2]
    with pytest.raises(ValueError, match="2 epochs"):
        run.train("SFE", SMALL, 0, 1, shapes())
    readme = tmp_path / "README.md"
    readme.write_text("<!-- table: begin -->\n<!-- table: end -->\n")
    monkeypatch.setattr(table, "README", readme)
    for name in ("CURVES", "PLANE"):
        monkeypatch.setattr(table, name, tmp_path / f"{name}.png")
    table.main()
    shown = readme.read_text()
    assert f"| SFE | 32 | 3.74 | 2 | {record.rows(epochs=2)[0]['bits/dim']:.3f} ±" in shown
    assert "| SparseMAP | 128 | 3.67 | not run |" in shown
    assert all(has_colour(tmp_path / f"{name}.png") for name in ("CURVES", "PLANE"))


@pytest.mark.skipif(not has("fashion-mnist"), reason="needs Fashion-MNIST")
def test_clothes_are_learned_from() -> None:
    data = run.fashion()
    assert [len(part) for part in (data.train, data.valid, data.test)] == [55000, 5000, 10000]
    assert data.train.shape[1] == PIXELS
    trained = Run(METHODS["top-k sparsemax"], SMALL, seed=0)
    costs = [float(trained.step(data.train[i : i + 32]).value.mean()) for i in range(0, 384, 32)]
    assert run.per_pixel(costs[0]) == pytest.approx(8, abs=0.3)  # of 256 values none is likelier
    assert costs[-1] < 0.9 * costs[0]
