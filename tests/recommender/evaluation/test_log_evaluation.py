"""Evaluation on another log: which interactions are tested, given which histories."""

import pytest
import torch

from fewfold.recommender import Interactions, Jagged
from fewfold.recommender.evaluation.log_evaluation import evaluation_set


def _chosen(split: str, log: Interactions, known: list[list[int]]) -> tuple[list, list, str]:
    lengths = torch.tensor([0, *map(len, known)]).cumsum(0)
    histories = Jagged(torch.tensor([i for row in known for i in row], dtype=torch.int64), lengths)
    number = torch.tensor([0, 1, 2, 30])  # item 3 is not known to the model
    chosen = evaluation_set(log, histories, number, 10, split=split)
    rows = range(len(known))
    lists = (
        [part.rows([r]).values.tolist() for r in rows] for part in (chosen.histories, chosen.test)
    )
    return (*lists, chosen.description)


def test_histories_and_test_items() -> None:
    log = Interactions.from_pairs(
        [0, 0, 0, 1, 1, 2], [0, 1, 3, 0, 2, 1], times=[3, 2, 1, 1, 2, 1], shape=(3, 4)
    )
    unknown: list[list[int]] = [[], [], []]
    known, test, words = _chosen("all", log, unknown)
    assert (known, test) == (unknown, [[0, 1, 30], [0, 2], [1]])
    # The history has the items before the last that the model knows; user 2 has no other.
    known, test, words = _chosen("auto", log, unknown)
    assert (known, test) == ([[1], [0], [1]], [[0], [2], []])
    assert "the model knows nothing of 100.0% of the users" in words
    # A known user's history stays, sorted; training interactions are not tested.
    known, test, words = _chosen("last", log, [[5, 0], [9], [1]])
    assert (known, test) == ([[0, 5], [0, 9], [1]], [[1], [2], []])
    # Two of three users are known: every interaction is tested.
    known, test, words = _chosen("auto", log, [[5], [9], []])
    assert (known, test) == ([[5], [9], []], [[0, 1, 30], [0, 2], [1]])
    assert words == "every interaction"


def test_unknown_users_with_one_item_each() -> None:
    log = Interactions.from_pairs([0, 1], [0, 1], shape=(2, 4))
    known, test, words = _chosen("auto", log, [[], []])
    assert (known, test) == ([[], []], [[0], [1]])
    assert words == "every interaction; the model knows nothing of 100.0% of the users"


def test_a_split_by_time_is_for_fitting() -> None:
    log = Interactions.from_pairs([0, 0], [0, 1])
    with pytest.raises(ValueError, match="one of auto, all, last, random, got 'temporal'"):
        evaluation_set(log, log.jagged, torch.arange(2), 2, split="temporal")


@pytest.mark.parametrize("split", ["auto", "all", "last", "random"])
def test_interactions_of_the_training_log_do_not_count(split):
    log = Interactions.from_pairs([0, 0, 1, 1], [0, 1, 0, 2], shape=(2, 3), times=[1, 2, 3, 4])
    chosen = evaluation_set(log, log.jagged, torch.arange(3), 3, split=split)
    assert chosen.repeated == 4
    assert chosen.test.values.numel() == 0
