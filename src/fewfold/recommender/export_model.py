"""Export for other programs: item vectors as Parquet, a faiss index, the scorer as ONNX."""

import contextlib
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fewfold._files import new_file
from fewfold._optional import optional_import
from fewfold.recommender.interactions import Jagged
from fewfold.recommender.reading.table_source import library
from fewfold.recommender.recommender import Recommender

__all__ = ["export"]

PathLike = str | os.PathLike[str]


def export(
    rec: Recommender,
    *,
    vectors: PathLike | None = None,
    faiss: PathLike | None = None,
    onnx: PathLike | None = None,
    overwrite: bool = False,
) -> dict[str, str]:
    """Write a model in formats of other programs.

    Args:
        vectors: a Parquet file: id, vector and attributes of each item. A score is the inner
            product with a user's query.
        faiss: an index of these vectors by inner product, in the order of the items.
        onnx: a graph from `history` (rows, length), item numbers padded with -1, to `scores` (rows,
            items), of a model that has one, such as `VAE` or `EASE`.
        overwrite: replace an existing file.

    Returns:
        A description of each file that was written.
    """
    wanted = {"vectors": vectors, "faiss": faiss, "onnx": onnx}
    for file in wanted.values():
        if file is not None and Path(file).exists() and not overwrite:
            raise FileExistsError(f"{file} exists; choose another name or pass overwrite=True")
    writers: dict[str, Callable[[Recommender, Path], str]] = {
        "vectors": _vectors, "faiss": _faiss, "onnx": _onnx
    }  # fmt: skip
    done = {}
    for name, file in wanted.items():
        if file is not None:
            done[name] = _whole(Path(file), partial(writers[name], rec))
    return done


def _whole(target: Path, write: Callable[[Path], str]) -> str:
    """Write to a temporary file, then rename it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with new_file(target) as temporary:
        what = write(temporary)
    return f"{target}, {what}"


def _item_vectors(rec: Recommender) -> Tensor:
    vectors = rec.fitted.vectors
    if vectors is None:
        raise ValueError(f"a {type(rec.model).__name__} has no item vectors; fit fastvae or als")
    return vectors


def _vectors(rec: Recommender, file: Path) -> str:
    pl = library("polars")
    table = _item_vectors(rec)
    columns: dict[str, Any] = {"item": rec.items.tolist()}
    if rec.attributes is not None:
        columns |= {n: c.tolist() for n, c in rec.attributes.columns.items() if n != "item"}
    shape = pl.Array(pl.Float32, table.shape[1])
    columns["vector"] = pl.Series(table.numpy(), dtype=shape)
    pl.DataFrame(columns).write_parquet(file)
    return f"{len(table):,} vectors of {table.shape[1]}"


def _faiss(rec: Recommender, file: Path) -> str:
    faiss, table = library("faiss"), _item_vectors(rec)
    index = faiss.IndexFlatIP(table.shape[1])
    index.add(table.numpy())
    faiss.write_index(index, str(file))
    return f"IndexFlatIP of {len(table):,} vectors of {table.shape[1]}"


def _onnx(rec: Recommender, file: Path) -> str:
    with optional_import("onnxscript", "onnx", "export to ONNX"):
        import onnxscript  # noqa: F401 (torch needs it)
    scorer = rec.fitted.to_onnx()
    example = torch.tensor([[0, -1], [0, 0]])
    rows, length = torch.export.Dim("rows"), torch.export.Dim("length")
    with _quietly():
        program = torch.onnx.export(
            scorer.eval(), (example,), dynamo=True, verbose=False,
            input_names=["history"], output_names=["scores"],
            dynamic_shapes={"history": {0: rows, 1: length}},
        )  # fmt: skip
    assert program is not None
    program.save(str(file), external_data=False)
    return "history (rows, length) of item numbers, -1 for none, to scores (rows, items)"


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Silence warnings and logs of the exporter."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def padded(history: Jagged) -> Tensor:
    """(rows, longest) item numbers, padded with -1, as the ONNX scorer reads them."""
    lengths = history.lengths
    out = torch.full((len(lengths), max(1, int(lengths.max()))), -1)
    place = torch.arange(len(history.values)) - history.offsets[history.row]
    out[history.row, place] = history.values
    return out
