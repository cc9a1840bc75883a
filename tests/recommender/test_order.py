"""The order of a history: from the times of a log to a model that depends on it."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pytest
import scipy.sparse
import torch
from safetensors.torch import save_file
from torch import Tensor

import fewfold as ff
from fewfold._tensors import Found, Spec, read_header
from fewfold.recommender import Baseline, HoldOut, Interactions, Jagged
from fewfold.recommender.artifact.folder import Part
from fewfold.recommender.artifact.packing import expect_users, pack_users
from fewfold.recommender.evaluation.log_evaluation import evaluation_set
from fewfold.recommender.models import registry
from fewfold.recommender.models.fastvae.shortcut_weight import Trial
from fewfold.recommender.models.model_options import BUILT_IN
from fewfold.recommender.queries import history_queries
from tests.cli.invoke import fewfold


@dataclass(eq=False)
class Follows(Baseline):
    """Score of an item: how often it came right after the last item of the history."""

    name: ClassVar[str] = "follows"
    ordered: ClassVar[bool] = True
    counts: Tensor = field(init=False, repr=False)
    next: Tensor = field(init=False, repr=False)

    def fit(self, train: Interactions) -> Self:
        rows = train.in_order()
        same = rows.row[1:] == rows.row[:-1]
        self.next = torch.zeros(train.items, train.items)
        pairs = rows.values[:-1][same], rows.values[1:][same]
        self.next.index_put_(pairs, torch.ones(int(same.sum())), accumulate=True)
        self.counts, self.items = train.counts().float(), train.items
        return self

    def scores(self, history: Jagged, items: slice) -> Tensor:
        last = history.offsets[1:].clamp(min=1) - 1
        return self.next[history.values[last]][:, items].clone()

    def layout(self, found: Found, items: int) -> Iterator[tuple[str, Spec]]:
        yield from super().layout(found, items)
        yield "next", Spec((items, items), least=0)


@pytest.fixture(autouse=True)
def follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the model for a test."""
    for name in BUILT_IN:
        assert registry.models()[name].name == name
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    registry.register(Follows)


def circle(users: int = 120, seed: int = 0, length: int = 4) -> dict[str, list[Any]]:
    """A log in which item n + 1 of twelve follows item n; rows are in no order."""
    rng = np.random.default_rng(seed)
    start = rng.integers(0, 12, users)
    rows = [
        (f"u{user}", f"i{(start[user] + step) % 12:02}", 100 * step + user)
        for user in range(users)
        for step in range(length)
    ]
    mixed = [rows[n] for n in rng.permutation(len(rows))]
    return dict(zip(("user", "item", "time"), map(list, zip(*mixed, strict=True)), strict=True))


def test_in_order_and_ties_agree_with_a_plain_sort() -> None:
    rng = np.random.default_rng(3)
    users, items, times = rng.integers(0, 9, 80), rng.integers(0, 30, 80), rng.integers(0, 6, 80)
    log = Interactions.from_pairs(users, items, times, shape=(11, 30))  # two users have none
    assert log.times is not None
    tied = 0
    for user in range(11):
        mine = slice(int(log.offsets[user]), int(log.offsets[user + 1]))
        pairs = sorted(zip(log.times[mine].tolist(), log.ids[mine].tolist(), strict=True))
        assert log.in_order().rows([user]).values.tolist() == [item for _, item in pairs]
        tied += sum(a == b for (a, _), (b, _) in itertools.pairwise(pairs))
        different = sorted({time for time, _ in pairs})
        assert log.time_ranks()[mine].tolist() == [
            different.index(time) for time in log.times[mine].tolist()
        ]
    assert log.tied_neighbours() == tied > 0
    some = log.rows([4, 10, 2], ordered=True)
    assert some.values.tolist() == log.in_order().rows([4, 10, 2]).values.tolist()
    assert log.rows([4]).values.tolist() == sorted(log.rows([4], ordered=True).values.tolist())
    assert torch.equal(log.rows(slice(1, 3), ordered=True).offsets, log.rows(slice(1, 3)).offsets)


def test_nothing_is_in_order() -> None:
    log = Interactions.from_pairs([], [], [], shape=(2, 3))
    assert len(log.in_order().values) == len(log.time_ranks()) == log.tied_neighbours() == 0
    with pytest.raises(ValueError, match=r"no times.*--time COLUMN"):
        Interactions.from_pairs([0], [1]).in_order()


def test_a_history_is_read_as_it_was_written() -> None:
    items = ff.read_log(circle()).items
    query = history_queries(["i03", "x", "i01", "i03"], items, ordered=True)
    assert query.histories.values.tolist() == [3, 1, 3]
    assert (query.unknown, query.single) == ([["x"]], True)
    assert history_queries(["i03", "i01", "i03"], items).histories.values.tolist() == [1, 3]
    with pytest.raises(ValueError, match=r"sparse matrix has none; pass lists"):
        history_queries(scipy.sparse.csr_array((1, 12)), items, ordered=True)


def test_the_order_reaches_the_model_and_survives_its_folder(tmp_path: Path) -> None:
    rec = ff.Recommender(Follows()).fit(circle(), progress=False)
    assert rec.recommend_from_history(["i05", "i02"], 1).items == ["i03"]
    assert rec.recommend_from_history(["i02", "i05"], 1).items == ["i06"]
    again = ff.Recommender.load(rec.save(tmp_path / "m"))
    assert rec.users is not None
    assert again.history is not None
    assert rec.history is not None
    assert torch.equal(again.history.in_order().values, rec.history.in_order().values)
    for user in range(0, 120, 17):
        (best,) = again.recommend(f"u{user}", 1).items
        last = int(rec.history.rows([rec.users.find([f"u{user}"])[0]], ordered=True).values[-1])
        assert best == f"i{(last + 1) % 12:02}"
    # A history without order, as in a folder of before, is refused rather than sorted.
    unordered = Interactions(again.history.offsets, again.history.ids, 12)
    again._fitted_state = replace(again._state, history=unordered)
    with pytest.raises(ValueError, match="order is not known"):
        again.recommend("u0")


def test_ties_are_told_and_stay_tied_in_the_folder(tmp_path: Path) -> None:
    log = circle()
    log["time"] = [time // 200 for time in log["time"]]  # two of four events at once
    rec = ff.Recommender(Follows()).fit(log, progress=False)
    again = ff.Recommender.load(rec.save(tmp_path / "m"))
    assert rec.history is not None
    assert again.history is not None
    tied = rec.history.tied_neighbours()
    assert again.history.tied_neighbours() == tied
    assert f"{tied / 360:.1%} of neighbouring events of a user have the same time" in str(
        rec.report
    )
    assert "same time" not in str(ff.Recommender(Follows()).fit(circle(), progress=False).report)
    sets = ff.Recommender(ff.recommender.EASE()).fit(log, progress=False)
    assert "same time" not in str(sets.report)


def test_evaluation_hands_over_histories_in_order() -> None:
    log = circle()
    rec = ff.Recommender(Follows()).fit(log, test=HoldOut(split="last"), progress=False)
    assert isinstance(rec.evaluation, ff.recommender.Evaluation)
    assert rec.evaluation.overall.scores[0].mean > 0.9
    # The same users later: the stored history, then what came before the last of the new log.
    later = circle(length=7)
    found = rec.evaluate(later, split="last", metrics=(ff.recommender.HitRate(1),))
    assert found.overall.scores[0].mean > 0.9
    best = ff.compare(log, models=["follows", "ease"], test=HoldOut(split="last"), progress=False)
    assert [one.kind for one in best.contenders] == ["follows", "ease"]


def test_interactions_of_the_log_are_appended_by_time() -> None:
    log = Interactions.from_pairs([0] * 4, [1, 2, 3, 4], [3, 1, 2, 9])
    known = Jagged(torch.tensor([9, 7]), torch.tensor([0, 2]))
    chosen = evaluation_set(log, known, torch.arange(10), 10, split="last", ordered=True)
    assert chosen.histories.values.tolist() == [9, 7, 2, 3, 1]
    assert chosen.test.values.tolist() == [4]
    chosen = evaluation_set(log, known, torch.arange(10), 10, split="last")
    assert chosen.histories.values.tolist() == [1, 2, 3, 7, 9]


def test_settings_of_ordered_models_are_chosen_on_last_items() -> None:
    log = ff.read_log(circle(users=500)).interactions
    trial = Trial.last_out(log)
    assert trial is not None
    assert trial.hidden.lengths.tolist() == [1] * 125
    assert trial.rest.pairs == log.pairs - 125
    last = trial.visible.values[trial.visible.offsets[1:] - 1]
    assert ((trial.hidden.values - last) % 12 == 1).all()
    assert Trial.last_out(ff.read_log(circle(users=99)).interactions) is None


def test_without_times_an_ordered_model_says_what_is_missing(tmp_path: Path) -> None:
    timeless = {name: column for name, column in circle().items() if name != "time"}
    assert "--time COLUMN" in Follows.unsuitable(ff.read_log(timeless).interactions)
    assert Follows.unsuitable(ff.read_log(circle()).interactions) == ""
    with pytest.raises(ValueError, match=r"--time COLUMN"):
        ff.Recommender(Follows()).fit(timeless, progress=False)
    found = ff.compare(timeless, models=["follows", "ease"], progress=False)
    assert "order of events" in found.skipped["follows"]
    file, histories = tmp_path / "log.csv", tmp_path / "histories.csv"
    rows = zip(*circle().values(), strict=True)
    file.write_text("user,item,time\n" + "".join(f"{u},{i},{t}\n" for u, i, t in rows))
    out = tmp_path / "m"
    assert fewfold("fit", file, "--model", "follows", "--out", out, "-q").code == 0
    histories.write_text("user,item,time\na,i05,2\na,i02,3\nb,i02,2\nb,i05,3\n")
    told = fewfold("recommend", out, "--histories", histories, "-k", 1, "--json", "-q").out
    assert '"i03"' in told
    assert '"i06"' in told
    histories.write_text("user,item\na,i05\na,i02\n")
    assert "has no times; add a column" in fewfold("recommend", out, "--histories", histories).err


def test_an_order_that_does_not_fit_the_histories_is_refused(tmp_path: Path) -> None:
    rec = ff.Recommender(Follows()).fit(circle(), progress=False)
    assert rec.users is not None
    assert rec.history is not None
    stored = pack_users(rec.users, rec.history)
    assert stored["order"].dtype == np.uint8
    file = tmp_path / "users.safetensors"
    for wrong in (stored["order"][1:], stored["order"].astype(np.int64)):
        arrays = {**stored, "order": wrong}
        save_file({name: torch.from_numpy(array.copy()) for name, array in arrays.items()}, file)
        with pytest.raises(ff.recommender.ArtifactError, match="order must"):
            expect_users(Part(file, read_header(file), ""), 12)
