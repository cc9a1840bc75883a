"""Tables of text classification with anchors: Liang et al., 2021."""

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
from experiments.text_classification.table import ELEVEN, PUBLISHED

_EPOCHS = Length("epochs", 200, lambda row: row.get("epochs", len(row["valid"])))
_FILES = ("results.json", "long.json")
_MEASURES = (
    Measure("accuracy, %", lambda row: row["test"]),
    Measure("millions of numbers", lambda row: row["numbers"] / 1e6),
)
# The names of our rows as patterns: first those of the published settings, then the nearest.
_NEWS = {
    "CNN": (ELEVEN["dense"], "dense"),
    "frequency": (ELEVEN["frequency"], "frequency||rows of frequent words"),
    "TF-IDF": (ELEVEN["TF-IDF"], "TF-IDF"),
    "group lasso": (ELEVEN["group lasso"], "group lasso"),
    "variational vocabulary dropout": (
        ELEVEN["variational vocabulary dropout"],
        "variational vocabulary dropout",
    ),
    "SparseVD": (ELEVEN["sparse variational dropout"], "sparse variational dropout"),
    "SparseVD-voc": (
        ELEVEN["sparse variational dropout of entries and words"],
        "sparse variational dropout of entries and words",
    ),
    "sparse code": (ELEVEN["sparse code, 100 frequent"], "sparse code.*"),
    "ANT, 50 frequent": (
        ELEVEN["ANT, 50 frequent, any non-zeros"],
        "ANT, 50 frequent.*||ANT, 20 frequent",
    ),
    "ANT, 10 frequent, domain knowledge": (
        ELEVEN["ANT, 10 frequent, any non-zeros"],
        "ANT, 10 frequent, .+||ANT, 20 frequent, co-occurrence",
    ),
    "ANT, 10 random, domain knowledge": (
        ELEVEN["ANT, 10 random, any non-zeros"],
        "ANT, 10 random, .+||ANT, 20 random",
    ),
}
_MIXTURE = {"ANT, 5, mixture": (PUBLISHED["ANT, 5, mixture"], "ANT, 5, mixture.*")}
_DBPEDIA = {
    "CNN": ((98.3, 144.0), "dense"),
    "sparse code": ((96.7, 39.0), "sparse code.*"),
    "ANT, 80 cluster": ((98.1, 30.0), "ANT, 80 cluster"),
    "ANT, 100 random": ((98.2, 28.0), "ANT, 100 random"),
    "ANT, 50 frequent, domain knowledge": ((97.3, 18.0), "ANT, 50 frequent, .+"),
    "ANT, 20 frequent, domain knowledge": ((97.2, 7.0), "ANT, 20 frequent, .+"),
}
_PARTIAL = (
    "Of AG-News 47,709 of the 120,000 training articles are available, so that only the order of "
    "accuracies can be compared. Where we have no row with the published anchors, that of the most "
    "similar ones is shown."
)


def _column(title: str, data: str, methods: dict[str, tuple[tuple[float, float], str]]) -> Column:
    lines = (
        Method(label, figures, named(pattern, data=data))
        for label, (figures, pattern) in methods.items()
    )
    return Column(title, tuple(lines), _MEASURES)


TABLES = (
    Table(
        ANCHORS,
        "Table 1",
        "text classification, AG-News",
        "text_classification",
        (_column("AG-News", "ag_news_partial", _NEWS),),
        _EPOCHS,
        files=_FILES,
        other="a part of AG-News, other anchors",
        differs=_PARTIAL,
    ),
    Table(
        ANCHORS,
        "Table 10",
        "text classification, more methods and corpora",
        "text_classification",
        (
            _column("AG-News", "ag_news_partial", _NEWS | _MIXTURE),
            _column("DBpedia", "dbpedia_partial", _DBPEDIA),
        ),
        _EPOCHS,
        files=_FILES,
        other="parts of AG-News and DBpedia, other anchors",
        differs=f"{_PARTIAL} Of DBpedia there are 13,794 of 560,000.",
        missing="DBpedia and the mixture on AG-News are not run.",
    ),
)
UNAVAILABLE = (Unavailable(ANCHORS, "Table 10, lower half", "Sogou-News and Yelp-review"),)
