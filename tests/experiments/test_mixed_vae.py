"""Autoencoders with six latent distributions: losses, gradients, likelihoods, one run each."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.distributions import kl_divergence

import fewfold as ff
from experiments.mixed_vae import model, run, table
from experiments.mixed_vae.latents import LATENTS, SIZE, Corners, Latent, Mixed, Projected
from experiments.mixed_vae.model import Split, Training
from experiments.record import Record
from tests.nightly import first
from tests.pictures import has_colour

pytest.importorskip("safetensors")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def said(name: str, rows: int = 1) -> Tensor:
    """What an encoder might say."""
    return torch.randn(1, LATENTS[name].outputs, generator=seeded(3)).expand(rows, -1)


@pytest.mark.parametrize("name", LATENTS)
def test_weights_of_draws_average_to_one(name: str) -> None:
    """Draws of the posterior, weighted by prior over posterior, are draws of the prior."""
    latent, rows = LATENTS[name], 8_000
    narrow = 0.2 * said(name, rows)
    points, logs = latent.weighted(narrow, seeded())
    assert points.shape == (rows, SIZE)
    mean = logs.exp().mean()
    error = logs.exp().std() / rows**0.5
    assert abs(mean - 1) < 4 * error + 0.02


@pytest.mark.parametrize("name", LATENTS)
def test_the_rate_is_minus_the_mean_of_the_weights(name: str) -> None:
    latent, rows = LATENTS[name], 4_000
    told = 0.5 * said(name, rows)
    logs = latent.weighted(told, seeded())[1]
    rate = latent.rate(told, seeded(1))
    spread = (logs.std() + rate.std()) / rows**0.5
    assert abs(rate.mean() + logs.mean()) < 5 * spread + 1e-3
    assert rate.mean() > 0


@pytest.mark.parametrize("name", [name for name in LATENTS if name != "straight-through"])
def test_the_gradient_is_that_of_cost_and_rate(name: str) -> None:
    """The mean of many estimates is the slope, which for a linear cost is known.

    Within 5 standard errors for each of up to 20 numbers, which fails once in 80,000.
    """
    latent, rows = LATENTS[name], 20_000
    start = 0.5 * said(name)
    leaf = start.expand(rows, -1).clone().requires_grad_()
    latent.loss(leaf, linear, seeded())[0].sum().backward()
    assert leaf.grad is not None
    slope, error = expected_slope(latent, start, rows)
    error = (leaf.grad.var(0) / rows + error.square()).sqrt()
    assert ((leaf.grad.mean(0) - slope).abs() < 5 * error + 1e-5).all()
    assert error.max() < 0.1 * slope.abs().max()


def linear(points: Tensor, row: Tensor) -> Tensor:
    return points @ torch.linspace(-1, 2, SIZE)


def expected_slope(latent: Latent, start: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Of cost and rate, and its standard error."""
    if isinstance(latent, Projected):  # by the score function alone, with other draws
        leaf = start.expand(rows, -1).clone().requires_grad_()
        dist = latent.dist(leaf)
        point = dist.sample(generator=seeded(5))
        log_prob = dist.log_prob(point)
        prior = ff.distributions.MaxEntropyMixed(SIZE).log_prob(point)
        total = (linear(point, point) + log_prob - prior).detach()
        ((total - total.mean()) * log_prob).sum().backward()
        assert leaf.grad is not None
        return leaf.grad.mean(0), leaf.grad.std(0) / rows**0.5
    leaf = start.clone().requires_grad_()
    if isinstance(latent, Corners):
        mean, rate = leaf.softmax(-1), latent.rate(leaf, seeded())
    elif isinstance(latent, Mixed):
        dist = latent.dist(leaf)
        mean, rate = (
            dist.mean,
            kl_divergence(dist, ff.distributions.MaxEntropyMixed(SIZE).expand((1,))),
        )
    else:
        mean, rate = latent.dist(leaf).mean, latent.rate(leaf, seeded())
    (linear(mean, mean) + rate).sum().backward()
    assert leaf.grad is not None
    return leaf.grad[0], torch.zeros_like(leaf[0])


def test_a_shorter_run_does_not_take_the_figures_of_a_longer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grey = torch.rand(60, 16, generator=seeded())
    split = Split(grey, grey, grey)
    monkeypatch.setattr(run, "RUNS", tmp_path)
    run.train("Gaussian", split, 2, 1, width=4)
    with pytest.raises(ValueError, match="has had 2 epochs, more than 1"):
        run.train("Gaussian", split, 1, 1, width=4)


@pytest.fixture
def digits(monkeypatch: pytest.MonkeyPatch) -> Split:
    """Small images of two kinds."""
    kinds = torch.rand(2, 20, generator=seeded()).round()
    which = torch.arange(300) % 2
    grey = (0.9 * kinds[which] + 0.05).float()
    split = Split(grey, grey[:60], grey[:50])
    monkeypatch.setattr(run, "load", lambda: split)
    return split


@pytest.mark.parametrize("name", first(3, LATENTS))
def test_it_learns(name: str, digits: Split) -> None:
    state = Training(LATENTS[name], digits, seed=0, width=24)
    torch.nn.init.zeros_(state.model.decoder[-1].bias)  # with the mean image less is left to learn
    for group in state.optimizer.param_groups:
        group["lr"] = 3e-3
    first = state.epoch(20)
    for _ in range(6):
        last = state.epoch(20)
    total = last["distortion"] + last["rate"]
    assert total < first["distortion"] + first["rate"]
    found = state.measure(digits.test, samples=20)
    assert found["nll"] < found["distortion"] + found["rate"] + 0.5


@pytest.mark.parametrize("name", LATENTS)
def test_decoders_of_corners_begin_with_the_mean_image(name: str, digits: Split) -> None:
    state = Training(LATENTS[name], digits, seed=0, width=24)
    mean = digits.train.mean(0).clamp(0.001, 0.999)
    begins = torch.allclose(state.model.decoder[-1].bias.sigmoid(), mean, atol=1e-5)
    assert begins == isinstance(LATENTS[name], Corners)


def test_rows_are_added_once_and_go_on(
    digits: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Record(tmp_path / "results.json")
    monkeypatch.setattr(run, "RECORD", record)
    monkeypatch.setattr(run, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(run, "SAMPLES", 3)
    for _ in range(2):
        run.run(["Gaussian", "mixed Dirichlet"], [1], 1)
    run.run(["Gaussian"], [1], 2)
    assert [(row["method"], row["epochs"]) for row in record.rows()] == [
        ("Gaussian", 1), ("mixed Dirichlet", 1), ("Gaussian", 2),
    ]  # fmt: skip
    one, two = (record.rows(method="Gaussian", epochs=epochs)[0]["curve"] for epochs in (1, 2))
    assert two["rate"][:1] == one["rate"]
    straight = Training(LATENTS["Gaussian"], digits, seed=1)
    straight.epoch()
    straight.epoch()
    assert [point["rate"] for point in straight.curve] == two["rate"]
    assert model.PIXELS == 784
    readme = tmp_path / "README.md"
    readme.write_text("<!-- table: begin -->\n<!-- table: end -->\n")
    monkeypatch.setattr(table, "RECORD", record)
    monkeypatch.setattr(table, "README", readme)
    monkeypatch.setattr(table, "PICTURE", tmp_path / "curves.png")
    table.main()
    text = readme.read_text()
    last = record.rows(method="Gaussian", epochs=2)[0]
    ours = " | ".join(f"{last[what]:.2f}" for what in table.FIGURES)
    assert f"| Gaussian | 76.67 | 19.94 | 91.12 | {ours} | 1 | 2 |" in text
    assert "| Dirichlet | 78.62 | 19.94 | 93.81 | not run |" in text
    assert has_colour(tmp_path / "curves.png")
