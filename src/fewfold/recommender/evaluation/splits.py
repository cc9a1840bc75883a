"""Split interactions into training, fold-in and test sets."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewfold._check import int64_vector, whole_number
from fewfold.recommender.interactions import Interactions

__all__ = ["Split", "held_out_users", "last_out_split", "random_split", "temporal_split"]


@dataclass(frozen=True, eq=False)
class Split:
    """Training, fold-in and test interactions.

    Evaluate any split with ``top = model.fit(split.train).recommend(split.fold_in, k)`` and
    ``evaluate(top, split.test)``. For a validation set, split `train` again.

    Attributes:
        train: training interactions.
        test: test interactions; row r belongs to user `users[r]` and may be empty.
        fold_in: histories of the same users, excluded from the ranking; identical to `train` unless
            whole users are held out.
        users: (test.users,) numbers of these users before the split.
        kind: "random", "temporal", "last" or "users".
    """

    train: Interactions
    test: Interactions
    fold_in: Interactions
    users: Tensor
    kind: str = "random"


def random_split(interactions: Interactions, *, test: float = 0.2, seed: int = 0) -> Split:
    """Split each user's n items at random: ``round((1 - test) n)`` to train, the rest to test.

    Users with very few items have all of them in `train`. Of dislikes the same share is kept.
    Deterministic given the seed.

    Args:
        interactions: users x items.
        test: share to hold out, between 0 and 1.

    Returns:
        A `Split` in which every pair is in `train` or in `test`.

    Example:
        >>> from fewfold.recommender import Interactions, random_split
        >>> log = Interactions.from_pairs([0] * 10 + [1, 1], [*range(10), 0, 5])
        >>> split = random_split(log, test=0.2, seed=1)
        >>> split.train.jagged.lengths, split.test.jagged.lengths
        (tensor([8, 2]), tensor([2, 0]))

    Reference:
        Chen, Lian, Jin, Huang, Zheng, Chen (2022). Fast Variational AutoEncoder with Inverted
        Multi-Index for Collaborative Filtering. WWW.
    """
    _check_share(test, "test")
    generator = torch.Generator().manual_seed(seed)
    chosen, dislikes = _at_random(interactions, 1 - test, generator), interactions.dislikes
    if dislikes is not None:
        dislikes = dislikes.keep(_at_random(dislikes, 1 - test, generator))
    return _split_by_mask(interactions, chosen, "random", dislikes)


def temporal_split(interactions: Interactions, *, test: float = 0.2) -> Split:
    """Split at one point in time: interactions up to it are training data, later ones test data.

    The threshold is the ``1 - test`` quantile of the times, and belongs to `train`. Users and items
    that occur only later keep their numbers.

    Args:
        interactions: users x items, with times.
        test: share of pairs to hold out, between 0 and 1. Pairs of the same time stay
            together, so the actual share may be smaller.

    Returns:
        A `Split` in which every pair is in `train` or in `test`.

    Example:
        >>> from fewfold.recommender import Interactions, temporal_split
        >>> log = Interactions.from_pairs([0, 0, 1, 1], [0, 1, 0, 1], times=[1, 7, 3, 4])
        >>> temporal_split(log, test=0.25).test.rows([0, 1])
        Jagged(values=tensor([1]), offsets=tensor([0, 1, 1]))
    """
    _check_share(test, "test")
    times = _times_of(interactions, "temporal_split")
    rank = max(1, round((1 - test) * interactions.pairs))
    moment = times.sort().values[rank - 1]
    early = times <= moment
    if bool(early.all()):
        raise ValueError(
            f"nothing happened after {moment.item()}, which leaves test={test:g} empty; "
            "hold out a larger share, or use random_split"
        )
    dislikes = interactions.dislikes
    if dislikes is not None and dislikes.times is not None:
        dislikes = dislikes.keep(dislikes.times <= moment)
    return _split_by_mask(interactions, early, "temporal", dislikes)


def last_out_split(interactions: Interactions) -> Split:
    """Hold out the last item of every user.

    If a user has several items at their last time, all of them are test items; a user whose items
    all have the same time (such as a single item) keeps them in `train`.

    Args:
        interactions: users x items, with times.

    Returns:
        A `Split` in which every pair is in `train` or in `test`.

    Example:
        >>> from fewfold.recommender import Interactions, last_out_split
        >>> log = Interactions.from_pairs([0, 0, 0, 1], [0, 1, 2, 0], times=[1, 7, 3, 4])
        >>> last_out_split(log).test.rows([0, 1])
        Jagged(values=tensor([1]), offsets=tensor([0, 1, 1]))
    """
    times = _times_of(interactions, "last_out_split")
    row = interactions.row
    newest = _extreme_of_row(times, row, interactions.users, "amax")
    last = times == newest[row]
    first = times == _extreme_of_row(times, row, interactions.users, "amin")[row]
    dislikes = interactions.dislikes
    if dislikes is not None and dislikes.times is not None:
        dislikes = dislikes.keep(dislikes.times < newest[dislikes.row])
    return _split_by_mask(interactions, ~last | first, "last", dislikes)


def held_out_users(
    interactions: Interactions, *, users: Any, fold_in: float = 0.8, seed: int = 0
) -> Split:
    """Hold out whole users, with a part of their items as fold-in history.

    Of a user with n items, ``round(fold_in n)`` at random are folded in; the rest are test items.

    Args:
        interactions: users x items.
        users: number of users to draw at random, or user numbers.
        fold_in: share of their items to fold in, between 0 and 1.

    Returns:
        A `Split` whose `train` has the other users, renumbered, and whose `fold_in` and `test`
        have the held-out users, in the order of `users`.

    Example:
        >>> from fewfold.recommender import Interactions, held_out_users
        >>> log = Interactions.from_pairs([0] * 5 + [1] * 5 + [2] * 5, [*range(5)] * 3)
        >>> split = held_out_users(log, users=[1], fold_in=0.6)
        >>> split.train, split.fold_in.pairs, split.test.pairs
        (Interactions(users=2, items=5, pairs=10), 3, 2)

    Reference:
        Liang, Krishnan, Hoffman, Jebara (2018). Variational autoencoders for collaborative
        filtering. WWW.
    """
    _check_share(fold_in, "fold_in")
    generator = torch.Generator().manual_seed(seed)
    if isinstance(users, int):
        count = whole_number(users, "users")
        held = torch.randperm(interactions.users, generator=generator)[:count].sort().values
    else:
        held = int64_vector(users, "users")
        count = len(held)
        if count == 0 or len(held.unique()) < count:
            raise ValueError(
                "users must be different users, at least one; got none or a repetition"
            )
    if count >= interactions.users:
        raise ValueError(
            f"users must leave at least one user to train on: got {count} of {interactions.users}"
        )
    rest = torch.ones(interactions.users, dtype=torch.bool)
    held_out = interactions.select(held)
    rest[held] = False
    folded_in = _at_random(held_out, fold_in, generator)
    train = interactions.select(rest.nonzero().squeeze(-1))
    return Split(train, held_out.keep(~folded_in), held_out.keep(folded_in), held, "users")


def _split_by_mask(
    interactions: Interactions, train: Tensor, kind: str, dislikes: Interactions | None
) -> Split:
    """Split the pairs of all users by a boolean mask; these dislikes belong to the training."""
    training = interactions.keep(train).with_values(dislikes=dislikes)
    test = interactions.keep(~train).with_values(dislikes=None)
    return Split(training, test, training, torch.arange(interactions.users), kind)


def _at_random(interactions: Interactions, share: float, generator: torch.Generator) -> Tensor:
    """Return (pairs,) true for ``round(share n)`` random pairs of each user's n pairs."""
    noise = torch.rand(interactions.pairs, generator=generator, dtype=torch.float64)
    row = interactions.row
    # Pairs are grouped by user, and noise below 1 preserves the groups.
    order = torch.from_numpy(np.argsort((row + noise).numpy(), kind="stable"))
    quota = (interactions.jagged.lengths.double() * share).round()
    chosen = torch.empty(interactions.pairs, dtype=torch.bool)
    chosen[order] = torch.arange(interactions.pairs) - interactions.offsets[row] < quota[row]
    return chosen


def _extreme_of_row(values: Tensor, row: Tensor, rows: int, reduce: str) -> Tensor:
    """Reduce (pairs,) to (rows,) by `amax` or `amin`; the entry of an empty row is undefined."""
    return values.new_zeros(rows).scatter_reduce(0, row, values, reduce, include_self=False)


def _check_share(value: float, name: str) -> None:
    if not 0 < value < 1:
        raise ValueError(f"{name} must be a share between 0 and 1, got {value}")


def _times_of(interactions: Interactions, name: str) -> Tensor:
    if interactions.times is None or interactions.pairs == 0:
        raise ValueError(
            f"{name} needs to know when each pair happened; "
            "write Interactions.from_pairs(users, items, times), or use random_split"
        )
    return interactions.times
