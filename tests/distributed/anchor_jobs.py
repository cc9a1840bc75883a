"""What the processes of the tests compute with tables of anchors, held in full and with slots."""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import fewfold as ff
from fewfold.distributed.group import Group
from fewfold.embeddings.sparsify.schedules import Regrow
from fewfold.recommender.evaluation.splits import random_split
from fewfold.recommender.models.fastvae import anchor_options, anchored_tables
from fewfold.recommender.models.fastvae.anchor_options import Anchors
from fewfold.recommender.models.fastvae.recipe import VAE
from fewfold.recommender.models.fastvae.sharded_anchored_tables import ShardedAnchoredTables
from tests.distributed import jobs
from tests.distributed.jobs import HIDDEN, ITEMS, LATENT, log, whole
from tests.distributed.processes import job

OPTIONS = Anchors(9, width=4, from_scratch=True)
MODES = ("full", "slots")


def both_modes(call: Callable[[], Any]) -> dict[str, Any]:
    """Return the result of a function in each mode of holding a transform."""
    found = {"full": call()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(anchor_options, "_FULL", 0)
        patch.setattr(anchored_tables, "Regrow", partial(Regrow, every=10))
        found["slots"] = call()
    return found


def _tables() -> ShardedAnchoredTables:
    return ShardedAnchoredTables(ITEMS, OPTIONS, HIDDEN, LATENT)


@job
def anchored_initial_weights() -> dict[str, Any]:
    """Initial tables of sizes around the blocks in which they are drawn."""

    def drawn() -> dict[str, Tensor]:
        found = {}
        for items in (7, 4095, 8193, 12303):
            tables = ShardedAnchoredTables(items, Anchors(6, width=3), 3, 2)
            model = ff.recommender.FastVAE(tables, seed=4)
            found[f"transform {items}"] = whole(tables.group, tables.table.transform, items)
            found[f"anchors {items}"] = tables.table.anchors.detach()
            found[f"posterior {items}"] = model.posterior.weight.detach()
            if tables.table.slots is not None:
                found[f"slots {items}"] = whole(tables.group, tables.table.slots, items)
        return found

    return both_modes(drawn)


@job
def anchored_steps() -> dict[str, Any]:
    """Losses and gradients of batches."""
    softmax, index = ff.recommender.SampledSoftmax, ff.MultiIndex(4)
    usual, one = log().rows(slice(0, 40)), log().rows(slice(0, 1))

    def own_samples() -> dict[str, Any]:
        return {"own samples": jobs.step(_tables(), softmax(index, 20), usual)}

    def losses() -> dict[str, Any]:
        return own_samples() | {
            "shared": jobs.step(_tables(), softmax(index, 30, shared=True), usual),
            "one user": jobs.step(_tables(), softmax(index, 20), one),
        }

    with jobs.dispatch.disabled():
        plain = {f"{mode}, plain torch": step for mode, step in both_modes(own_samples).items()}
    return both_modes(losses) | plain


def _trained() -> dict[str, Any]:
    """Train for long enough that rows are cut, or exchange anchors, and rank."""
    tables = _tables()
    model = ff.recommender.FastVAE(tables, seed=1)
    split = random_split(log(), test=0.3)
    epochs = ff.recommender.train(
        model, log(), validation=split, epochs=5, batch=7, lr=2e-2, progress=False
    )
    anchors = tables.table.anchors.detach().clone()
    outputs, own = tables.output_vectors(), tables.output_rows()
    some = tables.output_vectors(torch.arange(0, ITEMS, 5))
    before = model.recommend(log(), 20)
    model.finalize()
    return {
        "losses": [epoch.loss for epoch in epochs],
        "ndcg": [epoch.ndcg for epoch in epochs],
        "anchors": anchors,
        "outputs": outputs,
        "some outputs": some,
        "own rows": own if isinstance(own, Tensor) else own.gather(own.local),
        "ranked before": before,
        "ranked": model.recommend(log(), 20),
        "packed": {name: value.clone() for name, value in tables.saved().items()},
        "inputs": tables.input_vectors(),
    }


@job
def anchored_trained() -> dict[str, Any]:
    """A training in each mode."""
    return both_modes(_trained)


@job
def anchored_trained_again() -> dict[str, Any]:
    """The same training."""
    return both_modes(_trained)


@job
def anchored_fit() -> dict[str, Any]:
    """A fit of the whole recommender with anchors, and its folder."""
    pairs = log(300, 60)
    frame = {"user": [f"u{u}" for u in pairs.row.tolist()], "item": pairs.ids.tolist()}

    def fit() -> dict[str, Any]:
        training = ff.recommender.Training(epochs=3, batch=64)
        rec = ff.Recommender(VAE(HIDDEN, LATENT, anchors=OPTIONS), training=training, seed=1)
        rec.fit(frame, test=0.2, refit=True, progress=False)
        assert rec.report is not None
        folder = Path(tempfile.mkdtemp()) if Group.current().leads else Path("nowhere")
        rec.save(folder / "model")
        found = {
            "scores": rec.report.as_dict()["evaluation"]["overall"]["scores"],
            "losses": [epoch.loss for epoch in rec.report.epochs],
            "recommended": [str(answer.items) for answer in rec.recommend(["u1", "u2"], 5)],
        }
        if Group.current().leads:
            found["tensors"] = dict(load_file(folder / "model" / "model.safetensors"))
            one = ff.Recommender.load(folder / "model")
            found["loaded"] = [str(answer.items) for answer in one.recommend(["u1", "u2"], 5)]
        return found

    return both_modes(fit)


@job
def anchored_refused() -> dict[str, str]:
    """Messages of what several processes cannot do with anchors."""
    found: dict[str, str] = {}
    group = Group.current()
    if group.world == 1:
        return found
    tables = _tables()
    model = ff.recommender.FastVAE(tables)
    model.finalize()
    ids = torch.zeros(1, 1, dtype=torch.int64)
    for name, call in {
        "auto": lambda: ShardedAnchoredTables(ITEMS, "auto"),
        "auto fit": lambda: VAE(anchors=Anchors(None)).for_group(group),
        "cut": lambda: VAE(anchors=Anchors(4)).for_group(group),
        "train again": lambda: ff.recommender.train(model, log(), epochs=1, progress=False),
        "new items": lambda: tables.with_new_items(ids, ids),
        "too few items": lambda: ShardedAnchoredTables(1, 4),
    }.items():
        try:
            call()
        except ValueError as error:
            found[name] = str(error)
    return found
