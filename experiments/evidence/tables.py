"""All published tables and figures, and the experiments that have none."""

from experiments.evidence import (
    fastvae_figures,
    fastvae_tables,
    language_tables,
    latent_tables,
    rating_tables,
    talk_tables,
    text_tables,
)
from experiments.evidence.papers import PAPERS
from experiments.evidence.published import Table, Unavailable

_ANCHORS = (*text_tables.TABLES, *language_tables.TABLES, *rating_tables.TABLES)
_FASTVAE = (*fastvae_tables.TABLES, *fastvae_figures.TABLES)


def _place(table: Table) -> tuple[int, bool, int]:
    """The order of a page: by paper, tables before figures, by number."""
    kind, _, rest = table.number.partition(" ")
    return PAPERS.index(table.paper), kind == "Figure", int(rest) if rest.isdigit() else 0


TABLES: tuple[Table, ...] = tuple(
    sorted((*_ANCHORS, *latent_tables.TABLES, *_FASTVAE, *talk_tables.TABLES), key=_place)
)
UNAVAILABLE: tuple[Unavailable, ...] = (
    *rating_tables.UNAVAILABLE,
    *text_tables.UNAVAILABLE,
    *language_tables.UNAVAILABLE,
    *fastvae_tables.UNAVAILABLE,
    *talk_tables.UNAVAILABLE,
)
# Experiments without a table of these papers, and what their rows are compared with.
NOTHING_PUBLISHED = {
    "alignments": "softmax of the same size",
    "best_by_default": "published figures of other papers, in its README",
    "distributed_training": "training by one process",
    "explanation_game": "words at random, and words that people marked",
    "language_model": "the full softmax",
    "rationales": "all sentences, and sentences at random",
    "recommender_compression": "dense tables",
    "sparse_language_model": "softmax, and sampling from a truncated one",
    "translation": "softmax of the same size",
}
