"""Tables and figures of Hopfield networks and of mixed distributions.

Santos et al., 2024, and Farinhas et al., 2022.
"""

from functools import partial

from experiments.evidence.papers import HOPFIELD, MIXED
from experiments.evidence.published import (
    Column,
    Length,
    Measure,
    Method,
    Select,
    Statement,
    Table,
    Unavailable,
    exactly,
    number,
)
from experiments.evidence.statements import every, ordered
from experiments.hopfield_landscapes import run as landscapes
from experiments.mixed_communication.table import PUBLISHED as MESSAGES
from experiments.mixed_communication.table import chosen, places
from experiments.mixed_vae.run import FULL
from experiments.mixed_vae.table import FIGURES
from experiments.mixed_vae.table import PUBLISHED as LATENTS
from experiments.multiple_instance_learning.run import FULL as BAGS
from experiments.multiple_instance_learning.run import NINES, TASKS
from experiments.multiple_instance_learning.table import PUBLISHED, published
from experiments.record import Row
from experiments.signalling_game.run import FULL as GAMES

# Multiple instance learning


def _longest(select: Select, rows: list[Row]) -> list[Row]:
    """Return the runs with the most steps, as in the table of the README."""
    found = select(rows)
    steps = [row["most epochs"] / row["bags per step"] for row in found]
    return [row for row, own in zip(found, steps, strict=True) if own == max(steps)]


def _task(task: str) -> Column:
    digits = task in NINES
    what, title = ("right", f"K = {task}") if digits else ("area", task.capitalize())
    measure = Measure(
        "accuracy, %" if digits else "area under the curve, %", lambda row: row["test"][what], 1
    )
    methods = []
    for label in PUBLISHED:
        mean, deviation = published(label)[task]
        ours = partial(_longest, exactly(label, task=task))
        methods.append(Method(label, (mean,), ours, deviation))
    return Column(title, tuple(methods), (measure,))


def _bags(row: Row) -> str:
    return f"{row['bags per step']} bags a step"


# Metastable states


def _share(size: int, row: Row) -> float:
    found: float = row["per cent"][size]
    return found


def _retrieved(rows: list[Row], name: str, beta: float) -> list[Row]:
    """The rows with the most queries."""
    own = [row for row in rows if (row["map"], row["beta"]) == (name, beta)]
    most = max((row["queries"] for row in own), default=0)
    return [row for row in own if row["queries"] == most]


def _single(rows: list[Row], beta: float) -> bool | None:
    """Whether single patterns are more frequent with a larger alpha."""
    names = ("softmax", "1.5-entmax", "sparsemax")
    return ordered([_retrieved(rows, name, beta) for name in names], partial(_share, 1))


def _subsets(rows: list[Row]) -> bool | None:
    """Whether most queries of maps of k-subsets end between k patterns."""
    found = []
    for size in (2, 4, 8):
        for beta in landscapes.BETAS:
            own = _retrieved(rows, f"{size}-subsets", beta)
            found.append(all(_share(size, row) > 50 for row in own) if own else None)
    return every(found)


def _mixtures(rows: list[Row]) -> bool | None:
    """Whether the normmax with the larger alpha has fewer single patterns."""
    names = ("normmax 5", "normmax 2")
    groups = [_retrieved(rows, name, min(landscapes.BETAS)) for name in names]
    return ordered(groups, partial(_share, 1))


def _states(beta: float) -> Column:
    methods = (Method(label, (), exactly(label, beta=beta)) for label in landscapes.MAPS)
    return Column(
        f"beta {beta:g}",
        tuple(methods),
        (Measure("queries that end at one pattern, %", partial(_share, 1), 1),),
    )


# Mixed distributions


def _message(label: str) -> Method:
    def ours(rows: list[Row]) -> list[Row]:
        place = "signal-game" if "signal-game" in places(rows) else "fashion-mnist"
        return chosen(rows, place, label)

    won, error = number(MESSAGES[label][0])
    symbols, _ = number(MESSAGES[label][1])
    return Method(label, (won, symbols), ours, error)


_MESSAGES = Column(
    "sixteen images",
    tuple(_message(label) for label, (won, _) in MESSAGES.items() if won),
    (
        Measure("games won, %", lambda row: row["success"]),
        Measure("symbols in a message", lambda row: row["symbols"]),
    ),
)


def _nats(field: str, row: Row) -> float:
    found: float = row[field]
    return found


_FIELDS = (FIGURES[2], *FIGURES[:2])  # the likelihood first: by it they are compared
_LATENTS = Column(
    "MNIST",
    tuple(
        Method(label, (nll, distortion, rate), exactly(label))
        for label, (distortion, rate, nll) in LATENTS.items()
    ),
    tuple(Measure(field, partial(_nats, field), lower=True) for field in _FIELDS),
)
TABLES = (
    Table(
        HOPFIELD,
        "Table of multiple instance learning",
        "bags of MNIST digits, and Fox, Tiger, Elephant",
        "multiple_instance_learning",
        tuple(map(_task, TASKS)),
        Length("epochs", BAGS.digits.epochs, lambda row: row["most epochs"]),
        5,
        other="bags a step; search of settings",
        differs="Epochs are the most that a run may have. The published runs have one bag a step "
        "and a larger search of settings.",
        detail=_bags,
    ),
    Table(
        HOPFIELD,
        "Figures of basins of attraction and of metastable states",
        "states in which queries of MNIST end",
        "hopfield_landscapes",
        tuple(map(_states, landscapes.BETAS)),
        Length("queries", landscapes.FULL, lambda row: row["queries"]),
        statements=(
            Statement(
                "Alpha-entmax ends more often at a single pattern as alpha grows (beta 0.1)",
                lambda rows: _single(rows, min(landscapes.BETAS)),
            ),
            Statement(
                "Alpha-normmax ends more often at averages of several patterns as alpha grows "
                "(beta 0.1)",
                _mixtures,
            ),
            Statement("Maps of k-subsets end between k patterns (most queries)", _subsets),
        ),
        differs="The published shares are not available; basins are drawn in the README.",
    ),
    Table(
        MIXED,
        "Table of emergent communication",
        "signalling game with mixed messages",
        "mixed_communication",
        (_MESSAGES,),
        Length("epochs", GAMES, lambda row: row["epochs"]),
        10,
        other="other images",
        differs="The published features of ImageNet are not available: ours is a game with images "
        "of Fashion-MNIST, of which only the order and the number of symbols can be compared.",
        detail=lambda row: f"{row['data']}, rate {row['lr']:g}",
    ),
    Table(
        MIXED,
        "Table of the MNIST autoencoder",
        "mixed latent distributions, MNIST",
        "mixed_vae",
        (_LATENTS,),
        Length("epochs", FULL, lambda row: row["epochs"]),
        5,
        other="dropout, warm-up, decay",
        differs="Without the published dropout, warm-up and decay of the inference network.",
    ),
)
UNAVAILABLE = (
    Unavailable(MIXED, "Bit-vector VAE with mixed latents", "the published figures"),
    Unavailable(MIXED, "Regression on the simplex", "UK election shares"),
)
