"""The experiment of items without interactions: its task, its baseline and its recall."""

import torch

from experiments.best_by_default.cold_items import ColdTask, category_popularity, fixed_recalls
from fewfold.recommender import Interactions, Jagged


def test_hidden_items_are_not_in_training() -> None:
    generator = torch.Generator().manual_seed(0)
    users, items = (torch.randint(0, n, (3000,), generator=generator) for n in (200, 60))
    log = Interactions.from_pairs(users, items, shape=(200, 60))
    task = ColdTask.of(log, seed=1)
    assert int(task.cold.sum()) == 6
    assert not bool(task.cold[task.train.ids].any())
    assert bool(task.cold[task.hidden.values].all())
    assert not bool(task.cold[task.warm.values].any())
    mine = task.train.rows(task.users)
    assert not bool(task.warm.isin(mine).any())
    assert torch.equal(ColdTask.of(log, seed=1).train.ids, task.train.ids)


def test_popularity_of_categories() -> None:
    train = Interactions.from_pairs([0, 1, 2, 0], [0, 0, 0, 1], shape=(3, 4))
    cold = torch.tensor([False, False, True, True])
    hidden = Jagged(torch.tensor([2, 3]), torch.tensor([0, 1, 2, 2]))
    task = ColdTask(train, cold, torch.arange(3), hidden, hidden.rows([2, 2, 2]))
    scores = category_popularity(task, [["a", "b"], ["b"], ["a"], ["c", "b"]])
    # a: 3 interactions of one item; b: 4 of two; c has no item in training: 2, the mean of all.
    assert scores.tolist() == [2.5, 2.0, 3.0, 2.0]


def test_recall_of_one_ranking() -> None:
    items = 120
    cold = torch.arange(items) >= 60
    train = Interactions.from_pairs([0, 1], [0, 1], shape=(2, items))
    hidden = Jagged(torch.tensor([60, 119, 60, 80]), torch.tensor([0, 2, 4]))
    warm = Jagged(torch.tensor([50, 51]), torch.tensor([0, 1, 2]))
    task = ColdTask(train, cold, torch.arange(2), hidden, warm)
    found = fixed_recalls(task, -torch.arange(items).double())
    assert found == {"cold among all": 0.0, "cold among cold": 0.75, "warm among all": 0.5}
