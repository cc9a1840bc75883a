"""Batches of all instances, in order and at random."""

import sys

import pytest
import torch

pytest.importorskip("safetensors")
from experiments.batch_indices import in_order, shuffled
from experiments.methods import options


def test_every_instance_is_in_one_batch() -> None:
    torch.manual_seed(0)
    lengths = torch.randint(1, 50, (103,)).tolist()
    batches = [*shuffled(lengths, 8, 4)]
    assert sorted(i for batch in batches for i in batch) == [*range(103)]
    assert max(map(len, batches)) == 8
    assert [i for batch in in_order(103, 8) for i in batch] == [*range(103)]
    assert [*in_order(0, 8)] == [*shuffled([], 8, 4)] == []


def test_batches_are_of_instances_about_as_long() -> None:
    torch.manual_seed(0)
    lengths = torch.randint(1, 1000, (256,)).tolist()

    def spread(pool: int) -> float:
        batches = [[lengths[i] for i in batch] for batch in shuffled(lengths, 8, pool)]
        return sum(max(batch) - min(batch) for batch in batches) / len(batches)

    assert spread(32) < 0.1 * spread(1)
    first, second = ([*shuffled(lengths, 8, 32)] for _ in range(2))
    assert first != second


def test_methods_and_seeds_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    monkeypatch.setattr(torch, "set_flush_denormal", lambda flush: None)
    monkeypatch.setattr(sys, "argv", ["run"])
    assert options("", ["a", "b"]) == (["a", "b"], [1])
    monkeypatch.setattr(sys, "argv", ["run", "--method", "b", "--seed", "2", "--seed", "3"])
    assert options("", ["a", "b"]) == (["b"], [2, 3])
    monkeypatch.setattr(sys, "argv", ["run", "--method", "c"])
    with pytest.raises(SystemExit):
        options("", ["a", "b"])
