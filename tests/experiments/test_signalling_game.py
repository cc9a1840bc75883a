"""The signalling game end to end, on small generated images."""

import pickle
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fewfold as ff
from experiments import datasets
from experiments.record import Record, Row
from experiments.signalling_game import data, run
from experiments.signalling_game.data import Games
from experiments.signalling_game.methods import METHODS, Players
from experiments.signalling_game.model import Expected, Receiver, Units
from tests.pictures import has_colour

pytest.importorskip("matplotlib")
pytest.importorskip("safetensors")
from experiments.signalling_game import table
from tests.nightly import first

SIZES = {"symbols": 12, "embedding": 8, "hidden": 16}
TINY = run.Budget(epochs=3, batches=15, games=16, candidates=4, valid=64, test=128, sizes=SIZES)


def games(**kind: bool) -> Games:
    """Images of six classes which are easy to tell apart."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(6, (120,), generator=generator)
    noise = torch.rand(120, 6, generator=generator)
    return data.gather(4 * F.one_hot(labels, 6).float() + noise, labels, **kind)


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    """Keep what is measured out of the folder of the experiment."""
    kept = Record(tmp_path / "results.json")
    monkeypatch.setattr(run, "RECORD", kept)
    monkeypatch.setattr(run, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(table, "RECORD", kept)
    monkeypatch.setattr(data, "load", lambda name, part, one_class: games(one_class=one_class))
    return kept


@pytest.mark.parametrize("kind", ["any", "one_class", "distinct"])
def test_candidates_are_different_images(kind: str) -> None:
    drawn = games(**({} if kind == "any" else {kind: True}))
    marked = replace(drawn, features=torch.arange(120.0)[:, None])
    labels = torch.empty(120, dtype=torch.int64)
    labels[drawn.images] = torch.repeat_interleave(torch.arange(6), drawn.first.diff())
    assert labels.tolist() == drawn.features.argmax(1).tolist()
    batch = marked.draw(200, 4, torch.Generator().manual_seed(1))
    ids = batch.candidates.squeeze(2).long()
    assert all(len(set(row)) == 4 for row in ids.tolist())
    classes = [len(set(row)) for row in labels[ids].tolist()]
    assert {"one_class": set(classes) == {1}, "distinct": set(classes) == {4}}.get(kind, True)
    assert len(ids.unique()) > 100
    assert batch.target.bincount(minlength=4).min() > 30
    assert batch.shown.squeeze(1).tolist() == ids.gather(1, batch.target[:, None])[:, 0].tolist()


def test_a_class_with_too_few_images_is_refused() -> None:
    with pytest.raises(ValueError, match="16 different candidates"):
        data.gather(torch.rand(20, 3), torch.arange(20) % 2, one_class=True).draw(
            2, 16, torch.Generator()
        )


def test_images_have_length_one() -> None:
    torch.testing.assert_close(games().features.norm(dim=1), torch.ones(120))


@pytest.mark.parametrize("spread", [0.01, 1.0, 10.0])
def test_interpolated_units_are_the_sigmoids(spread: float) -> None:
    torch.manual_seed(0)
    units = Units(32)
    x = (spread * torch.randn(80, 64)).requires_grad_()
    assert 2 * units.nodes(float(x.detach().abs().max())) < x.numel()
    weights = torch.randn(80, 64)
    exact = units.plain(x.double())
    params = [x, *units.parameters()]
    torch.testing.assert_close(units(x).double(), exact, atol=1e-6, rtol=1e-6)
    ours = torch.autograd.grad(units(x), params, weights)
    torch.testing.assert_close(
        ours, torch.autograd.grad(exact, params, weights.double()), atol=3e-5, rtol=3e-5
    )
    few = torch.tensor([0.5])  # one sigmoid after the other where that is less
    torch.testing.assert_close(units(few), units.plain(few))


def test_all_scores_of_a_receiver_agree() -> None:
    torch.manual_seed(0)
    receiver = Receiver(5, symbols=20, embedding=6, relaxed=False)
    shown = torch.rand(3, 4, 5)
    seen = receiver.see(shown)
    expected = torch.einsum("gce,se->gsc", seen, receiver.meaning).flatten(0, 1)
    row = torch.arange(3).repeat_interleave(20)
    atoms = torch.arange(20).repeat(3)
    for order in (torch.arange(60), torch.randperm(60), torch.randperm(60)[:50], torch.tensor([7])):
        torch.testing.assert_close(receiver(atoms[order], row[order], shown), expected[order])
    vectors = F.one_hot(atoms, 20).float()
    torch.testing.assert_close(receiver(vectors, row, shown), expected)


def test_a_learned_baseline_is_a_mean_over_candidates() -> None:
    torch.manual_seed(0)
    network, batch = Expected(5, hidden=7), torch.rand(3, 4, 5)
    alone = torch.stack([network(batch[:, [place]]) for place in range(4)])
    torch.testing.assert_close(network(batch), alone.mean(0))


def expected_gradient(players: Players, batch: data.Batch, zero_one: bool) -> dict[str, Tensor]:
    """By summing over all symbols, and over all answers."""
    probs = players.agents.sender(batch.shown).softmax(1)
    row = torch.arange(len(probs)).repeat_interleave(12)
    symbols = torch.arange(12).repeat(len(probs))
    scores = players.agents.receiver(symbols, row, batch.candidates)
    won = scores.log_softmax(1)[torch.arange(len(row)), batch.target[row]]
    cost = (-won.exp() if zero_one else -won).view(-1, 12)
    (probs * cost).sum(1).mean().backward()
    return {n: p.grad.clone() for n, p in players.agents.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    "name",
    [
        *("dense", "SFE (0/1)", "SFE+ (0/1)"),
        *(
            pytest.param(n, marks=pytest.mark.nightly)
            for n in ("SFE+ (0/1), two critics", "SFE (NLL)")
        ),
    ],
)
def test_the_gradient_is_that_of_the_game(name: str) -> None:
    """The mean of 6000 draws is within five standard errors, almost surely."""
    torch.manual_seed(1)
    method = replace(METHODS[name], entropy=0.0)
    players = Players(method, 6, **SIZES).double()
    with torch.no_grad():
        players.agents.sender.say.weight *= 30
    one = games().draw(4, 4, torch.Generator().manual_seed(2))
    batch = data.Batch(4 * one.candidates.double().repeat(300, 1, 1), one.target.repeat(300))
    exact = expected_gradient(players, batch, method.zero_one)
    generator = torch.Generator().manual_seed(3)
    watched = ("sender.say.weight", "receiver.meaning")
    drawn: dict[str, list[Tensor]] = {name: [] for name in watched}
    for step in range(1 if name == "dense" else 20):
        players.zero_grad()
        loss, _ = players.play(batch, step, generator)
        loss.backward()
        for watch in watched:
            gradient = players.agents.get_parameter(watch).grad
            assert gradient is not None
            drawn[watch].append(gradient.clone())
    for watch in watched:
        samples = torch.stack(drawn[watch])
        if name == "dense":
            torch.testing.assert_close(samples[0], exact[watch])
            continue
        error = samples.std(0) / len(samples) ** 0.5
        assert ((samples.mean(0) - exact[watch]).abs() <= 5 * error + 1e-4).all()
        assert (exact[watch].abs() > 5 * error).any()  # or nothing would be found


def test_both_agents_have_one_critic() -> None:
    """The gradient by hand: (f - f') (log p(z) + log p(a | z)), f' that of the other pair."""
    torch.manual_seed(0)
    players = Players(METHODS["SFE+ (0/1)"], 6, **SIZES)
    batch = games().draw(40, 4, torch.Generator().manual_seed(0))
    seen: list[ff.expectation.Expectation] = []
    expect = ff.expect

    def watching(*given: Any, **options: Any) -> ff.expectation.Expectation:
        seen.append(expect(*given, **options))
        return seen[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ff, "expect", watching)
        loss, calls = players.play(batch, 0, torch.Generator().manual_seed(1))
    assert bool((calls == 2).all())
    inner, outer = seen
    symbols, answers = (found.support.atoms.view(40, 2) for found in (outer, inner))
    costs = -(answers == batch.target[:, None]).float()
    assert 5 < int((costs[:, 0] != costs[:, 1]).sum()) < 40
    row = torch.arange(40)
    sender = players.agents.sender(batch.shown)
    receiver = players.agents.receiver(symbols[:, 0], row, batch.candidates)
    evenness = torch.tensor(0.0)
    logs = torch.tensor(0.0)
    for scores, drawn in ((sender, symbols), (receiver, answers)):
        each = scores.log_softmax(1)
        logs = logs + each[row, drawn[:, 0]]
        evenness = evenness - (each.exp() * each).sum(1).mean()
    wanted = ((costs[:, 0] - costs[:, 1]) * logs).mean() - 0.05 * evenness
    params = list(players.agents.parameters())
    torch.testing.assert_close(
        torch.autograd.grad(loss, params), torch.autograd.grad(wanted, params)
    )


@pytest.mark.parametrize("name", METHODS)
def test_what_is_won(name: str) -> None:
    """Against all symbols and answers; where there are draws, within five standard errors."""
    torch.manual_seed(2)
    players = Players(METHODS[name], 6, **SIZES).eval()
    with torch.no_grad():
        players.agents.sender.say.weight *= 5 if name == "sparse" else 60
        players.agents.receiver.meaning *= 3
    one = games().draw(1, 4, torch.Generator().manual_seed(2))
    many = 1 if name in ("dense", "sparse") else 20_000
    batch = data.Batch(one.candidates.expand(many, -1, -1), one.target.expand(many))
    won, best, calls = players.success(batch, 0, torch.Generator().manual_seed(0))
    scores = players.agents.sender(one.shown)[0].detach()
    answers = players.agents.receiver(torch.arange(12), torch.zeros(12).long(), one.candidates)
    right = F.one_hot(answers.argmax(1), 4)[:, one.target[0]].float()
    assert bool((best == right[scores.argmax()]).all())
    if "Gumbel" in name:
        assert won.unique().tolist() == [0, 1]
        return
    if METHODS[name].zero_one:
        right = answers.detach().softmax(1)[:, one.target[0]]
    dist = ff.sparsemax(scores) if name == "sparse" else scores.softmax(0)
    wanted = float(dist @ right)
    assert 0.02 < wanted < 0.98
    error = 0.0 if many == 1 else 5 * (wanted * (1 - wanted) / many) ** 0.5
    assert float(won.mean()) == pytest.approx(wanted, abs=error + 1e-6)
    assert (calls == (dist > 0).sum() if many == 1 else calls == 1).all()


def test_the_test_is_of_other_games_and_time_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[tuple[Games, int, int]] = []
    steps: list[int] = []
    measure, play = run.Run.measure, Players.play

    def measuring(self: run.Run, games: Games, count: int, seed: int, step: int) -> Any:
        measured.append((games, seed, step))
        return measure(self, games, count, seed, step)

    def playing(self: Players, batch: data.Batch, step: int, generator: torch.Generator) -> Any:
        steps.append(step)
        return play(self, batch, step, generator)

    monkeypatch.setattr(run.Run, "measure", measuring)
    monkeypatch.setattr(Players, "play", playing)
    ours, theirs = games(), games()
    budget = replace(TINY, epochs=2, batches=3)
    run.train("dense", METHODS["dense"], (ours, theirs), budget, 0, tmp_path / "kept.safetensors")
    assert steps == list(range(6))
    assert [step for *_, step in measured] == [3, 6, 6]
    assert [seed for _, seed, _ in measured] == [data.VALID_SEED] * 2 + [data.TEST_SEED]
    assert [made is ours for made, *_ in measured] == [True, True, False]
    longer = replace(budget, epochs=3)  # goes on from there
    run.train("dense", METHODS["dense"], (ours, theirs), longer, 0, tmp_path / "kept.safetensors")
    assert steps == list(range(9))
    with pytest.raises(ValueError, match="3 epochs, more than 2"):
        run.train(
            "dense", METHODS["dense"], (ours, theirs), budget, 0, tmp_path / "kept.safetensors"
        )


def test_both_entropies_are_rewarded() -> None:
    """With answers that are drawn, the sender's and the receiver's; otherwise the sender's."""
    batch = games().draw(8, 4, torch.Generator().manual_seed(0))
    for name, agents in (("SFE (0/1)", 2), ("SFE (NLL)", 1)):
        losses = []
        for entropy in (0.0, 1.0):
            torch.manual_seed(0)
            players = Players(replace(METHODS[name], entropy=entropy), 6, **SIZES)
            with torch.no_grad():
                for parameter in players.agents.parameters():
                    parameter.zero_()  # every choice is even
            losses.append(players.play(batch, 0, torch.Generator().manual_seed(1))[0])
        evenness = torch.tensor([12.0, 4.0]).log()[:agents].sum()
        torch.testing.assert_close(losses[0] - losses[1], evenness)


@pytest.mark.parametrize("name", first(3, METHODS))
def test_a_run_that_was_stopped_goes_on_the_same(name: str, tmp_path: Path) -> None:
    made, method = games(), METHODS[name]
    straight = run.Run(method, 6, TINY, seed=5)
    for _ in range(3):
        straight.epoch(made, made)
    first = run.Run(method, 6, TINY, seed=5)
    first.epoch(made, made)
    first.epoch(made, made)
    first.save(tmp_path / "kept.safetensors")
    second = run.Run(method, 6, TINY, seed=6)
    second.load(tmp_path / "kept.safetensors")
    second.epoch(made, made)
    for point in (*straight.curve, *second.curve):
        point.pop("seconds")
    assert second.curve == straight.curve
    assert all(map(torch.equal, second.players.parameters(), straight.players.parameters()))


def test_agents_come_to_an_understanding() -> None:
    """Far better than chance, one game in four, and with few calls."""
    made = games(distinct=True)
    budget = replace(TINY, batches=100)
    for name, lr, least in (("sparse", 2e-2, 65), ("dense", 5e-2, 50)):
        played = run.Run(replace(METHODS[name], lr=lr, entropy=0.01), 6, budget, seed=0)
        played.epoch(made, made)
        played.epoch(made, made)
        last = played.curve[-1]
        assert last["success"] > least
        assert (last["calls"] == 12) if name == "dense" else (last["calls"] < 6)


def test_results_grow_and_are_shown(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = replace(TINY, epochs=1, batches=2)
    run.run("mnist", [*METHODS], [0], budget)
    run.run("mnist", ["sparse"], [1], budget)
    run.run("mnist", ["sparse"], [0], budget, one_class=True)
    first = record.path.read_text()
    run.run("mnist", [*METHODS], [0], budget)
    assert record.path.read_text() == first
    rows = record.rows(data="mnist", **{"one class": False})
    calls = {row["method"]: row["calls at the end"] for row in rows}
    assert (calls["dense"], calls["SFE (0/1)"]) == (12, 1)
    assert 1 <= calls["sparse"] <= 12
    readme = tmp_path / "README.md"
    readme.write_text("<!-- table: begin -->\n<!-- table: end -->\n")
    monkeypatch.setattr(table, "README", readme)
    monkeypatch.setattr(table, "PICTURE", tmp_path / "curves.png")
    table.main()
    text = readme.read_text()
    assert all(f"| {method} | {table.PUBLISHED[method][0]} |" in text for method in METHODS)
    sparse = [row["success"] for row in rows if row["method"] == "sparse"]
    assert f"| {sum(sparse) / 2:.2f} ± " in text
    assert has_colour(tmp_path / "curves.png")


def test_the_rate_that_wins_in_validation_is_shown() -> None:
    def row(lr: float, valid: float, test: float, seed: int = 0) -> Row:
        shown = {"success": test, "best": test, "calls at the end": 2.0, "seed": seed, "lr": lr}
        shown |= {"entropy": 0.1}
        key = {"data": "mnist", "one class": False, "method": "sparse", "epochs": 1}
        return {**key, **shown, "curve": {"success": [99.0, valid]}}

    rows = [row(1e-3, 50.0, 90.0), row(5e-3, 60.0, 40.0), row(5e-3, 70.0, 44.0, seed=1)]
    assert "| 42.00 ± 2.83 |" in table.table(rows)
    assert "90.00" not in table.table(rows)


def test_the_published_features_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for h5py where there is none."""
    names = np.array(["dog", "dog", "cat", "ant", "cat", "ant"])
    features = np.arange(24, dtype=np.float32).reshape(6, 4)
    folder = tmp_path / data.FEATURES / "train"
    folder.mkdir(parents=True)
    (folder / "ours_images_single_sm0.objects").write_bytes(pickle.dumps(names))
    try:
        import h5py  # type: ignore[import-not-found]
    except ImportError:
        stored = {"features": features}

        class File(dict):  # type: ignore[type-arg]
            def __init__(self, path: Path) -> None:
                super().__init__(stored)
                assert path == folder / "ours_images_single_sm0.h5"

            def __enter__(self) -> "File":
                return self

            def __exit__(self, *_: object) -> None: ...

        monkeypatch.setitem(sys.modules, "h5py", SimpleNamespace(File=File))
    else:
        with h5py.File(folder / "ours_images_single_sm0.h5", "w") as file:
            file["features"] = features
    monkeypatch.setattr(datasets, "DATA", tmp_path)
    made = data.load(data.FEATURES, "train")
    assert made.distinct
    assert made.first.tolist() == [0, 2, 4, 6]
    assert made.images.tolist() == [0, 1, 2, 4, 3, 5]
    torch.testing.assert_close(made.features, F.normalize(torch.from_numpy(features), dim=1))
    batch = made.draw(5, 3, torch.Generator().manual_seed(0))
    assert batch.candidates.shape == (5, 3, 4)


def test_a_pickle_that_is_no_array_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ours_images_single_sm0.objects").write_bytes(pickle.dumps(print))
    with pytest.raises(pickle.UnpicklingError, match="an array of names"):
        data.published(tmp_path)


@pytest.mark.skipif(not datasets.has("fashion-mnist"), reason="no Fashion-MNIST here")
def test_real_images_are_played_with() -> None:
    made = data.load("fashion-mnist", "test", one_class=True)
    assert made.features.shape == (10_000, 196)
    assert made.first.diff().tolist() == [1000] * 10
    played = run.Run(METHODS["sparse"], 196, replace(TINY, batches=2, candidates=16), seed=0)
    played.epoch(made, made)
    assert isinstance(METHODS["sparse"].estimator(0, None), ff.SparseMarginal)
    assert 1 < played.curve[0]["calls"] < 256
