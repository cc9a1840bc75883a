"""The experiment with sparse language models on a text of a few words, without a dataset."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("safetensors")
import fewfold as ff
from experiments.language_model.run import LanguageModel
from experiments.record import Record
from experiments.sparse_language_model import measures
from experiments.sparse_language_model.decoders import (
    GRIDS,
    Decoder,
    Greedy,
    Nucleus,
    Own,
    Temperature,
    TopK,
    candidates,
)
from experiments.sparse_language_model.long_context import Context, LongContext, build
from experiments.sparse_language_model.run import run
from experiments.sparse_language_model.table import table
from experiments.sparse_language_model.text import Text
from experiments.sparse_language_model.training import Settings, Training
from fewfold.losses import epsilon_perplexity, jensen_shannon
from tests.nightly import first

SETTINGS = Settings(9, 0.0, 4, 8, 5e-2, epochs=2, parts=3, valid=200)
WORDS = 20


@pytest.fixture(scope="module")
def text() -> Text:
    """Each word says which comes next, but for one time in ten."""
    generator = torch.Generator().manual_seed(0)
    jump = torch.rand(1600, generator=generator) < 0.1
    anywhere = torch.randint(WORDS, (1600,), generator=generator)
    tokens = [0]
    for wild, other in zip(jump.tolist(), anywhere.tolist(), strict=True):
        tokens.append(other if wild else (tokens[-1] + 1) % WORDS)
    whole = torch.tensor(tokens)
    return Text(whole[:1000], whole[1000:1300], WORDS, whole[1300:])


@pytest.mark.parametrize(
    ("decoder", "expected"),
    [
        (Own(1.0), [0.5, 0.3, 0.15, 0.05]),
        (Greedy(), [1.0, 0.0, 0.0, 0.0]),
        (TopK(2), [0.625, 0.375, 0.0, 0.0]),
        (Nucleus(0.75), [0.625, 0.375, 0.0, 0.0]),
        (Nucleus(0.81), [10 / 19, 6 / 19, 3 / 19, 0.0]),
        (Nucleus(0.0), [1.0, 0.0, 0.0, 0.0]),
        (Temperature(0.5), [25 / 36.5, 9 / 36.5, 2.25 / 36.5, 0.25 / 36.5]),
    ],
    ids=str,
)
def test_a_decoder_truncates(decoder: Decoder, expected: list[float]) -> None:
    order = torch.tensor([2, 0, 3, 1])
    scores = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    found = decoder.probs(torch.stack([scores, scores[order]]))
    torch.testing.assert_close(found[0], torch.tensor(expected))
    torch.testing.assert_close(found[1], torch.tensor(expected)[order])


@pytest.mark.parametrize("alpha", first(1, [1.5, 1.0]))
def test_metrics_are_those_of_the_library(text: Text, alpha: float, tmp_path: Path) -> None:
    model = Training(alpha, text, SETTINGS, 0, tmp_path).model.eval()
    (found,) = measures.measure_all(model, text.test, [Own(alpha)], SETTINGS, 0)
    with torch.no_grad():
        words = text.test[: len(text.test) // 4 * 4].view(4, -1).T
        queries, _ = model(words[:-1], None)
        probs, after = Own(alpha).probs(queries @ model.table.T), words[1:].flatten()
    assert found.after.equal(after)
    assert found.divergence == pytest.approx(float(jensen_shannon(probs, after)), abs=1e-5)
    expected = float(epsilon_perplexity(probs, after, 0.01))
    ours = measures.epsilon_perplexity(found.chosen, WORDS, 0.01)
    assert ours == pytest.approx(expected, rel=1e-4)


def test_repetition_looks_back_so_many_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "LENGTHS", (1, 3))
    tokens = torch.tensor([5, 6, 7, 8, 5])
    drawn = torch.tensor([5, 5, 5, 5])  # 1, 2, 3 and 4 words after it occurred
    none = torch.zeros(4)
    found = measures.Measured(none, none, none, drawn, tokens[1:])
    assert measures.repetition(tokens, found, 1) == pytest.approx(((1 + 3) / 8, (1 + 3) / 8))
    right = measures.Measured(none, none, none, tokens[1:], tokens[1:])
    assert measures.repetition(tokens, right, 1) == pytest.approx((0, 0))
    twice = torch.cat([tokens, tokens])
    both = measures.Measured(*[torch.zeros(8)] * 3, drawn.repeat_interleave(2), twice[1:9])
    assert measures.repetition(twice, both, 2)[0] == pytest.approx(0.5)


def test_diversity_counts_repeated_four_grams() -> None:
    texts = torch.tensor([[1, 2, 1, 2, 1, 2, 1], [1, 2, 3, 4, 5, 6, 7]]).T
    found = measures.diversity(texts)
    assert found == {"repeated 4-grams": 0.25, "distinct-1": 0.5, "distinct-2": 0.5833}


def test_text_follows_the_model(text: Text, tmp_path: Path) -> None:
    training = Training(1.5, text, SETTINGS, 0, tmp_path)
    model = training.finish()
    prompts = torch.tensor([[3, 9], [4, 10]])
    greedy = measures.generate(model, prompts, Greedy(), 5, seed=0)
    assert greedy.equal(torch.arange(5).unsqueeze(1) + torch.tensor([5, 11]))


def test_attention_sees_the_last_words_in_chunks_of_any_length() -> None:
    torch.manual_seed(0)
    layer, hidden = LongContext(4, Context(window=3)), torch.randn(2, 9, 4)
    whole = layer(hidden)
    layer.forget()
    parts = torch.cat([layer(part) for part in hidden.split([2, 1, 5, 1], 1)], 1)
    torch.testing.assert_close(parts, whole)
    layer.forget()
    later = torch.cat([layer(hidden[:, 4:])[:, 2:]], 1)
    torch.testing.assert_close(later, whole[:, 6:])
    with pytest.raises(ValueError, match="window must be"):
        LongContext(4, Context(functions=8))


def test_words_that_leave_the_window_are_in_the_memory() -> None:
    torch.manual_seed(0)
    layer, hidden = LongContext(4, Context(window=3, functions=8)), torch.randn(2, 9, 4)
    for part in hidden.split(3, 1):
        layer(part)
    assert layer.memory is not None
    other = ff.ContinuousMemory(layer.memory.basis)
    for part in hidden[:, :6].split(3, 1):
        signal = other.update(part)
    assert layer.memory.signal is not None
    torch.testing.assert_close(layer.memory.signal.coefficients, signal.coefficients)
    changed = hidden.clone()
    changed[0, 0] += 5  # the second chunk does not see it, and the third only in the memory
    layer.forget()
    outputs = [layer(part) for part in changed.split(3, 1)]
    layer.forget()
    for number, part in enumerate(hidden.split(3, 1)):
        same = torch.isclose(layer(part), outputs[number]).flatten(1).all(1)
        assert same.tolist() == [number == 1, True]


def test_a_model_with_memory_learns(text: Text, tmp_path: Path) -> None:
    settings = replace(SETTINGS, epochs=1, context=Context(window=4, functions=4))
    training = Training(1.5, text, settings, 0, tmp_path)
    training.finish()
    assert training.record["valid"][-1] < training.record["valid"][0]
    prompts = torch.tensor([[3, 9], [4, 10]])
    once = measures.generate(training.model, prompts, Own(1.5), 5, seed=0)
    assert once.equal(measures.generate(training.model, prompts, Own(1.5), 5, seed=0))
    assert type(build(text, 9, 0.0, Context())) is LanguageModel


def test_rows_are_added_once_and_training_resumes(text: Text, tmp_path: Path) -> None:
    results, models = tmp_path / "results.json", tmp_path / "models"
    for _ in range(2):
        run(text, [1.0, 1.5], SETTINGS, 0, 250, (5, 4, 6), results, models)
    rows = Record(results).rows()
    assert [row["alpha"] for row in rows] == [1.0, 1.5]
    softmax, entmax = (row["decoders"] for row in rows)
    assert softmax.keys() == {"text itself", *candidates(1.0)} > entmax.keys()
    assert set(GRIDS) < softmax.keys()
    assert softmax["own"]["words"] == WORDS > entmax["own"]["words"]
    for row in (softmax["own"], entmax["own"]):  # a word drawn at random would leave 20
        assert row["epsilon-perplexity"] < 6
    assert "1.5-entmax" in table(rows)
    whole, part = (Training(1.5, text, SETTINGS, 0, tmp_path / name) for name in "ab")
    whole.part()
    whole.part()
    part.part()
    again = Training(1.5, text, SETTINGS, 0, tmp_path / "b")
    again.part()
    assert again.record["valid"] == whole.record["valid"]
