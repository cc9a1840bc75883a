"""Rows of the table of devices: networks of the recommender, their training, exact ranking."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import fewfold as ff
from fewfold import recommender as fr
from fewfold.recommender.models.fastvae import anchor_options
from fewfold.recommender.models.next_item.next_item_run import HeldOut, NextItemRun
from fewfold.recommender.training.train import run_training

from .functions import normal, whole
from .table import DATA, Case

USERS, ITEMS = 60, 40


def log() -> fr.Interactions:
    """Random users, items and times."""
    users, items = whole(USERS, 900), whole(ITEMS, 900, seed=1)
    return fr.Interactions.from_pairs(users, items, torch.arange(900), shape=(USERS, ITEMS))


def trained(objective: Callable[[], Any] = lambda: None, **options: Any) -> Callable[..., Any]:
    """Train, and rank; the log stays on the CPU."""

    def call(model: fr.FastVAE) -> tuple[Any, ...]:
        given = {"epochs": 1, "batch": 16, "progress": False, **options}
        with torch.enable_grad():
            epochs = fr.train(model, log(), objective=objective(), **given)
        history = log().jagged.to(model.device)
        found = model.recommend(history, 5), model.queries(history), model.vectors
        loss = torch.tensor(epochs[-1].loss, device=model.device)
        return loss, *found, *(each.detach() for each in model.parameters())

    return call


def dense() -> fr.DenseTables:
    return fr.DenseTables(ITEMS, 16, 7)


def vae(tables: Callable[[], Any] = dense, **given: Any) -> Callable[[], tuple[fr.FastVAE]]:
    """A network, made on the CPU."""
    return lambda: (fr.FastVAE(tables(), seed=1, **given),)


def anchored() -> fr.AnchoredTables:
    return fr.AnchoredTables(ITEMS, fr.Anchors(count=8, width=3, from_scratch=True), 16, 7)


class Slots(nn.Module):
    """A network whose table of anchors is never held in full, as that of many items."""

    def __init__(self) -> None:
        super().__init__()
        before, anchor_options._FULL = anchor_options._FULL, 0
        try:
            self.network = fr.FastVAE(anchored(), seed=1)
        finally:
            anchor_options._FULL = before


def with_shortcut(model: fr.FastVAE) -> tuple[Tensor, ...]:
    """Of a shortcut that was moved with the network, or is assigned from the CPU."""
    history = log().jagged.to(model.device)
    if model.latent > 7:
        model.shortcut = fr.Shortcut.fit(log(), rank=4)
    return model.recommend(history, 5), model.queries(history), model.vectors


def linear() -> tuple[fr.FastVAE]:
    """A network with a shortcut."""
    model = fr.FastVAE(ITEMS, hidden=16, latent=7)
    model.shortcut = fr.Shortcut.fit(log(), rank=4)
    return (model,)


def compressed(model: fr.FastVAE) -> tuple[Tensor, ...]:
    """Anchors instead of the dense tables of a network."""
    found = fr.AnchorVAE.from_dense(model, fr.Anchors(count=8, width=3), log())
    return found.vectors, *found.parameters()


def next_item(network: fr.NextItemNetwork) -> tuple[Any, ...]:
    sequences = log().in_order()
    options = fr.TrainOptions(1, 256, 8e-3)
    held = HeldOut.draw(sequences, 0)
    objective = fr.SampledSoftmax(ff.Popularity(), 10)
    with torch.enable_grad():
        run_training(
            lambda: NextItemRun(network, held, objective, options, False), None, progress=False
        )
    return network.queries(sequences), *(each.detach() for each in network.parameters())


def ranked(queries: Tensor, vectors: Tensor) -> tuple[Any, ...]:
    exclude = log().jagged.rows(slice(0, len(queries)))
    scorer, few = fr.DotProduct(queries, vectors), torch.arange(ITEMS) < 4
    every = fr.top_k(scorer, 5, exclude=exclude, users_at_once=3, items_at_once=7)
    catalogue = fr.DotProduct(queries.float(), fr.Catalogue(vectors.float()))
    return every, fr.top_k(scorer, 3, exclude=exclude, allowed=few), fr.top_k(catalogue, 3)


SAMPLED = fr.SampledSoftmax
CASES = [
    Case("recommender.FastVAE", vae(), trained(), no_data=DATA, tolerance=1e-5,
         also=("recommender.train", "recommender.DenseTables", "recommender.SampledSoftmax")),
    Case("recommender.SampledSoftmax, shared", vae(),
         trained(lambda: SAMPLED(ff.MultiIndex(4), 20, shared=True)), no_data=DATA, tolerance=1e-5),
    Case("recommender.FullSoftmax", vae(), trained(fr.FullSoftmax), no_data=DATA, tolerance=1e-5),
    Case("recommender.Entmax", vae(), trained(fr.Entmax), no_data=DATA, tolerance=1e-5),
    Case("recommender.Perceptron", vae(encoder=fr.Perceptron(0.5, 4)), trained(), no_data=DATA,
         tolerance=1e-5),
    Case("recommender.DenseAdam", vae(), trained(optimizer=fr.DenseAdam(0.01), draws=2),
         no_data=DATA, tolerance=1e-5),
    Case("recommender.AnchoredTables", vae(anchored), trained(), no_data=DATA, tolerance=1e-4,
         also=("recommender.Anchors",)),
    Case("recommender.AnchoredTables, few per item", lambda: (Slots(),),
         lambda slots: trained()(slots.network), no_data=DATA, tolerance=1e-4),
    Case("recommender.AnchorVAE", vae(), compressed, no_data=DATA, tolerance=1e-4),
    Case("recommender.Shortcut", linear, with_shortcut, no_data=DATA, tolerance=1e-3),
    Case("recommender.Shortcut, assigned", lambda: (fr.FastVAE(ITEMS, hidden=16, latent=8),),
         with_shortcut, no_data=DATA, tolerance=1e-3),
    Case("recommender.NextItemNetwork", lambda: (fr.NextItemNetwork(ITEMS, width=8),), next_item,
         no_data=DATA, tolerance=1e-4),
    Case("recommender.top_k", lambda: (normal(10, 6).detach(), normal(ITEMS, 6, seed=1).detach()),
         ranked, also=("recommender.DotProduct", "recommender.Ranking", "recommender.Catalogue"),
         no_data=DATA),
]  # fmt: skip
