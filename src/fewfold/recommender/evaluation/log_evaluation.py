"""Evaluate a fitted recommender on another log."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fewfold.recommender.errors import DataError
from fewfold.recommender.evaluation.holdout import (
    MAX_COLD_SHARE,
    check_choice,
    cold_share_of,
    hold_out,
    hold_out_some,
)
from fewfold.recommender.evaluation.metrics import Metric
from fewfold.recommender.evaluation.model_evaluation import (
    METRICS,
    Evaluation,
    assess,
    sample_users,
)
from fewfold.recommender.evaluation.splits import Split
from fewfold.recommender.interactions import Interactions, Jagged
from fewfold.recommender.reading.log import Log
from fewfold.recommender.recommender_state import RecommenderState

__all__ = ["LOG_SPLITS", "EvaluationSet", "evaluate_on_log", "evaluation_set"]

LOG_SPLITS = ("auto", "all", "last", "random")


def evaluate_on_log(
    state: RecommenderState,
    log: Log,
    *,
    split: str = "auto",
    metrics: Sequence[Metric] = METRICS,
    all_users: bool = False,
) -> Evaluation:
    """Rank all items for the users of a log and compare with its interactions.

    See `Recommender.evaluate`. Interactions that the model was trained on do not count.
    """
    if state.users is None or state.history is None:
        raise ValueError(
            "this model was saved without users, so that their training items cannot be excluded "
            "from the ranking; save it with users, or evaluate in the process that fits it"
        )
    who = state.users.find(log.users.tolist())
    ordered = state.fitted.recipe.ordered
    histories = state.history.rows(who.clamp(min=0), ordered=ordered)
    histories = histories.select((who >= 0)[histories.row])
    dislikes = state.history.disliked
    if dislikes is not None:
        dislikes = dislikes.rows(who.clamp(min=0))
        dislikes = dislikes.select((who >= 0)[dislikes.row])
    number = state.items.find(log.items.tolist())
    number = number.where(number >= 0, len(state.items) + torch.arange(len(number)))
    chosen = evaluation_set(
        log.interactions, histories, number, len(state.items), split=split, seed=state.seed,
        ordered=ordered,
    )  # fmt: skip
    files, pairs = log.summary.plan.files, log.interactions.pairs
    if chosen.repeated == pairs:
        raise DataError(
            f"all {chosen.repeated:,} interactions of {files[0]} are in the log the model was "
            "fitted to; evaluate on others"
        )
    description = f"{', '.join(files)}, {pairs:,} interactions"
    if chosen.repeated:
        description += f", {chosen.repeated:,} of which are in the training log and do not count"
    description += f"; {chosen.description}"
    users = None
    if not all_users:
        users = sample_users(
            state.fitted, chosen.histories, chosen.test, metric=metrics[0], seed=state.seed
        )
    return assess(
        state.fitted, chosen.histories, chosen.test, state.trained_items, split=description,
        metrics=metrics, users=users, dislikes=dislikes,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class EvaluationSet:
    """Input histories and test items for evaluating a fitted model on another log.

    Attributes:
        histories: of each user, as item numbers of the model.
        test: test items; numbers beyond the model's items are unknown to it.
        description: how the test items were chosen.
        repeated: interactions of the log that the model was trained on, which are ignored.
    """

    histories: Jagged
    test: Jagged
    description: str
    repeated: int


def evaluation_set(
    log: Interactions,
    histories: Jagged,
    number: Tensor,
    items: int,
    *,
    split: str = "auto",
    seed: int = 0,
    ordered: bool = False,
) -> EvaluationSet:
    """Choose the test interactions of a log and the history given to a fitted model.

    `all` tests every interaction, given the history stored in the model. `last` and `random` add
    the other interactions of the log to the history. `auto` uses `all`, unless most users have no
    history in the model; then `last` if times order items, else `random`.

    Args:
        log: the log to evaluate on.
        histories: of these users in the model.
        number: (items of the log,) their numbers in the model; `items` or above if unknown.
        items: number of items of the model.
        split: one of `LOG_SPLITS`.
        ordered: whether `histories` are from oldest to newest. The other interactions of the log,
            if they are given, then follow by time; otherwise the history is sorted.
    """
    check_choice(split, LOG_SPLITS)
    fresh = ~Jagged(number[log.ids], log.offsets).isin(histories)
    repeated, log = int((~fresh).sum()), log.keep(fresh)
    if log.pairs == 0:  # nothing is left to test
        return EvaluationSet(
            histories, Jagged(number[log.ids], log.offsets), "no interaction", repeated
        )
    cold_share = cold_share_of(histories, log.jagged)
    held: Split | None = None
    description, why = "every interaction", ""
    if split == "auto" and cold_share > MAX_COLD_SHARE:
        why = f"; the model knows nothing of {cold_share:.1%} of the users"
        held, description = hold_out_some(log, seed)
    elif split in ("last", "random"):
        held, description = hold_out(log, split=split, seed=seed)
    if held is None:
        return EvaluationSet(
            histories, Jagged(number[log.ids], log.offsets), description + why, repeated
        )
    fold_in = held.fold_in.rows(slice(None), ordered=ordered)
    fold_in = Jagged(number[fold_in.values], fold_in.offsets)
    fold_in = fold_in.select(fold_in.values < items)
    test = Jagged(number[held.test.ids], held.test.offsets)
    history = histories.append(fold_in) if ordered else histories.union(fold_in)
    return EvaluationSet(history, test, description + why, repeated)
