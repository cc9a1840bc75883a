"""Published settings of the three experiments with discrete latents.

Correia, Niculae, Aziz and Martins, 2020, with the corrections of their code: a learning rate that
is off by ten changes a table and breaks nothing else.
"""

import argparse

import pytest
import torch
from torch import nn

import fewfold as ff

pytest.importorskip("safetensors")
pytest.importorskip("scipy")
from experiments.arguments import add_epochs
from experiments.bit_vector_vae import run as bits
from experiments.bit_vector_vae.model import METHODS as BITS
from experiments.bit_vector_vae.training import Run
from experiments.semisupervised_vae import run as digits
from experiments.semisupervised_vae.digits import Digits, Split
from experiments.semisupervised_vae.training import Budget, Training
from experiments.signalling_game import run as game
from experiments.signalling_game.methods import METHODS as GAME


def widths(module: nn.Module) -> list[tuple[int, int]]:
    return [(m.in_features, m.out_features) for m in module.modules() if isinstance(m, nn.Linear)]


def learning(optimizer: torch.optim.Optimizer) -> set[int]:
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


@pytest.mark.parametrize(
    ("name", "lr", "rate"),
    [
        ("top-k sparsemax", (2e-3, 1e-3), None),
        ("SparseMAP", (2e-3, 2e-3), None),
        ("SparseMAP, budget", (2e-3, 2e-3), None),
        ("SFE", (1e-3, 1e-3), None),
        ("SFE+", (1e-3, 1e-3), None),
        ("NVIL", (1e-3, 5e-4), None),
        ("Gumbel", (1e-3, 1e-3), (1e-5, 1e-4)),
        ("ST Gumbel", (1e-3, 5e-4), (1e-5, 1e-5)),
    ],
)
def test_of_bits(name, lr, rate) -> None:
    method = BITS[name]
    assert list(BITS)[:8] == [
        "top-k sparsemax", "SparseMAP", "SparseMAP, budget", "SFE", "SFE+", "NVIL", "Gumbel",
        "ST Gumbel",
    ]  # fmt: skip
    for size, its_lr, its_rate in zip((32, 128), lr, rate or (None, None), strict=True):
        trained = Run(method, size, seed=0)
        assert [group["lr"] for group in trained.optimizer.param_groups] == [its_lr]
        assert trained.optimizer.param_groups[0]["weight_decay"] == 0
        assert method.batch.get(size, 64) == (16 if "MAP" in name and size == 128 else 64)
        assert method.rate.get(size) == its_rate
        assert widths(trained.model) == [
            (784, 128), (128, size), (size, 128), (128, 784 * 5), (5, 256),
        ]  # fmt: skip
        assert learning(trained.optimizer) == {id(p) for p in trained.parts.parameters()}
        if name == "NVIL":
            assert isinstance(trained.estimator.baseline, ff.expectation.Learned)
            found = widths(trained.estimator.baseline)
            assert found == [(784, 512), (512, 512), (512, 512), (512, 1)]
            assert {id(p) for p in trained.estimator.baseline.parameters()} <= learning(
                trained.optimizer
            )
    kinds = {
        "SFE": ff.expectation.RunningMean,
        "SFE+": ff.expectation.SelfCritic,
        "NVIL": ff.expectation.Learned,
    }
    if name in kinds:
        assert isinstance(method.estimator(32).baseline, kinds[name])
    if name == "top-k sparsemax":
        assert method.estimator(32).k == 10
    if name == "SparseMAP, budget":
        assert [method.over(size).k for size in (32, 128)] == [16, 64]
    assert (bits.FULL, bits.SEED, bits.TEST["samples"]) == (100, 42, 1024)


@pytest.mark.parametrize(
    ("name", "lr", "entropy"),
    [
        ("sparse", 5e-3, 0.1),
        ("dense", 1e-3, 0.1),
        ("NVIL", 1e-3, 0.1),
        ("SFE (NLL)", 1e-3, 0.05),
        ("SFE (0/1)", 1e-3, 0.01),
        ("SFE+ (0/1)", 1e-3, 0.05),
        ("SFE+ (0/1), two critics", 1e-3, 0.05),
        ("Gumbel", 1e-3, 0.01),
        ("ST Gumbel", 1e-3, 0.01),
    ],
)
def test_of_the_game(name, lr, entropy) -> None:
    method = GAME[name]
    assert (method.lr, method.entropy, method.zero_one) == (lr, entropy, "(0/1)" in name)
    played = game.Run(method, 196, game.Budget(), seed=0)
    assert [group["lr"] for group in played.optimizer.param_groups] == [lr]
    assert learning(played.optimizer) == {id(p) for p in played.players.parameters()}
    agents = played.players.agents
    assert agents.sender.temperature == 10
    assert widths(agents) == [(196, 256), (256, 256), (196, 256)]
    assert agents.sender.units.inner.shape == (512,)
    assert agents.receiver.meaning.shape == (256, 256)
    if "Gumbel" in name:
        later = method.estimator(30_500, None)
        assert isinstance(later, ff.Gumbel)
        assert later.temperature == pytest.approx(0.740818, abs=1e-6)  # exp(-0.3)
        assert later.straight_through == (name == "ST Gumbel")
    if name == "NVIL":
        assert widths(played.players.baselines) == [(196, 512), (512, 512), (512, 512), (512, 1)]
    budget = game.Budget()
    assert (budget.batches, budget.games, budget.candidates) == (100, 64, 16)
    assert (budget.valid, budget.test, game.FULL) == (1024, 9984, 500)


@pytest.mark.parametrize(
    ("name", "lr"),
    [
        ("sparse", 5e-4),
        ("dense", 1e-3),
        ("SFE", 1e-4),
        ("SFE+", 1e-4),
        ("NVIL", 1e-3),
        ("Gumbel", 1e-3),
        ("ST Gumbel", 1e-3),
        ("sum and sample", 1e-3),
    ],
)
def test_of_digits(name, lr) -> None:
    few = Digits(torch.zeros(10, 784, dtype=torch.int16), torch.arange(10))
    state = Training(digits.METHODS[name], Split(few, few, few, few), Budget(), seed=0)
    assert [(g["lr"], g["weight_decay"]) for g in state.optimizer.param_groups] == [(lr, 1e-5)]
    assert learning(state.optimizer) == {id(p) for p in state.learned.parameters()}
    assert state.method.sparse == (name == "sparse")
    if name == "NVIL":
        assert widths(state.baseline) == [(784, 512), (512, 512), (512, 512), (512, 1)]
        assert {id(p) for p in state.baseline.parameters()} <= learning(state.optimizer)
    later = state.method.estimator(4000, state.baseline)
    if isinstance(later, ff.Gumbel):
        assert later.temperature == pytest.approx(0.670320, abs=1e-6)  # exp(-0.4)
    assert widths(state.model.classifier) == [(784, 256), (256, 256), (256, 256), (256, 10)]
    budget = Budget()
    assert (budget.warm, budget.warm_lr, budget.batch, digits.FULL) == (100, 1e-3, 64, 200)


def test_of_command_lines(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_epochs(parser, 60, 200)
    assert parser.parse_args([]).epochs == 60
    assert parser.parse_args(["--full"]).epochs == 200
    assert parser.parse_args(["--epochs", "7"]).epochs == 7
    both = ["--full", "--epochs", "3"]
    for wrong, said in ((["--epochs", "0"], "at least 1"), (both, "not allowed")):
        with pytest.raises(SystemExit):
            parser.parse_args(wrong)
        assert said in capsys.readouterr().err
