"""Alignments of words against enumerated structures, and the experiment on synthetic pairs."""

from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("safetensors")
import fewfold as ff
from experiments.alignments.model import METHODS, REACH, Aligner
from experiments.alignments.pairs import LABELS, PAD, Corpus, Pair, build, split, words
from experiments.alignments.run import Inference, accuracy, measure, sparsity
from experiments.alignments.table import table
from experiments.early_stopping import Schedule, Training
from experiments.methods import Settings, add_rows
from experiments.record import Record

SETTINGS = Settings(16, 0.0, 16, 1, Schedule(1e-2, epochs=12, patience=6))


def drawn(count: int, seed: int) -> list[Pair]:
    """The hypothesis has words of the premise, or one that contradicts, or one of its own."""
    generator = torch.Generator().manual_seed(seed)

    def number(below: int) -> int:
        return int(torch.randint(below, (), generator=generator))

    pairs = []
    for _ in range(count):
        order = torch.randperm(6, generator=generator).tolist()
        premise = [f"w{i}" for i in order[: 2 + number(3)]]
        hypothesis = premise[: 1 + number(len(premise))]
        label = LABELS[number(3)]
        if label == "contradiction":
            hypothesis = [*hypothesis[1:], f"not{hypothesis[0]}"]
        if label == "neutral":
            hypothesis = [*hypothesis[1:], f"new{number(3)}"]
        pairs.append((" ".join(premise), " ".join(hypothesis), label))
    return pairs


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    sizes = {"train": 480, "valid": 60, "test": 90, "revised": 30}
    return build({name: drawn(count, i) for i, (name, count) in enumerate(sizes.items())}, least=1)


def model_of(corpus: Corpus, method: str) -> Aligner:
    torch.manual_seed(0)
    model = Aligner(len(corpus.vocabulary), 16, 0.0, method).eval()
    with torch.no_grad():
        model.project.weight.mul_(0.3)  # else most weight is on equal words
        model.steps.uniform_(-1, 1)
    return model


def test_words_and_signs_are_split() -> None:
    assert words("A man, isn't he?") == ["a", "man", ",", "isn", "'", "t", "he", "?"]


def test_no_premise_is_in_two_parts() -> None:
    development = [(f"p{i // 3}", f"h{i}", "neutral") for i in range(90)]
    more = [("p0", "x", "neutral"), ("t1 ", "x", "neutral"), ("own", "x", "neutral")]
    parts = split(development, more, [("T1", "h", "entailment"), ("p10", "h", "neutral")])
    premises = {name: {words(pair[0])[0] for pair in part} for name, part in parts.items()}
    assert premises["valid"] == {"p0", "p20"}  # p10 is in the test part
    assert premises["train"] == {f"p{i}" for i in range(30)} - {"p0", "p10", "p20"} | {"own"}
    assert len(parts["valid"]) == 6


def brute(scores: Tensor, structure: ff.structures.Structure) -> Tensor:
    """SparseMAP by projected gradient steps on the weights of all listed structures."""
    parts = structure.enumerate(scores.shape).double().flatten(1)
    weights = torch.full((len(parts),), 1 / len(parts), dtype=torch.float64)
    rate = 1 / float(torch.linalg.matrix_norm(parts, 2)) ** 2
    for _ in range(2000):
        gradient = parts @ (scores.double().flatten() - parts.mT @ weights)
        weights = ff.sparsemax(weights + rate * gradient)
    return (parts.mT @ weights).view(scores.shape)


@pytest.mark.parametrize("shape", [(2, 3), (3, 2), (3, 3), (1, 3), (3, 1)])
@pytest.mark.parametrize("method", ["assignment", "matching"])
def test_padded_pairs_are_aligned_as_alone(method: str, shape: tuple[int, int]) -> None:
    """In a batch with a pair of other sizes, against SparseMAP over all listed structures."""
    torch.manual_seed(0)
    scores = torch.randn(2, 4, 4)
    mask = torch.zeros(2, 4, 4, dtype=torch.bool)
    mask[0, : shape[0], : shape[1]] = True
    mask[1] = True
    there, back = METHODS[method](scores, mask, torch.zeros(5))
    own = scores[0, : shape[0], : shape[1]]
    if method == "matching":
        expected = brute(own, ff.structures.Matching())
    else:
        flip = shape[0] > shape[1]
        expected = brute(own.mT if flip else own, ff.structures.Assignment())
        expected = expected.mT if flip else expected
    found = there[0, : shape[0], : shape[1]].double()
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
    assert not there[~mask].any()
    assert there.equal(back.mT)


def test_a_sequence_is_scored_by_its_steps() -> None:
    """With large scores all weight is on the best of the listed sequences."""
    torch.manual_seed(0)
    scores, steps = 40 * torch.randn(1, 3, 4), 40 * torch.randn(2 * REACH + 1)
    mask = torch.ones(1, 3, 4, dtype=torch.bool)
    there, _ = METHODS["sequence"](scores, mask, steps)

    def value(path: list[int]) -> float:
        own = sum(float(scores[0, i, j]) for i, j in enumerate(path))
        sizes = [min(max(b - a, -REACH), REACH) for a, b in pairwise(path)]
        return own + sum(float(steps[size + REACH]) for size in sizes)

    paths = [[a, b, c] for a in range(4) for b in range(4) for c in range(4)]
    assert there[0].argmax(1).tolist() == max(paths, key=value)
    assert there.max() == 1


@pytest.mark.parametrize("method", METHODS)
def test_padding_changes_nothing(corpus: Corpus, method: str) -> None:
    model = model_of(corpus, method)
    premises, hypotheses, _ = corpus.test.batch(range(8))
    together = model(premises, hypotheses)
    for place in range(8):
        sides = (side[place : place + 1] for side in (premises, hypotheses))
        alone = model(*(side[:, side[0] != PAD] for side in sides))
        torch.testing.assert_close(alone[0], together[place], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_all_parameters_that_matter_have_a_gradient(corpus: Corpus, method: str) -> None:
    model = model_of(corpus, method)
    Inference(model, corpus, 16).loss(corpus.train.batch(range(16))).backward()
    without = {name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()}
    assert without == ({"steps"} if method != "sequence" else set())


def test_sparsity_counts_zeros_and_partners(corpus: Corpus) -> None:
    dense, sparse, apart = (
        sparsity(model_of(corpus, name), corpus.test)
        for name in ("softmax", "sparsemax", "matching")
    )
    assert dense["zero"] == dense["no partner"] == sparse["no partner"] == 0 < sparse["zero"]
    assert dense["partners"] > sparse["partners"] >= 1
    assert apart["no partner"] > 0


def test_rows_are_added_once_and_beat_chance(corpus: Corpus, tmp_path: Path) -> None:
    results, models = tmp_path / "results.json", tmp_path / "models"
    methods = ["softmax", "matching"]
    for _ in range(2):
        add_rows(partial(measure, corpus, SETTINGS, 0, models), methods, SETTINGS, 0, results)
    rows = Record(results).rows()
    assert [row["method"] for row in rows] == methods
    for row in rows:
        assert row["test"] > 0.55
        assert 0 < row["best epoch"] <= row["epochs"] <= 12
    assert "| matching |" in table(rows)
    other = {**rows[0], "seed": 1, "test": rows[0]["test"] + 0.02}
    assert f"{rows[0]['test'] + 0.01:.1%} ± 1.4%" in table([*rows, other])


def test_a_run_that_was_stopped_goes_on_as_if_it_was_not(corpus: Corpus, tmp_path: Path) -> None:
    schedule = replace(SETTINGS.schedule, epochs=2)

    def training(folder: str) -> Training[tuple[Tensor, Tensor, Tensor]]:
        torch.manual_seed(0)
        model = Aligner(len(corpus.vocabulary), 16, 0.3, "sparsemax")
        return Training(model, Inference(model, corpus, 16), schedule, tmp_path / folder)

    whole = training("whole")
    whole.epoch()
    whole.epoch()
    training("part").epoch()
    again = training("part")
    torch.rand(3)
    again = training("part")
    assert not again.done
    again.epoch()
    assert again.done
    assert again.record["loss"] == whole.record["loss"]
    found = again.finish()
    assert found["valid"] == max(again.record["valid"])
    best = again.record["valid"].index(found["valid"]) + 1
    assert found["best epoch"] == best
    assert round(accuracy(again.model, corpus.valid), 4) == found["valid"]  # type: ignore[arg-type]
