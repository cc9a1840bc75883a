"""Figures of the inverted multi-index: Chen et al., 2022."""

from functools import partial
from statistics import mean

from experiments.evidence.fastvae_tables import EPOCHS, PUBLISHED_NETWORK
from experiments.evidence.papers import FASTVAE
from experiments.evidence.published import (
    Column,
    Length,
    Measure,
    Method,
    Statement,
    Table,
    exactly,
)
from experiments.evidence.statements import every, ordered
from experiments.fastvae import figures
from experiments.record import Row

_LENGTH = Length("epochs", EPOCHS, lambda row: row.get("epochs", figures.EPOCHS))
_LAST = Measure("NDCG@50, last epoch", lambda row: _last(row["NDCG@50"]), 4)
_SAMPLERS = {
    "Mult-VAE": figures.FULL,
    "MIDX_Pop": figures.INDEXED[0],
    "MIDX_Uni": figures.INDEXED[1],
    "Popularity": figures.STATIC[0],
    "Uniform": figures.STATIC[1],
    "Kernel": "kernel",
    "DNS": "dynamic negatives",
}
_INDEX, _UNIFORM = figures.INDEXED[1], figures.STATIC[1]
_DRAWS = figures.PUBLISHED_SAMPLE


def _last(value: float | list[float]) -> float:
    return value[-1] if isinstance(value, list) else value


def _trained(sampler: str, samples: int = 0, codewords: int = 0) -> dict[str, object]:
    """The fields of a training of Figures 3 and 5."""
    if sampler == figures.FULL:
        return {"figure": "training", "sampler": sampler}
    words = codewords if sampler in figures.INDEXED else 0
    return {"figure": "training", "sampler": sampler, "samples": samples, "codewords": words}


def _some(rows: list[Row], **key: object) -> list[Row]:
    return [row for row in rows if key.items() <= row.items()]


def _curves(label: str, rows: list[Row]) -> list[Row]:
    """Return trainings of a sampler: of the published network on Gowalla, if there are any."""
    sampler = _SAMPLERS[label]
    published = _some(rows, **PUBLISHED_NETWORK, data="gowalla")
    if published:
        return exactly(f"published network, {sampler}")(published)
    return _some(rows, **_trained(sampler, _DRAWS, 16))


def _ahead(better: str, worse: str) -> Statement:
    """The statement that a sampler ends ahead of another, at the published number of draws."""
    return Statement(
        f"{better} is better than {worse}",
        lambda rows: ordered([_curves(label, rows) for label in (worse, better)], _LAST.of),
    )


def _closer(near: str, far: str) -> Statement:
    """The statement that a proposal has a smaller divergence from the softmax than another."""
    keys = [{"model": "trained", "sampler": _SAMPLERS[label]} for label in (near, far)]
    return Statement(
        f"With a trained model {near} is closer to the softmax than {far}",
        lambda rows: ordered([_some(rows, **key) for key in keys], lambda row: row["kl"]),
    )


def _rises(rows: list[Row], sampler: str, field: str, values: tuple[int, ...]) -> bool | None:
    """Whether the result rises with the number of draws or of codewords."""
    samples = figures.SMALL_SAMPLE
    keys = [
        _trained(sampler, value, 16) if field == "samples" else _trained(sampler, samples, value)
        for value in values
    ]
    return ordered([_some(rows, **key) for key in keys], _LAST.of)


def _gap_shrinks(rows: list[Row]) -> bool | None:
    """Whether the gain of the index over uniform draws is larger with few than with many draws."""
    gains = []
    for samples in (min(figures.SAMPLES), max(figures.SAMPLES)):
        pair = [_some(rows, **_trained(name, samples, 16)) for name in (_INDEX, _UNIFORM)]
        if not all(pair):
            return None
        gains.append(_LAST.of(pair[0][0]) - _LAST.of(pair[1][0]))
    return gains[0] > gains[1]


def _faster(rows: list[Row]) -> bool | None:
    """Whether a step with draws is more than six times as fast at the largest catalogue."""
    last = max(figures.ITEMS)
    full, drawn = (
        [row["milliseconds"] for row in _some(rows, figure="time", items=last, sampler=mode)]
        for mode in (figures.FULL, figures.PER_USER)
    )
    return full[0] > 6 * drawn[0] if full and drawn else None


def _grows(rows: list[Row]) -> bool | None:
    """Whether the time of the full softmax rises with the number of items."""
    steps = [
        _some(rows, figure="time", items=items, sampler=figures.FULL) for items in figures.ITEMS
    ]
    return ordered(steps, lambda row: row["milliseconds"])


def _equal_to_full(rows: list[Row]) -> bool | None:
    """Whether both forms of the index end within 1 % of the full softmax, or above."""
    groups = [_curves(label, rows) for label in ("Mult-VAE", "MIDX_Pop", "MIDX_Uni")]
    if not all(groups):
        return None
    full, *drawn = (mean(_LAST.of(row) for row in some) for some in groups)
    return all(own >= 0.99 * full for own in drawn)


def _lines(keys: dict[str, dict[str, object]]) -> tuple[Method, ...]:
    """Methods of a figure; the fields of our rows."""
    return tuple(
        Method(label, (), lambda rows, key=key: _some(rows, **key)) for label, key in keys.items()
    )


_DIVERGENCE = Column(
    "MovieLens-10M, trained model",
    _lines(
        {
            label: {"figure": "divergence", "model": "trained", "sampler": sampler}
            for label, sampler in _SAMPLERS.items()
            if sampler != figures.FULL
        }
    ),
    (Measure("KL from the softmax, nats", lambda row: row["kl"], 3, lower=True),),
)
_CURVES = Column(
    "NDCG@50",
    tuple(Method(label, (), partial(_curves, label)) for label in _SAMPLERS if label != "DNS"),
    (_LAST,),
)
_TIME = Column(
    f"{max(figures.ITEMS):,} items",
    _lines(
        {
            label: {"figure": "time", "items": max(figures.ITEMS), "sampler": sampler}
            for label, sampler in {
                "Mult-VAE": figures.FULL,
                "MIDX_Uni": figures.PER_USER,
                "MIDX_Pop": "multi-index, popularity",
                "Uniform": "uniform",
                "Popularity": "popularity",
            }.items()
        }
    ),
    (Measure("milliseconds of a step", lambda row: row["milliseconds"], 0, lower=True),),
)
_SENSITIVE = (
    Column(
        "draws",
        _lines(
            {
                f"{label}, {samples:,} draws": _trained(_SAMPLERS[label], samples, 16)
                for label in ("Uniform", "MIDX_Uni")
                for samples in (200, 1000, 5000)
            }
        ),
        (_LAST,),
    ),
    Column(
        "codewords",
        _lines(
            {
                f"MIDX_Uni, {words} codewords": _trained(_INDEX, figures.SMALL_SAMPLE, words)
                for words in (8, 16, 32, 64, 128)
            }
        ),
        (_LAST,),
    ),
)
_ON_MOVIELENS = (
    f"On {figures.USERS:,} users of MovieLens-10M with our network; published for Gowalla"
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
            _closer("MIDX_Pop", "MIDX_Uni"),
            *(_closer("MIDX_Uni", far) for far in ("Kernel", "DNS", "Popularity", "Uniform")),
        ),
        other="network",
        missing="The kernel and dynamic negatives (DNS) are not measured.",
        files=("figures.json",),
    ),
    Table(
        FASTVAE,
        "Figure 3",
        "samplers by epoch",
        "fastvae",
        (_CURVES,),
        _LENGTH,
        statements=(
            *(
                _ahead(better, worse)
                for better in ("MIDX_Pop", "MIDX_Uni")
                for worse in ("Popularity", "Uniform", "Kernel")
            ),
            Statement("MIDX_Pop and MIDX_Uni are as good as Mult-VAE (within 1 %)", _equal_to_full),
        ),
        other="our network: on MovieLens-10M",
        differs=f"{_ON_MOVIELENS} and Netflix. Rows of the published network are of Gowalla.",
        files=("figures.json", "results.json"),
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
        files=("figures.json",),
    ),
    Table(
        FASTVAE,
        "Figure 5",
        "number of draws and of codewords",
        "fastvae",
        _SENSITIVE,
        _LENGTH,
        statements=(
            Statement(
                "Both samplers are better with more draws",
                lambda rows: every(
                    [
                        _rises(rows, sampler, "samples", figures.SAMPLES)
                        for sampler in (_INDEX, _UNIFORM)
                    ]
                ),
            ),
            Statement("With few draws the gain of MIDX_Uni is larger", _gap_shrinks),
            Statement(
                "MIDX_Uni is better with more codewords",
                lambda rows: _rises(rows, _INDEX, "codewords", figures.CODEWORDS),
            ),
        ),
        other="network; MovieLens-10M, not Gowalla",
        differs=f"{_ON_MOVIELENS}. Codewords are varied with {figures.SMALL_SAMPLE} draws.",
        missing="We have other numbers of draws and of codewords than the figure.",
        files=("figures.json",),
    ),
)
