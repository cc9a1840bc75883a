"""A model for other programs: each of them gives the scores the model gives."""

from pathlib import Path

import faiss
import numpy as np
import onnxruntime
import polars as pl
import pytest
import torch

import fewfold as ff
from fewfold.recommender.export_model import padded
from tests.recommender.conftest import grouped

HISTORIES = [["a1", "b2", "a3"], [], ["c4"]]


def numbers(rec: ff.Recommender) -> ff.recommender.Jagged:
    rows = [rec.items.find(history) for history in HISTORIES]
    offsets = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
    return ff.recommender.Jagged(torch.cat(rows), offsets)


def expected(rec: ff.Recommender) -> torch.Tensor:
    """Scores of all items, from the ranking."""
    found = rec.fitted.rank(numbers(rec), len(rec.items))
    return torch.empty_like(found.scores).scatter(1, found.ids, found.scores)


def test_vectors_and_index_give_the_scores(fitted: ff.Recommender, tmp_path: Path) -> None:
    ff.recommender.export(fitted, vectors=tmp_path / "v.parquet", faiss=tmp_path / "i.faiss")
    table = pl.read_parquet(tmp_path / "v.parquet")
    assert table["item"].to_list() == fitted.items.tolist()
    queries = fitted.fitted.model.queries(numbers(fitted)).numpy()
    scores = queries @ table["vector"].to_numpy().T
    np.testing.assert_allclose(scores, expected(fitted).numpy(), rtol=1e-4, atol=1e-4)
    best, ids = faiss.read_index(str(tmp_path / "i.faiss")).search(queries, 5)
    found = fitted.fitted.rank(numbers(fitted), 5)
    np.testing.assert_array_equal(ids, found.ids.numpy())
    np.testing.assert_allclose(best, found.scores.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["vae", "ease"])
def test_onnx_gives_the_scores(fitted: ff.Recommender, tmp_path: Path, kind: str) -> None:
    rec = fitted if kind == "vae" else ff.Recommender(ff.recommender.EASE(5.0)).fit(grouped())
    told = ff.recommender.export(rec, onnx=tmp_path / "scorer.onnx")
    assert "scores (rows, items)" in told["onnx"]
    session = onnxruntime.InferenceSession(tmp_path / "scorer.onnx")
    history = padded(numbers(rec)).numpy()
    (scores,) = session.run(None, {"history": history})
    np.testing.assert_allclose(scores, expected(rec).numpy(), rtol=1e-4, atol=1e-4)
    (one,) = session.run(None, {"history": history[:1, :2]})  # any number of rows and items
    assert one.shape == (1, 40)


def test_what_cannot_be_exported_says_so(fitted: ff.Recommender, tmp_path: Path) -> None:
    simple = ff.Recommender(ff.recommender.MostPopular()).fit(grouped())
    with pytest.raises(ValueError, match="no item vectors"):
        ff.recommender.export(simple, vectors=tmp_path / "v.parquet")
    with pytest.raises(ValueError, match="cannot be exported to ONNX"):
        ff.recommender.export(simple, onnx=tmp_path / "s.onnx")
    (tmp_path / "v.parquet").write_text("mine")
    with pytest.raises(FileExistsError, match="overwrite"):
        ff.recommender.export(fitted, vectors=tmp_path / "v.parquet")
    assert (tmp_path / "v.parquet").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["v.parquet"]
