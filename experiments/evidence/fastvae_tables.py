"""The table of the inverted multi-index: Chen et al., 2022."""

from functools import partial

from experiments.evidence.papers import FASTVAE
from experiments.evidence.published import (
    Column,
    Length,
    Measure,
    Method,
    Select,
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
PUBLISHED_NETWORK = {"protocol": "published"}
_NETWORKS = {
    "Mult-VAE": "full softmax",
    "FastVAE, multi-index, popularity": "multi-index, popularity",
}
_BASELINES = {"WRMF": r"WRMF.*||ALS \(implicit\)"}


def _autoencoder(label: str, data: str, rows: list[Row]) -> list[Row]:
    """Return rows of the published network, if there are any of this log, and else of ours.

    So both autoencoders have the same network.
    """
    here = [row for row in rows if row["data"] == data]
    published = [row for row in here if PUBLISHED_NETWORK.items() <= row.items()]
    prefix = "published network" if published else "FastVAE"
    return exactly(f"{prefix}, {_NETWORKS[label]}")(published or here)


def _table(data: str) -> Column:
    methods = []
    for label, figure in PUBLISHED.items():
        ours: Select = named(_BASELINES.get(label, f"{label}.*"), data=data)
        if label in _NETWORKS:
            ours = partial(_autoencoder, label, data)
        methods.append(Method(label, figure[data], ours, timed=label != "WRMF"))
    return Column(DATA[data], tuple(methods), _MEASURES)


_OUR_NETWORK = (
    "Rows named FastVAE have our network, which is another one (README); Gowalla is split as by "
    "the authors of LightGCN. WRMF has no epochs, and is long enough if it is run."
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
