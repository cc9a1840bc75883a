"""Selection of sentences against listed subsets, and the experiment on synthetic reviews."""

import math
from functools import partial
from itertools import combinations
from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("safetensors")
import fewfold as ff
from experiments.early_stopping import Schedule
from experiments.methods import Settings, add_rows
from experiments.rationales.model import METHODS, Pooled, Selective, ShareOfSentences, reader
from experiments.rationales.reviews import CLASSES, Corpus, Review, build, token_f1
from experiments.rationales.run import Sentiment, evaluate, measure
from experiments.rationales.selectors import BONUS, SELECTORS, counts, top
from experiments.rationales.table import table
from experiments.record import Record

SETTINGS = Settings(16, 0.0, 16, 1, Schedule(2e-2, epochs=8, patience=4))


def drawn(count: int, seed: int) -> list[Review]:
    """Reviews of ten sentences, two neighbouring ones of which have a word of the class."""
    generator = torch.Generator().manual_seed(seed)

    def number(below: int) -> int:
        return int(torch.randint(below, (), generator=generator))

    found: list[Review] = []
    for _ in range(count):
        sentences = [[f"w{number(9)}" for _ in range(2 + number(3))] for _ in range(10)]
        label, place = CLASSES[number(2)], number(9)
        for sentence in sentences[place : place + 2]:
            sentence[0] = f"{label.lower()}{number(3)}"
        start = sum(map(len, sentences[:place]))
        stop = start + sum(map(len, sentences[place : place + 2]))
        found.append((sentences, label, [(start, stop)]))
    return found


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    sizes = {"train": 320, "valid": 60, "test": 60}
    return build({name: drawn(count, i) for i, (name, count) in enumerate(sizes.items())}, least=1)


def test_batches_have_the_sentences_of_their_reviews(corpus: Corpus) -> None:
    texts = build({
        "train": [([["a", "b"], ["c"]], "POS", [(1, 3)]), ([["a"]], "NEG", [])],
        "valid": [], "test": [],
    }, least=1)  # fmt: skip
    batch = texts.train.batch([1, 0])
    a, b, c = texts.vocabulary.numbers(["a", "b", "c"])[:-1]
    assert batch.words.tolist() == [a, a, b, c]
    assert batch.first.tolist() == [0, 1, 3]
    assert batch.mask.tolist() == [[True, False], [True, True]]
    assert batch.labels.tolist() == [0, 1]
    assert texts.train.marked[0].tolist() == [False, True, True]
    padded = batch.padded(torch.tensor([[1.0], [2.0], [3.0]]))
    assert padded.squeeze(2).tolist() == [[1, 0], [2, 3]]
    seen = [tuple(row.tolist()) for row in corpus.train.words]
    batches = [*corpus.train.batches(16)]
    assert sum(len(batch.labels) for batch in batches) == 320
    assert torch.cat([batch.words for batch in batches]).sum() == sum(map(sum, seen))


def test_f1_of_words() -> None:
    chosen = [torch.tensor([1, 1, 0, 0]).bool(), torch.ones(3).bool(), torch.zeros(2).bool()]
    marked = [torch.tensor([0, 1, 1, 0]).bool(), torch.zeros(3).bool(), torch.ones(2).bool()]
    assert token_f1(chosen, marked) == pytest.approx((0.5 + 0) / 2)


def instance() -> tuple[Tensor, Tensor]:
    """Scores and mask of reviews with 11, 6 and 1 sentences."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.arange(11) < torch.tensor([11, 6, 1]).unsqueeze(1)
    return 2 * torch.randn(3, 11, generator=generator), mask


@pytest.mark.parametrize("bonus", [0.0, BONUS])
def test_budgets_select_the_best_of_all_subsets(bonus: float) -> None:
    scores, mask = instance()
    name = "SparseMAP, sequence" if bonus else "SparseMAP, budget"
    found = SELECTORS[name].weights(scores, mask)
    assert counts(mask).tolist() == [3, 2, 1]
    for own, size, k, chosen in zip(
        scores, mask.sum(1).tolist(), counts(mask).tolist(), found, strict=True
    ):

        def value(subset: tuple[int, ...], own: Tensor = own) -> float:
            pairs = sum(b - a == 1 for a, b in combinations(subset, 2))
            return float(own[list(subset)].sum()) + bonus * pairs

        best = max(combinations(range(size), k), key=value)
        assert chosen.nonzero().flatten().tolist() == list(best)


@pytest.mark.parametrize("name", SELECTORS)
def test_weights_are_of_the_sentences_there_are(name: str) -> None:
    torch.manual_seed(0)
    scores, mask = instance()
    weights = SELECTORS[name].weights(scores, mask)
    assert weights.shape == mask.shape
    assert not weights[~mask].any()
    assert (weights >= 0).all()
    if name not in ("all sentences", "random", "Bernoulli", "hard concrete"):
        alone = SELECTORS[name].weights(scores[1:2, :6], mask[1:2, :6])
        torch.testing.assert_close(alone[0], weights[1, :6])


def test_softmax_keeps_the_k_largest() -> None:
    scores, mask = instance()
    weights = SELECTORS["softmax, top k"].weights(scores, mask)
    assert (weights > 0).sum(1).equal(counts(mask))
    assert (weights > 0).equal(top(scores, mask) > 0)
    full = ff.softmax(scores, mask=mask)
    assert weights[weights > 0].equal(full[weights > 0])


def test_a_penalty_holds_the_expected_share() -> None:
    """Without a cost, gates and bits are drawn to the share from either side."""
    mask = torch.ones(64, 10, dtype=torch.bool)
    for name in ("Bernoulli", "hard concrete"):
        torch.manual_seed(0)
        scores = torch.full((64, 10), 2.0, requires_grad=True)
        SELECTORS[name].loss(scores, mask, lambda weights, row: 0 * weights.sum(1)).sum().backward()
        assert scores.grad is not None
        assert scores.grad.mean() > 0, name


def test_a_share_of_sentences_is_a_map_for_each_size() -> None:
    scores = torch.tensor([2.0, 0.5, 0.0, -1.0, 1.8])
    omega = ShareOfSentences(share=0.4, bonus=0.0)
    expected = ff.ksubset(scores, 2)
    torch.testing.assert_close(omega.argmax(scores), expected, atol=1e-5, rtol=0)
    assert float(omega.value(expected)) == pytest.approx(float(expected.square().sum() / 2))


@pytest.mark.parametrize("method", METHODS)
def test_only_selected_sentences_are_read(corpus: Corpus, method: str) -> None:
    """Other words in sentences that are not selected, with the same selection."""
    torch.manual_seed(0)
    model = reader(len(corpus.vocabulary), 16, 0.0, method).eval()
    batch = corpus.test.batch([0])
    classes, chosen = model.explained(batch)
    assert chosen.shape == batch.mask.shape
    assert chosen.any()
    means = model.means(batch)
    if isinstance(model, Pooled):
        vectors = model.sentence(torch.where(chosen.unsqueeze(2), means, torch.randn_like(means)))
        values = model.pool.value(model.pool.value_norm(vectors))
        with ff.attention.watch_attention() as calls:
            model.loss(batch)
        weights = calls[0].support.to_dense(batch.mask.shape[1])
        torch.testing.assert_close(model.judge(model.pool.out(weights @ values[0])), classes)
        return
    assert isinstance(model, Selective)
    weights = model.selector.weights(model.scores(means), batch.mask)
    changed = torch.where(chosen.unsqueeze(2), means, torch.randn_like(means))
    if method == "random":
        weights = chosen.float()
        classes = model.classes(model.sentence(means), weights)
    after = model.classes(model.sentence(changed), weights)
    torch.testing.assert_close(after, classes)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_from_its_loss(corpus: Corpus, method: str) -> None:
    torch.manual_seed(0)
    model = reader(len(corpus.vocabulary), 16, 0.0, method)
    loss = Sentiment(model, corpus, 16).loss(corpus.train.batch(range(16)))
    loss.backward()
    without = {name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()}
    fixed = method in ("all sentences", "random")
    blind = {"around.weight", "around.bias", "score.weight", "score.bias"}
    if fixed:
        assert without == blind
    elif method == METHODS[-1]:
        assert not without - {"pool.key.bias"}  # the same for all sentences of a review
    else:
        assert not without - {"score.bias"}
    assert math.isfinite(float(loss.detach()))


def test_rows_are_added_once_and_find_the_evidence(corpus: Corpus, tmp_path: Path) -> None:
    results, models = tmp_path / "results.json", tmp_path / "models"
    methods = ["random", "SparseMAP, sequence"]
    for _ in range(2):
        add_rows(partial(measure, corpus, SETTINGS, 0, models), methods, SETTINGS, 0, results)
    rows = Record(results).rows()
    assert [row["method"] for row in rows] == methods
    random, sequence = rows
    assert sequence["token F1"] > 0.6 > 0.3 > random["token F1"]
    assert sequence["accuracy"] > 0.9
    assert sequence["sentences selected"] == pytest.approx(0.2)
    assert 1 <= sequence["runs"] < random["runs"]
    assert "| SparseMAP, sequence |" in table(rows)


def test_a_classifier_of_all_selects_all(corpus: Corpus) -> None:
    model = reader(len(corpus.vocabulary), 16, 0.0, "all sentences").eval()
    row = evaluate(model, corpus.test)
    assert row["sentences selected"] == row["words selected"] == row["runs"] == 1
    share = torch.stack([own.double().mean() for own in corpus.test.marked])
    assert row["token F1"] == pytest.approx(float((2 * share / (1 + share)).mean()), abs=1e-4)
