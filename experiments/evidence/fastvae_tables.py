"""The table of the inverted multi-index: Chen et al., 2022."""

from functools import partial

from experiments.evidence.papers import FASTVAE
from experiments.evidence.published import (
    Column,
    Length,
    Measure,
    Method,
    Table,
    Unavailable,
    exactly,
    named,
)
from experiments.fastvae.run import DATA as SETTINGS
from experiments.fastvae.table import DATA, PUBLISHED
from experiments.record import Row

EPOCHS = 200  # at most, as published
_LENGTH = Length("epochs", EPOCHS, lambda row: row.get("epochs", SETTINGS[row["data"]].epochs))
_MEASURES = (
    Measure("NDCG@50", lambda row: row["NDCG@50"], 4),
    Measure("Recall@50", lambda row: row["Recall@50"], 4),
)
_PREFIX = "published network, "
_NETWORKS = {
    "Mult-VAE": "full softmax",
    "FastVAE, multi-index, popularity": "multi-index, popularity",
}
_VARIANTS = ("", ", KL weight 0")  # of the published network: as in the paper, as in its code


def _autoencoder(label: str, data: str, rows: list[Row]) -> list[Row]:
    """Return rows of the published network if there are some of both objectives, else of ours.

    So both autoencoders have the same network.
    """
    here = [row for row in rows if row["data"] == data]
    for variant in _VARIANTS:
        both = {x: exactly(f"{_PREFIX}{y}{variant}")(here) for x, y in _NETWORKS.items()}
        if all(both.values()):
            return both[label]
    return exactly(f"FastVAE, {_NETWORKS[label]}")(here)


def _table(data: str) -> Column:
    methods = []
    for label, figure in PUBLISHED.items():
        autoencoder = label in _NETWORKS
        ours = named("WRMF||ALS.*" if label == "WRMF" else label, data=data)
        if autoencoder:
            ours = partial(_autoencoder, label, data)
        methods.append(Method(label, figure[data], ours, timed=autoencoder))
    return Column(DATA[data], tuple(methods), _MEASURES)


_OUR_NETWORK = (
    "Rows named FastVAE have our network, which is another one (README); Gowalla is split as by "
    "the authors of LightGCN. For how long baselines are trained is not published: they are long "
    "enough if they have a row."
)
TABLES = (
    Table(
        FASTVAE,
        "Table 3",
        "comparison with baselines",
        "fastvae",
        tuple(map(_table, ("ml10m", "gowalla"))),
        _LENGTH,
        5,
        other="network; split of Gowalla",
        differs=_OUR_NETWORK,
    ),
)
UNAVAILABLE = (Unavailable(FASTVAE, "Table 3, right half", "Netflix and Amazon-books"),)
