"""A sample of the users where ranking all takes long, and progress in every phase of a fit."""

import io
import json
import pkgutil
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import fewfold as ff
from fewfold import _progress
from fewfold.recommender.evaluation import model_evaluation as evaluation
from fewfold.recommender.evaluation.holdout import HoldOut
from fewfold.recommender.evaluation.model_evaluation import (
    assess,
    ranking_work,
    sample_users,
)
from fewfold.recommender.evaluation.splits import random_split
from fewfold.recommender.interactions import Interactions
from fewfold.recommender.models.fastvae.objectives import training_work
from tests.recommender.conftest import grouped


@pytest.fixture
def split() -> ff.recommender.Split:
    generator = torch.Generator().manual_seed(0)
    users = torch.arange(400).repeat_interleave(5)
    log = Interactions.from_pairs(users, torch.randint(0, 50, (2000,), generator=generator))
    return random_split(log, test=0.3)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """No work is small enough for all users, and samples are small."""
    monkeypatch.setattr(evaluation, "MINUTE", 0.0)
    for name, value in {"_PILOT": 50, "_MIN_SAMPLE": 60, "_WIDE": 0.1, "_PRECISION": 1.0}.items():
        monkeypatch.setattr(evaluation, name, value)


def _sampled(split: ff.recommender.Split, **options: Any) -> torch.Tensor | None:
    fitted = ff.recommender.MostPopular().fit(split.train)
    return sample_users(fitted, split.fold_in.jagged, split.test.jagged, **options)


@pytest.mark.usefixtures("slow")
def test_a_sample_where_all_take_longer_than_training(split: ff.recommender.Split) -> None:
    tested = int((split.test.jagged.lengths > 0).sum())
    fitted = ff.recommender.MostPopular().fit(split.train)
    whole = ranking_work(fitted, split.fold_in.jagged, tested)
    assert _sampled(split, training=whole) is None
    users = _sampled(split, training=whole - 1)
    assert users is not None
    assert 60 <= len(users) < tested
    assert bool((split.test.jagged.lengths[users] > 0).all())
    assert torch.equal(users, users.unique())
    again, other = (_sampled(split, seed=seed) for seed in (0, 1))
    assert torch.equal(users, again)
    assert other is not None
    assert not torch.equal(users, other)


@pytest.mark.usefixtures("slow")
def test_the_size_follows_from_the_interval(
    split: ff.recommender.Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    """About (1.96 sd / half)^2 users; half the width asks for four times as many."""
    monkeypatch.setattr(evaluation, "_MIN_SAMPLE", 1)
    sizes = []
    for half in (0.08, 0.04):
        monkeypatch.setattr(evaluation, "_WIDE", half)
        monkeypatch.setattr(evaluation, "_NARROW", half)
        users = _sampled(split)
        assert users is not None
        sizes.append(len(users))
    assert abs(sizes[1] - 4 * sizes[0]) <= 4
    fitted = ff.recommender.MostPopular().fit(split.train)
    asked = split.fold_in.jagged, split.test.jagged
    found = assess(fitted, *asked, split.train.counts() > 0, split="so", users=users)
    score = found.overall.scores[0]
    assert 0.02 < (score.high - score.low) / 2 < 0.08


@pytest.mark.usefixtures("slow")
def test_few_users_are_all_ranked(
    split: ff.recommender.Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "_MIN_SAMPLE", 400)
    assert _sampled(split) is None


def test_a_minute_is_always_granted(
    split: ff.recommender.Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "_MIN_SAMPLE", 60)
    assert _sampled(split) is None


class Sizes(ff.recommender.Fitted):
    """A fitted model of which only the size is looked at."""

    def __init__(self, items: int, width: int) -> None:
        self.items, self.width = items, width

    def score_cost(self, known: ff.recommender.Jagged) -> float:
        return self.width


@pytest.mark.usefixtures("slow")
def test_work_is_counted(split: ff.recommender.Split, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the users, items or passes are twice the work, and no clock is looked at."""

    def clock() -> float:
        raise AssertionError("time must not decide")

    known, log = split.fold_in.jagged, split.train
    once = ranking_work(Sizes(1000, 64), known, 10)
    assert ranking_work(Sizes(2000, 64), known, 10) == 2 * once
    assert ranking_work(Sizes(1000, 64), known, 20) == 2 * once
    assert once < ranking_work(Sizes(1000, 128), known, 10) < 2 * once
    users = int((log.jagged.lengths > 0).sum())
    assert training_work(log, 6 * users) == 2 * training_work(log, 3 * users) > 0
    assert training_work(log, 0) == 0
    monkeypatch.setattr(time, "perf_counter", clock)
    assert _sampled(split) is not None


@pytest.mark.usefixtures("slow")
def test_the_sample_is_named_wherever_numbers_are(tmp_path: Path) -> None:
    rec = ff.Recommender(ff.recommender.EASE(5.0)).fit(grouped(200), test=0.2)
    found = rec.evaluation
    assert isinstance(found, ff.recommender.Evaluation)
    assert found.overall.users < 200
    words = f"a sample of {found.overall.users} of 200 users"
    assert found.sample == words
    assert words in str(rec.report)
    assert found.pairs == found.overall.users
    written = json.loads((rec.save(tmp_path / "m") / "metrics.json").read_text())
    assert written["users ranked"] == words
    assert written["users with test items"] == 200
    compared = ff.compare(grouped(200), models=("popularity", "ease"))
    assert "a sample of" in str(compared)
    first, second = (one.evaluation.overall for one in compared.contenders)
    assert first.users == second.users < 200
    assert compared.as_dict()["models"][0]["users ranked"].startswith("a sample of")
    whole = ff.Recommender(ff.recommender.EASE(5.0)).fit(grouped(200), test=HoldOut(all_users=True))
    assert isinstance(whole.evaluation, ff.recommender.Evaluation)
    assert (whole.evaluation.overall.users, whole.evaluation.sample) == (200, "")


class Screen(io.StringIO):
    """What a terminal would show."""

    def isatty(self) -> bool:
        return True


SLOW = {  # what is made slow, and what must be shown meanwhile
    "fewfold.recommender.reading.log_rows.Rows.numbered": "sorting the pairs",
    "fewfold.recommender.evaluation.holdout.hold_out": "splitting the log",
    "fewfold.recommender.models.fastvae.recipe.VAE.network": "preparing the model",
    "fewfold.recommender.training.run._update_proposal": "fitting the proposal to the items",
    "fewfold.recommender.models.fastvae.subspace.torch.linalg.qr": "finding directions",
    "fewfold.recommender.models.fastvae.shortcut_weight._ndcg": "weighing the shortcut",
    "fewfold.recommender.models.fastvae.recipe.Weight.of": "computing the shortcut",
    "fewfold.recommender.training.vae_run.VAERun.held_out_loss": "judging the number of anchors",
    "fewfold.recommender.training.checkpoint.write": "writing the checkpoint",
    "fewfold.recommender.reading.log.Interactions.k_core": "finding the core",
    "fewfold.recommender.saved_model.pack_users": "writing the model",
    "fewfold.recommender.fit_job.training_work": "fitting the model",
    "fewfold.recommender.ranking.exact_ranking._rank_block": "ranking items",
    "fewfold.recommender.evaluation.model_evaluation._report": "evaluating",
    "fewfold.recommender.artifact.folder_writing._write": "writing the model",
}


def test_no_phase_of_a_fit_is_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While an operation takes long, its phase is on the screen."""
    for name, value in {"_PATIENCE": 0.05, "_TICK": 0.02}.items():
        monkeypatch.setattr(_progress, name, value)
    monkeypatch.setattr(_progress, "_phases", _progress._Phases())
    screen, shown = Screen(), dict.fromkeys(SLOW, "never slow")
    for place in SLOW:
        monkeypatch.setattr(place, _slowed(place, screen, shown))
    monkeypatch.setattr(sys, "stderr", screen)
    recipe = ff.VAE(hidden=8, latent=3, layers=0, shortcut=4)
    rec = ff.Recommender(recipe, training=ff.recommender.Training(epochs=1, batch=64))
    rec.fit(grouped(480), test=0.2, core=2, checkpoint=ff.recommender.Checkpoint(tmp_path / "c"))
    rec.save(tmp_path / "m")
    growing = ff.VAE(hidden=8, latent=3, layers=0, anchors="auto")
    ff.Recommender(growing, training=ff.recommender.Training(epochs=4)).fit(grouped(480))
    for place, what in SLOW.items():
        assert f"{what}: " in shown[place], (place, shown[place])
        assert re.search(r"\d+ s (left|so far)", shown[place])


def _slowed(place: str, screen: Screen, shown: dict[str, str]) -> Any:
    """The function, the first call of which sleeps and looks at what is drawn meanwhile."""
    inner = pkgutil.resolve_name(place)

    def slow(*arguments: Any, **options: Any) -> Any:
        if shown[place] == "never slow":
            before = len(screen.getvalue())
            time.sleep(0.4)
            shown[place] = screen.getvalue()[before:]
        return inner(*arguments, **options)

    return slow


class Constant:
    """A fitted model that recommends items 0, 1, 2, ... to everybody, without those excluded."""

    recipe: Any = None

    def rank(self, history: Any, k: int, *, exclude: Any = None, allowed: Any = None) -> Any:
        rows = len(history.lengths)
        taken = [set() if exclude is None else set(exclude.rows([r]).values.tolist())
                 for r in range(rows)]  # fmt: skip
        ids = [[item for item in range(200) if item not in out][:k] for out in taken]
        return ff.recommender.Ranking(torch.tensor(ids), torch.zeros(rows, k))


def test_slices_have_their_limits() -> None:
    """Users with 0, 1, 4, 5, 19 and 20 items, of whom each is asked for the best other one."""
    lengths = [0, 1, 4, 5, 19, 20]
    known = ff.recommender.Jagged(
        torch.cat([torch.arange(n) for n in lengths]), torch.tensor([0, *lengths]).cumsum(0)
    )
    test = ff.recommender.Jagged(torch.tensor(lengths), torch.arange(7))
    seen = torch.ones(200, dtype=torch.bool)
    found = assess(Constant(), known, test, seen, split="so")
    assert {name: report.users for name, report in found.slices.items()} == {
        "users with a history (warm)": 5,
        "users without one (cold)": 1,
        "1 to 4 items before": 2,
        "5 to 19": 2,
        "20 and more": 1,
    }
    assert (
        found.overall[ff.recommender.NDCG(10)].mean == 1.0
    )  # what is known is not recommended again
    assert (found.cold_pairs, found.pairs, found.tested) == (0, 6, 6)


def test_pairs_of_items_without_training_interactions_get_a_slice() -> None:
    """Three users; the items 1 and 199 have no interactions, and the model ranks 0, 1, 2 first."""
    nothing = ff.recommender.Jagged(
        torch.empty(0, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)
    )
    test = ff.recommender.Jagged(torch.tensor([0, 1, 199, 0]), torch.tensor([0, 2, 3, 4]))
    seen = torch.ones(200, dtype=torch.bool)
    seen[[1, 199]] = False
    found = assess(Constant(), nothing, test, seen, split="so")
    cold = found.slices["items without interactions in training (cold)"]
    assert (cold.users, found.cold_pairs) == (2, 2)
    assert cold[ff.recommender.Recall(50)].mean == 0.5
    assert "Recall@50" in str(found).splitlines()[-len(found.slices) - 1]


@pytest.mark.parametrize(("cold", "shown"), [(1, False), (2, True)])
def test_items_never_seen_get_a_slice_above_one_in_a_hundred(cold: int, shown: bool) -> None:
    nothing = ff.recommender.Jagged(
        torch.empty(0, dtype=torch.int64), torch.zeros(101, dtype=torch.int64)
    )
    wanted = torch.zeros(100, dtype=torch.int64)
    wanted[:cold] = 300  # beyond the items of the model
    found = assess(
        Constant(), nothing, ff.recommender.Jagged(wanted, torch.arange(101)),
        torch.ones(200, dtype=torch.bool), split="so",
    )  # fmt: skip
    assert found.cold_pairs == cold
    assert ("items seen in training (warm) alone" in found.slices) == shown
    assert found.overall[ff.recommender.HitRate(10)].mean == pytest.approx(1 - cold / 100)
