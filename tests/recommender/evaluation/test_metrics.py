"""Metrics agree with ir-measures, which wraps trec_eval; reports say what they measured."""

import math

import ir_measures
import pytest
import torch

from fewfold.recommender import (
    MAP,
    MRR,
    NDCG,
    HitRate,
    Interactions,
    Jagged,
    Metric,
    Precision,
    Recall,
    evaluate,
)

# ours, theirs
PEERS = [
    (NDCG, ir_measures.nDCG),
    (Recall, ir_measures.R),
    (Precision, ir_measures.P),
    (MAP, ir_measures.AP),
    (MRR, ir_measures.RR),
    (HitRate, ir_measures.Success),
]
USERS, ITEMS, LISTED = 60, 30, 12


def ranked(seed: int) -> tuple[torch.Tensor, Interactions]:
    """Random lists, some of them cut short, and from none to ten test items per user."""
    generator = torch.Generator().manual_seed(seed)
    top = torch.rand(USERS, ITEMS, generator=generator).argsort(1)[:, :LISTED]
    top[::7, 9:] = -1
    sizes = torch.randint(0, 11, (USERS,), generator=generator)
    drawn = torch.rand(USERS, ITEMS, generator=generator).argsort(1)
    wanted = torch.arange(ITEMS) < sizes.unsqueeze(1)
    users, places = wanted.nonzero().unbind(1)
    return top, Interactions.from_pairs(users, drawn[users, places], shape=(USERS, ITEMS))


@pytest.mark.parametrize("k", [1, 5, LISTED, 20])
@pytest.mark.parametrize(("ours", "theirs"), PEERS, ids=lambda cls: str(cls))
def test_equals_ir_measures(ours, theirs, k):
    top, test = ranked(k)
    judged = zip(test.row.tolist(), test.ids.tolist(), strict=True)
    qrels = [ir_measures.Qrel(str(user), str(item), 1) for user, item in judged]
    run = [
        ir_measures.ScoredDoc(str(user), str(item), -float(rank))
        for user, row in enumerate(top.tolist())
        for rank, item in enumerate(row)
        if item >= 0
    ]
    found = ir_measures.iter_calc([theirs @ k], qrels, run)
    expected = {int(line.query_id): line.value for line in found}
    score = evaluate(top, test, [ours(k)], resamples=0)[ours(k)]
    for user, value in enumerate(score.per_user.tolist()):
        if math.isnan(value):
            assert len(test.rows([user]).values) == 0
        else:
            assert value == pytest.approx(expected[user], abs=1e-9)
    kept = score.per_user[~score.per_user.isnan()]
    assert score.mean == pytest.approx(float(kept.mean()))


def test_by_hand():
    test = Jagged(torch.tensor([9, 4, 7]), torch.tensor([0, 3]))
    top = torch.tensor([[4, 1, 7, 2]])
    measured = [NDCG(4), NDCG(2), Recall(4), Precision(4), MAP(4), MRR(4), HitRate(4)]
    report = evaluate(top, test, measured)
    three, two = 1 + 1 / math.log2(3) + 0.5, 1 + 1 / math.log2(3)
    expected = [1.5 / three, 1 / two, 2 / 3, 0.5, (1 + 2 / 3) / 3, 1.0, 1.0]
    assert [score.mean for score in report.scores] == pytest.approx(expected)
    assert [score.low for score in report.scores] == pytest.approx(expected)  # one user, no spread


def test_users_without_test_items_are_counted_and_left_out():
    top, test = ranked(0)
    report = evaluate(top, test, [Recall(5)])
    empty = int((test.jagged.lengths == 0).sum())
    assert empty > 0
    assert (report.users, report.dropped) == (USERS - empty, empty)
    assert int(report.scores[0].per_user.isnan().sum()) == empty


def test_the_interval_is_that_of_the_mean():
    """As wide as the normal approximation; seeded, so it cannot fail by chance."""
    top, test = ranked(1)
    report = evaluate(top, test, [Recall(5)], resamples=4000)
    score = report[Recall(5)]
    values = score.per_user[~score.per_user.isnan()]
    width = 2 * 1.96 * float(values.std()) / len(values) ** 0.5
    assert score.high - score.low == pytest.approx(width, rel=0.1)
    narrow = evaluate(top, test, [Recall(5)], level=0.5).scores[0]
    assert score.low < narrow.low < score.mean < narrow.high < score.high
    again = evaluate(top, test, [Recall(5)], resamples=4000).scores[0]
    assert (again.low, again.high) == (score.low, score.high)
    assert math.isnan(evaluate(top, test, [Recall(5)], resamples=0).scores[0].low)


def test_report_prints_every_formula():
    top, test = ranked(2)
    metrics = [ours(5) for ours, _ in PEERS]
    text = str(evaluate(top, test, metrics, level=0.9))
    assert "90% interval" in text
    for metric in metrics:
        assert str(metric) in text
        assert metric.formula
        assert metric.formula in text
    lines = text.splitlines()
    assert len({line.index(metric.formula) for line, metric in zip(lines[1:], metrics)}) == 1  # noqa: B905


def test_errors():
    test = Interactions.from_pairs([0, 1], [0, 1])
    top = torch.tensor([[0], [1]])
    with pytest.raises(TypeError, match=r"int64 tensor of item ids, got torch.float32"):
        evaluate(top.float(), test)
    with pytest.raises(ValueError, match=r"shape \(2, K\), one list for every user.* got \(1, 1\)"):
        evaluate(top[:1], test)
    with pytest.raises(ValueError, match="got one twice for user 1"):
        evaluate(torch.tensor([[-1, -1], [3, 3]]), test)
    with pytest.raises(ValueError, match="at least one metric"):
        evaluate(top, test, [])
    with pytest.raises(ValueError, match="level must be between 0 and 1, got 95"):
        evaluate(top, test, level=95)
    with pytest.raises(ValueError, match="no user has test items"):
        evaluate(top, Interactions.from_pairs([], [], shape=(2, 2)))
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        NDCG(0)
    with pytest.raises(KeyError, match="NDCG@3 was not evaluated, only NDCG@50, Recall@50"):
        evaluate(top, test)[NDCG(3)]
    with pytest.raises(NotImplementedError, match="must define __call__"):
        Metric(3)(top, top)
