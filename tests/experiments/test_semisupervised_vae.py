"""The semi-supervised experiment end to end, on small generated images."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fewfold as ff
from experiments.record import Record
from tests.pictures import has_colour

pytest.importorskip("matplotlib")
pytest.importorskip("safetensors")
pytest.importorskip("scipy")
from experiments.datasets import has
from experiments.semisupervised_vae import run, table
from experiments.semisupervised_vae.digits import Digits, Split, digits, draw, load
from experiments.semisupervised_vae.model import SemisupervisedVAE
from experiments.semisupervised_vae.training import Budget, Training, accuracy, bound
from tests.nightly import first

TINY = Budget(epochs=4, warm=20, batch=16, hidden=16, wide=16, warm_lr=3e-3, keep=2)


def part(count: int, seed: int) -> Digits:
    """The label, one of four, is the quarter of the image that is bright."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (count,), generator=generator)
    pixels = torch.randint(60, (count, 28, 28), generator=generator, dtype=torch.uint8)
    for row, label in enumerate(labels.tolist()):
        top, left = 14 * (label // 2), 14 * (label % 2)
        pixels[row, top : top + 14, left : left + 14] += 120
    return digits(pixels, labels)


@pytest.fixture(scope="module")
def split() -> Split:
    return Split(part(32, 0), part(160, 1), part(40, 2), part(40, 3))


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: Split) -> Record:
    """Keep what is measured out of the folder of the experiment."""
    kept = Record(tmp_path / "results.json")
    monkeypatch.setattr(run, "RECORD", kept)
    monkeypatch.setattr(table, "RECORD", kept)
    monkeypatch.setattr(run, "CHECKPOINTS", tmp_path / "kept")
    monkeypatch.setattr(run, "load", lambda: split)
    return kept


def test_a_pixel_is_white_as_often_as_it_is_bright() -> None:
    pixels = torch.tensor([0, 1, 64, 128, 254, 255], dtype=torch.uint8).repeat(20_000, 1)
    grey = digits(pixels, torch.zeros(20_000)).grey
    drawn = draw(grey, torch.Generator().manual_seed(0))
    assert drawn.unique().tolist() == [0, 1]
    assert drawn[:, 0].sum() == 0
    # five standard errors, and 2e-4 for 255, which is white but for 2e-5: less than one seed in 1e5
    error = (drawn.mean(0) - pixels[0] / 255).abs()
    spread = (pixels[0] / 255 * (1 - pixels[0] / 255) / 20_000).sqrt()
    assert (error <= 5 * spread + 2e-4).all()
    assert torch.equal(drawn, draw(grey, torch.Generator().manual_seed(0)))
    assert not torch.equal(drawn, draw(grey, torch.Generator().manual_seed(1)))


def test_an_epoch_has_every_unlabelled_image_once() -> None:
    # the image says its number in binary, so that nothing about it is random
    shown = (torch.arange(10)[:, None] >> torch.arange(4) & 1).byte() * 255
    few = Digits(digits(shown[:4], torch.arange(4)).grey, torch.arange(4) + 5)
    split = Split(few, digits(shown, torch.arange(10)), few, few)
    seen, known = [], []
    for images, labels in split.batches(3, torch.Generator().manual_seed(0)):
        numbers = (images @ torch.tensor([1.0, 2.0, 4.0, 8.0])).long()
        assert len(labels) * 2 == len(images)
        seen += numbers[: len(labels)].tolist()
        known += [n % 4 for n in numbers[: len(labels)].tolist()]
        assert (numbers[len(labels) :] + 5).tolist() == labels.tolist()
        assert numbers[len(labels) :].tolist() == known[-len(labels) :]
    assert sorted(seen) == list(range(10))
    assert seen != sorted(seen)


def test_the_cost_is_the_published_one() -> None:
    torch.manual_seed(0)
    model = SemisupervisedVAE(20, 4, 3, hidden=8, wide=8).double()
    images = (torch.rand(5, 20) < 0.3).double()
    row, labels = torch.tensor([0, 0, 2, 4, 1, 3, 3]), torch.tensor([1, 3, 0, 2, 2, 0, 1])
    torch.set_default_dtype(torch.float64)
    try:
        found = model.costs(images, torch.Generator().manual_seed(1))(labels, row)
        noise = torch.randn(7, 3, generator=torch.Generator().manual_seed(1))
    finally:
        torch.set_default_dtype(torch.float32)
    one_hot = F.one_hot(labels, 4).double()
    first = torch.cat([model.image.weight, model.label_seen.T], 1)
    seen = torch.cat([images[row], one_hot], 1) @ first.T + model.image.bias
    mean, log_std = model.inference(seen).chunk(2, 1)
    first = torch.cat([model.latent.weight, model.label_shown.T], 1)
    shown = torch.cat([mean + log_std.exp() * noise, one_hot], 1) @ first.T + model.latent.bias
    guess = model.decoder(shown).sigmoid()
    error = F.binary_cross_entropy(guess, images[row], reduction="none").sum(1)
    apart = torch.distributions.kl_divergence(
        torch.distributions.Normal(mean, log_std.exp()), torch.distributions.Normal(0.0, 1.0)
    )
    torch.testing.assert_close(found, error + apart.sum(1), rtol=1e-6, atol=1e-6)
    weights = torch.randn_like(found)
    used = [p for name, p in model.named_parameters() if not name.startswith("classifier")]
    ours = torch.autograd.grad(found, used, weights)
    theirs = torch.autograd.grad(error + apart.sum(1), used, weights)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["dense", "sparse", "Gumbel"])
def test_the_loss_weighs_what_is_labelled_and_what_is_not(split: Split, name: str) -> None:
    state = Training(run.METHODS[name], split, TINY, seed=0)
    prices = torch.rand(12, 4, generator=torch.Generator().manual_seed(0))
    asked: list[int] = []

    def costs(images: Tensor, generator: torch.Generator) -> object:
        def cost(atoms: Tensor, row: Tensor) -> Tensor:
            asked.append(len(row))
            picked = prices[row]
            return (
                picked.gather(1, atoms[:, None])[:, 0]
                if atoms.dim() == 1
                else (picked * atoms).sum(1)
            )

        return cost

    state.model.costs = costs  # type: ignore[method-assign,assignment]
    images = draw(split.test.grey[:12], state.generator)
    labels = torch.tensor([0, 3, 1, 1])
    loss, out = state.loss(images, labels)
    assert asked == [len(out.support.row) + 4]
    scores = state.model.classifier(images)
    known = prices[8:].gather(1, labels[:, None]).mean()
    if name == "Gumbel":
        unknown = out.value.mean() - out.latent.entropy().mean()
    else:
        probs = (ff.sparsemax if name == "sparse" else torch.softmax)(scores[:8], -1)
        unknown = (probs * (prices[:8] + probs.clamp_min(1e-30).log())).sum(1).mean()
    rule = ff.sparsemax_loss if name == "sparse" else F.cross_entropy
    torch.testing.assert_close(loss, known + rule(scores[8:], labels) + 160 / 32 * unknown)


@pytest.mark.parametrize("loop", run.LOOPS)
def test_loops_are_the_same_sum(loop: str, split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "randn", lambda shape, generator: torch.zeros(shape))
    kinds = (Training, run.LOOPS[loop])
    states = [kind(run.METHODS["dense"], split, TINY, seed=0) for kind in kinds]
    images, labels = next(split.batches(16, torch.Generator().manual_seed(0)))
    losses = [state.loss(images, labels)[0] for state in states]
    torch.testing.assert_close(*losses)
    for loss in losses:
        loss.backward()
    for one, other in zip(*(state.model.parameters() for state in states), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-3)


def test_methods_learn_and_are_shown(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.run([*run.METHODS], [43], TINY)
    first = record.path.read_text()
    run.run([*run.METHODS], [43], TINY)
    assert record.path.read_text() == first
    rows = {row["method"]: row for row in record.rows(seed=43, epochs=4)}
    assert all(row["test"] > 70 for row in rows.values())  # one in four by chance
    calls = {name: row["curve"]["calls"] for name, row in rows.items()}
    assert calls["dense"] == [4] * 4
    assert all(calls[name] == [2] * 4 for name in ("SFE+", "sum and sample", "MuProp"))
    assert calls["unordered set"] == [2] * 4
    assert calls["RELAX"] == [3] * 4
    singles = ("SFE", "NVIL", "Gumbel", "ST Gumbel", "straight-through")
    assert all(calls[name] == [1] * 4 for name in singles)
    assert all(1 <= n < 4 for n in calls["sparse"])
    taken = {"sparse": 2.0, "dense": 8.0, "SFE": 1.0}
    record.add([{"milliseconds": taken, "calls": {"sparse": 1.25}}])
    readme = tmp_path / "README.md"
    readme.write_text("<!-- table: begin -->\n<!-- table: end -->\n")
    monkeypatch.setattr(table, "README", readme)
    monkeypatch.setattr(table, "PICTURE", tmp_path / "curves.png")
    table.main()
    text = readme.read_text()
    assert all(f"| {method} |" in text for method in run.METHODS)
    assert "| sparse | 96.87 ± 0.1 | 1.01 |" in text
    assert "| sparse | 1.25 | 2.00 | 0.25 | 2.00 |" in text
    assert "| SFE |  | 1.00 | 0.12 | 1.00 |" in text
    assert has_colour(tmp_path / "curves.png")


def test_what_is_reported_is_of_the_test_images(record: Record, split: Split) -> None:
    """Whose labels are wrong here: the best classifier is never right."""
    wrong = Digits(split.test.grey, (split.test.labels + 1) % 4)
    row = run.train("dense", replace(split, test=wrong), TINY, seed=1)
    assert row["test"] < 15
    assert row["curve"]["valid"][-1] > 70
    assert row["seconds"] > 0


@pytest.mark.parametrize("name", first(1, ["NVIL", "SFE", "Gumbel"]))
def test_a_run_that_was_stopped_goes_on_as_if_it_was_not(
    record: Record, split: Split, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    stopped = run.train(name, split, replace(TINY, epochs=2), seed=7)
    resumed = run.train(name, split, TINY, seed=7)
    monkeypatch.setattr(run, "CHECKPOINTS", tmp_path / "elsewhere")
    whole = run.train(name, split, TINY, seed=7)
    assert resumed["curve"] == whole["curve"]
    assert stopped["curve"]["calls"] == whole["curve"]["calls"][:2]
    assert resumed["test negative ELBO"] == whole["test negative ELBO"]
    with pytest.raises(ValueError, match="more than 2; move it away"):
        run.train(name, split, replace(TINY, epochs=2), seed=7)


def test_steps_are_timed_side_by_side(
    record: Record, split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Training] = []
    start = Training.__init__

    def begin(self: Training, *args: Any) -> None:
        start(self, *args)
        made.append(self)

    monkeypatch.setattr(Training, "__init__", begin)
    times, calls = run.step_times(split, TINY, 43, names=["sparse", "dense"], seconds=0.05)
    assert all(state.step > 2 for state in made)  # each contestant has run, and not one for all
    assert list(times) == list(calls) == ["sparse", "dense", *run.LOOPS]
    assert all(time > 0 for time in times.values())
    assert 1 <= calls["sparse"] <= calls["dense"] <= 10


def test_the_published_split_and_a_step_of_each_method() -> None:
    if not has("mnist"):
        pytest.skip("mnist is not here")
    split = load()
    parts = (split.labelled, split.unlabelled, split.valid, split.test)
    assert [len(part) for part in parts] == [5_000, 45_000, 10_000, 10_000]
    counts = sum(part.labels.bincount() for part in parts[:3])
    assert isinstance(counts, Tensor)
    assert counts.tolist()[:3] == [5923, 6742, 5958]
    for method in run.METHODS.values():
        state = Training(method, split, Budget(), seed=43)
        out = next(state.steps())
        assert out.value.isfinite().all()
        assert out.value.mean() > 400  # 784 pixels of which nothing is known
    few = Digits(split.test.grey[:100], split.test.labels[:100])
    assert accuracy(state.model, few, 0) < 60
    assert bound(state.model, few, ff.SparseMarginal(), 0)["calls"] > 2
