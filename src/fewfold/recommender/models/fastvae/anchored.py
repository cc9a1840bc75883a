"""FastVAE with tables of anchors: new, or compressed from a trained one with dense tables."""

from copy import deepcopy
from dataclasses import replace
from typing import Unpack

import torch

from fewfold.recommender.interactions import Interactions
from fewfold.recommender.models.fastvae.anchor_options import Anchors
from fewfold.recommender.models.fastvae.anchored_tables import AnchoredTables
from fewfold.recommender.models.fastvae.compression import compress
from fewfold.recommender.models.fastvae.network import EncoderOptions, FastVAE
from fewfold.recommender.models.fastvae.tables import DenseTables

__all__ = ["AnchorVAE"]


class AnchorVAE(FastVAE):
    """Constructors of a `FastVAE` with `AnchoredTables`; it has no methods of its own.

    Args:
        items: number of items.
        anchors: how many, or `Anchors`: also how many of them an item has.
        hidden, latent: widths of the tables, as in `FastVAE`.
        encoder: layers, dropout, encoder and seed, as in `FastVAE`.

    Example:
        >>> from fewfold.recommender import AnchorVAE, Anchors
        >>> model = AnchorVAE(items=1000, anchors=Anchors(count=16, width=4))
        >>> model.outputs().shape
        torch.Size([1000, 64])
    """

    def __init__(
        self,
        items: int,
        anchors: int | str | Anchors,
        *,
        hidden: int = 200,
        latent: int = 63,
        **encoder: Unpack[EncoderOptions],
    ) -> None:
        super().__init__(AnchoredTables(items, anchors, hidden, latent), **encoder)

    @staticmethod
    @torch.no_grad()
    def from_dense(
        model: FastVAE,
        anchors: int | Anchors,
        interactions: Interactions,
        *,
        seed: int = 0,
    ) -> FastVAE:
        """Compress a trained model with dense tables to anchors; it may be trained further.

        Anchors are ordered. An item has the first of them, `width` on average and more if it is
        popular, and its bias. Anchors and entries minimise the squared error of scores, and entries
        are whole numbers of few bits: see `compression`. Takes seconds, and three to four times the
        memory of the dense tables. It is computed on the CPU; the result is on the device of the
        model.

        Args:
            model: with dense tables.
            anchors: how many, or `Anchors`: also how many for an item, and in how many bits.
            interactions: the model was trained on.
            seed: of the users whose scores are looked at.

        Example:
            >>> import fewfold as ff
            >>> log = ff.recommender.Interactions.from_pairs([0, 0, 1, 1], [0, 1, 2, 3])
            >>> dense = ff.recommender.FastVAE(items=4, hidden=8, latent=2)
            >>> _ = ff.recommender.train(dense, log, epochs=3, progress=False)
            >>> from fewfold.recommender import AnchorVAE, Anchors
            >>> small = AnchorVAE.from_dense(dense, Anchors(count=3, width=2, bits=6), log)
            >>> small.finalize()
            >>> small.tables.packed["values"].dtype, small.outputs().shape
            (torch.uint8, torch.Size([4, 3]))
        """
        if not isinstance(model.tables, DenseTables):
            raise TypeError("the model has anchors already; give the FastVAE with dense tables")
        anchors = Anchors.of(anchors)
        if interactions.items != model.count:
            raise ValueError(
                f"the model has {model.count} items, the interactions {interactions.items}; "
                "give those it was trained on"
            )
        if not anchors.can_cut(model.count):
            raise ValueError(
                f"the transform of {model.count} items and {anchors} is not held in full; "
                "say how many anchors, fewer of them, or train an AnchorVAE from the start"
            )
        hidden, latent, width = model.tables.hidden, model.latent, anchors.per_item(cut=True)
        count = min(anchors.most, hidden + latent, model.count)
        own = model if model.device.type == "cpu" else deepcopy(model).cpu()
        found = compress(
            own, interactions, count=count, width=min(width, count), bits=anchors.bits, seed=seed
        )  # fmt: skip
        tables = AnchoredTables.of(found, replace(anchors, width=width), hidden, latent)
        compressed = own.with_tables(tables)
        compressed.shortcut = own.shortcut
        return compressed.to(model.device)
