"""A model for other programs: item vectors as Parquet, a faiss index, the scorer as ONNX."""

import contextlib
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fewfold._files import new_file
from fewfold._optional import optional_import
from fewfold.recommender.interactions import Jagged
from fewfold.recommender.models.baselines import EASE
from fewfold.recommender.models.fastvae.network import FastVAE
from fewfold.recommender.models.fitted import FittedBaseline, FittedVAE
from fewfold.recommender.reading.tables import library
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
    """Write a model the way other programs read it.

    Args:
        vectors: a Parquet file: each item's id, its vector, and what is attached to it. A score is
            the inner product with a user's query.
        faiss: an index of these vectors by inner product, in the order of the items.
        onnx: a graph from `history` (rows, length), item numbers padded with -1, to `scores` (rows,
            items), of a `VAE` or an `EASE`.
        overwrite: replace a file that is there.

    Returns:
        What was written, in words.
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
    """Write beside the file, then put it in its place."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with new_file(target) as beside:
        what = write(beside)
    return f"{target}, {what}"


def _vae(rec: Recommender) -> FittedVAE:
    if not isinstance(rec.fitted, FittedVAE):
        raise ValueError(f"a {type(rec.model).__name__} has no item vectors; fit a fastvae")
    return rec.fitted


def _vectors(rec: Recommender, file: Path) -> str:
    pl = library("polars")
    table = _vae(rec).vectors
    columns: dict[str, Any] = {"item": rec.items.tolist()}
    if rec.attributes is not None:
        columns |= {n: c.tolist() for n, c in rec.attributes.columns.items() if n != "item"}
    shape = pl.Array(pl.Float32, table.shape[1])
    columns["vector"] = pl.Series(table.numpy(), dtype=shape)
    pl.DataFrame(columns).write_parquet(file)
    return f"{len(table):,} vectors of {table.shape[1]}"


def _faiss(rec: Recommender, file: Path) -> str:
    faiss, table = library("faiss"), _vae(rec).vectors
    index = faiss.IndexFlatIP(table.shape[1])
    index.add(table.numpy())
    faiss.write_index(index, str(file))
    return f"IndexFlatIP of {len(table):,} vectors of {table.shape[1]}"


def _onnx(rec: Recommender, file: Path) -> str:
    with optional_import("onnxscript", "onnx", "export to ONNX"):
        import onnxscript  # noqa: F401 (torch needs it)
    fitted = rec.fitted
    if isinstance(fitted, FittedVAE):
        scorer: nn.Module = _Vectors(fitted.model, fitted.vectors)
    elif isinstance(fitted, FittedBaseline) and isinstance(fitted.recipe, EASE):
        scorer = _Sums(fitted.recipe.weights, fitted.recipe.counts)
    else:
        raise ValueError(
            f"a {type(rec.model).__name__} is no graph of tensors; fit fastvae or ease"
        )
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
    """Torch's exporter talks of what it does not need."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


class _Vectors(nn.Module):
    """A FastVAE from padded histories to scores, in plain operations."""

    def __init__(self, model: FastVAE, vectors: Tensor) -> None:
        super().__init__()
        self.model, self.vectors = model, nn.Buffer(vectors)
        self.inputs = nn.Buffer(model.entries())

    def forward(self, history: Tensor) -> Tensor:
        there = (history >= 0).unsqueeze(2).float()
        ids = history.clamp(min=0)
        by = there.sum(1).clamp(min=1).rsqrt()
        bag = (self.inputs[ids] * there).sum(1) * by
        mean = self.model.posterior(self.model.layers(bag + self.model.shift))
        mean = mean[:, : self.model.latent]
        query = torch.cat([mean, torch.ones_like(mean[:, :1])], 1)
        linear = self.model.shortcut
        if linear is not None:
            rows = (linear.table / linear.scale.unsqueeze(1))[ids]
            query = torch.cat([query, (rows * there).sum(1) * (linear.strength * by)], 1)
        return query @ self.vectors.T


class _Sums(nn.Module):
    """EASE from padded histories to scores."""

    def __init__(self, weights: Tensor, counts: Tensor) -> None:
        super().__init__()
        self.weights, self.counts = nn.Buffer(weights), nn.Buffer(counts)

    def forward(self, history: Tensor) -> Tensor:
        there = (history >= 0).unsqueeze(2).float()
        scores = (self.weights[history.clamp(min=0)] * there).sum(1)
        return torch.where(there.any(1), scores, self.counts)


def padded(history: Jagged) -> Tensor:
    """Histories as the ONNX scorer reads them: (rows, longest), -1 where there is nothing."""
    lengths = history.lengths
    out = torch.full((len(lengths), max(1, int(lengths.max()))), -1)
    place = torch.arange(len(history.values)) - history.offsets[history.row]
    out[history.row, place] = history.values
    return out
