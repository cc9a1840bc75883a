"""Tables and figures of discrete latent variables: Correia et al., 2020."""

from functools import partial
from itertools import product

from experiments.bit_vector_vae import run as bits
from experiments.bit_vector_vae.model import LARGE, SMALL
from experiments.bit_vector_vae.table import PUBLISHED as BITS
from experiments.evidence.papers import MARGINALIZATION
from experiments.evidence.published import (
    Column,
    Length,
    Measure,
    Method,
    Statement,
    Table,
    exactly,
    number,
)
from experiments.evidence.statements import every, longest, ordered
from experiments.record import Row
from experiments.semisupervised_vae import run as digits
from experiments.semisupervised_vae.table import PUBLISHED as DIGITS
from experiments.signalling_game import run as game
from experiments.signalling_game.table import PUBLISHED as GAME
from experiments.signalling_game.table import chosen, places

# Digits with a latent label


def _digits() -> tuple[Method, ...]:
    return tuple(
        Method(label, DIGITS[label][:1], exactly(label), DIGITS[label][1])
        if label in DIGITS
        else Method(label, (), exactly(label))
        for label in (*DIGITS, "ST Gumbel", "sum and sample")
    )


_ACCURACY = Measure("test accuracy, %", lambda row: row["test"])

# The signalling game

_FEATURES, _CLOTHES = ("signal-game", False), ("fashion-mnist", False)


def _played(method: str, rows: list[Row]) -> list[Row]:
    """Return our rows: with the published features if there are any, else with Fashion-MNIST."""
    place = _FEATURES if _FEATURES in places(rows) else _CLOTHES
    return chosen(rows, place, method)


def _game(label: str) -> Method:
    won, error = number(GAME[label][0])
    return Method(label, (won,), partial(_played, label), error)


_GAMES = tuple(_game(label) for label, (won, _) in GAME.items() if won)


def _settings(row: Row) -> str:
    return f"{row['data']}, rate {row['lr']:g}, entropy {row['entropy']:g}"


def _dense_at_first(rows: list[Row]) -> bool | None:
    """Whether a tenth of the calls of the first epoch or more are of all symbols."""
    own = _played("sparse", rows)
    return all(row["curve"]["high"][0] == _SYMBOLS for row in own) if own else None


def _few_at_last(rows: list[Row]) -> bool | None:
    """Whether the mean calls of the last epoch are at most those of the published test."""
    own, most = _played("sparse", rows), number(GAME["sparse"][1])[0]
    return all(row["curve"]["calls"][-1] <= most for row in own) if own else None


_SYMBOLS = 256
_WON = Measure("games won, %", lambda row: row["success"])
_CALLS = Measure("calls at the end", lambda row: row["curve"]["calls"][-1])
_OTHER_GAME = (
    "The published features of ImageNet are not available: ours is a game with images of "
    "Fashion-MNIST, of which only the order can be compared."
)

# Bit vectors

_SUMS, _SAMPLES = ("top-k sparsemax", "SparseMAP", "SparseMAP, budget"), ("SFE", "SFE+", "NVIL")


def _bits(size: int, measure: Measure, labels: tuple[str, ...] = (*BITS, "ST Gumbel")) -> Column:
    """All methods with so many bits; figures are published for bits/dim only."""
    place = (SMALL, LARGE).index(size)
    figures = {name: (both[place],) for name, both in BITS.items()} if measure is _NLL else {}
    methods = (Method(x, figures.get(x, ()), exactly(x, bits=size)) for x in labels)
    return Column(f"{size} bits", tuple(methods), (measure,))


_NLL = Measure("bits/dim", lambda row: row["bits/dim"], 3, lower=True)
_MEDIAN = Measure(
    "median calls, last epoch", lambda row: row["curve"][-1]["calls"]["quartiles"][1], 0
)
_VALID = Measure(
    "negative ELBO on validation, nats", lambda row: _bound(row["curve"][-1]), 0, lower=True
)


def _bound(epoch: Row) -> float:
    found: float = epoch["valid"]["distortion"] + epoch["valid"]["rate"]
    return found


def _further(rows: list[Row], field: str, sign: int) -> bool | None:
    """Whether each method that marginalises has more of a field than each unbiased sampler."""
    pairs = product(_SAMPLES, _SUMS)
    return every(
        [
            ordered(
                [longest(rows, method=name, bits=LARGE) for name in pair],
                lambda row: sign * row[field],
            )
            for pair in pairs
        ]
    )


def _full(rows: list[Row], size: int) -> bool | None:
    """Whether the median of top-k sparsemax is all k structures in the second half of training."""
    own = longest(rows, method="top-k sparsemax", bits=size)
    late = [epoch for row in own for epoch in row["curve"][len(row["curve"]) // 2 :]]
    return all(epoch["calls"]["quartiles"][1] == 10 for epoch in late) if late else None


def _sparse_at_once(rows: list[Row]) -> bool | None:
    """Whether SparseMAP has a median of at most ten structures in the first epoch."""
    own = [longest(rows, method="SparseMAP", bits=size) for size in (SMALL, LARGE)]
    if not all(own):
        return None
    first = [row["curve"][0]["calls"]["quartiles"][1] for rows in own for row in rows]
    return max(first) <= 10


def _sooner(rows: list[Row]) -> bool | None:
    """Whether top-k sparsemax reaches in fewer epochs what SFE has at its end."""
    own = longest(rows, method="top-k sparsemax", bits=SMALL)
    peer = longest(rows, method="SFE", bits=SMALL)
    if not own or not peer:
        return None
    final = _bound(peer[0]["curve"][-1])
    reached = [i for i, epoch in enumerate(own[0]["curve"], 1) if _bound(epoch) <= final]
    return bool(reached) and reached[0] < peer[0]["epochs"]


_BIT_EPOCHS = Length("epochs", bits.FULL, lambda row: row["epochs"])
_GAME_EPOCHS = Length("epochs", game.FULL, lambda row: row["epochs"])
_SIZES = (SMALL, LARGE)
_BIT_NOTE = "The likelihood is of 200 test images; the published one of all 10,000."
TABLES = (
    Table(
        MARGINALIZATION,
        "Figure 1",
        "semi-supervised VAE, MNIST",
        "semisupervised_vae",
        (Column("MNIST", _digits(), (_ACCURACY,)),),
        Length("epochs", digits.FULL, lambda row: row["epochs"]),
        10,
        differs="Figures of ST Gumbel and of sum and sample are published as curves only.",
    ),
    Table(
        MARGINALIZATION,
        "Table 1",
        "signalling game",
        "signalling_game",
        (Column("sixteen images", _GAMES, (_WON,)),),
        _GAME_EPOCHS,
        10,
        other="other images",
        differs=_OTHER_GAME,
        detail=_settings,
    ),
    Table(
        MARGINALIZATION,
        "Figure 2",
        "bit-vector VAE, Fashion-MNIST: likelihood, rate and distortion",
        "bit_vector_vae",
        tuple(_bits(size, _NLL) for size in _SIZES),
        _BIT_EPOCHS,
        1,
        statements=(
            Statement(
                "With 128 bits all methods that marginalise have a higher rate than SFE, SFE+ and "
                "NVIL",
                lambda rows: _further(rows, "rate", 1),
            ),
            Statement(
                "and they have a lower distortion", lambda rows: _further(rows, "distortion", -1)
            ),
        ),
        other="200 test images",
        differs=_BIT_NOTE,
    ),
    Table(
        MARGINALIZATION,
        "Figure 3",
        "bit-vector VAE, Fashion-MNIST: decoder calls of each epoch",
        "bit_vector_vae",
        tuple(_bits(size, _MEDIAN, _SUMS) for size in _SIZES),
        _BIT_EPOCHS,
        1,
        statements=(
            Statement(
                "With 32 bits the support of top-k sparsemax is smaller than k",
                lambda rows: None if (full := _full(rows, SMALL)) is None else not full,
            ),
            Statement("With 128 bits it is k throughout", lambda rows: _full(rows, LARGE)),
            Statement(
                "SparseMAP is very sparse from the start (a median of at most ten structures)",
                _sparse_at_once,
            ),
        ),
    ),
    Table(
        MARGINALIZATION,
        "Figure 4",
        "signalling game: calls of each epoch",
        "signalling_game",
        (Column("sixteen images", (Method("sparse", (), partial(_played, "sparse")),), (_CALLS,)),),
        _GAME_EPOCHS,
        10,
        statements=(
            Statement(
                "The support is dense right at the beginning (the 90th percentile of the first "
                "epoch is all symbols)",
                _dense_at_first,
            ),
            Statement(
                f"It falls to an average close to 1 (the last epoch has at most the "
                f"{GAME['sparse'][1].split()[0]} calls of the published test)",
                _few_at_last,
            ),
        ),
        other="other images",
        differs=_OTHER_GAME,
        detail=_settings,
    ),
    Table(
        MARGINALIZATION,
        "Figure 5",
        "bit-vector VAE, Fashion-MNIST: validation by epochs and by calls",
        "bit_vector_vae",
        tuple(_bits(size, _VALID) for size in _SIZES),
        _BIT_EPOCHS,
        1,
        statements=(
            Statement(
                "Top-k sparsemax with 32 bits reaches in fewer epochs what SFE has after its last",
                _sooner,
            ),
        ),
    ),
)  # fmt: skip
