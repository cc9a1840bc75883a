"""Figures of the inverted multi-index: Chen et al., 2022.

Rows with the published network are in paper_figures.json, older ones with ours in figures.json. A
figure has rows of the first if there are any, so that all of its methods have the same network.
"""

from collections.abc import Iterable
from functools import partial
from statistics import mean

from experiments.evidence.fastvae_tables import EPOCHS
from experiments.evidence.papers import FASTVAE
from experiments.evidence.published import Column, Length, Measure, Method, Statement, Table
from experiments.evidence.statements import alike, every, ordered
from experiments.fastvae import figures, paper_figures
from experiments.record import Row

_PUBLISHED, _OURS = "paper_figures.json", "figures.json"
_FILES = (_PUBLISHED, _OURS)
_OUR_EPOCHS = {_PUBLISHED: paper_figures.EPOCHS, _OURS: figures.EPOCHS}  # where no row says it
_LENGTH = Length("epochs", EPOCHS, lambda row: row.get("epochs", _OUR_EPOCHS[row["file"]]))
_LAST = Measure("NDCG@50, last epoch", lambda row: row["NDCG@50"][-1], 4)
_SAMPLERS = {
    "Mult-VAE": figures.FULL,
    "MIDX": figures.EXACT,
    "MIDX_Pop": figures.INDEXED[0],
    "MIDX_Uni": figures.INDEXED[1],
    "Popularity": figures.STATIC[0],
    "Uniform": figures.STATIC[1],
    "Kernel": figures.KERNEL,
    "DNS": figures.DYNAMIC,
}
_TRAINED = [label for label in _SAMPLERS if label not in ("MIDX", "DNS")]
_DRAWS, _WORDS = (200, 1000, 5000), (8, 16, 32, 64, 128)  # of Figure 5


def _of_one_network(rows: list[Row], figure: str) -> tuple[list[Row], bool]:
    """Return the rows of a figure, and whether they are those of the published network."""
    own = alike(rows, figure=figure)
    published = alike(own, file=_PUBLISHED)
    return published or own, bool(published)


# Figure 2


def _divergence(label: str, rows: list[Row]) -> list[Row]:
    found, _ = _of_one_network(rows, "divergence")
    return alike(found, model="trained", sampler=_SAMPLERS[label])


def _closer(near: str, far: str) -> Statement:
    return Statement(
        f"With a trained model {near} is closer to the softmax than {far}",
        lambda rows: ordered([_divergence(x, rows) for x in (near, far)], lambda row: row["kl"]),
    )


def _exact(rows: list[Row]) -> bool | None:
    own = _divergence("MIDX", rows)
    return all(row["kl"] < 0.001 for row in own) if own else None


_DIVERGENCE = Column(
    "MovieLens-10M, trained model",
    tuple(Method(label, (), partial(_divergence, label)) for label in [*_SAMPLERS][1:]),
    (Measure("KL from the softmax, nats", lambda row: row["kl"], 3, lower=True),),
)

# Figures 3 and 5


def _curve(label: str, rows: list[Row]) -> list[Row]:
    """Return trainings of a sampler with the published draws, or with 200 of our network."""
    found, published = _of_one_network(rows, "training")
    samples = paper_figures.DRAWS if published else figures.PUBLISHED_SAMPLE
    return _training(label, samples, 16, found)


def _training(label: str, samples: int, words: int, rows: list[Row]) -> list[Row]:
    sampler = _SAMPLERS[label]
    if sampler == figures.FULL:
        return alike(rows, sampler=sampler)
    words = words if sampler in figures.INDEXED else 0
    return alike(rows, sampler=sampler, samples=samples, codewords=words)


def _varied(label: str, field: str, value: int, rows: list[Row]) -> list[Row]:
    """Return trainings with a number of draws, or of codewords."""
    found, published = _of_one_network(rows, "training")
    if field == "draws":
        return _training(label, value, 16, found)
    return _training(
        label, paper_figures.DRAWS if published else figures.SMALL_SAMPLE, value, found
    )


def _ahead(better: str, worse: str) -> Statement:
    return Statement(
        f"{better} is better than {worse}",
        lambda rows: ordered([_curve(label, rows) for label in (worse, better)], _LAST.of),
    )


def _equal_to_full(rows: list[Row]) -> bool | None:
    """Whether both forms of the index end within 1 % of the full softmax, or above."""
    groups = [_curve(label, rows) for label in ("Mult-VAE", "MIDX_Pop", "MIDX_Uni")]
    if not all(groups):
        return None
    full, *drawn = (mean(_LAST.of(row) for row in some) for some in groups)
    return all(own >= 0.99 * full for own in drawn)


def _values(rows: list[Row], field: str) -> tuple[int, ...]:
    """Return the numbers of draws or codewords: the published ones, or those of our network."""
    _, published = _of_one_network(rows, "training")
    if published:
        return _DRAWS if field == "draws" else _WORDS
    return figures.SAMPLES if field == "draws" else figures.CODEWORDS


def _rises(rows: list[Row], label: str, field: str) -> bool | None:
    """Whether the result rises with the number of draws or of codewords."""
    values = _values(rows, field)
    return ordered([_varied(label, field, value, rows) for value in values], _LAST.of)


def _gap_shrinks(rows: list[Row]) -> bool | None:
    """Whether the gain of the index over uniform draws is larger with few than with many draws."""
    gains = []
    values = _values(rows, "draws")
    for draws in (min(values), max(values)):
        pair = [_varied(label, "draws", draws, rows) for label in ("MIDX_Uni", "Uniform")]
        if not all(pair):
            return None
        gains.append(_LAST.of(pair[0][0]) - _LAST.of(pair[1][0]))
    return gains[0] > gains[1]


def _sensitivity(labels: Iterable[str], field: str, values: tuple[int, ...]) -> Column:
    methods = (
        Method(f"{label}, {value:,} {field}", (), partial(_varied, label, field, value))
        for label in labels
        for value in values
    )
    return Column(field, tuple(methods), (_LAST,))


def _network(row: Row) -> str:
    return "published network" if row["file"] == _PUBLISHED else "our network"


# Figure 4


def _faster(rows: list[Row]) -> bool | None:
    """Whether a step with draws is more than six times as fast at the largest catalogue."""
    last = max(figures.ITEMS)
    full, drawn = (
        [row["milliseconds"] for row in alike(rows, figure="time", items=last, sampler=mode)]
        for mode in (figures.FULL, figures.PER_USER)
    )
    return full[0] > 6 * drawn[0] if full and drawn else None


def _grows(rows: list[Row]) -> bool | None:
    """Whether the time of the full softmax rises with the number of items."""
    steps = [
        alike(rows, figure="time", items=items, sampler=figures.FULL) for items in figures.ITEMS
    ]
    return ordered(steps, lambda row: row["milliseconds"])


def _time(sampler: str, rows: list[Row]) -> list[Row]:
    return alike(rows, figure="time", items=max(figures.ITEMS), sampler=sampler)


_TIMED = {
    "Mult-VAE": figures.FULL,
    "MIDX_Uni": figures.PER_USER,
    "MIDX_Pop": figures.INDEXED[0],
    "Uniform": figures.STATIC[1],
    "Popularity": figures.STATIC[0],
}
_TIME = Column(
    f"{max(figures.ITEMS):,} items",
    tuple(Method(label, (), partial(_time, sampler)) for label, sampler in _TIMED.items()),
    (Measure("milliseconds of a step", lambda row: row["milliseconds"], 0, lower=True),),
)
_ON_MOVIELENS = (
    f"Rows of our network are of {figures.USERS:,} users of MovieLens-10M, not of Gowalla"
)
TABLES = (
    Table(
        FASTVAE,
        "Figure 2",
        "divergence of proposals from the softmax, MovieLens-10M",
        "fastvae",
        (_DIVERGENCE,),
        _LENGTH,
        statements=(
            Statement("The exact MIDX has the distribution of the softmax (KL below .001)", _exact),
            _closer("MIDX_Pop", "MIDX_Uni"),
            *(_closer("MIDX_Uni", far) for far in ("Kernel", "DNS", "Popularity", "Uniform")),
        ),
        other="network, as the rows say",
        detail=_network,
        files=_FILES,
    ),
    Table(
        FASTVAE,
        "Figure 3",
        "samplers by epoch, Gowalla",
        "fastvae",
        (
            Column(
                "all samplers", tuple(Method(x, (), partial(_curve, x)) for x in _TRAINED), (_LAST,)
            ),
        ),
        _LENGTH,
        statements=(
            *(
                _ahead(better, worse)
                for better in ("MIDX_Pop", "MIDX_Uni")
                for worse in ("Popularity", "Uniform", "Kernel")
            ),
            Statement("MIDX_Pop and MIDX_Uni are as good as Mult-VAE (within 1 %)", _equal_to_full),
        ),
        other="network and log, as the rows say",
        differs=f"{_ON_MOVIELENS}, with 200 draws. Netflix is not available.",
        detail=_network,
        files=_FILES,
    ),
    Table(
        FASTVAE,
        "Figure 4",
        "time by number of items",
        "fastvae",
        (_TIME,),
        statements=(
            Statement("The time of the full softmax rises with the number of items", _grows),
            Statement(
                "With about a million items training with draws is more than six times as fast",
                _faster,
            ),
        ),
        other="synthetic items, processor",
        differs="Synthetic items and one step on a processor; published for epochs on a GPU.",
        missing="The static samplers and MIDX_Pop are not timed.",
        files=(_OURS,),
    ),
    Table(
        FASTVAE,
        "Figure 5",
        "number of draws and of codewords, Gowalla",
        "fastvae",
        (
            _sensitivity(("Uniform", "MIDX_Uni"), "draws", _DRAWS),
            _sensitivity(("MIDX_Uni",), "codewords", _WORDS),
        ),
        _LENGTH,
        statements=(
            Statement(
                "Both samplers are better with more draws",
                lambda rows: every(
                    [_rises(rows, label, "draws") for label in ("MIDX_Uni", "Uniform")]
                ),
            ),
            Statement("With few draws the gain of MIDX_Uni is larger", _gap_shrinks),
            Statement(
                "MIDX_Uni is better with more codewords",
                lambda rows: _rises(rows, "MIDX_Uni", "codewords"),
            ),
        ),
        other="network and log, as the rows say",
        differs=f"{_ON_MOVIELENS}; codewords are varied with {figures.SMALL_SAMPLE} draws there.",
        detail=_network,
        files=_FILES,
    ),
)
