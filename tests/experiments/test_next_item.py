"""Next-item tasks: prefixes, metrics and the parts that are held out."""

import math

import pytest
import torch

from experiments.best_by_default.next_item import drop_last, evaluate_next_item, prefixes_of
from experiments.best_by_default.next_item_table import table
from experiments.best_by_default.sequences import sequence_task
from experiments.best_by_default.sessions import session_task
from experiments.datasets import has
from fewfold.recommender import Jagged, Ranking


def test_every_prefix_has_a_target() -> None:
    sessions = Jagged(torch.tensor([4, 5, 4, 7, 8, 9]), torch.tensor([0, 3, 3, 4, 6]))
    prefixes, targets = prefixes_of(sessions)
    rows = [prefixes.rows([row]).values.tolist() for row in range(len(targets))]
    assert rows == [[4], [4, 5], [8]]
    assert targets.tolist() == [5, 4, 9]
    assert drop_last(sessions, 1).offsets.tolist() == [0, 2, 2, 2, 3]
    assert drop_last(sessions, 2).values.tolist() == [4]


def test_metrics_are_of_the_place_of_the_target() -> None:
    def rank(history: Jagged, k: int, exclude: Jagged | None) -> Ranking:
        assert exclude is None
        ids = torch.arange(k).repeat(len(history.lengths), 1)
        return Ranking(ids, torch.zeros(ids.shape))

    cases = 5000  # more than are ranked at once
    prefixes = Jagged(torch.zeros(cases, dtype=torch.int64), torch.arange(cases + 1))
    targets = torch.tensor([0, 2, 9, 77, -5]).repeat(cases // 5)
    found = evaluate_next_item(rank, prefixes, targets, ks=(3, 10))
    assert found["recall@3"] == pytest.approx(2 / 5)
    assert found["recall@10"] == pytest.approx(3 / 5)
    assert found["mrr@3"] == pytest.approx((1 + 1 / 3) / 5)
    assert found["ndcg@10"] == pytest.approx((1 + 1 / 2 + 1 / math.log2(11)) / 5)


def test_the_table_has_means_of_seeds_and_processor_minutes() -> None:
    row = {"task": "diginetica", "tuning": "default", "mrr@20": 0.2}
    trained = {**row, "model": "transformer", "training processor seconds": 90}
    rows = [
        {**trained, "seed": 0, "recall@20": 0.5},
        {**trained, "seed": 1, "recall@20": 0.54},
        {**row, "model": "blend", "tuning": "chosen", "settings": {"weight": 0.35}, "recall@20": 1},
        {**row, "model": "session-knn", "recall@20": 0.4},
    ]
    assert table(rows).splitlines()[4:7] == [
        "| diginetica | session-knn, defaults | 40.00 | 20.00 |",
        "| diginetica | transformer, defaults (1.5 processor minutes, 2 seeds) | 52.00 | 20.00 |",
        "| diginetica | blend, chosen: weight 0.35 | 100.00 | 20.00 |",
    ]


@pytest.mark.skipif(not has("diginetica"), reason="the data is not here")
def test_published_number_of_cases() -> None:
    assert len(session_task("diginetica").targets) == 60858
    chosen = session_task("diginetica", validation=True)
    assert len(chosen.train.lengths) == 186670 - 18667
    task, early = (sequence_task("s3rec/beauty", validation=flag) for flag in (False, True))
    assert len(task.targets) == 22363
    assert torch.equal(task.prefixes.rows([5]).values[-1:], early.targets[5:6])
    assert torch.equal(task.train.rows([5]).values, early.prefixes.rows([5]).values)
