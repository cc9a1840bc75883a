"""Training on a streamed log: the same bytes again, the quality of memory, bounded memory."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fewfold as ff
from fewfold.recommender import (
    Checkpoint,
    HoldOut,
    Interactions,
    PreparedLog,
    StreamedLog,
    Training,
    prepare,
    random_split,
    read_log,
)
from fewfold.recommender.evaluation.model_evaluation import assess
from fewfold.recommender.models.fastvae.shortcut import Directions
from fewfold.recommender.prepared.streamed_epoch import StreamedEpoch
from fewfold.recommender.prepared.streamed_interactions import StreamedInteractions

MODEL = ff.VAE(hidden=16, latent=7)


def rows(users: int = 600, items: int = 60) -> dict[str, Any]:
    """Users who like the items of their group, in the order of time."""
    draws = np.random.default_rng(0)
    who = np.repeat(np.arange(users), 12)
    what = (who % 4) * (items // 4) + draws.integers(0, items // 4, len(who))
    return {"user": who, "item": what, "time": draws.permutation(len(who))}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("streamed") / "prepared"
    prepare(rows(), path, parts=7, progress=False)
    return path


def fitted(folder: Path, pairs: int = 1500, **options: Any) -> ff.Recommender:
    rec = ff.Recommender(MODEL, training=Training(epochs=6))
    return rec.fit(StreamedLog(folder, pairs), progress=False, **options)


def state(rec: ff.Recommender) -> dict[str, torch.Tensor]:
    return rec.fitted.state()


def assert_equal(one: ff.Recommender, other: ff.Recommender) -> None:
    assert state(one).keys() == state(other).keys()
    for name, tensor in state(one).items():
        assert torch.equal(tensor, state(other)[name]), name


def test_an_epoch_has_every_user_once_window_by_window(folder: Path) -> None:
    log = StreamedInteractions(PreparedLog.open(folder), 1500)
    assert log.windows > 2
    generator = torch.Generator().manual_seed(0)
    first, second = (StreamedEpoch.draw(log, 32, generator) for _ in range(2))
    assert len(first) == len(second) == StreamedEpoch.steps(log, 32)
    users = torch.cat(list(first))
    assert torch.equal(users.sort().values, torch.arange(log.users))
    assert not torch.equal(users, torch.cat(list(second)))
    assert max(map(len, first)) <= 32
    resumed = first[5:9]
    assert len(resumed) == 4
    assert all(torch.equal(one, first[5 + at]) for at, one in enumerate(resumed))
    # Steps of one window follow each other, and have the items of their users.
    whole, ids = read_log(folder), [PreparedLog.open(folder).part(n).users for n in range(7)]
    names = [id_ for part in ids for id_ in part.tolist()]
    for step in first:
        history = log.rows(step)
        expected = whole.interactions.rows(whole.users.find([names[int(u)] for u in step]))
        assert torch.equal(history.values, expected.values)
        assert torch.equal(history.offsets, expected.offsets)


def test_two_windows_are_held_at_most(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = StreamedInteractions(PreparedLog.open(folder), 1500)
    threads, held = set(), []
    load = log._load

    def watched(number: int) -> Interactions:
        threads.add(threading.current_thread().name)
        return load(number)

    monkeypatch.setattr(log, "_load", watched)
    for step in StreamedEpoch.draw(log, 32, torch.Generator().manual_seed(0)):
        log.rows(step)
        held.append(len(log._read))
    assert max(held) == 2
    assert all(name.startswith("prefetch") for name in threads)


def test_the_same_seed_gives_the_same_model(folder: Path) -> None:
    one = fitted(folder, test=0.2)
    assert_equal(one, fitted(folder, test=0.2))
    assert one.evaluation is not None
    assert one.users is None
    assert one.report is not None
    assert "fastvae: 6 epochs" in str(one.report)


def test_it_is_as_good_as_in_memory(folder: Path) -> None:
    log = read_log(rows(users=2000)).interactions  # of the same groups
    split = random_split(log.select(torch.arange(600, 2000)), test=0.2)
    memory = ff.Recommender(MODEL, training=Training(epochs=6)).fit(folder, progress=False)
    scores = [
        assess(
            rec.fitted, split.fold_in.jagged, split.test.jagged, torch.ones(60).bool(), split=""
        ).overall.scores[0].mean
        for rec in (memory, fitted(folder), fitted(folder, 10**6))
    ]  # fmt: skip
    assert scores[0] > 0.2
    assert scores[1:] == pytest.approx(scores[:1] * 2, abs=0.02)


def test_interrupted_it_goes_on_with_the_same_model(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fitted(folder)
    loss, steps = ff.recommender.FastVAE.loss, iter(range(1000))

    def interrupted(*arguments: Any, **options: Any) -> Any:
        if next(steps) == 33:
            raise KeyboardInterrupt
        return loss(*arguments, **options)

    place = tmp_path / "checkpoint"
    with monkeypatch.context() as patch:
        patch.setattr(ff.recommender.FastVAE, "loss", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fitted(folder, checkpoint=Checkpoint(place, every=1e-9))
    assert_equal(whole, fitted(folder, checkpoint=Checkpoint(place, resume=True)))


@pytest.mark.parametrize("most", [7, 1 << 14])
def test_directions_of_blocks_are_those_of_the_log(folder: Path, most: int) -> None:
    log, whole = StreamedInteractions(PreparedLog.open(folder), 1500), read_log(folder)
    expected = Directions.find(whole.interactions, 8).shortcut(1.0, 1.0)
    found = Directions.of_blocks(lambda: log.blocks(most), log.counts(), log.users, 8)
    table = found.shortcut(1.0, 1.0).table
    torch.testing.assert_close(
        table @ table.T, expected.table @ expected.table.T, rtol=1e-3, atol=1e-4
    )


def test_hidden_pairs_are_left_out_everywhere(folder: Path) -> None:
    log = StreamedInteractions(PreparedLog.open(folder), 1500)
    first = log.timed_window(1)
    assert first.times is not None
    some = torch.arange(first.pairs) % 5 == 0
    rest = log.without(1, first.keep(some))
    assert torch.equal(rest.window(1).ids, first.keep(~some).ids)
    times = rest.timed_window(1).times
    assert times is not None
    assert torch.equal(times, first.times[~some])
    assert rest.pairs == log.pairs - int(some.sum())
    both = torch.cat([rest.window(number).ids for number in range(rest.windows)])
    assert torch.equal(rest.counts(), torch.bincount(both, minlength=rest.items))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"half_life": 3.0}, "half_life"),
        ({"items_table": {"item": [1]}}, "items_table"),
        ({"min_rating": 3.0}, "min_rating"),
        ({"test": HoldOut(0.2, "temporal")}, "split='temporal'"),
    ],
)
def test_what_needs_the_log_in_memory_is_refused(
    options: dict[str, Any], message: str, folder: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        fitted(folder, **options)


def test_other_models_and_weights_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="only fastvae is trained on a streamed log, got ease"):
        ff.Recommender(ff.recommender.EASE()).fit(StreamedLog(folder), progress=False)
    with pytest.raises(ValueError, match="tables of anchors need the log in memory"):
        ff.Recommender(MODEL.with_anchors(8)).fit(StreamedLog(folder), progress=False)
    prepare({**rows(), "plays": rows()["item"] + 1.0}, tmp_path / "weighted", weight="plays",
            progress=False)  # fmt: skip
    with pytest.raises(ValueError, match="weights of the prepared log"):
        fitted(tmp_path / "weighted")
