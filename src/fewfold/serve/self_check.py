"""Check that a loaded model answers, before it takes over."""

import itertools
import math

import torch

from fewfold.recommender.interactions import Jagged
from fewfold.recommender.queries import Queries
from fewfold.recommender.ranking.search import Search
from fewfold.recommender.recommendations import RankOptions, Recommendations, recommend
from fewfold.recommender.recommender_state import RecommenderState

__all__ = ["self_check"]

_K = 10
_HISTORIES = 4  # of one item each


def self_check(state: RecommenderState, search: Search | None = None) -> None:
    """Raise a ValueError unless a model ranks items for a few histories and for an empty one.

    Scores must be finite and sorted, items different and not those of the history. For an empty
    history there must be as many as were asked for.
    """
    trained = state.trained_items.nonzero().squeeze(1)[:_HISTORIES]
    ends = torch.arange(len(trained) + 2).clamp(max=len(trained))
    histories = Jagged(trained, ends)  # the last one is empty
    queries = Queries(histories, [None] * (len(trained) + 1))
    for options in (RankOptions(k=_K), RankOptions(k=_K, search=search)):
        answers = list(recommend(queries, state, options))
        for answer, seen in zip(answers, [*state.items.take(trained), None], strict=True):
            _check(answer, seen)
        if search is None:
            wanted = min(_K, int(state.trained_items.sum()))
            if len(answers[-1]) < wanted:
                raise ValueError(
                    f"it ranks {len(answers[-1])} items for an empty history instead of {wanted}"
                )
            return


def _check(answer: Recommendations, seen: object) -> None:
    scores = answer.scores
    if not all(map(math.isfinite, scores)):
        raise ValueError(f"its scores are not finite, got {scores}")
    if any(after > before for before, after in itertools.pairwise(scores)):
        raise ValueError(f"its scores are not sorted, got {scores}")
    if len(set(answer.items)) < len(answer) or seen in answer.items:
        raise ValueError(f"it ranks an item twice, or one of the history, got {answer.items}")
