"""Session-KNN against a plain loop over all sessions, on both paths; folders; the command."""

import contextlib
import math
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch

import fewfold as ff
from fewfold._native import dispatch
from fewfold.recommender import Interactions, Jagged, SessionKNN
from fewfold.recommender.models import session_knn
from fewfold.recommender.models.session_index import LONGEST, cut, last_places
from tests.cli.invoke import fewfold
from tests.recommender.test_order import circle

ITEMS = 30
PATHS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "native": contextlib.nullcontext,
    "plain": dispatch.disabled,
}


def jagged(rows: list[list[int]]) -> Jagged:
    lengths = torch.tensor([0, *map(len, rows)])
    return Jagged(
        torch.tensor([i for row in rows for i in row], dtype=torch.int64), lengths.cumsum(0)
    )


def sessions(count: int, seed: int, longest: int = 8, items: int = ITEMS) -> list[list[int]]:
    rng = random.Random(seed)
    skewed = [item for item in range(items) for _ in range(1 + 20 // (item + 1))]
    return [rng.choices(skewed, k=rng.randint(1, longest)) for _ in range(count)]


def unique(row: list[int]) -> list[int]:
    """Each item where it stands last."""
    return [item for at, item in enumerate(row) if item not in row[at + 1 :]]


def naive(model: SessionKNN, past: list[list[int]], history: list[int]) -> dict[int, float]:
    """Score of every item that a neighbour has: the definition, one session after the other."""
    known = [unique(row) for row in past]
    having = {item: [s for s, row in enumerate(known) if item in row] for item in range(ITEMS)}
    last = unique(history)[-LONGEST:]
    found = []
    for s, row in enumerate(known):
        similarity, place = 0.0, -1
        for at, item in enumerate(last):
            if s in having[item][-model.sample :]:
                rarity = math.log1p(len(known) / len(having[item])) ** session_knn._RARITY
                similarity += math.exp(-(len(last) - 1 - at) / model.decay) * rarity
                place = row.index(item)
        if place >= 0:
            found.append((similarity, s, place))
    scores: dict[int, float] = {}
    for similarity, s, place in sorted(found, reverse=True)[: model.neighbours]:
        for at, item in enumerate(known[s]):
            side = session_knn._AFTER if at > place else 1.0
            near = math.exp(-abs(at - place) / model.spread) * side
            near = session_knn._ITSELF if at == place else near
            scores[item] = scores.get(item, 0.0) + similarity * near
    return scores


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "model",
    [SessionKNN(), SessionKNN(3, 1000, 1.0, 1.0), SessionKNN(500, 4, 3.0, 8.0), SessionKNN(1, 1)],
    ids=["default", "few neighbours", "small sample", "one"],
)
def test_scores_are_those_of_a_plain_loop(model: SessionKNN, path: str) -> None:
    past, asked = sessions(150, 1), sessions(40, 2)
    model.fit_sequences(jagged(past), ITEMS)
    with PATHS[path]():
        found = model.rank(jagged(asked), ITEMS)
    for row, history in enumerate(asked):
        expected = naive(model, past, history)
        count = int((found.scores[row] > 0).sum())
        assert set(found.ids[row, :count].tolist()) == set(expected)
        for item, score in zip(found.ids[row].tolist(), found.scores[row].tolist(), strict=True):
            if score > 0:
                assert score == pytest.approx(expected[item], rel=1e-5)
        rest = found.ids[row, count:]
        assert model.counts[rest].tolist() == sorted(model.counts[rest].tolist(), reverse=True)
        assert sorted(found.ids[row].tolist()) == list(range(ITEMS))


@pytest.mark.parametrize("k", [1, 7, ITEMS])
def test_both_paths_rank_alike(k: int) -> None:
    model = SessionKNN(20).fit_sequences(jagged(sessions(200, 3, longest=60)), ITEMS)
    asked = jagged([[], *sessions(60, 4, longest=80), [ITEMS - 1]])
    exclude = jagged([[], *(row[::2] for row in sessions(60, 5)), [0, 0, 1]])
    allowed = torch.arange(ITEMS) % 7 > 0
    for options in ({}, {"exclude": exclude}, {"exclude": exclude, "allowed": allowed}):
        found = model.rank(asked, k, **options)
        with dispatch.disabled():
            plain = model.rank(asked, k, **options)
        assert torch.equal(found.ids, plain.ids)
        torch.testing.assert_close(found.scores[1:], plain.scores[1:])


def test_of_equally_similar_sessions_the_newest_count() -> None:
    past = [[0, 1], [0, 2], [0, 3], [0, 4]]
    for model in (SessionKNN(neighbours=2), SessionKNN(sample=2)):
        model.fit_sequences(jagged(past), 6)
        for path in PATHS.values():
            with path():
                found = model.rank(jagged([[0]]), 6, exclude=jagged([[0]]))
            assert found.ids.tolist() == [[3, 4, 1, 2, 5, -1]]


def test_repeated_items_stand_where_they_stood_last_and_may_be_answered() -> None:
    assert last_places(jagged([[3, 1, 3], [], [3]])).values.tolist() == [1, 3, 3]
    once = SessionKNN().fit_sequences(jagged([[1, 3, 2]]), 4)
    again = SessionKNN().fit_sequences(jagged([[3, 1, 3, 2]]), 4)
    assert torch.equal(once.values, again.values)
    assert int(once.rank(jagged([[3, 1, 3]]), 1).ids) == 2  # after 3, not after 1
    assert 3 in once.rank(jagged([[1, 3]]), 3).ids


def test_long_sequences_are_cut_from_the_end() -> None:
    rows = cut(jagged([list(range(2 * LONGEST + 3)), [], [5], list(range(LONGEST))]))
    assert rows.lengths.tolist() == [3, LONGEST, LONGEST, 1, LONGEST]
    model = SessionKNN().fit_sequences(jagged([list(range(200))]), 200)
    top = model.rank(jagged([list(range(120))]), 3, exclude=jagged([list(range(120))]))
    assert top.ids.tolist() == [[120, 121, 122]]  # the history ends at 119


def test_users_are_ordered_by_their_last_item() -> None:
    log = Interactions.from_pairs([0, 0, 1, 1, 2], [0, 1, 0, 2, 3], [5, 9, 1, 7, 8], shape=(4, 4))
    model = SessionKNN().fit(log)
    assert model.values.tolist() == [0, 2, 3, 0, 1]
    assert model.offsets.tolist() == [0, 2, 3, 5]
    assert model.similar(torch.tensor([0, 3]), 3).ids.tolist() == [[1, 2, -1], [-1, -1, -1]]


def test_nothing_was_learned() -> None:
    with pytest.raises(ValueError, match="learned nothing yet"):
        SessionKNN().rank(jagged([[0]]), 1)
    empty = SessionKNN().fit_sequences(jagged([[], []]), 3)
    assert empty.rank(jagged([[1]]), 2).ids.tolist() == [[0, 1]]
    for options in ({"neighbours": 0}, {"decay": 0.0}, {"spread": math.nan}):
        with pytest.raises(ValueError, match=next(iter(options))):
            SessionKNN(**options)


def test_the_folder_holds_the_sessions(tmp_path: Path) -> None:
    rec = ff.Recommender(SessionKNN(decay=1.5)).fit(circle(), progress=False)
    again = ff.Recommender.load(rec.save(tmp_path / "m"))
    assert repr(again.model) == repr(rec.model)
    for history in (["i05", "i02"], ["i02", "i05"], []):
        ours, theirs = (one.recommend_from_history(history, 5) for one in (rec, again))
        assert (ours.items, ours.scores) == (theirs.items, theirs.scores)
    fitted: Any = rec.fitted
    state = fitted.state()
    for name, wrong in (
        ("offsets", state["offsets"][1:]),
        ("offsets", torch.cat([state["offsets"], state["offsets"][-1:]])),
        ("offsets", torch.tensor([0, len(state["values"])])),
    ):
        with pytest.raises(ValueError, match="offsets must"):
            SessionKNN().from_state({**state, name: wrong}, 12)


def test_the_command_answers_by_the_order_of_a_history(tmp_path: Path) -> None:
    log, out = tmp_path / "log.csv", tmp_path / "m"
    rows = zip(*circle().values(), strict=True)
    log.write_text("user,item,time\n" + "".join(f"{u},{i},{t}\n" for u, i, t in rows))
    options = ("--session-neighbours", 50, "--session-decay", 1)
    done = fewfold("fit", log, "--model", "session-knn", *options, "--split", "last", "--out", out)
    assert done.code == 0
    answers = [
        fewfold("recommend", out, "--history", text, "-k", 1, "--json", "-q").out
        for text in ("i05,i02", "i02,i05")
    ]
    assert '"i03"' in answers[0]
    assert '"i06"' in answers[1]
    log.write_text("user,item\na,b\na,c\nb,c\n")
    again = fewfold("fit", log, "--model", "session-knn", "--out", out, "--overwrite", "--test", 0)
    assert "--time COLUMN" in again.err
    assert "must" in fewfold("fit", log, "--session-decay", "0").err
