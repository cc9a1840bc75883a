"""The translation experiment on a language of a few words, without a dataset."""

from itertools import product
from pathlib import Path

import pytest
import torch

pytest.importorskip("safetensors")
from experiments.record import Record
from experiments.translation import search
from experiments.translation.bleu import bleu, tokens
from experiments.translation.corpus import BEGIN, END, PAD, Corpus, build
from experiments.translation.model import Method, Translator, shifted
from experiments.translation.run import run
from experiments.translation.table import table
from experiments.translation.training import Settings, Training
from tests.nightly import first

SETTINGS = Settings(width=16, dropout=0.0, size=16, rate=3e-2, least=1, epochs=4, patience=2)
SEARCH = {"width": 2, "steps": 200}


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    """The translation is the sentence backwards, in upper case."""
    generator = torch.Generator().manual_seed(0)

    def lines(count: int) -> tuple[list[list[str]], list[list[str]]]:
        sizes = torch.randint(1, 5, (count,), generator=generator).tolist()
        drawn = [torch.randint(6, (size,), generator=generator).tolist() for size in sizes]
        source = [["abcdef"[i] for i in line] for line in drawn]
        return source, [[word.upper() for word in line[::-1]] for line in source]

    return build({"train": lines(160), "valid": lines(40), "test": lines(30)}, least=1)


def model_of(corpus: Corpus, method: Method) -> Translator:
    torch.manual_seed(0)
    model = Translator(len(corpus.source), corpus.counts(), 16, 0.0, method).eval()
    with torch.no_grad():  # untrained scores are nearly equal
        for parameter in model.parameters():
            parameter.mul_(2.0)
    return model


def test_bleu_is_that_of_sacrebleu() -> None:
    """Reference values of sacrebleu 2.6.0, of its tokenisation 13a and smoothing exp."""
    candidates = [
        "Two young men, outside near 3.5 bushes.", "A man in a hat-stand isn't sleeping .",
        "the cat sat on the mat", '"Hello (world)" costs $1,000 in the 1990-2000s!',
    ]  # fmt: skip
    references = [
        "Two young, White males are outside near 3.5 bushes.", "A man in a hat isn't sleeping.",
        "the cat is on the mat", '"Hello world" costs $1,000 in the 1990-2000s!',
    ]  # fmt: skip
    ours, theirs = ([tokens(line) for line in lines] for lines in (candidates, references))
    assert " ".join(ours[3]) == '" Hello ( world ) " costs $ 1,000 in the 1990 - 2000s !'
    assert bleu(ours, theirs) == pytest.approx(57.975430159452465)
    assert bleu([["a", "b", "c", "d"]], [["a", "b", "x", "d", "e", "f"]]) == pytest.approx(
        21.444097124017667
    )
    assert bleu(ours[:1], theirs[2:3]) == 0.0
    with pytest.raises(ValueError, match="every candidate"):
        bleu(ours, theirs[:1])


@pytest.mark.parametrize("alpha", first(2, [1.5, 1.0, 2.0]))
def test_the_bias_is_the_unigram_model(corpus: Corpus, alpha: float) -> None:
    probs = corpus.counts() / corpus.counts().sum()
    model = Translator(len(corpus.source), corpus.counts(), 16, 0.0, Method(alpha, 1.0))
    found = model.probs(torch.zeros(16))
    torch.testing.assert_close(found, probs, atol=1e-6, rtol=1e-4)


def test_words_one_by_one_are_those_together(corpus: Corpus) -> None:
    """Padding changes nothing, and the state carries what came before."""
    model = model_of(corpus, Method(1.5, 1.5))
    source, target = corpus.test.batch([0, 1, 2, 3])
    memory, state = model.encode(source)
    together = model.probs(model.decode(shifted(target), state, memory)[0])
    line, words = source[1:2, source[1] != PAD], shifted(target)[1]
    memory, state = model.encode(line)
    for place, word in enumerate(words):
        log_probs, state = model.step(word.unsqueeze(0), state, memory)
        expected = together[1, place].clone()
        expected[[PAD, BEGIN]] = 0
        torch.testing.assert_close(log_probs[0].exp(), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("method", [Method(1.5, 1.5), Method(1.0, 1.0)])
def test_the_mode_is_that_of_all_translations(
    corpus: Corpus, method: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "LIMIT", 3)
    model = model_of(corpus, method)
    words = [w for w in range(len(corpus.target)) if w not in (PAD, BEGIN, END)]
    with torch.no_grad():
        for number in range(4):
            memory, state = model.encode(corpus.test.batch([number])[0])
            every = [list(line) for size in range(4) for line in product(words, repeat=size)]
            target = torch.tensor([(*line, END, *[PAD] * (3 - len(line))) for line in every])
            copies = state[0].repeat(1, len(every), 1), state[1].repeat(1, len(every), 1)
            found = model.decode(shifted(target), copies, memory.repeat(len(every)))[0]
            chosen = model.probs(found).gather(-1, target.unsqueeze(-1)).squeeze(-1)
            log_probs = chosen.log().masked_fill(target == PAD, 0).sum(1)
            begin = search.beam(model, memory, state, 1)
            wide = search.beam(model, memory, state, 1000)
            mode = search.mode(model, memory, state, begin, 10**6)
            assert mode.log_prob == pytest.approx(float(log_probs.max()), abs=1e-4)
            assert wide.log_prob == pytest.approx(mode.log_prob, abs=1e-4)
            assert log_probs[every.index(mode.words)] == pytest.approx(mode.log_prob, abs=1e-4)
            unproven = search.mode(model, memory, state, begin, 0)
            assert not unproven.exact or begin.log_prob == 0


def test_a_run_resumes_and_rows_are_added_once(corpus: Corpus, tmp_path: Path) -> None:
    results, models = tmp_path / "results.json", tmp_path / "models"
    methods = [Method(1.0, 1.0), Method(1.5, 1.5)]
    for _ in range(2):
        run(corpus, methods, SETTINGS, 0, SEARCH, results, models)
    rows = Record(results).rows()
    assert [row["output"] for row in rows] == [1.0, 1.5]
    for row in rows:
        assert row["BLEU, beam"] > 10
        assert 0 < row["epochs"] <= SETTINGS.epochs
    softmax, entmax = rows
    assert softmax["words"] == len(corpus.target) > entmax["words"]
    assert entmax["positions attended"] < entmax["positions"] == softmax["positions attended"]
    assert softmax["empty has probability"] == 1 >= entmax["empty has probability"]
    assert "1.5" in table(rows)
    whole = Training(methods[1], corpus, SETTINGS, 0, tmp_path / "whole")
    whole.epoch()
    whole.epoch()
    part = tmp_path / "part"
    Training(methods[1], corpus, SETTINGS, 0, part).epoch()
    torch.rand(3)
    again = Training(methods[1], corpus, SETTINGS, 0, part)
    again.epoch()
    assert again.record["loss"] == whole.record["loss"]
