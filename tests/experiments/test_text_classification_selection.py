"""Methods of text classification that select words or entries while they train."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fewfold as ff
from experiments.record import Record
from experiments.text_classification import run, tables
from experiments.text_classification.corpora import PADDING
from experiments.text_classification.group_lasso import GroupLasso
from experiments.text_classification.selection import SelectiveTable, dropout_divergence
from experiments.text_classification.sparse_code import SparseCode
from experiments.text_classification.sparse_variational_dropout import SparseVariationalDropout
from experiments.text_classification.vocabulary_dropout import VocabularyDropout
from tests.experiments.test_text_classification import TINY, TOPICS, texts

TOPIC_WORDS = {word for topic in TOPICS for word in topic.split()}
SMALL: dict[str, tables.Table] = {
    "TF-IDF": tables.Rows(times=2, choice=tables.tf_idf),
    "group lasso": GroupLasso(times=2, l2=0.02),
    "vocabulary dropout": VocabularyDropout(times=2),
    "sparse variational dropout": SparseVariationalDropout(),
    "of entries and words": SparseVariationalDropout(words=True),
    "sparse code": SparseCode(anchors=10, width=3),
}


def test_the_published_table_is_complete() -> None:
    assert len(run.PUBLISHED) == 11
    assert {type(method) for method in SMALL.values()} <= {
        type(method) for method in run.PUBLISHED.values()
    }


@pytest.mark.parametrize("name", SMALL)
def test_a_selection_learns(name: str) -> None:
    made = texts()
    row = run.train(SMALL[name], made, TINY, seed=0)
    assert row["test"] > 80
    assert row["numbers"] < len(made.vocabulary) * TINY.dim


def test_rows_of_other_epochs_have_a_file_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RECORD", "LONG"):
        monkeypatch.setattr(run, name, Record(tmp_path / f"{name}.json"))
    monkeypatch.setattr(run, "load", lambda name, length: texts())
    monkeypatch.setattr(run, "BUDGETS", {"mr": replace(TINY, epochs=1)})
    for epochs in (None, 1, 2, 2):
        run.run("mr", [run.DENSE], seeds=1, epochs=epochs)
    assert [len(row["valid"]) for row in run.RECORD.rows()] == [1]
    assert [(row["epochs"], len(row["valid"])) for row in run.LONG.rows()] == [(2, 2)]


def test_group_lasso_shrinks_rows_as_wholes() -> None:
    table = GroupLasso(l2=0.5).make(texts(), 8, torch.Generator().manual_seed(0))
    assert isinstance(table, SelectiveTable)
    before = table.vectors.weight.detach().clone()
    before[3] *= 100
    table.vectors.weight.data = before.clone()
    table.after_step(0.2)
    after, lengths = table.vectors.weight.detach(), before.norm(dim=1)
    assert lengths[4] < 0.1 < lengths[3]
    torch.testing.assert_close(after[3], before[3] * (1 - 0.1 / lengths[3]))
    assert not after[4].any()


def test_what_drowns_in_noise_is_not_kept() -> None:
    made = texts()
    table = VocabularyDropout(times=2).make(made, 8, torch.Generator().manual_seed(0))
    assert isinstance(table, SelectiveTable)
    loud = torch.arange(0, len(made.vocabulary), 2)
    with torch.no_grad():
        table.get_parameter("log_alpha")[loud] = 2.0
    kept, numbers = table.selected()
    assert not kept(loud[1:]).any()
    assert numbers == len(made.vocabulary) // 2 * 8
    words = torch.tensor([PADDING, 1, 2])
    torch.testing.assert_close(table.eval()(words), table.vectors(words))
    noisy = table.train()(words)
    assert not noisy[0].any()
    assert (noisy[2] - table.vectors(words)[2]).abs().sum() > 0


@pytest.mark.parametrize("words", [False, True])
def test_sparse_variational_dropout_removes_entries(words: bool) -> None:
    made = texts()
    method = SparseVariationalDropout(words=words)
    table = method.make(made, 8, torch.Generator().manual_seed(0))
    assert isinstance(table, SelectiveTable)
    with torch.no_grad():
        table.vectors.weight[1:] = 1.0
        table.get_parameter("log_variance")[1, :3] = 3.5
        if words:
            table.get_parameter("factor_log_variance")[2] = 3.5
    kept, numbers = table.selected()
    zero = kept(torch.arange(len(made.vocabulary))) == 0
    assert zero[1].tolist() == [True] * 3 + [False] * 5
    assert bool(zero[2].all()) == words
    assert numbers == (len(made.vocabulary) - 1) * 8 - 3 - 8 * words
    assert not table.train()(torch.tensor([PADDING])).any()
    assert table.penalty(0.0) == 0
    torch.manual_seed(0)
    parts = torch.stack([table.penalty(0.5).detach() for _ in range(400)])
    alpha = table.get_parameter("log_variance") - (table.vectors.weight.square() + 1e-12).log()
    total = dropout_divergence(alpha.detach()).sum()
    if words:
        total += dropout_divergence(table.get_parameter("factor_log_variance").detach()).sum()
    assert parts.mean().item() == pytest.approx(total.item() / len(made.train), rel=0.1)


def test_a_sparse_code_is_an_anchor_table_of_frequent_words() -> None:
    made = texts()
    table = SparseCode(anchors=20, width=6).make(made, 8, torch.Generator().manual_seed(0))
    assert isinstance(table, SelectiveTable)
    coded, numbers = table.selected()
    assert isinstance(coded, ff.AnchorEmbedding)
    assert numbers == 20 * 8 + coded.nonzeros() <= 20 * 8 + 6 * len(made.vocabulary)
    frequent = torch.arange(1, 21)
    torch.testing.assert_close(coded(frequent), table.vectors(frequent))
    assert not coded(torch.tensor([PADDING])).any()


def test_tf_idf_prefers_words_of_few_texts() -> None:
    made = texts()
    chosen = tables.tf_idf(made, 12, torch.Generator())
    assert PADDING not in chosen
    assert {made.vocabulary[word] for word in chosen.tolist()} == TOPIC_WORDS
