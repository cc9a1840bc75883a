"""Tables of language models with anchors: Liang et al., 2021."""

import math

from experiments.evidence.papers import ANCHORS
from experiments.evidence.published import (
    Column,
    Length,
    Measure,
    Method,
    Table,
    Unavailable,
    named,
)
from experiments.ptb_language_model.table import PUBLISHED
from experiments.record import Row

_FILES = ("results.json", "converged.json")  # the second with as many epochs as validation wants
_MEASURES = (
    Measure("test perplexity", lambda row: row["test"], 1, lower=True),
    Measure("millions of numbers", lambda row: row["parameters"] / 1e6),
)
_SMALL = 200  # width of the vectors in half of the published rows
_RANDOM_200 = {2000: (77.7, 0.65), 1000: (79.4, 0.41), 500: (84.5, 0.27), 100: (106.6, 0.05)}
_HASH = {1000: (118.8, 0.60), 500: (166.8, 0.30)}
_K_SVD = {1000: (78.0, 0.60), 500: (103.5, 0.30)}
_OTHERS = {  # published figures, and the names of our rows as patterns; none if not implemented
    "LSTM 200": ((77.1, 2.00), f"dense, width {_SMALL}"),
    "LSTM 256": (PUBLISHED["dense"], "dense"),
    "low-rank LSTM 200": ((112.1, 1.26), r"low rank \d+"),
    "tensor-train LSTM 200": ((116.6, 1.16), "tensor train.*"),
    "SparseVD 256": ((109.2, 1.34), ""),
    "SparseVD-voc 256": ((120.2, 0.52), ""),
    "AWD-LSTM": ((59.0, 4.00), ""),
    "AWD-LSTM, ANT, 1,000 random": ((72.0, 0.44), ""),
    "AWD-LSTM, ANT, 500 random": ((74.0, 0.26), ""),
    "AWD-LSTM, ANT, 1,000 frequent": ((77.0, 0.45), ""),
    "AWD-LSTM, ANT, 100 frequent, domain knowledge": (
        (70.0, 0.05),
        "ANT 100 frequency, WordNet",
    ),
}
_OBJECTIVES = {  # of four models, by the cost of an anchor
    "2e-5": {2000: 4.64, 1000: 4.61, 500: 4.62, 100: 4.92},
    "1e-4": {2000: 4.80, 1000: 4.69, 500: 4.66, 100: 4.93},
    "1e-1": {2000: 204.6, 1000: 104.6, 500: 54.6, 100: 14.9},
}
_OTHER = "optimiser, softmax; rows of two epochs: dropout, anchors are cut"
_DIFFERS = (
    "Adam and, unless the row says otherwise, a sampled softmax, where the paper has SGD. Rows of "
    "two epochs lack most of the published regularisation. Low rank, post-sparse hashing, k-SVD "
    "and domain knowledge are those of our LSTM of 256, not of an LSTM of 200 or an AWD-LSTM."
)


def _epochs(row: Row) -> float:
    found: float = row["epochs"] if "epochs" in row else row["budget"]["epochs"]
    return found


def _stopped(row: Row) -> bool:
    return "epochs" in row and bool(row["epochs"] < row["budget"]["most"])


_EPOCHS = Length("epochs", 500, _epochs, _stopped)


def _method(label: str, figures: tuple[float, ...], pattern: str) -> Method:
    return Method(label, figures, named(pattern, text="ptb"))


def _other(label: str) -> Method:
    return _method(label, *_OTHERS[label])


def _random(count: int, width: int, figures: tuple[float, ...]) -> Method:
    """A table with a penalty from the start, or one that is cut during training."""
    names = rf"ANT {count} random||anchors {count}, \d+ each"
    if width == _SMALL:
        names = rf"ANT {count} random, width {_SMALL}"
    return _method(f"ANT {width}, {count:,} random", figures, names)


def _after(count: int) -> tuple[Method, Method]:
    """The tables that are made of a trained one."""
    return (
        _method(f"post-sparse hash, {count:,}", _HASH[count], f"post-sparse hash {count}, .*"),
        _method(f"post-sparse hash and k-SVD, {count:,}", _K_SVD[count], f"k-SVD {count}, .*"),
    )


def _objective(cost: str) -> Measure:
    """The objective of a language model, with the published cost of a non-zero."""

    def of(row: Row) -> float:
        count = row["settings"]["anchors"]
        entry = 1e-5 if count <= 100 else 1e-6
        entries = row["parameters"] - count * _SMALL
        return math.log(row["test"]) + entry * entries + (float(cost) - entry) * count

    return Measure("objective", of, lower=True)


def _detail(row: Row) -> str:
    """How a table of anchors was trained."""
    after = row["settings"].get("after")
    if after is None:
        return ""
    return f"signed entries, cut after {100 * after:.0f} % of the steps without a penalty"


_ANT_256 = {
    count: _random(count, 256, PUBLISHED[f"anchors {count}"]) for count in (2000, 1000, 500, 100)
}
_LSTM = tuple(map(_other, [*_OTHERS][:6]))
_AWD = tuple(map(_other, [*_OTHERS][6:]))
TABLES = (
    Table(
        ANCHORS,
        "Table 2",
        "language models, Penn Treebank",
        "ptb_language_model",
        (
            Column(
                "Penn Treebank",
                (
                    *_LSTM[1:],
                    _AWD[0],
                    *_after(1000),
                    *(_ANT_256[count] for count in (2000, 1000, 100)),
                    _AWD[-1],
                ),
                _MEASURES,
            ),
        ),
        _EPOCHS,
        files=_FILES,
        other=_OTHER,
        differs=_DIFFERS,
        missing="The methods without rows are not implemented or not run.",
        detail=_detail,
    ),
    Table(
        ANCHORS,
        "Table 11",
        "language models, more methods, Penn Treebank",
        "ptb_language_model",
        (
            Column(
                "LSTM",
                (
                    *_LSTM,
                    *(_random(count, _SMALL, both) for count, both in _RANDOM_200.items()),
                    *_ANT_256.values(),
                ),
                _MEASURES,
            ),
            Column("AWD-LSTM", (_AWD[0], *_after(1000), *_after(500), *_AWD[1:]), _MEASURES),
        ),
        _EPOCHS,
        files=_FILES,
        other=_OTHER,
        differs=_DIFFERS,
        missing="Vectors of 200 are not run; the AWD-LSTM and the others are not implemented.",
        detail=_detail,
    ),
    Table(
        ANCHORS,
        "Table 14",
        "number of anchors by the objective, Penn Treebank",
        "ptb_language_model",
        tuple(
            Column(
                f"{cost} for an anchor",
                tuple(_random(count, _SMALL, (figure,)) for count, figure in figures.items()),
                (_objective(cost),),
            )
            for cost, figures in _OBJECTIVES.items()
        ),
        _EPOCHS,
        files=_FILES,
        missing="It is computed from models with vectors of 200, which are not run.",
        detail=_detail,
    ),
)
UNAVAILABLE = (Unavailable(ANCHORS, "Table 12; Table 2, lower half", "WikiText-103"),)
